#pragma once
// Pre-tokenization: cuts text into the pieces inside which BPE merges.
//
// Hand-written scanners instead of a regex engine, one per published pattern. On every input, valid
// UTF-8 or not, the pieces are those of `regex.findall(pattern_regex(p), text)` (see unicode.h for
// bytes that are not UTF-8). `next_piece` looks only at what follows `begin`, so a caller may cut
// the text wherever a piece ends; near the end of a buffer a piece may depend on bytes not yet
// there.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "lmworks/unicode.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace lmworks {

enum class Pattern : uint8_t {
  gpt2,
  cl100k,
  o200k,
  llama3,
  qwen2,
  smollm,
  qwen35,
  deepseek3,
  kimi2,
  tekken,
  nanochat
};
constexpr Pattern kPatterns[] = {Pattern::gpt2,   Pattern::cl100k,    Pattern::o200k,
                                 Pattern::llama3, Pattern::qwen2,     Pattern::smollm,
                                 Pattern::qwen35, Pattern::deepseek3, Pattern::kimi2,
                                 Pattern::tekken, Pattern::nanochat};

std::optional<Pattern> parse_pattern(std::string_view name);
std::string_view pattern_name(Pattern pattern);
// The published regular expression, or an equal one where the model applies several steps (smollm,
// deepseek3) or an operator that not all engines have (kimi2).
std::string_view pattern_regex(Pattern pattern);

// Whether the text may be cut in two at p (begin < p < end) without changing any piece, whatever
// the pattern: before the blank of "a b" (ASCII letters) or after the line end of "x\ny" (x no
// white space, y a letter).
bool is_safe_cut(const uint8_t* begin, const uint8_t* p, const uint8_t* end);
// First such place in [from, end); `end` if there is none.
const uint8_t* find_safe_cut(const uint8_t* begin, const uint8_t* from, const uint8_t* end);

namespace scan {

// End of the run of characters whose class is in `mask`.
inline const uint8_t* run(const uint8_t* p, const uint8_t* end, uint8_t mask) {
  while (p < end) {
    const Char c = classify(p, end);
    if (!(c.cls & mask)) break;
    p += c.size;
  }
  return p;
}

// End of the ASCII letters at p, 16 bytes at a time: a word's length then costs no mispredicted
// branch.
inline const uint8_t* ascii_letters(const uint8_t* p, const uint8_t* end) {
#if defined(__SSE2__)
  while (end - p >= 16) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i lower = _mm_or_si128(v, _mm_set1_epi8(0x20));
    // Signed compares: bytes >= 0x80 are negative, hence no letters.
    const __m128i is_letter = _mm_and_si128(_mm_cmpgt_epi8(lower, _mm_set1_epi8('a' - 1)),
                                            _mm_cmplt_epi8(lower, _mm_set1_epi8('z' + 1)));
    const unsigned miss = ~static_cast<unsigned>(_mm_movemask_epi8(is_letter)) & 0xFFFF;
    if (miss != 0) return p + __builtin_ctz(miss);
    p += 16;
  }
#endif
  while (p < end && (kAsciiClass[*p] & kAnyLetter)) ++p;
  return p;
}

// End of a word's run of characters whose class is in `mask`, which holds the letters and of ASCII
// nothing else. `read` is `classify` or a function like it.
template <class Read>
inline const uint8_t* word(const uint8_t* p, const uint8_t* end, uint8_t mask, Read&& read) {
  while (true) {
    p = ascii_letters(p, end);
    if (p >= end || *p < 0x80) return p;
    const auto c = read(p, end);
    if (!(c.cls & mask)) return p;
    p += c.size;
  }
}

inline const uint8_t* letters(const uint8_t* p, const uint8_t* end) {
  return word(p, end, kAnyLetter, classify);
}

// End of 's 't 'm 'd 'll 've 're at p (which holds the apostrophe), or p. Ignoring case, as the
// published (?i:...) does, U+017F (long s) counts as s.
template <bool IgnoreCase>
inline const uint8_t* contraction(const uint8_t* p, const uint8_t* end) {
  if (end - p < 2) return p;
  const auto fold = [](uint8_t b) -> uint8_t { return IgnoreCase ? b | 0x20 : b; };
  const uint8_t a = fold(p[1]);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
  if (end - p < 3) return p;
  if (IgnoreCase && p[1] == 0xC5 && p[2] == 0xBF) return p + 3;
  const uint8_t b = fold(p[2]);
  const bool is_match = (a == 'l' && b == 'l') || (a == 'v' && b == 'e') || (a == 'r' && b == 'e');
  return is_match ? p + 3 : p;
}

template <uint32_t Max>
inline const uint8_t* numbers(const uint8_t* p, const uint8_t* end) {
  for (uint32_t i = 0; i < Max; ++i) {
    const Char c = classify(p, end);
    if (c.cls != kNumber) break;
    p += c.size;
  }
  return p;
}

inline const uint8_t* newlines(const uint8_t* p, const uint8_t* end) {
  while (p < end && (*p == '\n' || *p == '\r')) ++p;
  return p;
}

struct SpaceRun {
  const uint8_t* last;     // start of the last white-space character
  const uint8_t* newline;  // end of the last \r or \n; null if none
  const uint8_t* end;
};

inline SpaceRun spaces(const uint8_t* p, const uint8_t* end) {
  SpaceRun r{p, nullptr, p};
  while (r.end < end) {
    const Char c = classify(r.end, end);
    if (!(c.cls & kAnySpace)) break;
    r.last = r.end;
    r.end += c.size;
    if (c.cls == kNewline) r.newline = r.end;
  }
  return r;
}

// \s+(?!\S)|\s+ : the last white-space character is left to what follows, if there is another one.
inline const uint8_t* leave_last(const SpaceRun& r, const uint8_t* begin, bool is_followed) {
  return is_followed && r.last != begin ? r.last : r.end;
}

// GPT-2; with SingleDigits SmolLM, where each number is cut off first and then ends the text for
// the white space before it.
template <bool SingleDigits>
inline const uint8_t* gpt2(const uint8_t* p, const uint8_t* end) {
  constexpr uint8_t kSymbol = kOther | kMark;
  if (*p == ' ' && p + 1 < end) {
    const uint8_t* const q = p + 1;
    const Char next = classify(q, end);
    if (next.cls & kAnyLetter) return letters(q + next.size, end);
    if (next.cls & kSymbol) return run(q + next.size, end, kSymbol);
    if (!SingleDigits && next.cls == kNumber) return run(q + next.size, end, kNumber);
  }
  const Char c = classify(p, end);
  if (c.cls & kAnyLetter) return letters(p + c.size, end);
  if (c.cls & kSymbol) {
    if (*p == '\'') {
      const uint8_t* const q = contraction<false>(p, end);
      if (q != p) return q;
    }
    return run(p + c.size, end, kSymbol);
  }
  if (c.cls == kNumber) return SingleDigits ? p + c.size : run(p + c.size, end, kNumber);
  const SpaceRun r = spaces(p, end);
  const bool is_followed = r.end < end && !(SingleDigits && classify(r.end, end).cls == kNumber);
  return leave_last(r, p, is_followed);
}

// White space of all but GPT-2: up to the last line end of the run, or all but its last character.
// cl100k takes a run at the end of the text whole (\s++$), whatever line ends it holds.
template <bool WholeAtEnd>
inline const uint8_t* lines(const uint8_t* p, const uint8_t* end) {
  const SpaceRun r = spaces(p, end);
  if (WholeAtEnd && r.end == end) return end;
  if (r.newline != nullptr) return r.newline;
  return leave_last(r, p, r.end < end);
}

// cl100k, Llama 3 and Qwen 2 differ in the digits of a piece and in trailing white space; in Qwen
// 3.5 marks belong to words.
template <uint32_t MaxDigits, bool WholeAtEnd, bool MarksInWords = false>
inline const uint8_t* cl100k(const uint8_t* p, const uint8_t* end) {
  constexpr uint8_t kWord = MarksInWords ? kAnyLetter | kMark : kAnyLetter;
  constexpr uint8_t kSymbol = MarksInWords ? kOther : kOther | kMark;
  const Char c = classify(p, end);
  if (c.cls & kWord) return word(p + c.size, end, kWord, classify);
  if (*p == '\'') {
    const uint8_t* const q = contraction<true>(p, end);
    if (q != p) return q;
  }
  if (c.cls == kNumber) return numbers<MaxDigits - 1>(p + c.size, end);
  if (c.cls == kNewline) return lines<WholeAtEnd>(p, end);
  const uint8_t* const q = p + c.size;
  const Char next = classify(q, end);
  if (next.cls & kWord) return word(q + next.size, end, kWord, classify);
  if (c.cls & kSymbol) return newlines(run(q, end, kSymbol), end);
  if (*p == ' ' && (next.cls & kSymbol)) return newlines(run(q + next.size, end, kSymbol), end);
  return lines<WholeAtEnd>(p, end);
}

// The character at p as an o200k word sees it: for Kimi, ideographs belong to no word.
template <bool HanApart>
inline Char word_char(const uint8_t* p, const uint8_t* end) {
  if (!HanApart || p >= end || *p < 0x80) return classify(p, end);
  const TraitChar c = classify_traits(p, end);
  return {c.cls & kHan ? uint8_t{kOther} : static_cast<uint8_t>(c.cls), c.size};
}

// End of an o200k word at p, or p: optional prefix, upper-case run, lower-case run (letters without
// case and marks belong to both), contraction. Regex backtracking, spelt out.
template <bool Contractions, bool HanApart>
inline const uint8_t* cased_word(const uint8_t* p, const uint8_t* end, Char first) {
  constexpr uint8_t kUpperRun = kUpper | kCaseless | kMark;
  constexpr uint8_t kLowerRun = kLower | kCaseless | kMark;
  const bool has_prefix = !(first.cls & (kAnyLetter | kNumber | kNewline));
  const uint8_t* const start = has_prefix ? p + first.size : p;
  const uint8_t* q = start;
  const uint8_t* both_end = nullptr;  // end of the last character that is in both runs
  Char c = word_char<HanApart>(q, end);
  while (c.cls & kUpperRun) {
    q += c.size;
    if (c.cls & kLowerRun) both_end = q;
    c = word_char<HanApart>(q, end);
  }
  if (c.cls == kLower) {
    // Most words: ASCII letters to the end.
    while (q < end && *q >= 'a' && *q <= 'z') ++q;
    while ((c = word_char<HanApart>(q, end)).cls & kLowerRun) q += c.size;
  } else if (both_end != nullptr) {
    q = both_end;  // the lower-case run needs one character: the last that fits
  } else if (first.cls == kMark) {
    q = start;  // a mark is no prefix then, but a lower-case run of its own
  } else if (q == start) {
    return p;
  }
  if (!Contractions) return q;
  return q < end && *q == '\'' ? contraction<true>(q, end) : q;
}

// o200k; Tekken has no contractions and single digits, Kimi sets ideographs apart.
template <uint32_t MaxDigits, bool Contractions, bool Slashes, bool HanApart>
inline const uint8_t* o200k(const uint8_t* p, const uint8_t* end) {
  constexpr uint8_t kSymbol = kOther | kMark;
  if (HanApart && *p >= 0x80) {
    const uint8_t* q = p;
    for (TraitChar c; (c = classify_traits(q, end)).cls & kHan;) q += c.size;
    if (q != p) return q;
  }
  const Char c = classify(p, end);
  if (c.cls == kNumber) return numbers<MaxDigits - 1>(p + c.size, end);
  if (c.cls != kNewline) {
    const uint8_t* const q = cased_word<Contractions, HanApart>(p, end, c);
    if (q != p) return q;
  }
  const uint8_t* q = *p == ' ' ? p + 1 : p;
  const uint8_t* const symbols = run(q, end, kSymbol);
  if (symbols != q) {
    q = symbols;
    while (q < end && (*q == '\n' || *q == '\r' || (Slashes && *q == '/'))) ++q;
    return q;
  }
  return lines<false>(p, end);
}

// DeepSeek V3 cuts the text at numbers, then at runs of kCjkRun characters, and what is left by the
// third step's expression: so numbers and, inside or outside of such a run, all characters of the
// other kind are for it the end of the text.
template <bool InCjkRun>
inline TraitChar part_char(const uint8_t* p, const uint8_t* end) {
  const TraitChar c = classify_traits(p, end);
  if ((c.cls & kNumber) || ((c.cls & kCjkRun) != 0) != InCjkRun) return {0, 0};
  return c;
}

template <bool InCjkRun>
inline const uint8_t* part_word(const uint8_t* p, const uint8_t* end) {
  constexpr uint8_t kWord = kAnyLetter | kMark;
  if constexpr (!InCjkRun) return word(p, end, kWord, part_char<false>);
  for (TraitChar c; (c = part_char<InCjkRun>(p, end)).cls & kWord;) p += c.size;
  return p;
}

template <bool InCjkRun>
inline const uint8_t* part_symbols(const uint8_t* p, const uint8_t* end) {
  for (TraitChar c; (c = part_char<InCjkRun>(p, end)).cls & kPunctOrSymbol;) p += c.size;
  return InCjkRun ? p : newlines(p, end);
}

// End of the piece at p, of which c is the first character.
template <bool InCjkRun>
inline const uint8_t* deepseek3_part(const uint8_t* p, const uint8_t* end, TraitChar c) {
  constexpr auto read = part_char<InCjkRun>;
  constexpr uint8_t kWord = kAnyLetter | kMark;
  const uint8_t* q = p + c.size;
  if (c.cls & kWord) return part_word<InCjkRun>(q, end);
  if (c.cls & kPunctOrSymbol) {
    const bool has_word = *p < 0x80 && q < end && (kAsciiClass[*q] & kAnyLetter);
    return has_word ? ascii_letters(q, end) : part_symbols<InCjkRun>(q, end);
  }
  if (c.cls & kNewline) return lines<false>(p, end);
  TraitChar next = read(q, end);
  if (next.cls & kWord) return part_word<InCjkRun>(q + next.size, end);
  if (*p == ' ' && (next.cls & kPunctOrSymbol)) return part_symbols<false>(q + next.size, end);
  if (c.cls & kSpace) {
    const SpaceRun r = spaces(p, end);
    return r.newline ? r.newline : leave_last(r, p, read(r.end, end).size != 0);
  }
  // Controls and the like, which no alternative matches, up to one that is the prefix of a word.
  while ((next.cls & kOther) && !(next.cls & kPunctOrSymbol)) {
    const TraitChar after = read(q + next.size, end);
    if (after.cls & kWord) break;
    q += next.size;
    next = after;
  }
  return q;
}

inline const uint8_t* deepseek3(const uint8_t* p, const uint8_t* end) {
  const TraitChar c = classify_traits(p, end);
  if (c.cls & kNumber) return numbers<2>(p + c.size, end);
  return c.cls & kCjkRun ? deepseek3_part<true>(p, end, c) : deepseek3_part<false>(p, end, c);
}

}  // namespace scan

// End of the piece that starts at `begin`; needs begin < end and returns more than begin.
template <Pattern P>
inline const uint8_t* next_piece(const uint8_t* begin, const uint8_t* end) {
  if constexpr (P == Pattern::gpt2) return scan::gpt2<false>(begin, end);
  if constexpr (P == Pattern::smollm) return scan::gpt2<true>(begin, end);
  if constexpr (P == Pattern::cl100k) return scan::cl100k<3, true>(begin, end);
  if constexpr (P == Pattern::llama3) return scan::cl100k<3, false>(begin, end);
  if constexpr (P == Pattern::qwen2) return scan::cl100k<1, false>(begin, end);
  if constexpr (P == Pattern::nanochat) return scan::cl100k<2, false>(begin, end);
  if constexpr (P == Pattern::qwen35) return scan::cl100k<1, false, true>(begin, end);
  if constexpr (P == Pattern::o200k) return scan::o200k<3, true, true, false>(begin, end);
  if constexpr (P == Pattern::tekken) return scan::o200k<1, false, true, false>(begin, end);
  if constexpr (P == Pattern::kimi2) return scan::o200k<3, true, false, true>(begin, end);
  if constexpr (P == Pattern::deepseek3) return scan::deepseek3(begin, end);
}

// Calls f.template operator()<P>() with the pattern as a compile-time constant.
template <class F>
inline decltype(auto) with_pattern(Pattern pattern, F&& f) {
  switch (pattern) {
    case Pattern::gpt2:
      return f.template operator()<Pattern::gpt2>();
    case Pattern::cl100k:
      return f.template operator()<Pattern::cl100k>();
    case Pattern::o200k:
      return f.template operator()<Pattern::o200k>();
    case Pattern::llama3:
      return f.template operator()<Pattern::llama3>();
    case Pattern::qwen2:
      return f.template operator()<Pattern::qwen2>();
    case Pattern::smollm:
      return f.template operator()<Pattern::smollm>();
    case Pattern::qwen35:
      return f.template operator()<Pattern::qwen35>();
    case Pattern::deepseek3:
      return f.template operator()<Pattern::deepseek3>();
    case Pattern::kimi2:
      return f.template operator()<Pattern::kimi2>();
    case Pattern::tekken:
      return f.template operator()<Pattern::tekken>();
    case Pattern::nanochat:
      return f.template operator()<Pattern::nanochat>();
  }
  __builtin_unreachable();
}

// Calls f(piece, length) for each piece of the text in order.
template <class F>
inline void for_each_piece(Pattern pattern, const uint8_t* text, size_t size, F&& f) {
  const uint8_t* const end = text + size;
  with_pattern(pattern, [&]<Pattern P>() {
    for (const uint8_t* p = text; p < end;) {
      const uint8_t* const q = next_piece<P>(p, end);
      f(p, static_cast<size_t>(q - p));
      p = q;
    }
  });
}

}  // namespace lmworks
