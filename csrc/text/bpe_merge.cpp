// The merge loop: one piece of text -> token ids.
#include <algorithm>
#include <functional>

#include "char_rules.h"
#include "lmworks/bpe_model.h"

namespace lmworks {
namespace {

// Up to here the array is scanned for each merge; beyond, the square of the length would show.
constexpr size_t kShortPiece = 64;
constexpr uint32_t kUnknownMerge = kNoMerge - 1;  // not looked up yet

}  // namespace

size_t BpeModel::merge(const uint8_t* piece, size_t size, uint32_t* out,
                       MergeScratch& scratch) const {
  if (size == 1) {
    *out = byte_token_[*piece];
    return 1;
  }
  if (size > MiddleTable::Key::kMaxBytes && !known_longs_.empty()) {
    const auto found = known_longs_.find({reinterpret_cast<const char*>(piece), size});
    if (found != known_longs_.end()) {
      *out = found->second;
      return 1;
    }
  }
  if (size > kShortPiece) {
    return ranks_.empty() ? merge_long<false>(piece, size, out, scratch)
                          : merge_long<true>(piece, size, out, scratch);
  }
  uint32_t merges[kShortPiece];
  const size_t count = first_symbols(piece, piece + size, out, merges);
  return ranks_.empty() ? merge_symbols<false>(out, merges, count)
                        : merge_symbols<true>(out, merges, count);
}

// The symbols from which merging starts, and the merge of each with the one after it.
size_t BpeModel::first_symbols(const uint8_t* piece, const uint8_t* end, uint32_t* symbols,
                               uint32_t* merges) const {
  size_t count = 0;
  const auto push = [&](uint32_t token) {
    if (count > 0) {
      merges[count - 1] = kUnknownMerge;
      prefetch_pair(pair_hash(symbols[count - 1], token));
    }
    symbols[count++] = token;
  };
  for (const uint8_t* p = piece; p < end;) {
    const bool is_after_ascii = p > piece && p[-1] < 0x80;
    if (*p < 0x80) {
      if (is_after_ascii) {
        merges[count - 1] = byte_pairs_[p[-1] << 8 | *p];
        symbols[count++] = byte_token_[*p++];
      } else {
        push(byte_token_[*p++]);
      }
      continue;
    }
    const CodePoint c = decode_utf8(p, end);
    const CharRules::Seed* const seed = c.size == 0 ? nullptr : chars_->seed(c.value, is_after_ascii);
    if (seed == nullptr) {
      push(byte_token_[*p++]);
      continue;
    }
    for (const uint32_t token : seed->tokens) {
      if (token != kNoToken) push(token);
    }
    p += c.size;
  }
  merges[count - 1] = kNoMerge;
  for (size_t i = 0; i + 1 < count; ++i) {
    if (merges[i] == kUnknownMerge) merges[i] = merge_of(symbols[i], symbols[i + 1]);
  }
  return count;
}

// Symbols and the merges of neighbouring pairs in two arrays; O(n^2) with a tiny constant.
template <bool kHasTies>
size_t BpeModel::merge_symbols(uint32_t* symbols, uint32_t* merges, size_t n) const {
  while (n > 1) {
    size_t at = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      at = order<kHasTies>(merges[i]) < order<kHasTies>(merges[at]) ? i : at;
    }
    if (merges[at] == kNoMerge) break;
    symbols[at] = result_of(merges[at]);
    --n;
    for (size_t i = at + 1; i < n; ++i) {
      symbols[i] = symbols[i + 1];
      merges[i] = merges[i + 1];
    }
    merges[at] = at + 1 < n ? merge_of(symbols[at], symbols[at + 1]) : kNoMerge;
    if (at > 0) merges[at - 1] = merge_of(symbols[at - 1], symbols[at]);
  }
  return n;
}

// A heap of rank << 32 | position over a linked list. An entry is stale when the pair that now
// starts at its position has another rank. `size` < 2^32 is the caller's duty.
template <bool kHasTies>
size_t BpeModel::merge_long(const uint8_t* piece, size_t size, uint32_t* out,
                            MergeScratch& s) const {
  s.symbol.resize(size);
  s.merge.resize(size);
  const uint32_t end =
      static_cast<uint32_t>(first_symbols(piece, piece + size, s.symbol.data(), s.merge.data()));
  s.previous.resize(end);
  s.next.resize(end);
  s.heap.clear();
  const auto entry = [&](uint32_t i) {
    return static_cast<uint64_t>(order<kHasTies>(s.merge[i])) << 32 | i;
  };
  for (uint32_t i = 0; i < end; ++i) {
    s.previous[i] = i - 1;  // of the first: 2^32 - 1, which no position is
    s.next[i] = i + 1;
    if (s.merge[i] != kNoMerge) s.heap.push_back(entry(i));
  }
  const auto later = std::greater<uint64_t>();
  std::make_heap(s.heap.begin(), s.heap.end(), later);
  const auto renew = [&](uint32_t i) {
    s.merge[i] = s.next[i] < end ? merge_of(s.symbol[i], s.symbol[s.next[i]]) : kNoMerge;
    if (s.merge[i] == kNoMerge) return;
    s.heap.push_back(entry(i));
    std::push_heap(s.heap.begin(), s.heap.end(), later);
  };
  while (!s.heap.empty()) {
    std::pop_heap(s.heap.begin(), s.heap.end(), later);
    const uint64_t top = s.heap.back();
    s.heap.pop_back();
    const uint32_t i = static_cast<uint32_t>(top);
    if (s.merge[i] == kNoMerge || entry(i) != top) continue;
    const uint32_t gone = s.next[i];
    s.symbol[i] = result_of(s.merge[i]);
    s.merge[gone] = kNoMerge;
    s.next[i] = s.next[gone];
    if (s.next[i] < end) s.previous[s.next[i]] = i;
    renew(i);
    if (s.previous[i] < end) renew(s.previous[i]);
  }
  size_t n = 0;
  for (uint32_t i = 0; i < end; i = s.next[i]) out[n++] = s.symbol[i];
  return n;
}

}  // namespace lmworks
