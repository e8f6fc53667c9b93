#pragma once
// Byte-level BPE encoding: text -> pre-tokenizer pieces -> token ids.
//
// Most pieces were seen before, so each encoding thread keeps a PieceCache: open-addressing tables
// keyed by the bytes of the piece themselves (up to 15 packed with the length into 16 bytes, up to
// 31 into 32), token ids inline, and a third one for pieces of 32..255 bytes. All are bounded. A
// miss merges: a scan over a short array, or for long pieces a heap over a linked list, O(n log n)
// on any input. Scripts without blanks make long pieces that are rarely seen twice; they are cut
// further where no token can cross (text/char_rules.h), into parts that are.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "lmworks/bpe_model.h"
#include "lmworks/token_buffer.h"

namespace lmworks {

// Pieces already encoded. One thread at a time.
class PieceCache {
 public:
  // `max_slots` bounds the table of pieces of up to 15 bytes (32 bytes a slot), and with it the
  // others, which together take about as much.
  explicit PieceCache(size_t max_slots);
  ~PieceCache();
  PieceCache(const PieceCache&) = delete;
  PieceCache& operator=(const PieceCache&) = delete;

  // Appends the ids of `text`, which holds no special tokens, to `out`.
  void encode(const BpeModel& model, const uint8_t* text, size_t size, TokenBuffer& out);
  // The same for pieces cut by the caller: rising offsets of their ends, the last one the size.
  void encode_cut(const BpeModel& model, const uint8_t* text, std::span<const uint64_t> ends,
                  TokenBuffer& out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Appends the ids of `text` to `out`. Returns the index of the first forbidden special token in it,
// or kNoToken. `special_ids` maps a special token's index to its id.
uint32_t encode(const BpeModel& model, const SpecialQuery& query,
                std::span<const uint32_t> special_ids, PieceCache& cache, const uint8_t* text,
                size_t size, TokenBuffer& out);

}  // namespace lmworks
