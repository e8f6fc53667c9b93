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
#include <cstdlib>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "lmworks/bpe_model.h"

namespace lmworks {

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
