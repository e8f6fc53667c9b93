#pragma once
// Counts of distinct pieces: a hash table keyed by the bytes themselves.
//
// Pieces of up to 15 bytes (all but a few) are packed into 16-byte keys with the length in the top
// byte, so a look-up touches one cache line and follows no pointer. They are inserted in batches
// whose slots are prefetched. Longer pieces live in an arena.
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

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
  struct Short {
    uint64_t lo, hi;
    int64_t count;  // 0: empty slot
  };
  struct Long {
    uint64_t hash, offset, size;
    int64_t count;
  };

  WordTable() : front_(kFrontSlots), shorts_(1 << 12), longs_(1 << 8) {}

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
      for (int i = 0; i < 8; ++i) {
        bytes[i] = s.lo >> 8 * i;
        bytes[8 + i] = s.hi >> 8 * i;
      }
      f(bytes, static_cast<size_t>(s.hi >> 56), s.count);
    }
    for (const Long& w : longs_) {
      if (w.count != 0) f(reinterpret_cast<const uint8_t*>(&arena_[w.offset]), w.size, w.count);
    }
  }

  uint64_t num_pieces() const { return num_pieces_; }

 private:
  static constexpr size_t kBatch = 32;
  static constexpr size_t kFrontSlots = 8192;  // of 24 bytes: stays in the L2 cache

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
    std::vector<Short> old(shorts_.size() * 2);
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

  std::vector<Short> front_;  // direct-mapped: frequent pieces are counted here
  std::vector<Short> shorts_;
  std::vector<Long> longs_;
  std::vector<char> arena_;
  size_t num_shorts_ = 0, num_longs_ = 0, num_pending_ = 0;
  uint64_t num_pieces_ = 0;
  Short pending_[kBatch];
};

}  // namespace lmworks
