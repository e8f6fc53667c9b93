// Vocabularies from files: duplicates, results of merges, merges from ranks.
#include "lmworks/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <queue>
#include <random>
#include <string>
#include <utility>

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
      : tokens_(tokens), slots_(std::bit_ceil(2 * tokens.size() + 16)) {}

  // The token with the same bytes that is already there, which then stays; else kNoToken.
  uint32_t insert(uint32_t id) {
    const uint64_t h = hash(tokens_[id]);
    Slot& slot = slots_[place(tokens_[id], h)];
    if (slot.id != kNoToken) return slot.id;
    slot = {tag_of(h), id};
    return kNoToken;
  }
  uint32_t find(std::string_view bytes) const { return slots_[place(bytes, hash(bytes))].id; }

 private:
  struct Slot {
    uint32_t tag = 0;  // spares most comparisons of bytes, which are far away
    uint32_t id = kNoToken;
  };
  static uint32_t tag_of(uint64_t h) { return static_cast<uint32_t>(h >> 32); }

  // Where these bytes are, or the free place for them.
  size_t place(std::string_view bytes, uint64_t h) const {
    size_t i = h & (slots_.size() - 1);
    for (; slots_[i].id != kNoToken; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].tag == tag_of(h) && tokens_[slots_[i].id] == bytes) break;
    }
    return i;
  }
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
  std::vector<Slot> slots_;
  uint64_t seed_ = random_seed(), second_seed_ = random_seed();
};

// Ids by bytes, asked for by any part of a text in constant time.
//
// The hash is the value of the bytes as a polynomial modulo 2^61 - 1 at a secret random point: that
// of a part follows from those of two prefixes. Two strings of n bytes agree by chance once in
// 2^61 / n. Hits of up to kMaxVerified bytes are compared too; longer ones are believed, or a file
// of many long tokens would take quadratic time.
class PartIndex {
 public:
  explicit PartIndex(const TokenList& tokens)
      : tokens_(tokens), slots_(std::bit_ceil(2 * tokens.size() + 16)), mask_(slots_.size() - 1) {
    size_t longest = 0;
    for (uint32_t id = 0; id < tokens.size(); ++id) longest = std::max(longest, tokens[id].size());
    powers_.assign(longest + 1, 1);
    for (size_t i = 1; i <= longest; ++i) powers_[i] = times(powers_[i - 1], point_);
    prefixes_.resize(longest + 1);
    for (uint32_t id = 0; id < tokens.size(); ++id) {
      const std::string_view bytes = tokens[id];
      if (bytes.empty()) continue;
      uint64_t hash = 0;
      for (const char c : bytes) hash = extend(hash, c);
      size_t i = hash & mask_;
      while (slots_[i].id != kNoToken) i = (i + 1) & mask_;
      slots_[i] = {hash, id};
    }
  }

  // The text that `find` is about, no longer than the longest token.
  void set_text(std::string_view text) {
    text_ = text;
    for (size_t i = 0; i < text.size(); ++i) prefixes_[i + 1] = extend(prefixes_[i], text[i]);
  }

  // The token that the bytes from `begin` to `end` are, or kNoToken.
  uint32_t find(size_t begin, size_t end) const {
    const uint64_t hash =
        reduce(prefixes_[end] + (kPrime - times(prefixes_[begin], powers_[end - begin])));
    for (size_t i = hash & mask_; slots_[i].id != kNoToken; i = (i + 1) & mask_) {
      if (slots_[i].hash != hash) continue;
      const std::string_view found = tokens_[slots_[i].id];
      if (found.size() != end - begin) continue;
      if (found.size() > kMaxVerified || found == text_.substr(begin, end - begin)) {
        return slots_[i].id;
      }
    }
    return kNoToken;
  }

 private:
  static constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
  static constexpr size_t kMaxVerified = 64;
  struct Slot {
    uint64_t hash = 0;
    uint32_t id = kNoToken;
  };
  static uint64_t reduce(uint64_t a) { return a >= kPrime ? a - kPrime : a; }
  static uint64_t times(uint64_t a, uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return reduce((static_cast<uint64_t>(product) & kPrime) + static_cast<uint64_t>(product >> 61));
  }
  // A byte counts as itself plus one, so that leading zeros count.
  uint64_t extend(uint64_t hash, char c) const {
    return reduce(times(hash, point_) + static_cast<uint8_t>(c) + 1);
  }

  const TokenList& tokens_;
  std::vector<Slot> slots_;
  size_t mask_;
  uint64_t point_ = random_seed() % (kPrime - 1024) + 512;
  std::vector<uint64_t> powers_, prefixes_;
  std::string_view text_;
};

// Merges one token with ranks below its own.
class TokenMerger {
 public:
  explicit TokenMerger(const TokenList& tokens) : index_(tokens), byte_pairs_(1 << 16, kNoToken) {
    std::fill_n(byte_token_, 256, kNoToken);
    for (uint32_t id = 0; id < tokens.size(); ++id) {
      if (tokens[id].size() == 1) byte_token_[static_cast<uint8_t>(tokens[id][0])] = id;
    }
    for (uint32_t id = 0; id < tokens.size(); ++id) {
      const std::string_view token = tokens[id];
      if (token.size() != 2 || byte(token[0]) == kNoToken || byte(token[1]) == kNoToken) continue;
      byte_pairs_[place(token[0], token[1])] = id;
    }
  }

  struct Part {
    uint32_t begin = 0;  // it ends where the next one begins
    uint32_t token = kNoToken;
    uint32_t rank = kNoToken;  // of it with the next one
  };

  // The parts that are left when no two neighbours make a token below `limit`, or when there are
  // but two parts; one more part marks their end.
  const std::vector<Part>& run(std::string_view token, uint32_t limit) {
    const uint32_t size = static_cast<uint32_t>(token.size());
    index_.set_text(token);
    parts_.resize(size + 1);
    for (uint32_t i = 0; i < size; ++i) {
      parts_[i] = {i, byte(token[i]),
                   i + 1 < size ? byte_pairs_[place(token[i], token[i + 1])] : kNoToken};
    }
    parts_[size] = {size, kNoToken, kNoToken};
    if (size > kMaxScan) {
      run_long(limit);
      return parts_;
    }
    while (parts_.size() > 3) {
      size_t at = 0;
      for (size_t i = 1; i + 2 < parts_.size(); ++i) {
        if (parts_[i].rank < parts_[at].rank) at = i;
      }
      if (parts_[at].rank >= limit) break;
      parts_[at].token = parts_[at].rank;
      parts_.erase(parts_.begin() + static_cast<std::ptrdiff_t>(at) + 1);
      parts_[at].rank =
          rank_of(parts_[at], parts_[at + 1], parts_[at + 1 + (at + 2 < parts_.size())]);
      if (at > 0) parts_[at - 1].rank = rank_of(parts_[at - 1], parts_[at], parts_[at + 1]);
    }
    return parts_;
  }

  // Every pair of tokens that `token`, the last that was run, can be split into.
  template <typename Visit>
  void for_splits(size_t size, Visit&& visit) const {
    for (size_t i = 1; i < size; ++i) {
      const uint32_t left = index_.find(0, i);
      if (left == kNoToken) continue;
      const uint32_t right = index_.find(i, size);
      if (right != kNoToken) visit(left, right);
    }
  }

 private:
  static constexpr size_t kMaxScan = 32;
  static size_t place(char a, char b) {
    return size_t{static_cast<uint8_t>(a)} << 8 | static_cast<uint8_t>(b);
  }
  uint32_t byte(char c) const { return byte_token_[static_cast<uint8_t>(c)]; }

  // Of two neighbours, the second of which ends where `after` begins.
  uint32_t rank_of(const Part& left, const Part& right, const Part& after) const {
    if (left.token == kNoToken || right.token == kNoToken) return kNoToken;
    return index_.find(left.begin, after.begin);
  }

  // A heap of (rank, place) over a linked list; an entry counts while both its parts still stand.
  void run_long(uint32_t limit) {
    const uint32_t size = static_cast<uint32_t>(parts_.size()) - 1;
    std::vector<uint32_t> next(size + 1), previous(size);
    std::iota(next.begin(), next.end(), 1);
    next[size] = size;
    std::iota(previous.begin(), previous.end(), kNoToken);  // the first has none
    using Entry = std::pair<uint32_t, uint32_t>;            // rank, at
    std::vector<Entry> entries;
    for (uint32_t i = 0; i < size; ++i) {
      if (parts_[i].rank < limit) entries.emplace_back(parts_[i].rank, i);
    }
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap(std::greater<>(),
                                                                        std::move(entries));
    const auto update = [&](uint32_t at) {
      const Part& right = parts_[next[at]];
      parts_[at].rank = rank_of(parts_[at], right, parts_[next[next[at]]]);
      if (parts_[at].rank < limit) heap.emplace(parts_[at].rank, at);
    };
    uint32_t num_parts = size;
    while (!heap.empty() && num_parts > 2) {
      const auto [rank, at] = heap.top();
      heap.pop();
      if (parts_[at].rank != rank) continue;  // it is gone, or a neighbour has changed
      const uint32_t gone = next[at];
      parts_[gone].rank = kNoToken;
      parts_[at].token = rank;
      next[at] = next[gone];
      if (next[at] < size) previous[next[at]] = at;
      --num_parts;
      update(at);
      if (at != 0) update(previous[at]);
    }
    std::vector<Part> left;
    for (uint32_t i = 0; i < size; i = next[i]) left.push_back(parts_[i]);
    left.push_back(parts_[size]);
    parts_ = std::move(left);
  }

  PartIndex index_;
  std::vector<uint32_t> byte_pairs_;
  uint32_t byte_token_[256];
  std::vector<Part> parts_;
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
  RecoveredMerges result;
  TokenMerger merger(tokens);
  for (uint32_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].size() < 2) continue;
    const auto& parts = merger.run(tokens[id], id);
    const auto add = [&](uint32_t left, uint32_t right) {
      result.merges.insert(result.merges.end(), {left, right, id});
    };
    if (parts.size() == 3 && parts[0].token != kNoToken && parts[1].token != kNoToken) {
      add(parts[0].token, parts[1].token);
      continue;
    }
    result.has_unreachable = true;
    merger.for_splits(tokens[id].size(), add);
  }
  return result;
}

std::vector<uint32_t> all_splits(const TokenList& tokens, uint32_t first) {
  PartIndex index(tokens);
  std::vector<uint32_t> merges;
  for (uint32_t id = first; id < tokens.size(); ++id) {
    const std::string_view token = tokens[id];
    index.set_text(token);
    for (size_t i = 1; i < token.size(); ++i) {
      if ((static_cast<uint8_t>(token[i]) & 0xC0) == 0x80) continue;
      const uint32_t left = index.find(0, i);
      if (left == kNoToken) continue;
      const uint32_t right = index.find(i, token.size());
      if (right != kNoToken) merges.insert(merges.end(), {left, right, id});
    }
  }
  return merges;
}

}  // namespace lmworks
