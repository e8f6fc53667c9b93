#pragma once
// A hash table from the bytes of a piece, packed into its key, to token ids.
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <vector>

namespace lmworks {

// Up to 8 * Words - 1 bytes, zero-padded, and their number (never 0) in the last byte.
template <size_t Words>
struct PieceKey {
  static constexpr size_t kMaxBytes = 8 * Words - 1;
  uint64_t word[Words];

  size_t size() const { return word[Words - 1] >> 56; }
  const uint8_t* bytes() const { return reinterpret_cast<const uint8_t*>(word); }
  bool operator==(const PieceKey& other) const {
    uint64_t difference = 0;
    for (size_t i = 0; i < Words; ++i) difference |= word[i] ^ other.word[i];
    return difference == 0;
  }
  // A sum of products modulo 2^64: its high bits depend on all bits of the key.
  uint64_t hash() const {
    constexpr uint64_t kOdd[] = {0x9E3779B97F4A7C15u, 0xC2B2AE3D27D4EB4Fu, 0xD6E8FEB86659FD93u,
                                 0xA0761D6478BD642Fu};
    static_assert(Words <= std::size(kOdd));
    uint64_t h = 0;
    for (size_t i = 0; i < Words; ++i) h += word[i] * kOdd[i];
    return h;
  }
};

namespace internal {
template <size_t Words>
struct PackMasks {
  uint64_t keep[8 * Words][Words] = {};
  constexpr PackMasks() {
    for (size_t size = 0; size < 8 * Words; ++size) {
      for (size_t i = 0; i < size; ++i) keep[size][i / 8] |= uint64_t{0xFF} << 8 * (i % 8);
    }
  }
};
template <size_t Words>
inline constexpr PackMasks<Words> kPackMasks;
}  // namespace internal

// `readable` bytes may be loaded from p on.
template <size_t Words>
inline PieceKey<Words> pack_piece(const uint8_t* p, size_t size, size_t readable) {
  static_assert(std::endian::native == std::endian::little);
  PieceKey<Words> key;
  uint8_t copy[8 * Words];
  if (readable < sizeof copy) [[unlikely]] {
    std::memcpy(copy, p, size);
    p = copy;
  }
  std::memcpy(key.word, p, sizeof key.word);
  for (size_t i = 0; i < Words; ++i) key.word[i] &= internal::kPackMasks<Words>.keep[size][i];
  key.word[Words - 1] |= static_cast<uint64_t>(size) << 56;
  return key;
}

// Open addressing. At its limit the table forgets everything: one miss for each piece in use.
template <size_t Words, size_t Inline>
class PieceTable {
 public:
  using Key = PieceKey<Words>;
  struct alignas(8 * Words * 2) Slot {
    Key key;                  // an empty slot's is 0
    uint32_t tokens[Inline];  // with count > Inline: tokens[0] is their place in overflow_
    uint32_t count;
  };
  static_assert(sizeof(Slot) == 16 * Words);

  explicit PieceTable(size_t max_slots)
      : max_slots_(std::bit_ceil(std::max(max_slots, size_t{64}))),
        slots_(zeroed(std::min(kFirstSlots, max_slots_))),
        mask_(std::min(kFirstSlots, max_slots_) - 1),
        shift_(64 - std::popcount(mask_)) {}

  void prefetch(uint64_t hash) const { __builtin_prefetch(&slots_[hash >> shift_]); }

  // The first slot to look at; the piece is there, elsewhere or nowhere.
  const Slot& slot_of(uint64_t hash) const { return slots_[hash >> shift_]; }

  // Null when the piece is not there.
  const Slot* find(const Key& key, uint64_t hash) const {
    for (size_t i = hash >> shift_;; i = (i + 1) & mask_) {
      const Slot& slot = slots_[i];
      if (slot.key == key) [[likely]]
        return &slot;
      if (slot.key.word[Words - 1] == 0) return nullptr;
    }
  }

  void insert(const Key& key, uint64_t hash, const uint32_t* tokens, size_t count) {
    if (8 * (used_ + 1) > 5 * (mask_ + 1)) grow();
    Slot& slot = slots_[free_slot(hash)];
    slot.key = key;
    slot.count = static_cast<uint32_t>(count);
    if (count <= Inline) {
      std::copy_n(tokens, count, slot.tokens);
    } else {
      slot.tokens[0] = static_cast<uint32_t>(overflow_.size());
      overflow_.insert(overflow_.end(), tokens, tokens + count);
    }
    ++used_;
  }

  // Writes the ids of a slot; `at` has room for one per byte of the piece and at least Inline + 1.
  uint32_t* write(const Slot& slot, uint32_t* at) const {
    if (slot.count <= Inline) [[likely]] {
      std::memcpy(at, slot.tokens, sizeof slot.tokens);
      return at + slot.count;
    }
    const uint32_t* const tokens = &overflow_[slot.tokens[0]];
    for (size_t i = 0; i < slot.count; ++i) at[i] = tokens[i];
    return at + slot.count;
  }

 private:
  static constexpr size_t kFirstSlots = size_t{1} << 12;
  static constexpr size_t kHugePage = size_t{1} << 21;

  size_t free_slot(uint64_t hash) const {
    size_t i = hash >> shift_;
    while (slots_[i].key.word[Words - 1] != 0) i = (i + 1) & mask_;
    return i;
  }

  struct Release {
    size_t mapped_bytes;  // 0: from aligned_alloc
    void operator()(Slot* slots) const {
      mapped_bytes != 0 ? static_cast<void>(munmap(slots, mapped_bytes)) : std::free(slots);
    }
  };
  using Slots = std::unique_ptr<Slot[], Release>;

  // Zeroed memory. Large tables come straight from the system: its pages are zero already, and they
  // shall be of 2 MiB (asked for before the first touch), for most look-ups would miss the TLB too.
  static Slots zeroed(size_t num_slots) {
    const size_t bytes = num_slots * sizeof(Slot);
    if (bytes >= kHugePage) {
      void* const memory =
          mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
      madvise(memory, bytes, MADV_HUGEPAGE);
#endif
      return Slots(static_cast<Slot*>(memory), Release{bytes});
    }
    void* const memory = std::aligned_alloc(alignof(Slot), bytes);
    if (memory == nullptr) throw std::bad_alloc();
    std::memset(memory, 0, bytes);
    return Slots(static_cast<Slot*>(memory), Release{0});
  }

  void grow() {
    const size_t num_old = mask_ + 1;
    if (num_old >= max_slots_) {
      std::memset(static_cast<void*>(slots_.get()), 0, num_old * sizeof(Slot));
      used_ = 0;
      overflow_.clear();
      return;
    }
    const size_t factor = num_old * sizeof(Slot) < kHugePage ? 4 : 2;
    const size_t num_slots = std::min(factor * num_old, max_slots_);
    Slots old = zeroed(num_slots);
    old.swap(slots_);
    mask_ = num_slots - 1;
    shift_ = 64 - std::popcount(mask_);
    for (size_t k = 0; k < num_old; ++k) {
      const Slot& slot = old[k];
      if (slot.key.word[Words - 1] != 0) slots_[free_slot(slot.key.hash())] = slot;
    }
  }

  size_t max_slots_;
  Slots slots_;
  size_t mask_;
  int shift_;  // of a hash, to the number of a slot
  size_t used_ = 0;
  std::vector<uint32_t> overflow_;
};

}  // namespace lmworks
