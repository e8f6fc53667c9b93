// From counted pieces to merges: the alphabet, the vocabulary to start from, seeds, then merging.
#include "bpe_train_merge.h"

#include <numeric>

#include "bpe_train_counts.h"
#include "bpe_train_segment.h"

namespace lmworks {
namespace {

constexpr uint64_t kMergesPerPoll = 128;

// What must be known of all words before they are stored.
struct Summary {
  size_t num_words = 0, num_bytes = 0, max_size = 0;
  int64_t byte_counts[256] = {};
};

[[noreturn]] void refuse_overflow() {
  throw std::overflow_error("the counts of pieces are too large: their sum exceeds 2^63");
}

constexpr size_t kMinIndexBytes = 4 << 20;

Summary summarize(const CountStore& counts) {
  Summary summary;
  int64_t sum = 0;  // of all bytes: no count of a byte or a pair can exceed it
  counts.for_each([&](const uint8_t* bytes, size_t size, int64_t count) {
    ++summary.num_words;
    summary.num_bytes += size;
    summary.max_size = std::max(summary.max_size, size);
    int64_t all;
    if (__builtin_mul_overflow(count, static_cast<int64_t>(size), &all) ||
        __builtin_add_overflow(sum, all, &sum)) {
      refuse_overflow();
    }
    for (size_t i = 0; i < size; ++i) summary.byte_counts[bytes[i]] += count;
  });
  return summary;
}

// Bytes that are tokens, in Hugging Face's order: the initial ones and those of seeds and initial
// merges; then, up to the limit, those that occur, the most frequent first (of equals the first in
// the order).
std::string choose_alphabet(const TrainOptions& options, const Summary& summary) {
  bool is_kept[256] = {};
  const auto keep = [&](const std::string& text) {
    for (const char c : text) is_kept[static_cast<uint8_t>(c)] = true;
  };
  keep(options.initial_alphabet);
  for (const std::string& seed : options.seeds) keep(seed);
  for (const auto& [left, right] : options.initial_merges) {
    keep(left);
    keep(right);
  }
  const std::string order = huggingface_byte_order();
  const auto count = [&](char c) { return summary.byte_counts[static_cast<uint8_t>(c)]; };
  std::string by_count = order;
  std::stable_sort(by_count.begin(), by_count.end(),
                   [&](char x, char y) { return count(x) > count(y); });
  size_t num_kept = std::count(std::begin(is_kept), std::end(is_kept), true);
  for (const char c : by_count) {
    if (num_kept >= options.alphabet_limit || count(c) == 0) break;
    num_kept += !std::exchange(is_kept[static_cast<uint8_t>(c)], true);
  }
  std::string alphabet;
  std::copy_if(order.begin(), order.end(), std::back_inserter(alphabet),
               [&](char c) { return is_kept[static_cast<uint8_t>(c)]; });
  return alphabet;
}

// Symbols in the order that ties need: that of ids for Hugging Face's rule.
std::string symbol_order(Ties ties, std::string alphabet) {
  if (ties == Ties::bytes) {
    std::sort(alphabet.begin(), alphabet.end(),
              [](char x, char y) { return static_cast<uint8_t>(x) < static_cast<uint8_t>(y); });
  }
  return alphabet;
}

// The merges that make the seeds: those of a corpus that is each seed once.
std::vector<Merge> merges_of_seeds(const TrainOptions& options, StartVocabulary& start) {
  Words<uint32_t> words;
  for (const std::string& seed : options.seeds) {
    const auto s = start.segment(reinterpret_cast<const uint8_t*>(seed.data()), seed.size());
    if (s.size() > 1) words.add(s, 1);
  }
  Merger<uint32_t>::Limits limits;
  limits.ties = options.ties;
  Merger<uint32_t> merger(std::move(words), start.tokens(), {}, limits);
  while (merger.step()) {
  }
  return merger.take_merges();
}

// Memory that is left for the index of pairs; room for the words is made.
size_t index_memory(CountStore& counts, const Summary& summary, size_t word_bytes) {
  if (counts.max_bytes() == 0) return SIZE_MAX;
  const size_t needed = word_bytes + kMinIndexBytes;
  if (needed > counts.max_bytes()) {
    throw MemoryLimitError("merging the " + std::to_string(summary.num_words) +
                           " distinct pieces takes at least " + std::to_string(needed) +
                           " bytes; the memory limit is " + std::to_string(counts.max_bytes()));
  }
  counts.make_room(needed);
  return counts.max_bytes() - word_bytes;
}

// Frees the counts once they are stored as words.
template <class Symbol>
std::vector<Merge> make_merges(CountStore& counts, const Summary& summary, StartVocabulary& start,
                               const TrainOptions& options, uint64_t num_seed_merges,
                               uint64_t max_merges, const Progress& progress) {
  Words<Symbol> words;
  const size_t units = summary.num_bytes + summary.num_words * Words<Symbol>::kHeader;
  const size_t index_bytes = index_memory(counts, summary, units * sizeof(Symbol));
  words.reserve(units);
  std::vector<Symbol> narrow;
  counts.for_each([&](const uint8_t* bytes, size_t size, int64_t count) {
    const std::span<const uint32_t> symbols = start.segment(bytes, size);
    if (symbols.size() < 2) return;
    narrow.assign(symbols.begin(), symbols.end());
    words.add(narrow, count);
  });
  counts.clear();
  std::unordered_set<std::string> taken(options.reserved.begin(), options.reserved.end());
  if (!options.initial_merges.empty()) {
    taken.insert(start.tokens().begin(), start.tokens().end());
  }
  typename Merger<Symbol>::Limits limits;
  limits.ties = options.ties;
  limits.min_frequency = std::max<int64_t>(options.min_frequency, 1);
  limits.max_token_bytes = options.max_token_bytes;
  limits.num_merges = max_merges - num_seed_merges;
  limits.max_index_bytes = index_bytes;
  Merger<Symbol> merger(std::move(words), start.tokens(), std::move(taken), limits);
  for (uint64_t i = num_seed_merges; i < max_merges; ++i) {
    if (i % kMergesPerPoll == 0 && !progress(i, max_merges)) break;
    if (!merger.step()) break;
  }
  return merger.take_merges();
}

std::vector<Merge> train_on(CountStore& counts, const TrainOptions& options, std::string& alphabet,
                            const Progress& progress) {
  const Summary summary = summarize(counts);
  alphabet = choose_alphabet(options, summary);
  const int64_t room = options.max_merges + 256 - static_cast<int64_t>(alphabet.size());
  const uint64_t max_merges = std::max<int64_t>(room, 0);
  const std::string symbols = symbol_order(options.ties, alphabet);
  std::vector<Merge> merges, first = options.initial_merges;
  if (!options.seeds.empty()) {
    StartVocabulary start(symbols, first);
    merges = merges_of_seeds(options, start);
    if (merges.size() > max_merges) {
      throw std::invalid_argument("the seed tokens need " + std::to_string(merges.size()) +
                                  " merges, but only " + std::to_string(max_merges) +
                                  " tokens may be added");
    }
    first.insert(first.end(), merges.begin(), merges.end());
  }
  StartVocabulary start(symbols, first);
  const uint64_t num_symbols = start.tokens().size() + max_merges;
  const bool is_narrow =
      std::max<uint64_t>(num_symbols, summary.max_size) <= Words<uint16_t>::kMaxSize;
  const uint64_t num_seed_merges = merges.size();
  const auto run = [&]<class Symbol>() {
    return make_merges<Symbol>(counts, summary, start, options, num_seed_merges, max_merges,
                               progress);
  };
  const std::vector<Merge> made =
      is_narrow ? run.template operator()<uint16_t>() : run.template operator()<uint32_t>();
  merges.insert(merges.end(), made.begin(), made.end());
  return merges;
}

}  // namespace

std::vector<Merge> BpeTrainer::train(const TrainOptions& options, const Progress& progress) {
  try {
    counts_->gather();
    return train_on(*counts_, options, alphabet_, progress);
  } catch (...) {
    counts_->clear();
    throw;
  }
}

}  // namespace lmworks
