#pragma once
// What a vocabulary's merges allow at the borders of characters. Both rules save work on text that
// is not ASCII and change no result.
//
// 1. may_cross: a border that no merge can ever cross cuts a piece into parts that may be encoded
// apart. A token crosses a border only if, before, a merge (left, right) joined a suffix of the text
// before it with a prefix of the text after it. So for every merge it is enough to note the last
// character of `left` and the first of `right`.
//
// 2. seed: merging may start from a character's own tokens instead of its bytes, if the merges
// inside of the character all have lower ranks than every merge across its borders that takes it, or
// a part of it, along. Then merging chooses the inner ones first, whatever stands around, and as
// they touch nothing outside, doing them at once changes nothing.
//
// A character is here a byte other than 0x80..0xBF and the bytes 0x80..0xBF after it, so that text
// of any bytes has characters; the rules apply only to those of the size that UTF-8 gives them.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "lmworks/bpe_model.h"

namespace lmworks {

inline bool is_inner_byte(uint8_t byte) { return (byte & 0xC0) == 0x80; }

inline size_t utf8_size(uint8_t first) {
  return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

class CharRules {
 public:
  static constexpr uint32_t kMaxSeeds = 0x10000;

  CharRules(const BpeModel& model, std::span<const uint32_t> merges);

  // Between the characters [left, border) and [border, end). True may be wrong, false is certain.
  bool may_cross(const uint8_t* left, const uint8_t* border, const uint8_t* end) const {
    const size_t l_size = border - left, r_size = end - border;
    if (border[-1] < 0x80 && *border < 0x80) return test(bytes_, border[-1] << 8 | *border);
    if (is_inner_byte(*left) || l_size != utf8_size(*left) || r_size != utf8_size(*border)) {
      return true;
    }
    return test(bytes_, border[-1] << 8 | *border) ||
           test(pairs_, hash(pack_char(left, l_size), pack_char(border, r_size)));
  }

  // End of the part that starts at p: the first border after it that no merge can cross.
  const uint8_t* part_end(const uint8_t* p, const uint8_t* end) const {
    const uint8_t* left = p;
    for (const uint8_t* border = char_end(p, end); border < end;) {
      const uint8_t* const next = char_end(border, end);
      if (!may_cross(left, border, next)) return border;
      left = border;
      border = next;
    }
    return end;
  }

  // Tokens of a character that stands alone; the unused ones are kNoToken.
  struct Seed {
    uint32_t tokens[3];
  };
  // Of the code points 0x80 .. kMaxSeeds - 1.
  const Seed& alone(uint32_t code_point) const { return seeds_[code_point]; }
  // Null if merging must start from the bytes. `code_point` is at least 0x80.
  const Seed* seed(uint32_t code_point, bool is_after_ascii) const {
    if (code_point >= kMaxSeeds) return nullptr;
    const uint8_t needed = is_after_ascii ? kSafeAfterAscii : kSafeAfterOther;
    return (is_safe_[code_point] & needed) != 0 ? &seeds_[code_point] : nullptr;
  }

 private:
  static constexpr size_t kPairBits = size_t{1} << 20;
  static constexpr uint8_t kSafeAfterAscii = 1, kSafeAfterOther = 2;
  struct CrossingRanks;

  static const uint8_t* char_end(const uint8_t* p, const uint8_t* end) {
    do ++p;
    while (p < end && is_inner_byte(*p));
    return p;
  }
  static uint32_t pack_char(const uint8_t* p, size_t size) {
    uint32_t packed = 0;
    for (size_t i = 0; i < size; ++i) packed = packed << 8 | p[i];
    return packed;
  }
  static size_t hash(uint32_t left, uint32_t right) {
    return (static_cast<uint64_t>(left) << 32 | right) * 0x9E3779B97F4A7C15u >> 44;
  }
  static bool test(const std::vector<uint64_t>& words, size_t i) {
    return words[i / 64] >> i % 64 & 1;
  }

  void add_border(std::string_view left, std::string_view right);
  void add_seed(const BpeModel& model, uint32_t code_point, const CrossingRanks& crossing);

  std::vector<uint64_t> pairs_;  // of characters that may grow together, by hash
  // The two bytes at a border where one side is a part of a character or both are ASCII.
  std::vector<uint64_t> bytes_;
  std::vector<Seed> seeds_;
  std::vector<uint8_t> is_safe_;
};

}  // namespace lmworks
