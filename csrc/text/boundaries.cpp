#include "lmworks/boundaries.h"

#include <bit>
#include <stdexcept>

#include "char_masks.h"

namespace lmworks {
namespace {

constexpr uint64_t kAll = ~uint64_t{0};

// Bits of the byte before and after each byte; `before` and `after` are the neighbouring words.
uint64_t shift_up(uint64_t word, uint64_t before) { return word << 1 | before >> 63; }
uint64_t shift_down(uint64_t word, uint64_t after) { return word >> 1 | after << 63; }

// The bits of `mask` that are reached from `seeds` going up without a gap.
uint64_t flood_up(uint64_t seeds, uint64_t mask) {
  seeds &= mask;
  for (int step = 1; step < 64; step *= 2) {
    seeds |= mask & seeds << step;
    mask &= mask << step;
  }
  return seeds;
}

uint64_t flood_down(uint64_t seeds, uint64_t mask) {
  seeds &= mask;
  for (int step = 1; step < 64; step *= 2) {
    seeds |= mask & seeds >> step;
    mask &= mask >> step;
  }
  return seeds;
}

bool test(const uint64_t* words, size_t i) { return words[i / 64] >> i % 64 & 1; }
void set(uint64_t* words, size_t i) { words[i / 64] |= uint64_t{1} << i % 64; }
void clear(uint64_t* words, size_t i) { words[i / 64] &= ~(uint64_t{1} << i % 64); }

// One stretch of text whose end is the end of the text or a safe cut.
template <Pattern P>
class Stretch {
 public:
  Stretch(const uint8_t* text, size_t size)
      : text_(text), size_(size), num_words_((size + 63) / 64) {}

  size_t find(uint32_t* ends) {
    m_.fill(text_, size_, kIsCased);
    if constexpr (P == Pattern::gpt2 || P == Pattern::smollm) {
      mark_gpt2();
    } else {
      mark_absorbed();
      mark_lines();
      mark_cl100k();
    }
    if (m_.has_wide_space) mark_wide_spaces();
    if constexpr (kIsCased) {
      mark_mixed_words();
      if (P == Pattern::o200k) mark_contracted_words();  // Tekken has none
    } else {
      mark_contractions();
    }
    return write_ends(ends);
  }

 private:
  static constexpr bool kIsCased = P == Pattern::o200k || P == Pattern::tekken;
  static constexpr bool kMarksInWords = kIsCased || P == Pattern::qwen35;
  static constexpr bool kIgnoreCase = P != Pattern::gpt2 && P != Pattern::smollm;
  static constexpr bool kSingleDigits =
      P == Pattern::smollm || P == Pattern::qwen2 || P == Pattern::qwen35 || P == Pattern::tekken;
  static constexpr uint32_t kMaxDigits = P == Pattern::nanochat ? 2 : 3;  // unless single

  uint64_t numbers_of(size_t k) const { return m_.cls[k][kNumberIndex]; }
  uint64_t spaces_of(size_t k) const { return m_.cls[k][kSpaceIndex]; }
  uint64_t letters_of(size_t k) const {
    const uint64_t letters =
        m_.cls[k][kUpperIndex] | m_.cls[k][kLowerIndex] | m_.cls[k][kCaselessIndex];
    return kMarksInWords ? letters | m_.cls[k][kMarkIndex] : letters;
  }
  uint64_t others_of(size_t k) const { return ~(letters_of(k) | numbers_of(k) | spaces_of(k)); }

  // \s+(?!\S) leaves the last white space to what follows; a blank then starts that piece.
  void mark_gpt2() {
    uint64_t letters_before = 0, numbers_before = 0, others_before = 0, spaces_before = 0,
             blanks_before = 0;
    for (size_t k = 0; k < num_words_; ++k) {
      const uint64_t letters = letters_of(k), numbers = numbers_of(k), spaces = spaces_of(k);
      const uint64_t others = ~(letters | numbers | spaces);
      uint64_t last = spaces & ~shift_down(spaces, spaces_of(k + 1));
      // SmolLM cuts its digits first: white space before one is at the end of its text.
      if (kSingleDigits) last &= ~shift_down(numbers, numbers_of(k + 1));
      const uint64_t blanks = last & m_.blank[k];
      uint64_t starts = (letters & ~shift_up(letters, letters_before)) |
                        (numbers & ~shift_up(numbers, numbers_before)) |
                        (others & ~shift_up(others, others_before)) |
                        (spaces & ~shift_up(spaces, spaces_before));
      starts &= ~shift_up(blanks, blanks_before);
      starts |= last & m_.first[k];
      if (kSingleDigits) starts |= numbers & m_.first[k];
      starts_[k] = starts;
      letters_before = letters, numbers_before = numbers, others_before = others;
      spaces_before = spaces, blanks_before = blanks;
    }
  }

  // Line ends behind symbols belong to them ([\r\n]*; o200k: [\r\n/]*): absorbed_ says which.
  void mark_absorbed() {
    uint64_t others_before = 0, absorbed_before = 0;
    for (size_t k = 0; k < num_words_; ++k) {
      const uint64_t newlines = m_.newline[k];
      const uint64_t others = others_of(k);
      const uint64_t tail = kIsCased ? newlines | m_.slash[k] : newlines;
      const uint64_t seeds =
          (newlines & shift_up(others, others_before)) | (tail & absorbed_before >> 63);
      const uint64_t absorbed = seeds == 0 ? 0 : flood_up(seeds, tail);
      absorbed_[k] = absorbed;
      others_before = others & ~absorbed;
      absorbed_before = absorbed;
    }
  }

  // reaches_newline_: white space with a line end at or after it in its run. At the end of the text
  // cl100k's \s++$ takes a run whole, as if the end were a line end.
  void mark_lines() {
    uint64_t reaches_after = P == Pattern::cl100k ? kAll : 0;
    for (size_t k = num_words_; k-- > 0;) {
      const uint64_t spaces = spaces_of(k) & ~absorbed_[k];
      uint64_t seeds = m_.newline[k] & spaces;
      if ((reaches_after & 1) != 0) seeds |= spaces & uint64_t{1} << 63;
      reaches_newline_[k] = seeds == 0 ? 0 : flood_down(seeds, spaces);
      reaches_after = reaches_newline_[k];
    }
  }

  void mark_cl100k() {
    uint64_t letters_before = 0, numbers_before = 0, others_before = 0, spaces_before = 0;
    uint64_t newlines_before = 0, blanks_before = 0, singles_before = 0;
    uint64_t lowers_before = 0;
    for (size_t k = 0; k < num_words_; ++k) {
      const uint64_t letters = letters_of(k), numbers = numbers_of(k), first = m_.first[k];
      const uint64_t spaces = spaces_of(k) & ~absorbed_[k], newlines = m_.newline[k];
      const uint64_t others = others_of(k) & ~absorbed_[k];
      const uint64_t spaces_after = spaces_of(k + 1);
      // The last of white space, unless it is a line end, is left to what follows.
      const uint64_t last = spaces & ~newlines & ~shift_down(spaces_of(k), spaces_after);
      const uint64_t blanks = last & m_.blank[k] & shift_down(others, others_of(k + 1));
      const uint64_t others_start =
          others & ~shift_up(others, others_before) & ~shift_up(blanks, blanks_before);
      // A single symbol that starts a piece goes with the letters behind it.
      uint64_t singles = others_start;
      if (m_.high[k] != 0) {
        const uint64_t inner = others & ~first;
        singles |= inner & singles_before >> 63;
        for (int i = 0; i < 3; ++i) singles |= inner & singles << 1;
      }
      const uint64_t gaps = spaces & ~newlines;
      const uint64_t prefixes =
          shift_up(gaps | singles, (spaces_before & ~newlines_before) | singles_before);
      const uint64_t letters_start = letters & ~shift_up(letters, letters_before) & ~prefixes;
      // White space after the last line end of its run.
      const uint64_t rest = gaps & shift_up(newlines & spaces, newlines_before & spaces_before) &
                            ~reaches_newline_[k];
      uint64_t starts = letters_start | others_start | rest | (last & first) |
                        (spaces & ~shift_up(spaces, spaces_before));
      if (kIsCased) {
        const uint64_t upper = m_.cls[k][kUpperIndex];
        starts |= upper & shift_up(m_.cls[k][kLowerIndex], lowers_before);
        lowers_before = m_.cls[k][kLowerIndex];
      }
      if (kSingleDigits) {
        starts |= numbers & first;
      } else if (numbers != 0) {
        starts |= digit_starts(numbers & first, numbers & ~shift_up(numbers, numbers_before));
      }
      starts_[k] = starts;
      letters_before = letters, numbers_before = numbers, others_before = others;
      spaces_before = spaces, newlines_before = newlines, blanks_before = blanks;
      singles_before = singles;
    }
  }

  // \p{N}{1,3}: the first digit of each run and each third one after it (nanochat: each second).
  uint64_t digit_starts(uint64_t digits, uint64_t run_starts) {
    uint64_t starts = 0;
    for (; digits != 0; digits &= digits - 1) {
      const uint64_t digit = digits & -digits;
      if ((run_starts & digit) != 0) digits_in_piece_ = 0;
      if (digits_in_piece_ == 0) starts |= digit;
      digits_in_piece_ = digits_in_piece_ == kMaxDigits - 1 ? 0 : digits_in_piece_ + 1;
    }
    return starts;
  }

  // The last white space of a run starts a piece where its first byte is, not its last.
  void mark_wide_spaces() {
    for (size_t k = 0; k < num_words_; ++k) {
      const uint64_t spaces = spaces_of(k);
      uint64_t last = spaces & ~m_.first[k] & ~shift_down(spaces, spaces_of(k + 1));
      if (P == Pattern::smollm) last &= ~shift_down(numbers_of(k), numbers_of(k + 1));
      for (; last != 0; last &= last - 1) {
        size_t i = 64 * k + std::countr_zero(last);
        while (!m_.is_first(i)) --i;
        set(starts_, i);
      }
    }
  }

  // 's 't 're ... where they start a piece.
  void mark_contractions() {
    for (size_t k = 0; k < num_words_; ++k) {
      // Not `& starts`: one contraction may make the next apostrophe a start.
      for (uint64_t quotes = m_.apostrophe[k]; quotes != 0; quotes &= quotes - 1) {
        const size_t i = 64 * k + std::countr_zero(quotes);
        if (!test(starts_, i)) continue;
        const size_t after = contraction_end(i);
        if (after != i) replace_starts(i, after);
      }
    }
  }

  // o200k: behind a word, one contraction belongs to it.
  void mark_contracted_words() {
    size_t last_end = 0;
    for (size_t k = 0; k < num_words_; ++k) {
      for (uint64_t quotes = m_.apostrophe[k]; quotes != 0; quotes &= quotes - 1) {
        const size_t i = 64 * k + std::countr_zero(quotes);
        if (i == 0 || i == last_end || !is_word(i - 1)) continue;
        const size_t after = contraction_end(i);
        if (after == i) continue;
        clear(starts_, i);
        replace_starts(i, after);
        last_end = after;
      }
    }
  }

  size_t contraction_end(size_t i) const {
    return scan::contraction<kIgnoreCase>(text_ + i, text_ + size_) - text_;
  }

  // The piece or part of one from `from` to `to` has no start inside; one starts at `to`.
  void replace_starts(size_t from, size_t to) {
    for (size_t i = from + 1; i < to; ++i) clear(starts_, i);
    if (to < size_) set(starts_, to);
  }

  // o200k's words where caseless letters or marks meet cased ones, and marks that start a word or
  // stand among symbols: the whole run of letters, marks and symbols is scanned anew.
  void mark_mixed_words() {
    uint64_t cased_before = 0, caseless_before = 0, word_before = 0;
    size_t done = 0;
    for (size_t k = 0; k < num_words_; ++k) {
      const uint64_t cased = m_.cls[k][kUpperIndex] | m_.cls[k][kLowerIndex];
      const uint64_t mark = m_.cls[k][kMarkIndex];
      const uint64_t caseless = m_.cls[k][kCaselessIndex] | mark;
      const uint64_t word = cased | caseless;
      uint64_t mixed = (cased & shift_up(caseless, caseless_before)) |
                       (caseless & shift_up(cased, cased_before)) |
                       (mark & ~shift_up(word, word_before));
      cased_before = cased, caseless_before = caseless, word_before = word;
      for (; mixed != 0; mixed &= mixed - 1) {
        const size_t i = 64 * k + std::countr_zero(mixed);
        if (i >= done) done = scan_run(i, done);
      }
    }
  }

  bool is_word(size_t i) const { return letters_of(i / 64) >> i % 64 & 1; }
  bool is_word_or_other(size_t i) const {
    const uint64_t others = others_of(i / 64) & ~absorbed_[i / 64];
    return (letters_of(i / 64) | others) >> i % 64 & 1;
  }
  bool is_gap(size_t i) const { return (spaces_of(i / 64) & ~m_.newline[i / 64]) >> i % 64 & 1; }

  size_t run_end_at(size_t i) const {
    while (i < size_ && is_word_or_other(i)) ++i;
    return i;
  }

  // Returns where the pieces of the run around i end. A piece starts at `done` (<= i).
  size_t scan_run(size_t i, size_t done) {
    while (i > done && is_word_or_other(i - 1)) --i;
    size_t run_end = run_end_at(i);
    // One character of white space before the run may go with it; it is a start already.
    if (i > done && is_gap(i - 1)) {
      --i;
      while (!m_.is_first(i)) --i;
    }
    while (i < run_end) {
      const size_t next = next_piece<P>(text_ + i, text_ + size_) - text_;
      replace_starts(i, next);
      for (; i < next; ++i) clear(m_.apostrophe, i);  // its contractions are done
      if (i > run_end) run_end = run_end_at(i);  // it absorbed line ends: what follows is new, too
    }
    return i;
  }

  size_t write_ends(uint32_t* ends) {
    clear(starts_, 0);
    if (size_ % 64 != 0) starts_[num_words_ - 1] &= ~(kAll << size_ % 64);
    uint32_t* at = ends;
    for (size_t k = 0; k < num_words_; ++k) {
      uint64_t word = starts_[k];
      const uint32_t base = static_cast<uint32_t>(64 * k);
      const int count = std::popcount(word);
      // Eight at a time without asking: the number of pieces in a word is hard to predict.
      for (int done = 0; done < count; done += 8) {
        for (int i = 0; i < 8; ++i) {
          at[done + i] = base + static_cast<uint32_t>(std::countr_zero(word));
          word &= word - 1;
        }
      }
      at += count;
    }
    *at++ = static_cast<uint32_t>(size_);
    return static_cast<size_t>(at - ends);
  }

  const uint8_t* text_;
  const size_t size_, num_words_;
  CharMasks m_;
  uint32_t digits_in_piece_ = 0;
  uint64_t starts_[kScanWords];
  uint64_t absorbed_[kScanWords], reaches_newline_[kScanWords];
};

template <Pattern P>
size_t scan_one_by_one(const uint8_t* p, const uint8_t* end, uint32_t* ends) {
  size_t count = 0;
  for (const uint8_t* q = p; q < end && static_cast<size_t>(q - p) < kScanBytes;) {
    q = next_piece<P>(q, end);
    if (q - p > kMaxPieceBytes) {
      if (count == 0) throw std::length_error("a piece of text of 4 GiB or more");
      break;
    }
    ends[count++] = static_cast<uint32_t>(q - p);
  }
  return count;
}

// The last safe cut in (p, p + kScanBytes], or 0.
size_t last_safe_cut(const uint8_t* p, const uint8_t* end) {
  for (size_t size = kScanBytes; size > 0; --size) {
    if (is_safe_cut(p, p + size, end)) return size;
  }
  return 0;
}

template <Pattern P>
constexpr bool kHasMasks = P == Pattern::gpt2 || P == Pattern::smollm || P == Pattern::cl100k ||
                           P == Pattern::llama3 || P == Pattern::qwen2 || P == Pattern::o200k ||
                           P == Pattern::qwen35 || P == Pattern::tekken || P == Pattern::nanochat;

}  // namespace

size_t scan_pieces(Pattern pattern, const uint8_t* p, const uint8_t* end, uint32_t* ends) {
  return with_pattern(pattern, [&]<Pattern P>() {
    if constexpr (kHasMasks<P>) {
      const size_t left = static_cast<size_t>(end - p);
      const size_t size = left <= kScanBytes ? left : last_safe_cut(p, end);
      if (size != 0) {
        return Stretch<P>(p, size).find(ends);
      }
    }
    return scan_one_by_one<P>(p, end, ends);
  });
}

}  // namespace lmworks
