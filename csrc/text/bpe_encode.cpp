// The piece cache and the encoding loop around it.
//
// Per piece: the scanner finds its end, its bytes are packed into a 16-byte key, the slot is
// prefetched, and 32 pieces later the slot is read: the table is larger than L2, so the loads of a
// batch overlap instead of waiting for each other.
#include "lmworks/bpe_encode.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

namespace lmworks {
namespace {

constexpr size_t kMaxPacked = 15;
constexpr size_t kMaxLong = 255;  // longer pieces are rare and are merged each time
constexpr size_t kFirstSlots = size_t{1} << 12;
constexpr size_t kFirstLongSlots = size_t{1} << 10;
// The long table stays a fraction of the short one: an entry also holds 16..255 bytes and their
// ids.
constexpr size_t kLongShare = 8;
constexpr size_t kMaxPiece = 0xFFFFFFF0;  // positions inside a piece are 32-bit
constexpr size_t kHugePage = size_t{1} << 21;

uint64_t hash_key(uint64_t low, uint64_t high) {
  const __uint128_t product =
      static_cast<__uint128_t>(low ^ 0xA0761D6478BD642Fu) * (high ^ 0xE7037ED1A0B428DBu);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// The piece's bytes, zero-padded to 15, and its length on top. `readable` bytes follow `p`.
void pack(const uint8_t* p, size_t size, size_t readable, uint64_t* low, uint64_t* high) {
  uint8_t copy[16] = {};
  if (readable < 16) {
    std::memcpy(copy, p, size);
    p = copy;
  }
  std::memcpy(low, p, 8);
  std::memcpy(high, p + 8, 8);
  // Little-endian order is assumed; on a big-endian machine this would keep the wrong bytes.
  static_assert(std::endian::native == std::endian::little);
  *low &= size >= 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * size)) - 1;
  *high &= size > 8 ? (uint64_t{1} << (8 * (size - 8))) - 1 : 0;
  *high |= static_cast<uint64_t>(size) << 56;
}

uint64_t hash_long(const uint8_t* p, size_t size) {
  uint64_t h = size, low, high;
  for (size_t i = 0; i + 16 <= size; i += 16) {
    std::memcpy(&low, p + i, 8);
    std::memcpy(&high, p + i + 8, 8);
    h = hash_key(low ^ h, high);
  }
  std::memcpy(&low, p + size - 16, 8);
  std::memcpy(&high, p + size - 8, 8);
  return hash_key(low ^ h, high);
}

}  // namespace

TokenBuffer::TokenBuffer(TokenBuffer&& other) noexcept
    : data_(other.data_), size_(other.size_), capacity_(other.capacity_) {
  other.release();
}

void TokenBuffer::grow(size_t count) {
  const size_t capacity = std::max(capacity_ + capacity_ / 2, size_ + count);
  void* const data = std::realloc(data_, capacity * sizeof(uint32_t));
  if (data == nullptr) throw std::bad_alloc();
  data_ = static_cast<uint32_t*>(data);
  capacity_ = capacity;
}

void TokenBuffer::shrink_to_fit() {
  if (size_ == 0 || size_ == capacity_) return;
  void* const data = std::realloc(data_, size_ * sizeof(uint32_t));
  if (data == nullptr) return;
  data_ = static_cast<uint32_t*>(data);
  capacity_ = size_;
}

uint32_t* TokenBuffer::release() {
  uint32_t* const data = data_;
  data_ = nullptr;
  size_ = capacity_ = 0;
  return data;
}

struct PieceCache::Batch {
  static constexpr size_t kSize = 32;
  size_t count = 0;
  uint64_t low[kSize], high[kSize], hash[kSize];  // high 0: a long piece of `low` bytes
  const uint8_t* piece[kSize];
};

PieceCache::PieceCache(size_t max_slots)
    : max_slots_(std::bit_ceil(std::max(max_slots, size_t{64}))), long_slots_(kFirstLongSlots) {
  allocate(std::min(kFirstSlots, max_slots_));
}

void PieceCache::allocate(size_t num_slots) {
  const size_t bytes = num_slots * sizeof(Slot);
  void* const memory = std::aligned_alloc(bytes >= kHugePage ? kHugePage : alignof(Slot), bytes);
  if (memory == nullptr) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  // Before the first touch; most look-ups would otherwise miss the TLB too.
  if (bytes >= kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  std::memset(memory, 0, bytes);
  slots_ = static_cast<Slot*>(memory);
  mask_ = num_slots - 1;
  used_ = 0;
}

// Doubles twice; at the limit forgets everything, which costs one miss per piece in use.
void PieceCache::grow() {
  if (mask_ + 1 >= max_slots_) {
    std::memset(slots_, 0, (mask_ + 1) * sizeof(Slot));
    used_ = 0;
    overflow_.clear();
    return;
  }
  const std::unique_ptr<Slot, void (*)(void*)> old(slots_, std::free);
  const size_t num_old = mask_ + 1;
  slots_ = nullptr;
  allocate(std::min(4 * num_old, max_slots_));
  for (size_t k = 0; k < num_old; ++k) {
    const Slot& slot = old.get()[k];
    if (slot.high == 0) continue;
    size_t i = hash_key(slot.low, slot.high) & mask_;
    while (slots_[i].high != 0) i = (i + 1) & mask_;
    slots_[i] = slot;
    ++used_;
  }
}

const PieceCache::Slot* PieceCache::insert(const BpeModel& model, uint64_t low, uint64_t high,
                                           uint64_t hash) {
  if (2 * (used_ + 1) > mask_ + 1) grow();
  uint64_t bytes[2] = {low, high};
  uint32_t ids[16];
  const size_t count =
      model.encode_piece(reinterpret_cast<const uint8_t*>(bytes), high >> 56, ids, scratch_);
  size_t i = hash & mask_;
  while (slots_[i].high != 0) i = (i + 1) & mask_;
  Slot& slot = slots_[i];
  slot = {low, high, {ids[0], 0, 0}, static_cast<uint32_t>(count)};
  if (count <= 3) {
    std::copy_n(ids, count, slot.tokens);
  } else {
    slot.tokens[0] = static_cast<uint32_t>(overflow_.size());
    overflow_.insert(overflow_.end(), ids, ids + count);
  }
  ++used_;
  return &slot;
}

void PieceCache::flush(const BpeModel& model, Batch& batch, TokenBuffer& out) {
  uint32_t* at = out.reserve(Batch::kSize * 16);
  for (size_t k = 0; k < batch.count; ++k) {
    const uint64_t low = batch.low[k], high = batch.high[k];
    if (high == 0) {
      out.advance_to(at);
      encode_long(model, batch.piece[k], low, out);
      at = out.reserve(Batch::kSize * 16);
      continue;
    }
    size_t i = batch.hash[k] & mask_;
    const Slot* slot = &slots_[i];
    while (slot->high != 0 && (slot->low != low || slot->high != high)) {
      i = (i + 1) & mask_;
      slot = &slots_[i];
    }
    if (slot->high == 0) [[unlikely]]
      slot = insert(model, low, high, batch.hash[k]);
    if (slot->count <= 3) [[likely]] {
      std::memcpy(at, slot->tokens, sizeof slot->tokens);
    } else {
      std::memcpy(at, &overflow_[slot->tokens[0]], slot->count * sizeof(uint32_t));
    }
    at += slot->count;
  }
  out.advance_to(at);
  batch.count = 0;
}

void PieceCache::encode_long(const BpeModel& model, const uint8_t* piece, size_t size,
                             TokenBuffer& out) {
  if (size > kMaxPiece) throw std::length_error("a piece of text of 4 GiB or more");
  uint32_t* const at = out.reserve(size);
  if (size > kMaxLong) {
    out.advance_to(at + model.encode_piece(piece, size, at, scratch_));
    return;
  }
  const uint64_t hash = hash_long(piece, size);
  const size_t mask = long_slots_.size() - 1;
  size_t i = hash & mask;
  for (; long_slots_[i].size != 0; i = (i + 1) & mask) {
    const LongSlot& slot = long_slots_[i];
    if (slot.hash != hash || slot.size != size) continue;
    if (std::memcmp(&long_bytes_[slot.bytes_at], piece, size) != 0) continue;
    std::memcpy(at, &long_tokens_[slot.tokens_at], slot.count * sizeof(uint32_t));
    out.advance_to(at + slot.count);
    return;
  }
  const size_t count = model.encode_piece(piece, size, at, scratch_);
  out.advance_to(at + count);
  if (2 * (long_used_ + 1) > long_slots_.size()) grow_long();
  place_long({hash, static_cast<uint32_t>(long_bytes_.size()), static_cast<uint32_t>(size),
              static_cast<uint32_t>(long_tokens_.size()), static_cast<uint32_t>(count)});
  long_bytes_.insert(long_bytes_.end(), piece, piece + size);
  long_tokens_.insert(long_tokens_.end(), at, at + count);
}

void PieceCache::place_long(const LongSlot& slot) {
  size_t i = slot.hash & (long_slots_.size() - 1);
  while (long_slots_[i].size != 0) i = (i + 1) & (long_slots_.size() - 1);
  long_slots_[i] = slot;
  ++long_used_;
}

void PieceCache::grow_long() {
  const size_t size = long_slots_.size();
  long_used_ = 0;
  if (kLongShare * size >= max_slots_) {
    std::fill(long_slots_.begin(), long_slots_.end(), LongSlot{});
    long_bytes_.clear();
    long_tokens_.clear();
    return;
  }
  const std::vector<LongSlot> old = std::exchange(long_slots_, std::vector<LongSlot>(4 * size));
  for (const LongSlot& slot : old) {
    if (slot.size != 0) place_long(slot);
  }
}

template <class Next>
void PieceCache::encode_pieces(const BpeModel& model, const uint8_t* text, size_t size,
                               TokenBuffer& out, Next next) {
  Batch batch;
  const uint8_t* const end = text + size;
  for (const uint8_t* p = text; p < end;) {
    const uint8_t* const q = next(p);
    const size_t length = static_cast<size_t>(q - p);
    const size_t k = batch.count++;
    batch.piece[k] = p;
    if (length <= kMaxPacked) {
      pack(p, length, static_cast<size_t>(end - p), &batch.low[k], &batch.high[k]);
      batch.hash[k] = hash_key(batch.low[k], batch.high[k]);
      __builtin_prefetch(&slots_[batch.hash[k] & mask_]);
    } else {
      batch.low[k] = length;
      batch.high[k] = 0;
    }
    if (batch.count == Batch::kSize) flush(model, batch, out);
    p = q;
  }
  flush(model, batch, out);
}

void PieceCache::encode(const BpeModel& model, const uint8_t* text, size_t size, TokenBuffer& out) {
  const uint8_t* const end = text + size;
  if (!model.pattern()) {
    const PieceCutter& cutter = model.cutter();
    return encode_pieces(model, text, size, out,
                         [&](const uint8_t* p) { return cutter.next(p, end); });
  }
  with_pattern(*model.pattern(), [&]<Pattern P>() {
    encode_pieces(model, text, size, out, [&](const uint8_t* p) { return next_piece<P>(p, end); });
  });
}

void PieceCache::encode_cut(const BpeModel& model, const uint8_t* text,
                            std::span<const uint64_t> ends, TokenBuffer& out) {
  if (ends.empty()) return;
  size_t k = 0;
  encode_pieces(model, text, ends.back(), out, [&](const uint8_t*) { return text + ends[k++]; });
}

uint32_t encode(const BpeModel& model, const SpecialQuery& query,
                std::span<const uint32_t> special_ids, PieceCache& cache, const uint8_t* text,
                size_t size, TokenBuffer& out) {
  const uint32_t forbidden = query.find_forbidden(text, size);
  if (forbidden != kNoToken) return forbidden;
  query.split(text, size, [&](const SpecialSegment& segment) {
    if (segment.index == kNoToken) {
      cache.encode(model, text + segment.begin, segment.end - segment.begin, out);
    } else {
      out.push(special_ids[segment.index]);
    }
  });
  return kNoToken;
}

}  // namespace lmworks
