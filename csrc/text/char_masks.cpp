#include "char_masks.h"

#include <bit>
#include <cstring>

#include "lmworks/dispatch.h"
#include "lmworks/unicode.h"

namespace lmworks {

// Words k .. end - 1 from the text, which begins with word k: ASCII only (isa/char_masks.cpp).
using FillAscii = void(const uint8_t* text, size_t k, size_t end, bool has_case, CharMasks& masks);
namespace portable {
FillAscii fill_ascii_masks;
}
#if defined(__x86_64__)
namespace avx2 {
FillAscii fill_ascii_masks;
}
namespace avx512 {
FillAscii fill_ascii_masks;
}
#endif

namespace {

FillAscii* chosen_fill() {
  switch (active_isa()) {
#if defined(__x86_64__)
    case Isa::avx512:
      return avx512::fill_ascii_masks;
    case Isa::avx2:
      return avx2::fill_ascii_masks;
#endif
    default:
      return portable::fill_ascii_masks;
  }
}

// The class words are in the order of the class bits.
size_t index_of(uint32_t char_class) { return std::countr_zero(char_class / kUpper); }
static_assert(kLower == kUpper << kLowerIndex && kCaseless == kUpper << kCaselessIndex);
static_assert(kMark == kUpper << kMarkIndex && kNumber == kUpper << kNumberIndex);
static_assert(kSpace == kUpper << kSpaceIndex);

}  // namespace

void CharMasks::fill(const uint8_t* text, size_t size, bool has_case) {
  static FillAscii* const fill_ascii = chosen_fill();
  const size_t num_whole = size / 64, num_rest = size % 64;
  const size_t num_words = num_whole + (num_rest != 0);
  fill_ascii(text, 0, num_whole, has_case, *this);
  if (num_rest != 0) {
    // Whole words are read, and the text may end where readable memory does.
    uint8_t tail[64] = {};
    std::memcpy(tail, text + 64 * num_whole, num_rest);
    fill_ascii(tail, num_whole, num_words, has_case, *this);
    cls[num_whole][kSpaceIndex] |= ~uint64_t{0} << num_rest;
  }
  for (size_t i = 0; i < kNumClasses; ++i) cls[num_words][i] = 0;
  cls[num_words][kSpaceIndex] = ~uint64_t{0};
  blank[num_words] = 0;
  has_wide_space = false;
  uint64_t any = 0;
  for (size_t k = 0; k < num_words; ++k) {
    first[k] = ~uint64_t{0};
    any |= high[k];
  }
  if (any != 0) fill_high(text, size, num_words);
}

void CharMasks::fill_high(const uint8_t* text, size_t size, size_t num_words) {
  const uint8_t* const end = text + size;
  uint64_t spilled = 0;  // bytes of the next word that belong to the last character of this one
  for (size_t k = 0; k < num_words; ++k) {
    const uint64_t of_2 = letter_of_2[k] & ~spilled, of_3 = letter_of_3[k] & ~spilled;
    const uint64_t inner = of_2 << 1 | of_3 << 1 | of_3 << 2;
    cls[k][kCaselessIndex] |= of_2 | of_3 | inner;
    first[k] &= ~inner;
    uint64_t left = high[k] & ~(spilled | of_2 | of_3 | inner);
    spilled = 0;
    while (left != 0) {
      const int i = std::countr_zero(left);
      const Char c = classify(text + 64 * k + i, end);
      const uint64_t bytes = (uint64_t{1} << c.size) - 1;
      const uint64_t here = bytes << i;
      left &= ~here;
      first[k] &= ~(here & here << 1);
      const size_t num_spilled = i + c.size > 64 ? i + c.size - 64 : 0;
      const uint64_t there = (uint64_t{1} << num_spilled) - 1;
      spilled = there;
      if (num_spilled != 0) first[k + 1] &= ~there;
      if ((c.cls & kOther) != 0) continue;
      const size_t index = index_of(c.cls);
      has_wide_space |= index == kSpaceIndex;
      cls[k][index] |= here;
      cls[k + 1][index] |= there;
    }
  }
}

}  // namespace lmworks
