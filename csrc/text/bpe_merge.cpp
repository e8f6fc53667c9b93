// The merge loop: one piece of text -> token ids.
//
// Short pieces scan an array for each merge. Long ones are merged in chunks that are then joined:
// tokens t1 t2 t3 ... are the result of merging their text if, for each two neighbours, merging the
// text of these two alone gives just them. (Suppose some merge of the whole text were the first to
// cross a border between two of the tokens. Until then, the merges inside of these two were the
// same, in the same order, as in their text alone, as nothing around them plays a part; so there,
// too, the next merge would be the one across the border.) At a border where the two do not stand,
// tokens around it are merged again, more and more of them, until all borders do. If that takes too
// many, the whole piece goes through a heap over a linked list, O(n log n).
#include <algorithm>
#include <cstring>
#include <functional>

#include "char_rules.h"
#include "lmworks/bpe_model.h"

namespace lmworks {
namespace {

// Up to here the array is scanned for each merge; beyond, the square of the length would show.
constexpr size_t kShortPiece = 64;
constexpr size_t kOneByOne = 32;
constexpr size_t kChunk = 32;
constexpr size_t kMaxAgain = 512;                 // bytes around a border that are merged again
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
  return ranks_.empty() ? merge_short<false>(piece, size, out)
                        : merge_short<true>(piece, size, out);
}

template <bool kHasTies>
size_t BpeModel::merge_short(const uint8_t* piece, size_t size, uint32_t* out) const {
  uint32_t merges[kMaxAgain];
  const size_t count = first_symbols(piece, piece + size, out, merges);
  return count <= kOneByOne ? merge_symbols<kHasTies>(out, merges, count)
                            : merge_in_passes<kHasTies>(out, merges, count);
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
    // Bytes 0x80..0xBF behind a character are no UTF-8, and merges may take a part of it along.
    const bool is_whole = c.size != 0 && (p + c.size == end || !is_inner_byte(p[c.size]));
    const CharRules::Seed* const seed = is_whole ? chars_->seed(c.value, is_after_ascii) : nullptr;
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

// The same, but each pass makes the best merge wherever it applies, from left to right: a run of
// one character takes the logarithm of its length in passes. A pass ends where a new pair, or
// another one of the same rank, comes before the one that is being merged.
template <bool kHasTies>
size_t BpeModel::merge_in_passes(uint32_t* symbols, uint32_t* merges, size_t n) const {
  while (n > 1) {
    size_t i = 0;
    for (size_t k = 1; k + 1 < n; ++k) {
      i = order<kHasTies>(merges[k]) < order<kHasTies>(merges[i]) ? k : i;
    }
    const uint32_t best = merges[i];
    if (best == kNoMerge) break;
    const uint32_t rank = order<kHasTies>(best), result = result_of(best);
    size_t end = i;
    bool is_best = true;
    while (i < n) {
      if (!is_best || merges[i] != best) {
        if (kHasTies && merges[i] != best && order<kHasTies>(merges[i]) == rank) is_best = false;
        symbols[end] = symbols[i];
        merges[end++] = merges[i++];
        continue;
      }
      symbols[end] = result;
      // Both look-ups are begun before either is waited for.
      const uint32_t left = end > 0 ? symbols[end - 1] : 0, right = i + 2 < n ? symbols[i + 2] : 0;
      const uint64_t left_hash = pair_hash(left, result), right_hash = pair_hash(result, right);
      prefetch_pair(left_hash);
      prefetch_pair(right_hash);
      merges[end] = i + 2 < n ? merge_at(right_hash, result, right) : kNoMerge;
      is_best = order<kHasTies>(merges[end]) > rank;
      if (end > 0) {
        merges[end - 1] = merge_at(left_hash, left, result);
        is_best &= order<kHasTies>(merges[end - 1]) > rank;
      }
      ++end;
      i += 2;
    }
    n = end;
  }
  return n;
}

// Whether two tokens stand side by side when their text is merged.
template <bool kHasTies>
bool BpeModel::stand_together(uint32_t left, uint32_t right, MergeScratch& s) const {
  const uint64_t pair = static_cast<uint64_t>(left) << 32 | right;
  uint64_t& known = s.pairs[pair * kPairHash >> (64 - MergeScratch::kPairBits)];
  if (known >> 1 == pair + 1) return (known & 1) != 0;
  const std::string_view l = token(left), r = token(right);
  const size_t size = l.size() + r.size();
  bool is_standing = false;
  if (size <= kMaxAgain) {
    uint8_t text[kMaxAgain];
    uint32_t ids[kMaxAgain];
    std::memcpy(text, l.data(), l.size());
    std::memcpy(text + l.size(), r.data(), r.size());
    is_standing = merge_short<kHasTies>(text, size, ids) == 2 && ids[0] == left && ids[1] == right;
  }
  known = (pair + 1) << 1 | static_cast<uint64_t>(is_standing);
  return is_standing;
}

// Joins the tokens of a chunk to those before it, which end at out + count. False: gave up.
template <bool kHasTies>
bool BpeModel::join(const uint8_t* chunk, std::span<const uint32_t> ids, uint32_t* out,
                    size_t* count, MergeScratch& s) const {
  size_t num_left = 0, num_right = 0;      // tokens that are merged again
  size_t left_bytes = 0, right_bytes = 0;  // of them
  bool takes_left = true, takes_right = true;
  if (*count == 0 || stand_together<kHasTies>(out[*count - 1], ids[0], s)) {
    std::copy(ids.begin(), ids.end(), out + *count);
    *count += ids.size();
    return true;
  }
  while (true) {
    for (size_t n = takes_left ? num_left + 1 : 0; n > 0 && num_left < *count; --n) {
      left_bytes += token(out[*count - ++num_left]).size();
    }
    for (size_t n = takes_right ? num_right + 1 : 0; n > 0 && num_right < ids.size(); --n) {
      right_bytes += token(ids[num_right++]).size();
    }
    if (left_bytes + right_bytes > kMaxAgain) return false;
    uint32_t again[kMaxAgain];
    const size_t n = merge_short<kHasTies>(chunk - left_bytes, left_bytes + right_bytes, again);
    const size_t kept = *count - num_left;
    takes_left =
        kept > 0 && again[0] != out[kept] && !stand_together<kHasTies>(out[kept - 1], again[0], s);
    takes_right = num_right < ids.size() && again[n - 1] != ids[num_right - 1] &&
                  !stand_together<kHasTies>(again[n - 1], ids[num_right], s);
    if (takes_left || takes_right) continue;
    uint32_t* const at = std::copy_n(again, n, out + kept);
    *count = std::copy(ids.begin() + num_right, ids.end(), at) - out;
    return true;
  }
}

template <bool kHasTies>
size_t BpeModel::merge_long(const uint8_t* piece, size_t size, uint32_t* out,
                            MergeScratch& s) const {
  if (s.pairs.empty()) s.pairs.resize(size_t{1} << MergeScratch::kPairBits);
  const uint8_t* const end = piece + size;
  size_t count = 0;
  for (const uint8_t* p = piece; p < end;) {
    const uint8_t* q = p + std::min<size_t>(kChunk, end - p);
    // Between two characters, if they are UTF-8.
    for (int i = 0; i < 3 && q < end && is_inner_byte(*q); ++i) --q;
    uint32_t ids[kChunk];
    const size_t n = merge_short<kHasTies>(p, q - p, ids);
    if (!join<kHasTies>(p, {ids, n}, out, &count, s))
      return merge_heap<kHasTies>(piece, size, out, s);
    p = q;
  }
  return count;
}

// A heap of rank << 32 | position over a linked list. An entry is stale when the pair that now
// starts at its position has another rank. `size` < 2^32 is the caller's duty.
template <bool kHasTies>
size_t BpeModel::merge_heap(const uint8_t* piece, size_t size, uint32_t* out,
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
