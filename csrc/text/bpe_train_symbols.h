#pragma once
// What merging works on: words (distinct pieces as symbols) and a map from pairs of symbols.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include "huge_pages.h"

namespace lmworks {

// Words one behind the other: size, count, symbols. Symbols take 16 bits where all ids fit, which
// halves the memory and keeps a usual word in one cache line. A word is known by the index of its
// first unit. Units that a shrinking word leaves hold kGap.
template <class Symbol>
class Words {
 public:
  static constexpr Symbol kGap = std::numeric_limits<Symbol>::max();
  static constexpr size_t kCountUnits = sizeof(uint32_t) / sizeof(Symbol);
  static constexpr size_t kHeader = 1 + kCountUnits;
  static constexpr size_t kMaxSize = kGap - 1;  // symbols of a word

  void reserve(size_t units) { data_.reserve(units); }
  size_t size_bytes() const { return data_.capacity() * sizeof(Symbol); }

  void add(std::span<const Symbol> symbols, int64_t count) {
    if (data_.size() > UINT32_MAX) throw std::length_error("too many distinct pieces");
    const uint32_t code = count_code(count);
    const size_t word = data_.size();
    data_.resize(word + kHeader + symbols.size());
    data_[word] = static_cast<Symbol>(symbols.size());
    std::memcpy(&data_[word + 1], &code, sizeof(code));
    std::copy(symbols.begin(), symbols.end(), &data_[word + kHeader]);
  }

  int64_t count(size_t word) const {
    uint32_t code;
    std::memcpy(&code, &data_[word + 1], sizeof(code));
    return code & kIsBig ? big_counts_[code & ~kIsBig] : code;
  }
  size_t size(size_t word) const { return data_[word]; }
  Symbol* symbols(size_t word) { return &data_[word + kHeader]; }
  void prefetch(uint32_t word) const { __builtin_prefetch(&data_[word], 1); }

  // Cuts a word to its first `size` symbols.
  void shrink(size_t word, size_t size) {
    Symbol* const s = symbols(word);
    std::fill(s + size, s + data_[word], kGap);
    data_[word] = static_cast<Symbol>(size);
  }

  template <class F>
  void for_each(F&& f) const {
    for (size_t i = 0; i < data_.size();) {
      const size_t n = data_[i];
      f(static_cast<uint32_t>(i), &data_[i + kHeader], n);
      i = next(i);
    }
  }

  // Closes the gaps and drops words of one symbol. Invalidates indices.
  void compact() {
    size_t out = 0;
    for (size_t i = 0; i < data_.size();) {
      const size_t n = data_[i], after = next(i);
      if (n > 1) {
        std::copy_n(data_.begin() + i, kHeader + n, data_.begin() + out);
        out += kHeader + n;
      }
      i = after;
    }
    data_.resize(out);
  }

 private:
  static constexpr uint32_t kIsBig = 1u << 31;  // the rest is an index into big_counts_

  size_t next(size_t word) const {
    size_t i = word + kHeader + data_[word];
    while (i < data_.size() && data_[i] == kGap) ++i;
    return i;
  }

  uint32_t count_code(int64_t count) {
    if (count < kIsBig) return static_cast<uint32_t>(count);
    big_counts_.push_back(count);
    return kIsBig | static_cast<uint32_t>(big_counts_.size() - 1);
  }

  HugeVector<Symbol> data_;
  std::vector<int64_t> big_counts_;
};

// Pair of symbols -> number, open addressing.
class PairMap {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  static uint64_t key(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

  uint32_t find(uint64_t key) const {
    for (size_t i = slot(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].value == kNone) return kNone;
      if (slots_[i].key() == key) return slots_[i].value;
    }
  }

  // The value of the key, which becomes `value` if it is new.
  uint32_t find_or_insert(uint64_t key, uint32_t value) {
    for (size_t i = slot(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].value == kNone) {
        slots_[i] = {static_cast<uint32_t>(key >> 32), static_cast<uint32_t>(key), value};
        if (++size_ * 5 > slots_.size() * 3) grow();
        return value;
      }
      if (slots_[i].key() == key) return slots_[i].value;
    }
  }

  size_t size_bytes() const { return slots_.size() * sizeof(Slot); }

 private:
  struct Slot {
    uint32_t left, right, value = kNone;
    uint64_t key() const { return PairMap::key(left, right); }
  };

  size_t slot(uint64_t key) const {
    const uint64_t h = key * 0x9E3779B97F4A7C15ull;
    return (h ^ h >> 32) & (slots_.size() - 1);
  }

  void grow() {
    HugeVector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& s : old) {
      if (s.value == kNone) continue;
      size_t i = slot(s.key());
      while (slots_[i].value != kNone) i = (i + 1) & (slots_.size() - 1);
      slots_[i] = s;
    }
  }

  HugeVector<Slot> slots_ = HugeVector<Slot>(1 << 10);
  size_t size_ = 0;
};

}  // namespace lmworks
