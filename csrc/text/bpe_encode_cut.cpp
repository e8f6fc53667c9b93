// Where text without a pre-tokenizer pattern may be cut all the same.
#include <algorithm>
#include <bit>
#include <cstring>

#include "lmworks/bpe_encode.h"

namespace lmworks {
namespace {

bool is_continuation(uint8_t byte) { return (byte & 0xC0) == 0x80; }

// Size of the character at `p`: by its first byte when that many continuation bytes follow, else 1.
size_t char_size(const uint8_t* p, const uint8_t* end) {
  const size_t size = *p < 0xC2 ? 1 : *p < 0xE0 ? 2 : *p < 0xF0 ? 3 : *p < 0xF5 ? 4 : 1;
  if (size > static_cast<size_t>(end - p)) return 1;
  for (size_t i = 1; i < size; ++i) {
    if (!is_continuation(p[i])) return 1;
  }
  return size;
}

uint32_t packed(const uint8_t* p, size_t size) {
  uint32_t value = 0;
  std::memcpy(&value, p, size);
  return value;
}

// A single unfinished character, as it is on the way from bytes to the whole one.
bool is_part_of_char(const uint8_t* p, size_t size) {
  return *p >= 0xC2 && std::all_of(p + 1, p + size, is_continuation);
}

}  // namespace

size_t PieceCutter::slot(uint32_t left, uint32_t right) const {
  const uint64_t pair = static_cast<uint64_t>(left) << 32 | right;
  return (pair * 0x9E3779B97F4A7C15u ^ pair) * 0xD6E8FEB86659FD93u >> shift_;
}

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
      const size_t length = char_size(p, end);
      // Parts of characters inside a longer token: its borders may then lie inside characters.
      if (length == 1 && *p >= 0x80) return;
      const uint32_t right = packed(p, length);
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
  size_t size = char_size(p, end);
  uint32_t left = packed(p, size);
  for (p += size; p < end; p += size) {
    size = char_size(p, end);
    const uint32_t right = packed(p, size);
    if (!is_continuation(*p) && !is_joined(left, right)) return p;
    left = right;
  }
  return end;
}

}  // namespace lmworks
