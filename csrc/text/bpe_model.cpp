#include "lmworks/bpe_model.h"

#include <algorithm>
#include <bit>

#include "char_rules.h"

namespace lmworks {

BpeModel::BpeModel(const BpeVocabulary& v)
    : pattern_(v.pattern),
      token_bytes_(v.token_bytes.begin(), v.token_bytes.end()),
      token_offsets_(v.token_offsets.begin(), v.token_offsets.end()),
      ranks_(v.ranks.begin(), v.ranks.end()),
      outputs_(v.outputs.begin(), v.outputs.end()),
      output_offsets_(v.output_offsets.begin(), v.output_offsets.end()) {
  std::fill(std::begin(byte_token_), std::end(byte_token_), kNoToken);
  for (uint32_t id = 0; id < num_tokens(); ++id) {
    const std::string_view bytes = token(id);
    if (bytes.size() == 1) byte_token_[static_cast<uint8_t>(bytes[0])] = id;
  }
  index_pairs(v.merges);
  chars_ = std::make_unique<CharRules>(*this, v.merges);
  index_tokens(v.ignore_merges);
}

BpeModel::~BpeModel() = default;
BpeModel::BpeModel(BpeModel&&) noexcept = default;

void BpeModel::index_pairs(std::span<const uint32_t> merges) {
  const size_t num_merges = merges.size() / 3;
  // Up to four fifths full: what counts is that it stays in the cache.
  const size_t num_slots = std::bit_ceil(std::max<size_t>(num_merges + num_merges / 4, 16));
  pair_shift_ = 64 - std::countr_zero(num_slots);
  pairs_.assign(num_slots + 1, kEmptyPair);
  pair_filter_.assign((size_t{1} << kFilterBits) / 64, 0);
  bool is_consecutive = true;
  for (uint32_t k = 0; k < num_merges; ++k) {
    const uint64_t key = pair_key(merges[3 * k], merges[3 * k + 1]);
    is_consecutive &= merges[3 * k + 2] == merges[2] + k;
    const size_t bit = key * kPairHash >> (64 - kFilterBits);
    pair_filter_[bit / 64] |= uint64_t{1} << bit % 64;
    size_t i = key * kPairHash >> pair_shift_;
    while (pairs_[i] != kEmptyPair) i = (i + 1) & (num_slots - 1);
    pairs_[i] = key << kMergeBits | k;
  }
  if (is_consecutive && num_merges > 0) {
    first_result_ = merges[2];
  } else {
    results_.resize(num_merges);
    for (size_t k = 0; k < num_merges; ++k) results_[k] = merges[3 * k + 2];
  }
  byte_pairs_.resize(1 << 16);
  for (size_t pair = 0; pair < byte_pairs_.size(); ++pair) {
    byte_pairs_[pair] = merge_of(byte_token_[pair >> 8], byte_token_[pair & 0xFF]);
  }
}

void BpeModel::index_tokens(bool ignore_merges) {
  known_filter_.assign((size_t{1} << kFilterBits) / 64, 0);
  std::vector<uint32_t> ids;
  MergeScratch scratch;
  for (uint32_t id = 0; id < num_tokens(); ++id) {
    const std::string_view bytes = token(id);
    if (bytes.empty()) continue;
    const uint8_t* const piece = reinterpret_cast<const uint8_t*>(bytes.data());
    const size_t size = bytes.size();
    ids.resize(size);
    const bool is_reached = merge(piece, size, ids.data(), scratch) == 1 && ids[0] == id;
    if (!is_reached && !ignore_merges) continue;
    if (!is_reached) has_borders_ = false;
    std::span<const uint32_t> written(&id, 1);
    if (!output_offsets_.empty()) {
      written = {outputs_.data() + output_offsets_[id],
                 output_offsets_[id + 1] - output_offsets_[id]};
    }
    if (size <= ShortTable::Key::kMaxBytes) {
      const auto key = pack_piece<2>(piece, size, size);
      known_shorts_.insert(key, key.hash(), written.data(), written.size());
      const size_t bit = key.hash() >> (64 - kFilterBits);
      known_filter_[bit / 64] |= uint64_t{1} << bit % 64;
    } else if (size <= MiddleTable::Key::kMaxBytes) {
      const auto key = pack_piece<4>(piece, size, size);
      known_middles_.insert(key, key.hash(), written.data(), written.size());
    } else {
      known_longs_.emplace(bytes, id);
    }
  }
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

}  // namespace lmworks
