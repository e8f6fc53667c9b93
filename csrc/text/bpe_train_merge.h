#pragma once
// Choosing merges. Only pairs that count at least `threshold_` are indexed (pair -> count and
// words); rarer ones cannot be the most frequent until the best count falls below the threshold,
// and then the index is built anew from the words with a lower one. That keeps the millions of rare
// pairs out of the tables, and lets the index fit a memory limit without changing the result.
//
// One merge of (a, b) into n visits the words of the pair. What it changes is summed per neighbour:
// with x left of a b, (x, a) loses what (x, n) gains; with y right, (b, y) loses what (n, y) gains.
// So a pair is looked up once per merge, not once per word.
//
// No two merges spell the same bytes: when a span of text becomes one symbol, nothing was merged
// across its ends, so what happened inside depended on its bytes alone. A symbol, and each pair
// with it, is therefore new when its merge is made. (It is also why ranks of tokens, as tiktoken
// has them, say the same as the list of merges.) Only an initial vocabulary can hold tokens that
// its own merges do not reach; a pair that spells one of these is left alone.
#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "bpe_train_symbols.h"
#include "lmworks/bpe_train.h"

namespace lmworks {

// Memory handed out piece by piece and freed together.
class WordLists {
 public:
  uint32_t* take(size_t size) {
    if (size > left_) {
      left_ = std::max(size, kChunk);
      chunks_.push_back(std::make_unique_for_overwrite<uint32_t[]>(left_));
      next_ = chunks_.back().get();
      size_bytes_ += left_ * sizeof(uint32_t);
    }
    left_ -= size;
    return std::exchange(next_, next_ + size);
  }
  size_t size_bytes() const { return size_bytes_; }

 private:
  static constexpr size_t kChunk = 1 << 16;
  std::vector<std::unique_ptr<uint32_t[]>> chunks_;
  uint32_t* next_ = nullptr;
  size_t left_ = 0, size_bytes_ = 0;
};

template <class Symbol>
class Merger {
 public:
  struct Limits {
    Ties ties = Ties::bytes;
    int64_t min_frequency = 1;
    uint64_t max_token_bytes = UINT64_MAX;
    uint64_t num_merges = 0;  // expected: a guess that only sets the size of the index
    size_t max_index_bytes = SIZE_MAX;
  };

  // `tokens`: bytes of the symbols that words may hold. `taken`: byte strings no merge may make.
  Merger(Words<Symbol> words, std::vector<std::string> tokens,
         std::unordered_set<std::string> taken, const Limits& limits)
      : words_(std::move(words)), taken_(std::move(taken)), limits_(limits) {
    for (std::string& t : tokens) add_token(std::move(t));
    build_index(INT64_MAX);
  }

  // Makes the next merge; false if no pair is left.
  bool step() {
    if (index_bytes() > limits_.max_index_bytes) build_index(INT64_MAX);
    const uint32_t best = pop_best();
    if (best == PairMap::kNone) return false;
    const uint32_t a = pairs_[best].left, b = pairs_[best].right;
    const uint32_t merged = add_token(tokens_[a] + tokens_[b]);
    merges_.emplace_back(tokens_[a], tokens_[b]);
    rewrite_words(best, merged);
    update_pairs(a, b, merged);
    pairs_[best].count = 0;
    return true;
  }

  std::vector<Merge> take_merges() { return std::move(merges_); }

 private:
  // Counts of pairs in the buckets of a hash come in these classes: 8 per power of two.
  static constexpr int kLevelBits = 3;
  static constexpr size_t kNumLevels = 64 << kLevelBits;
  static constexpr size_t kBytesOfManyBuckets = 64 << 20;  // of an index that may have them
  static constexpr int64_t kThresholdRatio = 1024;  // of the best count to the threshold, at most
  static constexpr size_t kPairsPerMerge = 1;       // indexed, for each merge still to make
  static constexpr size_t kMinPairs = 4096;
  static constexpr size_t kBytesPerPair = 80;   // in pairs_, heap_, index_
  static constexpr size_t kBytesPerWord = 12;   // of a pair, while the index is built
  static constexpr size_t kPrefetchWords = 12;  // records fetched ahead of the one rewritten

  struct Pair {
    int64_t count;
    uint32_t left, right, num_words;
    uint32_t* words;  // that held the pair when it was indexed, ascending
  };
  struct HeapEntry {
    int64_t count;
    uint32_t pair;
  };
  // What one merge adds beside one neighbour.
  struct Change {
    int64_t count = 0;
    uint32_t num_words = 0;
    uint32_t last_word = UINT32_MAX;
    uint32_t* out = nullptr;
  };
  struct Event {
    uint32_t neighbour, word;
  };
  struct Side {
    std::vector<Change> change;  // by neighbour
    std::vector<Event> events;
    std::vector<uint32_t> touched;

    void note(uint32_t neighbour, uint32_t word, int64_t count) {
      Change& c = change[neighbour];
      if (c.num_words == 0) touched.push_back(neighbour);
      c.count += count;
      if (c.last_word == word) return;
      c.last_word = word;
      ++c.num_words;
      events.push_back({neighbour, word});
    }

    void clear() {
      for (const uint32_t x : touched) change[x] = {};
      touched.clear();
      events.clear();
    }
  };

  uint32_t add_token(std::string bytes) {
    tokens_.push_back(std::move(bytes));
    for (Side* side : {&left_, &right_, &self_}) side->change.resize(tokens_.size());
    return tokens_.size() - 1;
  }

  bool is_allowed(uint32_t left, uint32_t right) const {
    return tokens_[left].size() + tokens_[right].size() <= limits_.max_token_bytes;
  }

  // Heap order: count, then the rule for ties.
  bool is_less(const HeapEntry& x, const HeapEntry& y) const {
    if (x.count != y.count) return x.count < y.count;
    const Pair &p = pairs_[x.pair], &q = pairs_[y.pair];
    if (limits_.ties == Ties::huggingface) {
      return PairMap::key(p.left, p.right) > PairMap::key(q.left, q.right);
    }
    if (p.left != q.left) return tokens_[p.left] < tokens_[q.left];
    return tokens_[p.right] < tokens_[q.right];
  }
  auto less() const {
    return [this](const HeapEntry& x, const HeapEntry& y) { return is_less(x, y); };
  }
  void push(uint32_t pair) {
    heap_.push_back({pairs_[pair].count, pair});
    std::push_heap(heap_.begin(), heap_.end(), less());
  }

  // A pair's count only falls once it is in the heap, so its entry is never too low: one that is
  // too high goes back with the right count.
  uint32_t pop_best() {
    while (true) {
      while (!heap_.empty()) {
        std::pop_heap(heap_.begin(), heap_.end(), less());
        const HeapEntry top = heap_.back();
        heap_.pop_back();
        const Pair& pair = pairs_[top.pair];
        if (pair.count != top.count) {
          if (pair.count >= threshold_) push(top.pair);
        } else if (taken_.empty() || !taken_.contains(tokens_[pair.left] + tokens_[pair.right])) {
          return top.pair;
        }
      }
      if (threshold_ <= limits_.min_frequency) return PairMap::kNone;
      build_index(threshold_ / 2);  // all pairs that reach the threshold are done
    }
  }

  // ---- the index ----

  size_t index_bytes() const { return lists_.size_bytes() + pairs_.size() * kBytesPerPair; }

  void build_index(int64_t max_threshold) {
    pairs_.clear();
    heap_.clear();
    index_ = {};
    lists_ = {};
    words_.compact();
    HugeVector<Bucket> buckets = fill_buckets();
    threshold_ = std::min(choose_threshold(buckets), max_threshold);
    threshold_ = std::max(threshold_, limits_.min_frequency);

    HugeVector<Event> events;  // neighbour: the pair's number
    size_t max_events = 0;
    for (const Bucket& b : buckets) max_events += b.sum < threshold_ ? 0 : b.num_words;
    events.reserve(max_events);
    std::vector<uint32_t> last_word;
    for_each_pair([&](uint32_t left, uint32_t right, uint32_t word, int64_t count) {
      Bucket& b = buckets[bucket(left, right)];
      if (b.sum < threshold_) return;
      uint32_t i = b.first_pair;
      if (i == PairMap::kNone || pairs_[i].left != left || pairs_[i].right != right) {
        i = i == PairMap::kNone ? pairs_.size()
                                : index_.find_or_insert(PairMap::key(left, right), pairs_.size());
      }
      if (i == pairs_.size()) {
        if (b.first_pair == PairMap::kNone) b.first_pair = i;
        pairs_.push_back({0, left, right, 0, nullptr});
        last_word.push_back(UINT32_MAX);
      }
      pairs_[i].count += count;
      if (std::exchange(last_word[i], word) == word) return;
      ++pairs_[i].num_words;
      events.push_back({i, word});
    });
    // From the numbers of all these pairs to lists of those that reach the threshold.
    std::vector<Pair> all;
    all.swap(pairs_);
    index_ = {};
    for (Pair& p : all) {
      if (p.count >= threshold_) p.words = new_pair(p.left, p.right, p.count, p.num_words);
    }
    for (const Event& e : events) {
      uint32_t*& out = all[e.neighbour].words;
      if (out != nullptr) *out++ = e.word;
    }
    for (uint32_t i = 0; i < pairs_.size(); ++i) heap_.push_back({pairs_[i].count, i});
    std::make_heap(heap_.begin(), heap_.end(), less());
  }

  // Sums over pairs that share a bucket: bounds of each pair's count and words, in little memory.
  // While all symbols are bytes, each pair has a bucket of its own.
  struct Bucket {
    int64_t sum = 0;
    uint32_t num_words = 0;
    uint32_t first_pair = PairMap::kNone;  // one of them, found without a look-up in index_
  };
  HugeVector<Bucket> fill_buckets() {
    HugeVector<Bucket> buckets(size_t{1} << bucket_bits());
    for_each_pair([&](uint32_t left, uint32_t right, uint32_t, int64_t count) {
      Bucket& b = buckets[bucket(left, right)];
      b.sum += count;
      ++b.num_words;
    });
    return buckets;
  }
  size_t bucket(uint32_t left, uint32_t right) const {
    if (tokens_.size() <= 256) return left << 8 | right;
    return PairMap::key(left, right) * 0x9E3779B97F4A7C15ull >> (64 - bucket_bits());
  }
  int bucket_bits() const {
    const bool is_small = tokens_.size() <= 256 || limits_.max_index_bytes < kBytesOfManyBuckets;
    return is_small ? 16 : 20;
  }

  // Smallest count of a level, and the level of a count.
  static size_t level_of(int64_t count) {
    const int log = 63 - std::countl_zero(static_cast<uint64_t>(count));
    const int shift = std::max(log - kLevelBits, 0);
    return (static_cast<size_t>(log) << kLevelBits) + (static_cast<uint64_t>(count) >> shift) -
           (log >= kLevelBits ? size_t{1} << kLevelBits : 0);
  }

  // The lowest threshold that keeps the index small and within the limit: the best pair is always
  // above it. Few merges to come need few pairs.
  int64_t choose_threshold(const HugeVector<Bucket>& buckets) const {
    struct Level {
      int64_t smallest = INT64_MAX;
      size_t num_pairs = 0, num_words = 0;
    };
    std::vector<Level> levels(kNumLevels + (2 << kLevelBits));
    int64_t best = 1;
    for (const Bucket& b : buckets) {
      if (b.sum == 0) continue;
      Level& level = levels[level_of(b.sum)];
      level.smallest = std::min(level.smallest, b.sum);
      ++level.num_pairs;
      level.num_words += b.num_words;
      best = std::max(best, b.sum);
    }
    const size_t made = merges_.size();
    const size_t to_come = limits_.num_merges > made ? limits_.num_merges - made : 0;
    const size_t max_pairs = std::max(to_come * kPairsPerMerge, kMinPairs);
    const int64_t lowest = std::max(limits_.min_frequency, best / kThresholdRatio);
    int64_t threshold = best;
    size_t num_pairs = 0, bytes = 0;
    for (auto level = levels.rbegin(); level != levels.rend(); ++level) {
      if (level->num_pairs == 0) continue;
      num_pairs += level->num_pairs;
      bytes += level->num_pairs * kBytesPerPair + level->num_words * kBytesPerWord;
      if (threshold != best && (num_pairs > max_pairs || bytes > limits_.max_index_bytes / 2)) {
        return threshold;
      }
      threshold = level->smallest;
      if (threshold <= lowest) return lowest;
    }
    return lowest;
  }

  template <class F>
  void for_each_pair(F&& f) {
    const bool is_limited = limits_.max_token_bytes != UINT64_MAX;
    words_.for_each([&](uint32_t word, const Symbol* s, size_t size) {
      const int64_t count = words_.count(word);
      for (size_t i = 0; i + 1 < size; ++i) {
        if (!is_limited || is_allowed(s[i], s[i + 1])) f(s[i], s[i + 1], word, count);
      }
    });
  }

  uint32_t* new_pair(uint32_t left, uint32_t right, int64_t count, uint32_t num_words) {
    index_.find_or_insert(PairMap::key(left, right), pairs_.size());
    pairs_.push_back({count, left, right, num_words, lists_.take(num_words)});
    return pairs_.back().words;
  }

  // ---- one merge ----

  void rewrite_words(uint32_t best, uint32_t merged) {
    const Pair& pair = pairs_[best];
    const Symbol a = pair.left, b = pair.right;
    for (uint32_t i = 0; i < pair.num_words; ++i) {
      if (i + kPrefetchWords < pair.num_words) words_.prefetch(pair.words[i + kPrefetchWords]);
      rewrite(pair.words[i], a, b, merged);
    }
  }

  // Replaces a b by merged in one word, from left to right, and notes the neighbours.
  void rewrite(uint32_t word, Symbol a, Symbol b, Symbol merged) {
    Symbol* const s = words_.symbols(word);
    const size_t size = words_.size(word);
    size_t i = 0;
    while (i + 1 < size && !(s[i] == a && s[i + 1] == b)) ++i;
    if (i + 1 >= size) return;
    const int64_t count = words_.count(word);
    size_t out = i;
    bool after_merge = false;
    while (i < size) {
      if (i + 1 < size && s[i] == a && s[i + 1] == b) {
        if (after_merge) {
          self_.note(merged, word, count);
        } else if (out > 0) {
          left_.note(s[out - 1], word, count);
        }
        s[out++] = merged;
        i += 2;
        after_merge = true;
      } else {
        if (after_merge) right_.note(s[i], word, count);
        s[out++] = s[i++];
        after_merge = false;
      }
    }
    words_.shrink(word, out);
  }

  void update_pairs(uint32_t a, uint32_t b, uint32_t merged) {
    for (const uint32_t x : left_.touched) lose(x, a, left_.change[x].count);
    for (const uint32_t y : right_.touched) lose(b, y, right_.change[y].count);
    for (const uint32_t x : self_.touched) lose(b, a, self_.change[x].count);
    gain(left_, [&](uint32_t x) { return std::pair{x, merged}; });
    gain(right_, [&](uint32_t y) { return std::pair{merged, y}; });
    gain(self_, [&](uint32_t x) { return std::pair{x, x}; });
  }

  void lose(uint32_t left, uint32_t right, int64_t count) {
    const uint32_t i = index_.find(PairMap::key(left, right));
    if (i != PairMap::kNone) pairs_[i].count -= count;
  }

  template <class PairOf>
  void gain(Side& side, PairOf pair_of) {
    bool is_any_kept = false;
    for (const uint32_t x : side.touched) {
      Change& c = side.change[x];
      const auto [left, right] = pair_of(x);
      if (c.count < threshold_ || !is_allowed(left, right)) continue;
      c.out = new_pair(left, right, c.count, c.num_words);
      push(pairs_.size() - 1);
      is_any_kept = true;
    }
    if (is_any_kept) {
      for (const Event& e : side.events) {
        uint32_t*& out = side.change[e.neighbour].out;
        if (out != nullptr) *out++ = e.word;
      }
    }
    side.clear();
  }

  Words<Symbol> words_;
  std::unordered_set<std::string> taken_;
  Limits limits_;
  std::vector<std::string> tokens_;
  std::vector<Pair> pairs_;
  PairMap index_;
  WordLists lists_;
  std::vector<HeapEntry> heap_;
  int64_t threshold_ = INT64_MAX;
  Side left_, right_, self_;
  std::vector<Merge> merges_;
};

}  // namespace lmworks
