// Choosing merges. Words are the distinct pieces, as symbols. Only pairs that count at least
// `threshold_` are indexed (pair -> count and words); rarer ones cannot be the most frequent until
// the best count falls below the threshold, and then the index is built anew from the words with a
// lower one. That keeps the millions of rare pairs out of the tables.
//
// One merge of (a, b) into n visits the words of the pair. What it changes is summed per neighbour:
// with x left of a b, (x, a) loses what (x, n) gains; with y right, (b, y) loses what (n, y) gains.
// So a pair is looked up once per merge, not once per word.
//
// No two merges spell the same bytes: when a span of text becomes one symbol, nothing was merged
// across its ends, so what happened inside depended on its bytes alone. A symbol, and each pair
// with it, is therefore new when its merge is made.
#include <algorithm>
#include <stdexcept>

#include "bpe_train_words.h"
#include "lmworks/bpe_train.h"
#include "threads.h"

namespace lmworks {
namespace {

constexpr int64_t kThresholdRatio = 256;  // best count / threshold when the index is built
constexpr int kBucketBits = 20;
constexpr uint64_t kMergesPerPoll = 128;
constexpr size_t kPrefetchWords = 8;  // records fetched ahead of the one being rewritten

// Words one behind the other: count (low, high half), size, capacity, symbols. A word is known by
// the index of its first unit, so that one cache line holds all of a usual word.
class Words {
 public:
  static constexpr size_t kHeader = 4;

  void reserve(size_t units) {
    if (units > UINT32_MAX) throw std::length_error("more than 16 GiB of distinct pieces");
    data_.reserve(units);
  }

  void add(const uint8_t* bytes, size_t size, int64_t count) {
    const uint64_t c = count;
    const uint32_t n = size;
    data_.insert(data_.end(), {static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32), n, n});
    data_.insert(data_.end(), bytes, bytes + size);
  }

  int64_t count(size_t word) const {
    return static_cast<int64_t>(uint64_t{data_[word + 1]} << 32 | data_[word]);
  }
  uint32_t& size(size_t word) { return data_[word + 2]; }
  uint32_t* symbols(size_t word) { return &data_[word + kHeader]; }
  void prefetch(uint32_t word) const { __builtin_prefetch(&data_[word], 1); }

  template <class F>
  void for_each(F&& f) {
    for (size_t i = 0; i < data_.size(); i += kHeader + data_[i + 3]) f(static_cast<uint32_t>(i));
  }

  // Closes the gaps that merges left and drops words of one symbol. Invalidates indices.
  void compact() {
    size_t out = 0;
    for (size_t i = 0; i < data_.size();) {
      const size_t next = i + kHeader + data_[i + 3], n = size(i);
      if (n > 1) {
        std::copy_n(&data_[i], kHeader + n, &data_[out]);
        data_[out + 3] = n;
        out += kHeader + n;
      }
      i = next;
    }
    data_.resize(out);
  }

 private:
  std::vector<uint32_t> data_;
};

// Pair of symbols -> number, open addressing.
class PairMap {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  static uint64_t key(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

  uint32_t find(uint64_t key) const {
    for (size_t i = slot(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].value == kNone) return kNone;
      if (slots_[i].key == key) return slots_[i].value;
    }
  }

  // The value of the key, which becomes `value` if it is new.
  uint32_t find_or_insert(uint64_t key, uint32_t value) {
    for (size_t i = slot(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].value == kNone) {
        slots_[i] = {key, value};
        if (++size_ * 2 > slots_.size()) grow();
        return value;
      }
      if (slots_[i].key == key) return slots_[i].value;
    }
  }

 private:
  struct Slot {
    uint64_t key;
    uint32_t value = kNone;
  };

  size_t slot(uint64_t key) const {
    const uint64_t h = key * 0x9E3779B97F4A7C15ull;
    return (h ^ h >> 32) & (slots_.size() - 1);
  }

  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& s : old) {
      if (s.value == kNone) continue;
      size_t i = slot(s.key);
      while (slots_[i].value != kNone) i = (i + 1) & (slots_.size() - 1);
      slots_[i] = s;
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(1 << 10);
  size_t size_ = 0;
};

class Merger {
 public:
  explicit Merger(Words words) : words_(std::move(words)) {
    for (int b = 0; b < 256; ++b) add_token(std::string(1, static_cast<char>(b)));
    build_index();
  }

  // Makes the next merge; false if no pair is left.
  bool step() {
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

  const std::vector<Merge>& merges() const { return merges_; }

 private:
  struct Pair {
    int64_t count;
    uint32_t left, right, num_words;
    std::unique_ptr<uint32_t[]> words;  // that held the pair when it was indexed
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

  // Heap order: count, then the pair of byte strings.
  bool is_less(const HeapEntry& x, const HeapEntry& y) const {
    if (x.count != y.count) return x.count < y.count;
    const Pair &p = pairs_[x.pair], &q = pairs_[y.pair];
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
        const int64_t count = pairs_[top.pair].count;
        if (count == top.count) return top.pair;
        if (count >= threshold_) push(top.pair);
      }
      if (threshold_ == 1) return PairMap::kNone;
      build_index();
    }
  }

  void build_index() {
    pairs_.clear();
    heap_.clear();
    index_ = {};
    words_.compact();
    const std::vector<int64_t> sums = sum_buckets();
    const int64_t best = *std::max_element(sums.begin(), sums.end());
    threshold_ = std::clamp<int64_t>(best / kThresholdRatio, 1, threshold_ / 2);

    std::vector<uint32_t> last_word;
    for_each_pair([&](uint64_t key, uint32_t word, int64_t count) {
      if (sums[bucket(key)] < threshold_) return;
      const uint32_t i = index_.find_or_insert(key, pairs_.size());
      if (i == pairs_.size()) {
        pairs_.push_back({0, static_cast<uint32_t>(key >> 32), static_cast<uint32_t>(key), 0, {}});
        last_word.push_back(UINT32_MAX);
      }
      pairs_[i].count += count;
      pairs_[i].num_words += last_word[i] != word;
      last_word[i] = word;
    });
    drop_rare_pairs();

    std::vector<uint32_t> filled(pairs_.size());
    for_each_pair([&](uint64_t key, uint32_t word, int64_t) {
      const uint32_t i = index_.find(key);
      if (i == PairMap::kNone) return;
      uint32_t& n = filled[i];
      if (n == 0 || pairs_[i].words[n - 1] != word) pairs_[i].words[n++] = word;
    });
    for (uint32_t i = 0; i < pairs_.size(); ++i) heap_.push_back({pairs_[i].count, i});
    std::make_heap(heap_.begin(), heap_.end(), less());
  }

  // Counts summed over pairs that share a bucket: a bound of each pair's count, in little memory.
  std::vector<int64_t> sum_buckets() {
    std::vector<int64_t> sums(size_t{1} << kBucketBits);
    for_each_pair([&](uint64_t key, uint32_t, int64_t count) { sums[bucket(key)] += count; });
    return sums;
  }
  static size_t bucket(uint64_t key) { return key * 0x9E3779B97F4A7C15ull >> (64 - kBucketBits); }

  // Keeps the pairs that reach the threshold and gives them room for their words.
  void drop_rare_pairs() {
    std::vector<Pair> all;
    all.swap(pairs_);
    index_ = {};
    for (const Pair& p : all) {
      if (p.count >= threshold_) new_pair(p.left, p.right, p.count, p.num_words);
    }
  }

  template <class F>
  void for_each_pair(F&& f) {
    words_.for_each([&](uint32_t word) {
      const int64_t count = words_.count(word);
      const uint32_t size = words_.size(word);
      const uint32_t* const s = words_.symbols(word);
      for (uint32_t i = 0; i + 1 < size; ++i) f(PairMap::key(s[i], s[i + 1]), word, count);
    });
  }

  uint32_t* new_pair(uint32_t left, uint32_t right, int64_t count, uint32_t num_words) {
    index_.find_or_insert(PairMap::key(left, right), pairs_.size());
    pairs_.push_back(
        {count, left, right, num_words, std::make_unique_for_overwrite<uint32_t[]>(num_words)});
    return pairs_.back().words.get();
  }

  void rewrite_words(uint32_t best, uint32_t merged) {
    const uint32_t a = pairs_[best].left, b = pairs_[best].right, n = pairs_[best].num_words;
    const std::unique_ptr<uint32_t[]> words = std::move(pairs_[best].words);
    for (uint32_t i = 0; i < n; ++i) {
      if (i + kPrefetchWords < n) words_.prefetch(words[i + kPrefetchWords]);
      rewrite(words[i], a, b, merged);
    }
  }

  // Replaces a b by merged in one word, from left to right, and notes the neighbours.
  void rewrite(uint32_t word, uint32_t a, uint32_t b, uint32_t merged) {
    uint32_t* const s = words_.symbols(word);
    const uint32_t size = words_.size(word);
    uint32_t i = 0;
    while (i + 1 < size && !(s[i] == a && s[i + 1] == b)) ++i;
    if (i + 1 >= size) return;
    const int64_t count = words_.count(word);
    uint32_t out = i;
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
    words_.size(word) = out;
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
    for (const uint32_t x : side.touched) {
      Change& c = side.change[x];
      const auto [left, right] = pair_of(x);
      if (c.count < threshold_) continue;
      c.out = new_pair(left, right, c.count, c.num_words);
      push(pairs_.size() - 1);
    }
    for (const Event& e : side.events) {
      uint32_t*& out = side.change[e.neighbour].out;
      if (out != nullptr) *out++ = e.word;
    }
    side.clear();
  }

  Words words_;
  std::vector<std::string> tokens_;
  std::vector<Pair> pairs_;
  PairMap index_;
  std::vector<HeapEntry> heap_;
  int64_t threshold_ = INT64_MAX;
  Side left_, right_, self_;
  std::vector<Merge> merges_;
};

// One table per part of the hash space, so that threads need no lock. Frees the tables given.
std::vector<std::unique_ptr<WordTable>> combine(std::vector<std::unique_ptr<WordTable>> tables) {
  const size_t n = tables.size();
  if (n == 1) return tables;
  std::vector<std::unique_ptr<WordTable>> parts(n);
  const auto work = [&](size_t part) {
    parts[part] = std::make_unique<WordTable>();
    for (const auto& t : tables) parts[part]->add_part(*t, part, n);
  };
  run_threads(n, work, [] {});
  return parts;
}

Words words_of(std::vector<std::unique_ptr<WordTable>> tables) {
  size_t units = 0;
  for (const auto& t : tables) {
    t->for_each([&](const uint8_t*, size_t size, int64_t) {
      if (size > 1) units += Words::kHeader + size;
    });
  }
  Words words;
  words.reserve(units);
  for (auto& t : tables) {
    t->for_each([&](const uint8_t* bytes, size_t size, int64_t count) {
      if (size > 1) words.add(bytes, size, count);
    });
    t.reset();
  }
  return words;
}

}  // namespace

std::vector<Merge> BpeTrainer::train(uint64_t max_merges, const Progress& progress) {
  const size_t num_threads = tables_.size();
  for (const auto& t : tables_) t->flush();
  Merger merger(words_of(combine(std::move(tables_))));
  tables_.clear();
  for (size_t i = 0; i < num_threads; ++i) tables_.push_back(std::make_unique<WordTable>());
  for (uint64_t i = 0; i < max_merges; ++i) {
    if (i % kMergesPerPoll == 0 && !progress(i, max_merges)) break;
    if (!merger.step()) break;
  }
  return merger.merges();
}

}  // namespace lmworks
