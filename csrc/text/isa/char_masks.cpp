// The ASCII part of CharMasks, compiled once per instruction set (see lmworks/dispatch.h). Nothing
// but this function may be defined here: an inline function of a shared header would be compiled
// for an instruction set that the CPU may lack.
#include "../char_masks.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lmworks::LMWORKS_ISA {
namespace {

#if defined(__AVX512BW__)
using Vector = __m512i;
inline Vector load(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Vector lower(Vector v) { return _mm512_or_si512(v, _mm512_set1_epi8(0x20)); }
inline uint64_t equals(Vector v, char c) { return _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8(c)); }
inline uint64_t in_range(Vector v, uint8_t low, uint8_t high) {
  const Vector from_low = _mm512_sub_epi8(v, _mm512_set1_epi8(static_cast<char>(low)));
  return _mm512_cmple_epu8_mask(from_low, _mm512_set1_epi8(static_cast<char>(high - low)));
}
#elif defined(__AVX2__)
using Vector = __m256i;
inline Vector load(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const Vector*>(p));
}
inline Vector lower(Vector v) { return _mm256_or_si256(v, _mm256_set1_epi8(0x20)); }
inline uint64_t bits(Vector v) { return static_cast<uint32_t>(_mm256_movemask_epi8(v)); }
inline uint64_t equals(Vector v, char c) { return bits(_mm256_cmpeq_epi8(v, _mm256_set1_epi8(c))); }
inline uint64_t in_range(Vector v, uint8_t low, uint8_t high) {
  const Vector from_low = _mm256_sub_epi8(v, _mm256_set1_epi8(static_cast<char>(low)));
  const Vector most = _mm256_set1_epi8(static_cast<char>(high - low));
  return bits(_mm256_cmpeq_epi8(_mm256_min_epu8(from_low, most), from_low));
}
#elif defined(__SSE2__)
using Vector = __m128i;
inline Vector load(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const Vector*>(p)); }
inline Vector lower(Vector v) { return _mm_or_si128(v, _mm_set1_epi8(0x20)); }
inline uint64_t bits(Vector v) { return static_cast<uint32_t>(_mm_movemask_epi8(v)); }
inline uint64_t equals(Vector v, char c) { return bits(_mm_cmpeq_epi8(v, _mm_set1_epi8(c))); }
inline uint64_t in_range(Vector v, uint8_t low, uint8_t high) {
  const Vector from_low = _mm_sub_epi8(v, _mm_set1_epi8(static_cast<char>(low)));
  const Vector most = _mm_set1_epi8(static_cast<char>(high - low));
  return bits(_mm_cmpeq_epi8(_mm_min_epu8(from_low, most), from_low));
}
#else
struct Vector {
  const uint8_t* bytes;
};
inline Vector load(const uint8_t* p) { return {p}; }
inline uint64_t equals(Vector v, char c) { return *v.bytes == static_cast<uint8_t>(c); }
inline uint64_t in_range(Vector v, uint8_t low, uint8_t high) {
  return *v.bytes >= low && *v.bytes <= high;
}
inline uint64_t letters(Vector v) { return in_range(v, 'a', 'z') | in_range(v, 'A', 'Z'); }
#endif

#if defined(__SSE2__)
constexpr size_t kVectorBytes = sizeof(Vector);
inline uint64_t letters(Vector v) { return in_range(lower(v), 'a', 'z'); }
#else
constexpr size_t kVectorBytes = 1;
#endif

template <bool HasCase>
void fill(const uint8_t* text, size_t k, size_t end, CharMasks& m) {
  for (; k < end; ++k, text += 64) {
    uint64_t upper = 0, lower_or_any = 0, number = 0, space = 0, blank = 0, newline = 0;
    uint64_t apostrophe = 0, slash = 0, high = 0;
    uint64_t inner = 0, not_letter = 0, first_of_2 = 0, first_of_3 = 0;
    for (size_t shift = 0; shift < 64; shift += kVectorBytes) {
      const Vector v = load(text + shift);
      if constexpr (HasCase) {
        upper |= in_range(v, 'A', 'Z') << shift;
        lower_or_any |= in_range(v, 'a', 'z') << shift;
        slash |= equals(v, '/') << shift;
      } else {
        lower_or_any |= letters(v) << shift;
      }
      const uint64_t blanks = equals(v, ' ');
      number |= in_range(v, '0', '9') << shift;
      space |= (in_range(v, '\t', '\r') | blanks) << shift;
      blank |= blanks << shift;
      newline |= (equals(v, '\n') | equals(v, '\r')) << shift;
      apostrophe |= equals(v, '\'') << shift;
      high |= in_range(v, 0x80, 0xFF) << shift;
      inner |= in_range(v, 0x80, 0xBF) << shift;
      // U+4000..U+9FFF but for the hexagrams (E4 B7), U+B000..U+CFFF: Han and Hangul.
      first_of_3 |= (in_range(v, 0xE4, 0xE9) | in_range(v, 0xEB, 0xEC)) << shift;
      not_letter |= equals(v, static_cast<char>(0xB7)) << shift;
      if constexpr (!HasCase) {
        // U+00C0..U+023F but for the signs of multiplication and division (C3 97, C3 B7); U+0400..
        // U+047F. With case, letters are told apart one by one.
        first_of_2 |= (in_range(v, 0xC3, 0xC8) | in_range(v, 0xD0, 0xD1)) << shift;
        not_letter |= equals(v, static_cast<char>(0x97)) << shift;
      }
    }
    const uint64_t may_start = ~(not_letter >> 1) & inner >> 1;
    m.letter_of_2[k] = first_of_2 & may_start;
    m.letter_of_3[k] = first_of_3 & may_start & inner >> 2;
    m.cls[k][kUpperIndex] = upper;
    m.cls[k][kLowerIndex] = lower_or_any;
    m.cls[k][kCaselessIndex] = m.cls[k][kMarkIndex] = 0;
    m.cls[k][kNumberIndex] = number;
    m.cls[k][kSpaceIndex] = space;
    m.blank[k] = blank;
    m.newline[k] = newline;
    m.apostrophe[k] = apostrophe;
    m.slash[k] = slash;
    m.high[k] = high;
  }
}

}  // namespace

void fill_ascii_masks(const uint8_t* text, size_t k, size_t end, bool has_case, CharMasks& masks) {
  has_case ? fill<true>(text, k, end, masks) : fill<false>(text, k, end, masks);
}

}  // namespace lmworks::LMWORKS_ISA
