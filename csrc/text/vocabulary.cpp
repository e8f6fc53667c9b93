// Vocabularies from files: duplicates, results of merges, merges from ranks.
#include "lmworks/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <queue>
#include <random>
#include <string>
#include <tuple>

#include "lmworks/special_tokens.h"

namespace lmworks {
namespace {

uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;
}

uint64_t mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Open addressing from keys of 64 bits to ids.
class PairTable {
 public:
  explicit PairTable(size_t max_size)
      : slots_(std::bit_ceil(2 * max_size + 16)), mask_(slots_.size() - 1) {}

  // The value of a key that is already there, which then stays; else kNoToken.
  uint32_t insert(uint64_t key, uint32_t value) {
    size_t i = place(key);
    for (; slots_[i].value != kNoToken; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return slots_[i].value;
    }
    slots_[i] = {key, value};
    return kNoToken;
  }
  uint32_t find(uint64_t key) const {
    for (size_t i = place(key); slots_[i].value != kNoToken; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return slots_[i].value;
    }
    return kNoToken;
  }

 private:
  struct Slot {
    uint64_t key = 0;
    uint32_t value = kNoToken;
  };
  size_t place(uint64_t key) const { return mix(key ^ seed_, 0x9E3779B97F4A7C15u) & mask_; }
  std::vector<Slot> slots_;
  size_t mask_;
  uint64_t seed_ = random_seed();
};

uint64_t pair_key(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

// Ids by bytes.
class TokenIndex {
 public:
  explicit TokenIndex(const TokenList& tokens)
      : tokens_(tokens), slots_(std::bit_ceil(2 * tokens.size() + 16), kNoToken) {}

  // The token with the same bytes that is already there, which then stays; else kNoToken.
  uint32_t insert(uint32_t id) {
    const std::string_view bytes = tokens_[id];
    size_t i = hash(bytes) & (slots_.size() - 1);
    for (; slots_[i] != kNoToken; i = (i + 1) & (slots_.size() - 1)) {
      if (tokens_[slots_[i]] == bytes) return slots_[i];
    }
    slots_[i] = id;
    return kNoToken;
  }
  uint32_t find(std::string_view bytes) const {
    size_t i = hash(bytes) & (slots_.size() - 1);
    for (; slots_[i] != kNoToken; i = (i + 1) & (slots_.size() - 1)) {
      if (tokens_[slots_[i]] == bytes) return slots_[i];
    }
    return kNoToken;
  }

 private:
  uint64_t hash(std::string_view bytes) const {
    uint64_t h = seed_ ^ bytes.size();
    size_t at = 0;
    for (uint64_t word; at + 8 <= bytes.size(); at += 8) {
      std::memcpy(&word, bytes.data() + at, 8);
      h = mix(h ^ word, second_seed_);
    }
    uint64_t rest = 0;
    std::memcpy(&rest, bytes.data() + at, bytes.size() - at);
    return mix(h ^ rest, second_seed_ ^ 0xA0761D6478BD642Fu);
  }
  const TokenList& tokens_;
  std::vector<uint32_t> slots_;
  uint64_t seed_ = random_seed(), second_seed_ = random_seed();
};

// Which prefixes of a token are tokens: a trie, each level of it sorted.
class PrefixTrie {
 public:
  // With `from_the_end`, tokens are read backwards: then prefixes are suffixes.
  PrefixTrie(const TokenList& tokens, bool from_the_end) : from_the_end_(from_the_end) {
    std::vector<std::string> reversed;
    std::vector<std::string_view> keys(tokens.size());
    std::vector<uint32_t> order;
    if (from_the_end) reversed.resize(tokens.size());
    for (uint32_t id = 0; id < tokens.size(); ++id) {
      keys[id] = tokens[id];
      if (from_the_end) {
        reversed[id].assign(tokens[id].rbegin(), tokens[id].rend());
        keys[id] = reversed[id];
      }
      if (!keys[id].empty()) order.push_back(id);
    }
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return keys[a] < keys[b]; });
    struct Range {
      size_t begin, end, depth;
    };
    std::vector<Range> ranges{{0, order.size(), 0}};
    nodes_.resize(1);
    for (size_t n = 0; n < nodes_.size(); ++n) {
      auto [k, end, depth] = ranges[n];
      while (k < end && keys[order[k]].size() == depth) nodes_[n].token = order[k++];
      nodes_[n].first_child = static_cast<uint32_t>(nodes_.size());
      while (k < end) {
        const char byte = keys[order[k]][depth];
        size_t next = k + 1;
        while (next < end && keys[order[next]][depth] == byte) ++next;
        nodes_.push_back({0, 0, kNoToken, static_cast<uint8_t>(byte)});
        ranges.push_back({k, next, depth + 1});
        ++nodes_[n].num_children;
        k = next;
      }
    }
  }

  // out[i] = the token that the first (or last) i bytes of `token` are, or kNoToken.
  void walk(std::string_view token, std::vector<uint32_t>& out) const {
    out.assign(token.size() + 1, kNoToken);
    uint32_t node = 0;
    for (size_t i = 0; i < token.size(); ++i) {
      node = child_of(node, static_cast<uint8_t>(token[from_the_end_ ? token.size() - 1 - i : i]));
      out[i + 1] = nodes_[node].token;
    }
  }

 private:
  struct Node {
    uint32_t first_child = 0;
    uint16_t num_children = 0;
    uint32_t token = kNoToken;
    uint8_t byte = 0;
  };
  uint32_t child_of(uint32_t n, uint8_t byte) const {
    uint32_t low = nodes_[n].first_child;
    for (uint32_t size = nodes_[n].num_children; size > 1;) {
      const uint32_t half = size / 2;
      if (nodes_[low + half].byte <= byte) low += half;
      size -= half;
    }
    return low;  // the token is in the trie
  }
  bool from_the_end_;
  std::vector<Node> nodes_;
};

// Merges one token with ranks below its own.
class TokenMerger {
 public:
  explicit TokenMerger(const PairTable& rank_of) : rank_of_(rank_of) {}

  // Leaves the parts in `parts`: stops at two.
  void run(std::string_view token, uint32_t limit, const uint32_t* byte_token,
           std::vector<uint32_t>& parts) {
    parts.clear();
    for (const char c : token) parts.push_back(byte_token[static_cast<uint8_t>(c)]);
    if (parts.size() > kMaxScan) return run_long(limit, parts);
    while (parts.size() > 2) {
      uint32_t best = limit;
      size_t at = 0;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const uint32_t rank = rank_of_.find(pair_key(parts[i], parts[i + 1]));
        if (rank < best) best = rank, at = i;
      }
      if (best == limit) break;
      parts[at] = best;
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
  }

 private:
  static constexpr size_t kMaxScan = 32;

  // A heap of (rank, place) over a linked list; an entry counts while both its parts still stand.
  void run_long(uint32_t limit, std::vector<uint32_t>& parts) {
    const uint32_t size = static_cast<uint32_t>(parts.size());
    std::vector<uint32_t> next(size), previous(size);
    std::iota(next.begin(), next.end(), 1);
    std::iota(previous.begin(), previous.end(), kNoToken);             // the first has none
    using Entry = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>;  // rank, at, left, right
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap;
    const auto push = [&](uint32_t at) {
      if (next[at] >= size) return;
      const uint32_t left = parts[at], right = parts[next[at]];
      const uint32_t rank = rank_of_.find(pair_key(left, right));
      if (rank < limit) heap.emplace(rank, at, left, right);
    };
    for (uint32_t i = 0; i < size; ++i) push(i);
    uint32_t num_parts = size;
    std::vector<bool> is_gone(size);
    while (!heap.empty() && num_parts > 2) {
      const auto [rank, at, left, right] = heap.top();
      heap.pop();
      if (is_gone[at] || parts[at] != left || next[at] >= size || parts[next[at]] != right)
        continue;
      const uint32_t gone = next[at];
      is_gone[gone] = true;
      parts[at] = rank;
      next[at] = next[gone];
      if (next[at] < size) previous[next[at]] = at;
      --num_parts;
      push(at);
      if (at != 0) push(previous[at]);
    }
    std::vector<uint32_t> left;
    for (uint32_t i = 0; i < size; i = next[i]) left.push_back(parts[i]);
    parts = std::move(left);
  }
  const PairTable& rank_of_;
};

}  // namespace

std::pair<uint32_t, uint32_t> find_duplicate(const TokenList& tokens) {
  TokenIndex index(tokens);
  for (uint32_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty()) continue;
    const uint32_t earlier = index.insert(id);
    if (earlier != kNoToken) return {earlier, id};
  }
  return {0, 0};
}

MergeTable merge_table(const TokenList& tokens, std::span<const uint32_t> pairs) {
  TokenIndex index(tokens);
  for (uint32_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) index.insert(id);
  }
  MergeTable table;
  table.merges.reserve(pairs.size() / 2 * 3);
  PairTable seen(pairs.size() / 2);
  std::string joined;
  for (size_t rank = 0; rank < pairs.size() / 2; ++rank) {
    const uint32_t left = pairs[2 * rank], right = pairs[2 * rank + 1];
    table.rank = rank;
    if (left >= tokens.size() || right >= tokens.size() || tokens[left].empty() ||
        tokens[right].empty()) {
      table.error = MergeError::no_part;
      return table;
    }
    joined.assign(tokens[left]).append(tokens[right]);
    const uint32_t result = index.find(joined);
    if (result == kNoToken) {
      table.error = MergeError::no_result;
      return table;
    }
    if (seen.insert(pair_key(left, right), result) != kNoToken) {
      table.error = MergeError::duplicate;
      return table;
    }
    table.merges.insert(table.merges.end(), {left, right, result});
  }
  return table;
}

RecoveredMerges recover_merges(const TokenList& tokens) {
  uint32_t byte_token[256];
  std::fill_n(byte_token, 256, kNoToken);
  size_t num_splits = 0;
  for (uint32_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].size() == 1) byte_token[static_cast<uint8_t>(tokens[id][0])] = id;
    if (tokens[id].size() > 1) num_splits += tokens[id].size() - 1;
  }
  const PrefixTrie prefixes(tokens, false), suffixes(tokens, true);
  std::vector<uint32_t> first, last;
  std::vector<uint64_t> splits;  // of all tokens into two
  std::vector<size_t> splits_end;
  for (uint32_t id = 0; id < tokens.size(); ++id) {
    const std::string_view token = tokens[id];
    if (token.size() > 1) {
      prefixes.walk(token, first);
      suffixes.walk(token, last);
      for (size_t i = 1; i < token.size(); ++i) {
        const uint32_t left = first[i], right = last[token.size() - i];
        if (left != kNoToken && right != kNoToken) splits.push_back(pair_key(left, right));
      }
    }
    splits_end.push_back(splits.size());
  }
  PairTable rank_of(splits.size());
  for (uint32_t id = 0, k = 0; id < tokens.size(); ++id) {
    for (; k < splits_end[id]; ++k) rank_of.insert(splits[k], id);
  }
  RecoveredMerges result;
  TokenMerger merger(rank_of);
  std::vector<uint32_t> parts;
  for (uint32_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].size() < 2) continue;
    merger.run(tokens[id], id, byte_token, parts);
    if (parts.size() == 2 && parts[0] != kNoToken && parts[1] != kNoToken) {
      result.pairs.insert(result.pairs.end(), {parts[0], parts[1]});
      continue;
    }
    result.has_unreachable = true;
    for (size_t k = id == 0 ? 0 : splits_end[id - 1]; k < splits_end[id]; ++k) {
      result.pairs.insert(result.pairs.end(), {static_cast<uint32_t>(splits[k] >> 32),
                                               static_cast<uint32_t>(splits[k])});
    }
  }
  return result;
}

}  // namespace lmworks
