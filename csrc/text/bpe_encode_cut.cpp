// Where text without a pre-tokenizer pattern may be cut all the same.
#include <algorithm>
#include <bit>

#include "lmworks/bpe_encode.h"

namespace lmworks {
namespace {

bool is_continuation(uint8_t byte) { return (byte & 0xC0) == 0x80; }

struct Utf8Char {
  uint32_t packed;  // its bytes, the first one lowest
  uint32_t size;
};

// The character at `p`: by its first byte when that many continuation bytes follow, else that byte.
// Written out by sizes: a loop or a memcpy of a variable size takes several times as long.
inline Utf8Char char_at(const uint8_t* p, const uint8_t* end) {
  const uint32_t first = *p;
  const size_t left = static_cast<size_t>(end - p);
  if (first < 0xC2 || first > 0xF4) return {first, 1};
  if (left < 2 || !is_continuation(p[1])) return {first, 1};
  const uint32_t two = first | static_cast<uint32_t>(p[1]) << 8;
  if (first < 0xE0) return {two, 2};
  if (left < 3 || !is_continuation(p[2])) return {first, 1};
  const uint32_t three = two | static_cast<uint32_t>(p[2]) << 16;
  if (first < 0xF0) return {three, 3};
  if (left < 4 || !is_continuation(p[3])) return {first, 1};
  return {three | static_cast<uint32_t>(p[3]) << 24, 4};
}

// A single unfinished character, as it is on the way from bytes to the whole one.
bool is_part_of_char(const uint8_t* p, size_t size) {
  return *p >= 0xC2 && std::all_of(p + 1, p + size, is_continuation);
}

}  // namespace

bool PieceCutter::is_joined(uint32_t left, uint32_t right) const {
  if ((left | right) < 0x80) return ascii_[left][right];
  const size_t i = slot(left, right);
  return others_[i / 64] >> (i % 64) & 1;
}

PieceCutter::PieceCutter(std::span<const uint8_t> token_bytes,
                         std::span<const uint64_t> token_offsets) {
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  for (size_t id = 0; id + 1 < token_offsets.size(); ++id) {
    const uint8_t* p = token_bytes.data() + token_offsets[id];
    const uint8_t* const end = token_bytes.data() + token_offsets[id + 1];
    const size_t size = static_cast<size_t>(end - p);
    if (size < 2 || is_part_of_char(p, size)) continue;
    uint32_t left = 0;
    for (bool is_first = true; p < end; is_first = false) {
      const auto [right, length] = char_at(p, end);
      // Parts of characters inside a longer token: its borders may then lie inside characters.
      if (length == 1 && *p >= 0x80) return;
      if (!is_first) pairs.emplace_back(left, right);
      left = right;
      p += length;
    }
  }
  // One bit for each pair, of at least 16: a false hit only makes a piece longer.
  const size_t num_bits = std::bit_ceil(std::max<size_t>(16 * pairs.size(), 64));
  shift_ = 64 - std::countr_zero(num_bits);
  others_.assign(num_bits / 64, 0);
  for (const auto& [left, right] : pairs) {
    if ((left | right) < 0x80) {
      ascii_[left][right] = true;
    } else {
      const size_t i = slot(left, right);
      others_[i / 64] |= uint64_t{1} << (i % 64);
    }
  }
  can_cut_ = true;
}

const uint8_t* PieceCutter::next(const uint8_t* p, const uint8_t* end) const {
  if (!can_cut_) return end;
  Utf8Char left = char_at(p, end);
  for (p += left.size; p < end;) {
    if ((left.packed | *p) < 0x80) {
      if (!is_joined(left.packed, *p)) return p;
      left.packed = *p++;
      continue;
    }
    const Utf8Char right = char_at(p, end);
    if (!is_continuation(*p) && !is_joined(left.packed, right.packed)) return p;
    left = right;
    p += right.size;
  }
  return end;
}

}  // namespace lmworks
