#pragma once
// Byte-level BPE encoding: text -> pre-tokenizer pieces -> token ids.
//
// Inside a piece the adjacent pair of lowest rank is merged first, the leftmost of equals, until no
// pair has a rank: the semantics of GPT-2, Hugging Face tokenizers and tiktoken. A model with
// `ignore_merges` emits a piece that is itself a token directly (tiktoken, Llama 3).
//
// Most pieces were seen before, so each encoding thread keeps a PieceCache: an open-addressing
// table keyed by the bytes of the piece themselves (at most 15, packed in 16 bytes with the
// length), with up to three token ids inline, and a smaller one for pieces of 16..255 bytes. Both
// are bounded. A miss merges: a scan over a short array, or for long pieces a heap over a linked
// list, O(n log n) on any input.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "lmworks/pretokenize.h"
#include "lmworks/special_tokens.h"

namespace lmworks {

// Two ids and a rank share 64 bits in the pair table.
constexpr uint32_t kMaxTokens = (1u << 21) - 1;
constexpr uint32_t kMaxMerges = (1u << 22) - 1;

// Growing array of token ids. Not a std::vector: growing must not zero or copy what realloc can
// remap.
class TokenBuffer {
 public:
  TokenBuffer() = default;
  TokenBuffer(const TokenBuffer&) = delete;
  TokenBuffer& operator=(const TokenBuffer&) = delete;
  TokenBuffer(TokenBuffer&& other) noexcept;
  ~TokenBuffer() { std::free(data_); }

  uint32_t* data() { return data_; }
  const uint32_t* data() const { return data_; }
  size_t size() const { return size_; }
  // Room for `count` more ids; returns where they go. Throws std::bad_alloc.
  uint32_t* reserve(size_t count) {
    if (capacity_ - size_ < count) grow(count);
    return data_ + size_;
  }
  void advance_to(const uint32_t* end) { size_ = static_cast<size_t>(end - data_); }
  void push(uint32_t id) { *reserve(1) = id, ++size_; }
  void shrink_to_fit();
  uint32_t* release();

 private:
  void grow(size_t count);
  uint32_t* data_ = nullptr;
  size_t size_ = 0, capacity_ = 0;
};

// Cuts text that has no pattern before a character that follows the one before it in no token: no
// token reaches across such a border, and merges on its two sides do not depend on each other. So
// the pieces are short, most of them are in the cache, and the ids are those of the uncut text.
//
// It needs tokens that are whole characters in a row, or one unfinished character; with others the
// text stays one piece. It never cuts inside a character, and bytes that are no UTF-8 are
// characters of their own.
class PieceCutter {
 public:
  PieceCutter() = default;  // never cuts
  PieceCutter(std::span<const uint8_t> token_bytes, std::span<const uint64_t> token_offsets);
  // End of the piece that starts at `p` < `end`.
  const uint8_t* next(const uint8_t* p, const uint8_t* end) const;

 private:
  bool is_joined(uint32_t left, uint32_t right) const;
  size_t slot(uint32_t left, uint32_t right) const {
    const uint64_t pair = static_cast<uint64_t>(left) << 32 | right;
    return (pair ^ pair >> 29) * 0x9E3779B97F4A7C15u >> shift_;
  }
  bool can_cut_ = false;
  bool ascii_[128][128] = {};     // whether some token has the second character after the first
  std::vector<uint64_t> others_;  // the same by hash, one bit for each pair
  int shift_ = 0;
};

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
  std::vector<uint32_t> symbol, previous, next;
  std::vector<uint64_t> heap;
  std::vector<uint32_t> merged;  // the ids before they are mapped to outputs
};

// Immutable after construction, shared by all threads.
class BpeModel {
 public:
  explicit BpeModel(const BpeVocabulary& vocabulary);
  std::optional<Pattern> pattern() const { return pattern_; }
  const PieceCutter& cutter() const { return cutter_; }
  // Writes the ids of one piece to `out` (room for `size`) and returns their number.
  size_t encode_piece(const uint8_t* piece, size_t size, uint32_t* out,
                      MergeScratch& scratch) const;
  std::string_view token(uint32_t id) const {
    return {token_bytes_.data() + token_offsets_[id], token_offsets_[id + 1] - token_offsets_[id]};
  }
  uint32_t num_tokens() const { return static_cast<uint32_t>(token_offsets_.size() - 1); }

 private:
  uint32_t rank_of(uint32_t left, uint32_t right) const;
  uint32_t whole_token(const uint8_t* piece, size_t size) const;
  size_t merge(const uint8_t* piece, size_t size, uint32_t* out, MergeScratch& scratch) const;
  template <bool kHasTies>
  size_t merge_short(const uint8_t* piece, size_t size, uint32_t* out) const;
  template <bool kHasTies>
  size_t merge_long(const uint8_t* piece, size_t size, uint32_t* out, MergeScratch& s) const;
  // What merges are ordered by. `merge` is a place in `result_`, or kNoToken, which comes last.
  template <bool kHasTies>
  uint32_t order(uint32_t merge) const {
    return kHasTies && merge != kNoToken ? rank_[merge] : merge;
  }

  std::optional<Pattern> pattern_;
  PieceCutter cutter_;
  uint32_t byte_token_[256];
  std::vector<uint64_t> pairs_;  // left << 43 | right << 22 | rank, open addressing
  int pair_shift_;
  std::vector<uint32_t> result_;  // by rank, or with ties by merge
  std::vector<uint32_t> rank_;    // by merge; empty without ties
  std::vector<char> token_bytes_;
  std::vector<uint64_t> token_offsets_;
  std::vector<uint32_t> whole_;  // token ids by hash of their bytes; empty without ignore_merges
  size_t max_whole_size_ = 0;
  std::vector<uint32_t> outputs_;
  std::vector<uint64_t> output_offsets_;  // empty: tokens are written as their own ids
};

// Pieces already encoded. One thread at a time.
class PieceCache {
 public:
  explicit PieceCache(size_t max_slots);
  ~PieceCache() { std::free(slots_); }
  PieceCache(const PieceCache&) = delete;
  PieceCache& operator=(const PieceCache&) = delete;

  // Appends the ids of `text`, which holds no special tokens, to `out`.
  void encode(const BpeModel& model, const uint8_t* text, size_t size, TokenBuffer& out);
  // The same for pieces cut by the caller: rising offsets of their ends, the last one the size.
  void encode_cut(const BpeModel& model, const uint8_t* text, std::span<const uint64_t> ends,
                  TokenBuffer& out);

 private:
  struct alignas(32) Slot {
    uint64_t low, high;  // the bytes, zero-padded; the length in the top byte (0: empty slot)
    uint32_t tokens[3];  // with count > 3: tokens[0] is their place in overflow_
    uint32_t count;
  };
  struct LongSlot {
    uint64_t hash;
    uint32_t bytes_at, size, tokens_at, count;  // size 0: empty slot
  };
  struct Batch;
  // next(p) is the end of the piece that starts at p.
  template <class Next>
  void encode_pieces(const BpeModel& model, const uint8_t* text, size_t size, TokenBuffer& out,
                     Next next);
  void flush(const BpeModel& model, Batch& batch, TokenBuffer& out);
  const Slot* insert(const BpeModel& model, uint64_t low, uint64_t high, uint64_t hash);
  void encode_long(const BpeModel& model, const uint8_t* piece, size_t size, TokenBuffer& out);
  void place_long(const LongSlot& slot);
  void allocate(size_t num_slots);
  void grow();
  void grow_long();

  Slot* slots_ = nullptr;
  size_t mask_ = 0, used_ = 0, max_slots_;
  std::vector<uint32_t> overflow_;
  std::vector<LongSlot> long_slots_;
  size_t long_used_ = 0;
  std::vector<uint8_t> long_bytes_;
  std::vector<uint32_t> long_tokens_;
  MergeScratch scratch_;
};

// Appends the ids of `text` to `out`. Returns the index of the first forbidden special token in it,
// or kNoToken. `special_ids` maps a special token's index to its id.
uint32_t encode(const BpeModel& model, const SpecialQuery& query,
                std::span<const uint32_t> special_ids, PieceCache& cache, const uint8_t* text,
                size_t size, TokenBuffer& out);

}  // namespace lmworks
