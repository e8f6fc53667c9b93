// Pieces of up to 15 bytes merged side by side. One merge of a piece needs two look-ups in the
// table of pairs, and the next one waits for them; a round makes one merge of each piece, so that
// most of what it needs has come by the next.
//
// Symbols keep their places, and a bit tells which are left: nothing is moved, and the least of all
// merges is found without a branch.
#include <algorithm>
#include <bit>
#include <cstring>

#include "lmworks/bpe_model.h"

namespace lmworks {
namespace {

constexpr uint32_t kPlaceBits = 4;
static_assert(ShortMerge::kNumPlaces == 1 << kPlaceBits);
constexpr uint32_t kNoOrder = kNoMerge << kPlaceBits;  // and all above
static_assert(uint64_t{kMaxMerges} << kPlaceBits < kNoOrder);
constexpr uint32_t kNoSymbol = kMaxTokens - 1;  // ids are below

uint32_t order_of(uint32_t merge, uint32_t place) { return merge << kPlaceBits | place; }

uint32_t least_of(const uint32_t (&order)[ShortMerge::kNumPlaces]) {
  typedef uint32_t Four __attribute__((vector_size(16)));
  Four v[4];
  std::memcpy(v, order, sizeof v);
  const Four a = v[0] < v[1] ? v[0] : v[1], b = v[2] < v[3] ? v[2] : v[3];
  const Four c = a < b ? a : b;
  return std::min(std::min(c[0], c[1]), std::min(c[2], c[3]));
}

}  // namespace

// Where the pair is looked up: a slot that is always empty if the filter does not know it.
inline uint32_t BpeModel::likely_slot(uint32_t left, uint32_t right) const {
  const uint64_t hash = pair_hash(left, right);
  const size_t bit = hash >> (64 - kFilterBits);
  const uint32_t slot = static_cast<uint32_t>(hash >> pair_shift_);
  const uint32_t empty = static_cast<uint32_t>(pairs_.size() - 1);
  const uint32_t is_likely = -static_cast<uint32_t>(pair_filter_[bit / 64] >> bit % 64 & 1);
  const uint32_t chosen = empty ^ ((empty ^ slot) & is_likely);
  __builtin_prefetch(&pairs_[chosen]);
  return chosen;
}

inline uint32_t BpeModel::merge_from(uint32_t slot, uint32_t left, uint32_t right) const {
  const uint64_t key = pair_key(left, right), found = pairs_[slot];
  const uint32_t is_other = found >> kMergeBits != key;
  if (is_other && found != kEmptyPair) [[unlikely]]
    return merge_at(pair_hash(left, right), left, right);
  return (found & ((1u << kMergeBits) - 1)) | -is_other;
}

void BpeModel::begin(const ShortTable::Key& piece, ShortMerge& m) const {
  uint32_t merges[ShortMerge::kNumPlaces];
  const size_t count =
      first_symbols(piece.bytes(), piece.bytes() + piece.size(), m.symbols + 1, merges + 1);
  std::fill(std::begin(m.order), std::end(m.order), kNoOrder);
  for (uint32_t i = 1; i <= count; ++i) m.order[i] = order_of(merges[i], i);
  m.symbols[0] = m.symbols[count + 1] = kNoSymbol;
  m.standing = (2u << (count + 1)) - 1;
  // Nothing to look up yet: a pair that changes nothing.
  m.at = m.left = 0;
  m.right = 1;
  m.left_slot = m.right_slot = static_cast<uint32_t>(pairs_.size() - 1);
}

// Makes one merge, if there is any.
inline bool BpeModel::step(ShortMerge& m) const {
  const uint32_t symbol = m.symbols[m.at];
  const uint32_t right_merge = merge_from(m.right_slot, symbol, m.symbols[m.right]);
  const uint32_t left_merge = merge_from(m.left_slot, m.symbols[m.left], symbol);
  const uint32_t right_order = order_of(right_merge, m.at),
                 left_order = order_of(left_merge, m.left);
  // Not of what is just being stored: a load of several values would have to wait for it.
  const uint32_t least = std::min(least_of(m.order), std::min(left_order, right_order));
  m.order[m.at] = right_order;
  m.order[m.left] = left_order;
  if (least >= kNoOrder) return false;
  const uint32_t at = least % ShortMerge::kNumPlaces;
  const uint32_t result = result_of(least >> kPlaceBits);
  uint32_t after = m.standing >> at >> 1 << at << 1;
  const uint32_t gone = after & -after;
  m.order[std::countr_zero(after)] = kNoOrder;
  m.standing ^= gone;
  after ^= gone;
  m.order[at] = kNoOrder;
  m.symbols[at] = result;
  m.at = at;
  m.right = std::countr_zero(after);
  m.left = std::bit_width(m.standing & ((1u << at) - 1)) - 1;
  m.order[m.left] = kNoOrder;
  m.right_slot = likely_slot(result, m.symbols[m.right]);
  m.left_slot = likely_slot(m.symbols[m.left], result);
  return true;
}

void BpeModel::encode_shorts(std::span<const ShortTable::Key> pieces, ShortMerge* merges,
                             MergeScratch& scratch) const {
  if (!ranks_.empty() || !output_offsets_.empty()) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      merges[i].count = static_cast<uint32_t>(
          encode_piece(pieces[i].bytes(), pieces[i].size(), merges[i].symbols, scratch));
    }
    return;
  }
  ShortMerge* active[kMaxAtOnce];
  size_t num_active = pieces.size();
  for (size_t i = 0; i < pieces.size(); ++i) {
    begin(pieces[i], merges[i]);
    active[i] = &merges[i];
  }
  while (num_active > 0) {
    size_t num_left = 0;
    for (size_t i = 0; i < num_active; ++i) {
      ShortMerge* const m = active[i];
      active[num_left] = m;
      num_left += step(*m);
    }
    num_active = num_left;
  }
  for (ShortMerge& m : std::span(merges, pieces.size())) {
    // All but the first and the last.
    uint32_t left = m.standing & (m.standing - 1);
    for (m.count = 0; (left & (left - 1)) != 0; left &= left - 1) {
      m.symbols[m.count++] = m.symbols[std::countr_zero(left)];
    }
  }
}

}  // namespace lmworks
