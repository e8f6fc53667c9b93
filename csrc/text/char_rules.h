#pragma once
// What a vocabulary's merges allow at the borders of characters. Both rules save work on text that
// is not ASCII and change no result.
//
// 1. may_cross: a border that no merge can ever cross cuts a piece into parts that may be encoded
// apart. A token crosses a border only if, before, a merge (left, right) joined a suffix of the
// text before it with a prefix of the text after it. So for every merge it is enough to note the
// last character of `left` and the first of `right`.
//
// 2. seed: merging may start from a character's own tokens instead of its bytes, if the merges
// inside of the character all have lower ranks than every merge across its borders that takes it,
// or a part of it, along. Then merging chooses the inner ones first, whatever stands around, and as
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

  // End of the part that starts at p < end: the first border after it that no merge can cross.
  const uint8_t* part_end(const uint8_t* p, const uint8_t* end) const {
    Char left = char_at(p, end);
    for (p += left.size; p < end;) {
      const Char right = char_at(p, end);
      if (!may_cross(left, right)) return p;
      left = right;
      p += right.size;
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
  struct Char {
    uint32_t packed;  // its bytes, the last one lowest; 0: not UTF-8
    uint32_t size;
    uint8_t first, last;
  };
  static Char char_at(const uint8_t* p, const uint8_t* end) {
    const size_t left = static_cast<size_t>(end - p);
    const uint8_t first = *p;
    if (first < 0x80) return {first, 1, first, first};
    if (first >= 0xE0 && first < 0xF0) {
      if (left < 3 || !is_inner_byte(p[1]) || !is_inner_byte(p[2])) return {0, 1, first, first};
      return {static_cast<uint32_t>(first << 16 | p[1] << 8 | p[2]), 3, first, p[2]};
    }
    if (first < 0xC0 || left < 2 || !is_inner_byte(p[1])) return {0, 1, first, first};
    if (first < 0xE0) return {static_cast<uint32_t>(first << 8 | p[1]), 2, first, p[1]};
    if (left < 4 || !is_inner_byte(p[2]) || !is_inner_byte(p[3])) return {0, 1, first, first};
    return {
        static_cast<uint32_t>(first) << 24 | static_cast<uint32_t>(p[1] << 16 | p[2] << 8 | p[3]),
        4, first, p[3]};
  }
  // Whether a merge may join two neighbours. True may be wrong, false is certain.
  bool may_cross(const Char& left, const Char& right) const {
    if (left.packed == 0 || right.packed == 0) return true;
    if (test(bytes_, left.last << 8 | right.first)) return true;
    if ((left.packed | right.packed) < 0x80) return false;
    return test(pairs_, hash(left.packed, right.packed));
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
