#pragma once
// Counts of distinct pieces: a hash table keyed by the bytes themselves.
//
// Pieces of up to 15 bytes (all but a few) are packed into 16-byte keys with the length in the top
// byte, so a look-up touches one cache line and follows no pointer. They are inserted in batches
// whose slots are prefetched. Longer pieces live in an arena. A table may have a limit: before it
// would grow past that, it hands its content to a function and goes on empty.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "huge_pages.h"

namespace lmworks {

// Masks that keep the first n bytes of a 16-byte load.
struct PackMasks {
  uint64_t lo[16] = {}, hi[16] = {};
  constexpr PackMasks() {
    for (size_t n = 0; n < 16; ++n) {
      lo[n] = n >= 8 ? ~0ull : (1ull << 8 * n) - 1;
      hi[n] = n > 8 ? (1ull << 8 * (n - 8)) - 1 : 0;
    }
  }
};
inline constexpr PackMasks kPackMasks;

class WordTable {
 public:
  static constexpr size_t kMaxShort = 15;
  struct alignas(32) Short {  // never across two cache lines
    uint64_t lo, hi;
    int64_t count;  // 0: empty slot
  };
  struct Long {
    uint64_t hash, offset, size;
    int64_t count;
  };

  // All words, no slot empty.
  struct Content {
    HugeVector<Short> shorts;
    std::vector<Long> longs;
    std::vector<char> arena;

    std::string_view text_of(const Long& w) const { return {&arena[w.offset], w.size}; }
  };
  using OnFull = std::function<void(Content)>;

  WordTable() : front_(kFrontSlots) { clear(); }

  void set_limit(size_t max_bytes, OnFull on_full) {
    max_bytes_ = max_bytes;
    on_full_ = std::move(on_full);
  }

  size_t size_bytes() const {
    return shorts_.size() * sizeof(Short) + longs_.size() * sizeof(Long) + arena_.capacity();
  }

  // Counts the piece [p, p + size); bytes up to `readable` may be loaded.
  void add(const uint8_t* p, size_t size, const uint8_t* readable) {
    ++num_pieces_;
    if (size > kMaxShort) return add_long({reinterpret_cast<const char*>(p), size}, 1);
    uint64_t lo = 0, hi = 0;
    if (std::endian::native == std::endian::little && readable - p >= 16) {
      std::memcpy(&lo, p, 8);
      std::memcpy(&hi, p + 8, 8);
      lo &= kPackMasks.lo[size];
      hi &= kPackMasks.hi[size];
    } else {
      pack(p, size, &lo, &hi);
    }
    hi |= static_cast<uint64_t>(size) << 56;
    Short& front = front_[hash(lo, hi) & (kFrontSlots - 1)];
    if (front.lo == lo && front.hi == hi) {
      ++front.count;
      return;
    }
    evict(front);
    front = {lo, hi, 1};
  }

  // Counts a piece `count` times more.
  void add_count(std::string_view text, int64_t count) {
    num_pieces_ += count;
    if (text.size() > kMaxShort) return add_long(text, count);
    uint64_t lo = 0, hi = 0;
    pack(reinterpret_cast<const uint8_t*>(text.data()), text.size(), &lo, &hi);
    hi |= static_cast<uint64_t>(text.size()) << 56;
    add_short(lo, hi, hash(lo, hi), count);
  }

  // Moves what waits in front of the table into it; needed before the words are read.
  void flush() {
    for (Short& s : front_) {
      evict(s);
      s = {};
    }
    insert_pending();
  }

  // Moves in the words of `other` whose hash falls into `part` of `num_parts`.
  void add_part(const WordTable& other, uint64_t part, uint64_t num_parts) {
    const auto is_mine = [&](uint64_t h) { return (h >> 32) % num_parts == part; };
    for (const Short& s : other.shorts_) {
      if (s.count == 0) continue;
      const uint64_t h = hash(s.lo, s.hi);
      if (is_mine(h)) add_short(s.lo, s.hi, h, s.count);
    }
    for (const Long& w : other.longs_) {
      if (w.count != 0 && is_mine(w.hash)) add_long(other.text_of(w), w.count);
    }
  }

  // f(bytes, size, count) for each distinct piece, in the order of the hash.
  template <class F>
  void for_each(F&& f) const {
    for (const Short& s : shorts_) {
      if (s.count == 0) continue;
      uint8_t bytes[16];
      unpack(s, bytes);
      f(bytes, static_cast<size_t>(s.hi >> 56), s.count);
    }
    for (const Long& w : longs_) {
      if (w.count != 0) f(reinterpret_cast<const uint8_t*>(&arena_[w.offset]), w.size, w.count);
    }
  }

  static void unpack(const Short& s, uint8_t* bytes) {
    for (int i = 0; i < 8; ++i) {
      bytes[i] = s.lo >> 8 * i;
      bytes[8 + i] = s.hi >> 8 * i;
    }
  }

  // The words, in any order. The table is empty then, but remembers num_pieces().
  Content take() {
    std::erase_if(shorts_, [](const Short& s) { return s.count == 0; });
    std::erase_if(longs_, [](const Long& w) { return w.count == 0; });
    Content content{std::move(shorts_), std::move(longs_), std::move(arena_)};
    clear();
    return content;
  }

  // A copy of the words.
  Content copy() const {
    Content content;
    content.shorts.reserve(num_shorts_);
    std::copy_if(shorts_.begin(), shorts_.end(), std::back_inserter(content.shorts),
                 [](const Short& s) { return s.count != 0; });
    std::copy_if(longs_.begin(), longs_.end(), std::back_inserter(content.longs),
                 [](const Long& w) { return w.count != 0; });
    content.arena = arena_;
    return content;
  }

  uint64_t num_pieces() const { return num_pieces_; }

 private:
  void clear() {
    shorts_ = HugeVector<Short>(1 << 12);
    longs_ = std::vector<Long>(1 << 8);
    arena_ = {};
    num_shorts_ = num_longs_ = 0;
  }

  // Hands over the content if `more_bytes` do not fit.
  bool is_spilled_for(size_t more_bytes) {
    if (!on_full_ || size_bytes() + more_bytes <= max_bytes_) return false;
    on_full_(take());
    return true;
  }

  static constexpr size_t kBatch = 32;
  static constexpr size_t kFrontSlots = 8192;  // of 32 bytes: stays in the L2 cache

  void evict(const Short& s) {
    if (s.count == 0) return;
    __builtin_prefetch(&shorts_[hash(s.lo, s.hi) & (shorts_.size() - 1)], 1);
    pending_[num_pending_++] = s;
    if (num_pending_ == kBatch) insert_pending();
  }

  void insert_pending() {
    for (size_t i = 0; i < num_pending_; ++i) {
      const Short& s = pending_[i];
      add_short(s.lo, s.hi, hash(s.lo, s.hi), s.count);
    }
    num_pending_ = 0;
  }

  static void pack(const uint8_t* p, size_t size, uint64_t* lo, uint64_t* hi) {
    for (size_t i = 0; i < size; ++i) {
      (i < 8 ? *lo : *hi) |= static_cast<uint64_t>(p[i]) << 8 * (i % 8);
    }
  }

  // Both halves of one 64 x 64 bit product, as in wyhash.
  static uint64_t hash(uint64_t lo, uint64_t hi) {
    __extension__ using Wide = unsigned __int128;
    const Wide m = static_cast<Wide>(lo ^ 0xa0761d6478bd642full) * (hi ^ 0xe7037ed1a0b428dbull);
    return static_cast<uint64_t>(m) ^ static_cast<uint64_t>(m >> 64);
  }

  static uint64_t hash(std::string_view text) {
    uint64_t h = text.size();
    size_t i = 0;
    for (; i + 8 <= text.size(); i += 8) {
      uint64_t word;
      std::memcpy(&word, text.data() + i, 8);
      h = hash(h, word);
    }
    uint64_t lo = 0, hi = 0;
    pack(reinterpret_cast<const uint8_t*>(text.data()) + i, text.size() - i, &lo, &hi);
    return hash(h, lo);
  }

  std::string_view text_of(const Long& w) const { return {&arena_[w.offset], w.size}; }

  void add_short(uint64_t lo, uint64_t hi, uint64_t h, int64_t count) {
    const size_t mask = shorts_.size() - 1;
    for (size_t i = h & mask;; i = (i + 1) & mask) {
      Short& s = shorts_[i];
      if (s.count == 0) {
        s = {lo, hi, count};
        if (++num_shorts_ * 8 > shorts_.size() * 5) grow_shorts();
        return;
      }
      if (s.lo == lo && s.hi == hi) {
        s.count += count;
        return;
      }
    }
  }

  void add_long(std::string_view text, int64_t count) {
    const size_t mask = longs_.size() - 1;
    const uint64_t h = hash(text);
    for (size_t i = h & mask;; i = (i + 1) & mask) {
      Long& w = longs_[i];
      if (w.count == 0) {
        if (arena_.size() + text.size() > arena_.capacity() && num_longs_ > 0 &&
            is_spilled_for(arena_.capacity() + 2 * text.size())) {
          return add_long(text, count);
        }
        w = {h, arena_.size(), text.size(), count};
        arena_.insert(arena_.end(), text.begin(), text.end());
        if (++num_longs_ * 2 > longs_.size()) grow_longs();
        return;
      }
      if (w.hash == h && text_of(w) == text) {
        w.count += count;
        return;
      }
    }
  }

  void grow_shorts() {
    if (is_spilled_for(2 * shorts_.size() * sizeof(Short))) return;
    HugeVector<Short> old(shorts_.size() * 2);
    old.swap(shorts_);
    const size_t mask = shorts_.size() - 1;
    for (const Short& s : old) {
      if (s.count == 0) continue;
      size_t i = hash(s.lo, s.hi) & mask;
      while (shorts_[i].count != 0) i = (i + 1) & mask;
      shorts_[i] = s;
    }
  }

  void grow_longs() {
    if (is_spilled_for(2 * longs_.size() * sizeof(Long))) return;
    std::vector<Long> old(longs_.size() * 2);
    old.swap(longs_);
    const size_t mask = longs_.size() - 1;
    for (const Long& w : old) {
      if (w.count == 0) continue;
      size_t i = w.hash & mask;
      while (longs_[i].count != 0) i = (i + 1) & mask;
      longs_[i] = w;
    }
  }

  HugeVector<Short> front_;  // direct-mapped: frequent pieces are counted here
  HugeVector<Short> shorts_;
  std::vector<Long> longs_;
  std::vector<char> arena_;
  size_t num_shorts_ = 0, num_longs_ = 0, num_pending_ = 0;
  uint64_t num_pieces_ = 0;
  size_t max_bytes_ = 0;
  OnFull on_full_;  // none: no limit
  Short pending_[kBatch];
};

}  // namespace lmworks
