// Loops over blocks of code points without branches, which are left to the compiler to vectorise.
// Long blocks are tried as ASCII first; behind the ASCII that one begins with, a second test tells
// which loop a shorter block takes. Only if that holds a character of 4 bytes or a surrogate, its
// characters go one by one.
#include "lmworks/utf8_encode.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace lmworks {
namespace {

constexpr size_t kAsciiBlock = 32, kBlock = 16;

bool is_surrogate(uint32_t c) { return (c & 0xFFFFF800u) == 0xD800; }
uint8_t lead(uint32_t bits, uint32_t c) { return static_cast<uint8_t>(bits | c); }
uint8_t inner(uint32_t c) { return static_cast<uint8_t>(0x80 | (c & 0x3F)); }

// Characters of 1 or 2 bytes. Two are written each time: there is room for two.
template <class Unit>
uint8_t* put_up_to_2(const Unit* p, uint8_t* out) {
  for (size_t i = 0; i < kBlock; ++i) {
    const uint32_t c = p[i];
    const bool is_two = c >= 0x80;
    out[0] = is_two ? lead(0xC0, c >> 6) : static_cast<uint8_t>(c);
    out[1] = inner(c);
    out += 1 + is_two;
  }
  return out;
}

// Characters of 1 to 3 bytes, not all of 3: a word of four bytes is written each time, and there
// is room for three per character.
template <class Unit>
uint8_t* put_up_to_3(const Unit* p, uint8_t* out) {
  for (size_t i = 0; i < kBlock; ++i) {
    const uint32_t c = p[i];
    const bool is_two = c >= 0x80, is_three = c >= 0x800;
    const uint32_t last_two = uint32_t{inner(c)} << 8 | inner(c >> 6);
    const uint32_t two = last_two | 0x40, three = last_two << 8 | lead(0xE0, c >> 12);
    // Masks instead of conditions, of which compilers make branches.
    uint32_t word = c ^ ((c ^ two) & -uint32_t{is_two});
    word ^= (two ^ three) & -uint32_t{is_three};
    std::memcpy(out, &word, sizeof word);
    out += 1 + is_two + is_three;
  }
  return out;
}

// One character, of one or two units.
template <class Unit>
uint8_t* put_any(const Unit*& p, const Unit* end, uint8_t* out) {
  uint32_t c = *p++;
  if (c < 0x80) {
    *out++ = static_cast<uint8_t>(c);
    return out;
  }
  if (c < 0x800) {
    *out++ = lead(0xC0, c >> 6);
    *out++ = inner(c);
    return out;
  }
  if (is_surrogate(c)) {
    const bool is_pair = c < 0xDC00 && p < end && (*p & 0xFFFFFC00u) == 0xDC00;
    c = is_pair ? 0x10000 + ((c & 0x3FF) << 10 | (*p++ & 0x3FF)) : 0xFFFD;
  }
  if (c < 0x10000) {
    *out++ = lead(0xE0, c >> 12);
  } else {
    *out++ = lead(0xF0, c >> 18);
    *out++ = inner(c >> 12);
  }
  *out++ = inner(c >> 6);
  *out++ = inner(c);
  return out;
}

// By words of 64 bits, of which fewer are left to be joined in the end.
template <class Unit>
bool is_ascii(const Unit* p) {
  constexpr uint64_t kRest = ~uint64_t{0} / static_cast<Unit>(~Unit{0}) * static_cast<Unit>(~0x7Fu);
  uint64_t words[kAsciiBlock * sizeof(Unit) / 8], all_bits = 0;
  std::memcpy(words, p, sizeof words);
  for (const uint64_t word : words) all_bits |= word;
  return (all_bits & kRest) == 0;
}

// Copies the units of a block up to the first that is not ASCII and returns their number.
template <class Unit>
size_t put_ascii(const Unit* p, uint8_t* out) {
  size_t count = 0;
  while (p[count] < 0x80) {
    out[count] = static_cast<uint8_t>(p[count]);
    ++count;
  }
  return count;
}

// A block of any characters.
template <class Unit>
uint8_t* put_block(const Unit*& p, const Unit* end, uint8_t* out) {
  Unit all_bits = 0, least = p[0], from_surrogates = 1;
  for (size_t i = 0; i < kBlock; ++i) {
    all_bits |= p[i];
    least = std::min(least, p[i]);
    from_surrogates = std::min<Unit>(from_surrogates, (p[i] ^ 0xD800) & static_cast<Unit>(~0x7FFu));
  }
  const Unit* const stop = p + kBlock;
  if (all_bits >= 0x10000 || (sizeof(Unit) > 1 && from_surrogates == 0)) {
    while (p < stop) out = put_any(p, end, out);
    return out;
  }
  const Unit* const block = std::exchange(p, stop);
  if (all_bits < 0x800) return put_up_to_2(block, out);
  if (least < 0x800) return put_up_to_3(block, out);
  for (size_t i = 0; i < kBlock; ++i) {
    const uint32_t c = block[i];
    out[3 * i] = lead(0xE0, c >> 12);
    out[3 * i + 1] = inner(c >> 6);
    out[3 * i + 2] = inner(c);
  }
  return out + 3 * kBlock;
}

template <class Unit>
uint8_t* encode(const Unit* p, size_t size, uint8_t* out) {
  const Unit* const end = p + size;
  while (static_cast<size_t>(end - p) >= kAsciiBlock) {
    if (is_ascii(p)) {
      for (size_t i = 0; i < kAsciiBlock; ++i) out[i] = static_cast<uint8_t>(p[i]);
      p += kAsciiBlock;
      out += kAsciiBlock;
      continue;
    }
    const size_t num_ascii = put_ascii(p, out);
    p += num_ascii;
    out += num_ascii;
    // Behind ASCII there is often just one other character, as a quotation mark.
    out = num_ascii == 0 ? put_block(p, end, out) : put_any(p, end, out);
  }
  while (p < end) out = put_any(p, end, out);
  return out;
}

}  // namespace

uint8_t* encode_utf8(const TextView& text, uint8_t* out) {
  switch (text.unit) {
    case TextView::Unit::kLatin1:
      return encode(static_cast<const uint8_t*>(text.data), text.size, out);
    case TextView::Unit::kUcs2:
      return encode(static_cast<const uint16_t*>(text.data), text.size, out);
    case TextView::Unit::kUcs4:
      return encode(static_cast<const uint32_t*>(text.data), text.size, out);
    case TextView::Unit::kUtf8:
      break;
  }
  return std::copy_n(static_cast<const uint8_t*>(text.data), text.size, out);
}

std::span<const uint8_t> Utf8Buffer::utf8_of(const TextView& text) {
  if (text.unit == TextView::Unit::kUtf8) {
    return {static_cast<const uint8_t*>(text.data), text.size};
  }
  const size_t needed = max_utf8_bytes(text);
  if (needed > capacity_) {
    bytes_.reset();
    capacity_ = 0;
    // Not cleared: memory is taken only where bytes are written.
    bytes_.reset(new uint8_t[needed + needed / 2]);
    capacity_ = needed + needed / 2;
  }
  return {bytes_.get(), encode_utf8(text, bytes_.get())};
}

}  // namespace lmworks
