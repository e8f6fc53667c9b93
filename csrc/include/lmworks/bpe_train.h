#pragma once
// Training of byte-level BPE (Sennrich et al., "Neural Machine Translation of Rare Words with
// Subword Units", arXiv 1508.07909, on bytes as in GPT-2).
//
// First the pieces of the corpus are counted, by threads that share nothing; then merges are chosen
// on the distinct pieces. The most frequent pair is merged; of equally frequent ones the pair of
// byte strings that is greatest in lexicographic order, so the result depends on neither hash order
// nor the number of threads. src/lmworks/tokenizer/train_reference.py is the readable twin.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lmworks/pretokenize.h"

namespace lmworks {

// Called now and then on the calling thread with bytes or merges done; false stops the work.
using Progress = std::function<bool(uint64_t done, uint64_t total)>;
using Merge = std::pair<std::string, std::string>;

struct CountResult {
  bool is_valid = true;       // false: a byte is not UTF-8 and that was not allowed
  uint64_t error_offset = 0;  // its place
};

class SpecialFinder;
class WordTable;

class BpeTrainer {
 public:
  // Special tokens must be distinct and not empty; num_threads >= 1.
  BpeTrainer(Pattern pattern, const std::vector<std::string>& special_tokens, unsigned num_threads);
  ~BpeTrainer();

  // Adds the pieces of a memory-mapped file. Pages are given back once read, so the process does
  // not grow with the file. Throws std::system_error if the file cannot be read.
  CountResult count_file(const std::string& path, bool allow_invalid_utf8,
                         const Progress& progress);

  // Adds the pieces of texts, each a document of its own.
  void count_texts(std::span<const std::string_view> texts);

  // Merges in the order of choice; fewer than max_merges once no pair is left. Consumes the counts.
  std::vector<Merge> train(uint64_t max_merges, const Progress& progress);

  uint64_t num_pieces() const;  // counted so far

 private:
  Pattern pattern_;
  std::unique_ptr<SpecialFinder> specials_;
  std::vector<std::unique_ptr<WordTable>> tables_;  // one per thread
};

}  // namespace lmworks
