#pragma once
// Text in code points of 1, 2 or 4 bytes, as Python holds a str, to UTF-8.
//
// Surrogates: a high one and the low one behind it are the character that UTF-16 means by them, any
// other is U+FFFD.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace lmworks {

struct TextView {
  enum class Unit : uint8_t { kUtf8, kLatin1, kUcs2, kUcs4 };
  const void* data;
  size_t size;  // in units
  Unit unit;
};

// At least the bytes that encode_utf8 writes.
constexpr size_t max_utf8_bytes(const TextView& text) {
  constexpr size_t kPerUnit[] = {1, 2, 3, 4};
  return text.size * kPerUnit[static_cast<size_t>(text.unit)];
}

// Writes the UTF-8 of a text that is not UTF-8 already and returns the end of it.
uint8_t* encode_utf8(const TextView& text, uint8_t* out);

// Memory for the UTF-8 of one text at a time.
class Utf8Buffer {
 public:
  // Valid until the next call; of a text that is UTF-8, the text itself. Throws std::bad_alloc.
  std::span<const uint8_t> utf8_of(const TextView& text);
  // Gives back what a long text has left.
  void shrink() {
    if (capacity_ > kMaxKept) capacity_ = 0, bytes_.reset();
  }

 private:
  static constexpr size_t kMaxKept = size_t{1} << 20;

  std::unique_ptr<uint8_t[]> bytes_;
  size_t capacity_ = 0;
};

}  // namespace lmworks
