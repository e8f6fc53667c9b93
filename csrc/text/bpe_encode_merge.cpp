// The merge loop: one piece of text -> token ids, without any cache.
#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "lmworks/bpe_encode.h"

namespace lmworks {
namespace {

constexpr uint64_t kEmptyPair = ~uint64_t{0};
constexpr uint32_t kNoRank = 0xFFFFFFFF;
constexpr uint32_t kRankBits = 22;
// Up to here the array is scanned for each merge; beyond, the square of the length would show.
constexpr size_t kShortPiece = 32;

uint64_t hash_pair(uint64_t key) { return key * 0x9E3779B97F4A7C15u; }

uint64_t hash_bytes(const uint8_t* p, size_t size) {
  uint64_t h = size;
  for (; size >= 8; p += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    h = (h ^ word) * 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
  }
  uint64_t word = 0;
  std::memcpy(&word, p, size);
  h = (h ^ word) * 0x9E3779B97F4A7C15u;
  return h ^ h >> 32;
}

}  // namespace

BpeModel::BpeModel(const BpeVocabulary& v)
    : pattern_(v.pattern),
      cutter_(v.pattern || v.ignore_merges ? PieceCutter()
                                           : PieceCutter(v.token_bytes, v.token_offsets)),
      rank_(v.ranks.begin(), v.ranks.end()),
      token_bytes_(v.token_bytes.begin(), v.token_bytes.end()),
      token_offsets_(v.token_offsets.begin(), v.token_offsets.end()),
      outputs_(v.outputs.begin(), v.outputs.end()),
      output_offsets_(v.output_offsets.begin(), v.output_offsets.end()) {
  std::fill(std::begin(byte_token_), std::end(byte_token_), kNoToken);
  for (uint32_t id = 0; id < num_tokens(); ++id) {
    const std::string_view bytes = token(id);
    if (bytes.size() == 1) byte_token_[static_cast<uint8_t>(bytes[0])] = id;
  }
  const size_t num_merges = v.merges.size() / 3;
  const size_t num_slots = std::bit_ceil(std::max<size_t>(2 * num_merges, 16));
  pair_shift_ = 64 - std::countr_zero(num_slots);
  pairs_.assign(num_slots, kEmptyPair);
  result_.resize(num_merges);
  for (uint32_t rank = 0; rank < num_merges; ++rank) {
    const uint64_t key = static_cast<uint64_t>(v.merges[3 * rank]) << 21 | v.merges[3 * rank + 1];
    result_[rank] = v.merges[3 * rank + 2];
    size_t i = hash_pair(key) >> pair_shift_;
    while (pairs_[i] != kEmptyPair) i = (i + 1) & (num_slots - 1);
    pairs_[i] = key << kRankBits | rank;
  }
  if (!v.ignore_merges) return;
  whole_.assign(std::bit_ceil(std::max<size_t>(2 * num_tokens(), 16)), kNoToken);
  for (uint32_t id = 0; id < num_tokens(); ++id) {
    const std::string_view bytes = token(id);
    if (bytes.empty()) continue;
    size_t i = hash_bytes(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    for (i &= whole_.size() - 1; whole_[i] != kNoToken;) i = (i + 1) & (whole_.size() - 1);
    whole_[i] = id;
    max_whole_size_ = std::max(max_whole_size_, bytes.size());
  }
}

uint32_t BpeModel::rank_of(uint32_t left, uint32_t right) const {
  const uint64_t key = static_cast<uint64_t>(left) << 21 | right;
  for (size_t i = hash_pair(key) >> pair_shift_;; i = (i + 1) & (pairs_.size() - 1)) {
    const uint64_t slot = pairs_[i];
    if (slot >> kRankBits == key) return slot & ((1u << kRankBits) - 1);
    if (slot == kEmptyPair) return kNoRank;
  }
}

uint32_t BpeModel::whole_token(const uint8_t* piece, size_t size) const {
  if (size > max_whole_size_) return kNoToken;
  const std::string_view bytes(reinterpret_cast<const char*>(piece), size);
  size_t i = hash_bytes(piece, size) & (whole_.size() - 1);
  for (; whole_[i] != kNoToken; i = (i + 1) & (whole_.size() - 1)) {
    if (token(whole_[i]) == bytes) return whole_[i];
  }
  return kNoToken;
}

size_t BpeModel::encode_piece(const uint8_t* piece, size_t size, uint32_t* out,
                              MergeScratch& scratch) const {
  if (output_offsets_.empty()) return merge(piece, size, out, scratch);
  scratch.merged.resize(size);
  const size_t count = merge(piece, size, scratch.merged.data(), scratch);
  uint32_t* at = out;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t id = scratch.merged[i];
    at = std::copy(outputs_.data() + output_offsets_[id], outputs_.data() + output_offsets_[id + 1],
                   at);
  }
  return static_cast<size_t>(at - out);
}

size_t BpeModel::merge(const uint8_t* piece, size_t size, uint32_t* out,
                       MergeScratch& scratch) const {
  if (size == 1) {
    *out = byte_token_[*piece];
    return 1;
  }
  if (const uint32_t whole = whole_token(piece, size); whole != kNoToken) {
    *out = whole;
    return 1;
  }
  if (rank_.empty()) {
    return size <= kShortPiece ? merge_short<false>(piece, size, out)
                               : merge_long<false>(piece, size, out, scratch);
  }
  return size <= kShortPiece ? merge_short<true>(piece, size, out)
                             : merge_long<true>(piece, size, out, scratch);
}

// Symbols and the ranks of neighbouring pairs in two arrays; O(n^2) with a tiny constant.
template <bool kHasTies>
size_t BpeModel::merge_short(const uint8_t* piece, size_t size, uint32_t* out) const {
  uint32_t rank[kShortPiece];
  size_t n = size;
  for (size_t i = 0; i < n; ++i) out[i] = byte_token_[piece[i]];
  for (size_t i = 0; i + 1 < n; ++i) rank[i] = rank_of(out[i], out[i + 1]);
  while (n > 1) {
    size_t at = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (order<kHasTies>(rank[i]) < order<kHasTies>(rank[at])) at = i;
    }
    if (rank[at] == kNoRank) break;
    out[at] = result_[rank[at]];
    --n;
    for (size_t i = at + 1; i < n; ++i) out[i] = out[i + 1];
    for (size_t i = at + 1; i + 1 < n; ++i) rank[i] = rank[i + 1];
    if (at + 1 < n) rank[at] = rank_of(out[at], out[at + 1]);
    if (at > 0) rank[at - 1] = rank_of(out[at - 1], out[at]);
  }
  return n;
}

// A heap of rank << 32 | position over a linked list. An entry is stale when the pair that now
// starts at its position has another rank. `size` < 2^32 is the caller's duty.
template <bool kHasTies>
size_t BpeModel::merge_long(const uint8_t* piece, size_t size, uint32_t* out,
                            MergeScratch& s) const {
  const uint32_t end = static_cast<uint32_t>(size);
  s.symbol.resize(size);
  s.previous.resize(size);
  s.next.resize(size);
  s.heap.clear();
  for (uint32_t i = 0; i < end; ++i) {
    s.symbol[i] = byte_token_[piece[i]];
    s.previous[i] = i - 1;  // of the first: 2^32 - 1, which no position is
    s.next[i] = i + 1;
  }
  const auto pair_merge = [&](uint32_t i) {
    return s.next[i] < end ? rank_of(s.symbol[i], s.symbol[s.next[i]]) : kNoRank;
  };
  const auto pair_rank = [&](uint32_t i) { return order<kHasTies>(pair_merge(i)); };
  for (uint32_t i = 0; i + 1 < end; ++i) {
    const uint32_t rank = pair_rank(i);
    if (rank != kNoRank) s.heap.push_back(static_cast<uint64_t>(rank) << 32 | i);
  }
  const auto later = std::greater<uint64_t>();
  std::make_heap(s.heap.begin(), s.heap.end(), later);
  const auto push = [&](uint32_t i) {
    const uint32_t rank = pair_rank(i);
    if (rank == kNoRank) return;
    s.heap.push_back(static_cast<uint64_t>(rank) << 32 | i);
    std::push_heap(s.heap.begin(), s.heap.end(), later);
  };
  while (!s.heap.empty()) {
    std::pop_heap(s.heap.begin(), s.heap.end(), later);
    const uint32_t i = static_cast<uint32_t>(s.heap.back());
    const uint32_t rank = static_cast<uint32_t>(s.heap.back() >> 32);
    s.heap.pop_back();
    if (s.symbol[i] == kNoToken) continue;
    const uint32_t merge = pair_merge(i);
    if (order<kHasTies>(merge) != rank) continue;
    const uint32_t gone = s.next[i];
    s.symbol[i] = result_[merge];
    s.symbol[gone] = kNoToken;
    s.next[i] = s.next[gone];
    if (s.next[i] < end) s.previous[s.next[i]] = i;
    push(i);
    if (s.previous[i] < end) push(s.previous[i]);
  }
  size_t n = 0;
  for (uint32_t i = 0; i < end; i = s.next[i]) out[n++] = s.symbol[i];
  return n;
}

}  // namespace lmworks
