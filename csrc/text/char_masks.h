#pragma once
// The character classes of a stretch of text as words of bits: bit i of word k is byte 64 k + i.
// All bytes of a character carry its class.
#include <cstddef>
#include <cstdint>

#include "lmworks/boundaries.h"

namespace lmworks {

// A word past the text is read for what follows.
constexpr size_t kScanWords = kScanBytes / 64 + 2;

enum ClassIndex { kUpperIndex, kLowerIndex, kCaselessIndex, kMarkIndex, kNumberIndex, kSpaceIndex };
constexpr size_t kNumClasses = 6;  // all but the rest: punctuation, symbols, controls, ...

struct CharMasks {
  // At most kScanBytes of text. Past its end everything is white space. Without `has_case` all
  // ASCII letters count as lower case, and `slash` is empty.
  void fill(const uint8_t* text, size_t size, bool has_case);

  bool is_first(size_t i) const { return first[i / 64] >> i % 64 & 1; }

  uint64_t cls[kScanWords][kNumClasses];
  uint64_t first[kScanWords];  // first bytes of characters
  uint64_t high[kScanWords];   // bytes >= 0x80
  uint64_t blank[kScanWords];  // ' '
  // First bytes of letters that are known by their first bytes (all bytes in the same word).
  uint64_t letter_of_2[kScanWords], letter_of_3[kScanWords];
  uint64_t newline[kScanWords], apostrophe[kScanWords], slash[kScanWords];
  bool has_wide_space;  // white space of several bytes

 private:
  void fill_high(const uint8_t* text, size_t size, size_t num_words);
};

}  // namespace lmworks
