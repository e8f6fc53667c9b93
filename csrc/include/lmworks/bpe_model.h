#pragma once
// A byte-level BPE vocabulary and its merging: one piece of text -> token ids, without any cache.
//
// Inside a piece the adjacent pair of lowest rank is merged first, the leftmost of equals, until no
// pair has a rank: the semantics of GPT-2, Hugging Face tokenizers and tiktoken. A model with
// `ignore_merges` emits a piece that is itself a token directly (tiktoken, Llama 3).
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lmworks/piece_table.h"
#include "lmworks/pretokenize.h"
#include "lmworks/special_tokens.h"

namespace lmworks {

constexpr uint32_t kNoMerge = 0xFFFFFFFF;
// Two ids and a merge share 64 bits in the pair table.
constexpr uint32_t kMaxTokens = (1u << 21) - 1;
constexpr uint32_t kMaxMerges = (1u << 22) - 1;

using ShortTable = PieceTable<2, 3>;   // pieces of up to 15 bytes
using MiddleTable = PieceTable<4, 7>;  // of up to 31

// What a BpeModel is made of. The caller has checked it: every id < num_tokens, every byte a token.
struct BpeVocabulary {
  std::optional<Pattern> pattern;  // none: the whole text is one piece
  bool ignore_merges;
  std::span<const uint8_t> token_bytes;
  std::span<const uint64_t> token_offsets;  // num_tokens + 1; an empty token is a hole
  std::span<const uint32_t> merges;         // left, right, result; in rank order
  // Rank of each merge, never falling; of merges of one rank the leftmost in the text is made
  // first. Empty: each merge has its own.
  std::span<const uint32_t> ranks;
  // What each token is written as: outputs[output_offsets[id]] .. outputs[output_offsets[id + 1]],
  // at most as many ids as the token has bytes. Empty offsets: as its own id.
  std::span<const uint32_t> outputs;
  std::span<const uint64_t> output_offsets;
};

// Working memory for merging one long piece.
struct MergeScratch {
  std::vector<uint32_t> symbol, merge, previous, next;
  std::vector<uint64_t> heap;
  std::vector<uint32_t> merged;  // the ids before they are mapped to outputs
  // Pairs of tokens and whether they stand together: (left << 32 | right) + 1, then a bit. A pair
  // is at the place that its hash gives, or has been replaced there.
  static constexpr int kPairBits = 12;
  std::vector<uint64_t> pairs;
};

// A piece of up to 15 bytes that is merged beside others.
struct ShortMerge {
  static constexpr size_t kMaxIds = ShortTable::Key::kMaxBytes;
  static constexpr size_t kNumPlaces = kMaxIds + 1;
  // Between two symbols that no token has. In the end the ids begin at place 0, without gaps.
  uint32_t symbols[kNumPlaces + 1];
  uint32_t count;              // of the ids
  uint32_t order[kNumPlaces];  // merge << 4 | place of its left symbol
  uint32_t standing;           // a bit for each place that has a symbol
  // The last merge's place, those beside it, and where the pairs that it makes with them would be.
  uint32_t at, left, right, left_slot, right_slot;
};

class CharRules;

// Immutable after construction, shared by all threads.
class BpeModel {
 public:
  static constexpr size_t kMaxAtOnce = 32;

  explicit BpeModel(const BpeVocabulary& vocabulary);
  ~BpeModel();
  BpeModel(BpeModel&&) noexcept;

  std::optional<Pattern> pattern() const { return pattern_; }
  uint32_t num_tokens() const { return static_cast<uint32_t>(token_offsets_.size() - 1); }
  std::string_view token(uint32_t id) const {
    return {token_bytes_.data() + token_offsets_[id], token_offsets_[id + 1] - token_offsets_[id]};
  }

  // Pieces of at most 31 bytes that are one token.
  const ShortTable& known_shorts() const { return known_shorts_; }
  // False if no token has this hash: after some time, most new pieces are no tokens.
  bool may_know(uint64_t hash) const {
    const size_t bit = hash >> (64 - kFilterBits);
    return known_filter_[bit / 64] >> bit % 64 & 1;
  }
  const MiddleTable& known_middles() const { return known_middles_; }
  // Writes the ids of another piece to `out` (room for `size`) and returns their number.
  size_t encode_piece(const uint8_t* piece, size_t size, uint32_t* out,
                      MergeScratch& scratch) const;
  // The same for up to kMaxAtOnce pieces, pieces[i] to merges[i].symbols: their waits for memory
  // overlap.
  void encode_shorts(std::span<const ShortTable::Key> pieces, ShortMerge* merges,
                     MergeScratch& scratch) const;
  // Whether pieces may be cut as chars() tells: not if a piece may be a token that merging does not
  // lead to.
  bool has_borders() const { return has_borders_; }
  const CharRules& chars() const { return *chars_; }
  bool has_outputs() const { return !output_offsets_.empty(); }

  // The merge of two neighbours, or kNoMerge.
  uint32_t merge_of(uint32_t left, uint32_t right) const {
    return merge_at(pair_hash(left, right), left, right);
  }
  // What merges are ordered by; kNoMerge comes last.
  uint32_t rank(uint32_t merge) const {
    return ranks_.empty() || merge == kNoMerge ? merge : ranks_[merge];
  }
  uint32_t result_of(uint32_t merge) const {
    return results_.empty() ? first_result_ + merge : results_[merge];
  }
  uint32_t byte_token(uint8_t byte) const { return byte_token_[byte]; }

 private:
  static constexpr uint64_t kPairHash = 0x9E3779B97F4A7C15u;
  static constexpr uint64_t kEmptyPair = ~uint64_t{0};
  static constexpr uint32_t kMergeBits = 22;
  static constexpr int kFilterBits = 20;

  static uint64_t pair_key(uint32_t left, uint32_t right) {
    return static_cast<uint64_t>(left) << 21 | right;
  }
  static uint64_t pair_hash(uint32_t left, uint32_t right) {
    return pair_key(left, right) * kPairHash;
  }
  void prefetch_pair(uint64_t hash) const { __builtin_prefetch(&pairs_[hash >> pair_shift_]); }
  uint32_t merge_at(uint64_t hash, uint32_t left, uint32_t right) const {
    // Most pairs have no merge: a bit in a small table tells so for nearly all of them.
    const size_t bit = hash >> (64 - kFilterBits);
    if ((pair_filter_[bit / 64] >> bit % 64 & 1) == 0) return kNoMerge;
    const uint64_t key = pair_key(left, right);
    for (size_t i = hash >> pair_shift_;; i = (i + 1) & (pairs_.size() - 2)) {
      const uint64_t slot = pairs_[i];
      if (slot >> kMergeBits == key) return slot & ((1u << kMergeBits) - 1);
      if (slot == kEmptyPair) return kNoMerge;
    }
  }

  void index_pairs(std::span<const uint32_t> merges);
  void index_tokens(bool ignore_merges);
  size_t merge(const uint8_t* piece, size_t size, uint32_t* out, MergeScratch& scratch) const;
  size_t first_symbols(const uint8_t* piece, const uint8_t* end, uint32_t* symbols,
                       uint32_t* merges) const;
  void begin(const ShortTable::Key& piece, ShortMerge& m) const;
  bool step(ShortMerge& m) const;
  uint32_t likely_slot(uint32_t left, uint32_t right) const;
  uint32_t merge_from(uint32_t slot, uint32_t left, uint32_t right) const;
  template <bool kHasTies>
  size_t merge_symbols(uint32_t* symbols, uint32_t* merges, size_t count) const;
  template <bool kHasTies>
  size_t merge_in_passes(uint32_t* symbols, uint32_t* merges, size_t count) const;
  template <bool kHasTies>
  size_t merge_short(const uint8_t* piece, size_t size, uint32_t* out) const;
  template <bool kHasTies>
  bool stand_together(uint32_t left, uint32_t right, MergeScratch& s) const;
  template <bool kHasTies>
  bool join(const uint8_t* chunk, std::span<const uint32_t> ids, uint32_t* out, size_t* count,
            MergeScratch& s) const;
  template <bool kHasTies>
  size_t merge_heap(const uint8_t* piece, size_t size, uint32_t* out, MergeScratch& s) const;
  template <bool kHasTies>
  size_t merge_long(const uint8_t* piece, size_t size, uint32_t* out, MergeScratch& s) const;
  template <bool kHasTies>
  uint32_t order(uint32_t merge) const {
    return kHasTies ? rank(merge) : merge;
  }

  std::optional<Pattern> pattern_;
  uint32_t byte_token_[256];
  std::vector<char> token_bytes_;
  std::vector<uint64_t> token_offsets_;
  // left << 43 | right << 22 | merge, open addressing; the last one is no slot and stays empty.
  std::vector<uint64_t> pairs_;
  int pair_shift_ = 0;
  std::vector<uint64_t> pair_filter_;
  std::vector<uint32_t> byte_pairs_;  // merges of pairs of single bytes, by the bytes
  std::vector<uint32_t> ranks_;       // by merge; empty without ties
  // Results by merge; in most vocabularies they are consecutive ids, and no table is needed.
  std::vector<uint32_t> results_;
  uint32_t first_result_ = 0;
  ShortTable known_shorts_{2 * size_t{kMaxTokens}};  // never emptied
  std::vector<uint64_t> known_filter_;
  MiddleTable known_middles_{kMaxTokens};
  std::unordered_map<std::string_view, uint32_t> known_longs_;
  std::unique_ptr<CharRules> chars_;
  bool has_borders_ = true;
  std::vector<uint32_t> outputs_;
  std::vector<uint64_t> output_offsets_;  // empty: tokens are written as their own ids
};

}  // namespace lmworks
