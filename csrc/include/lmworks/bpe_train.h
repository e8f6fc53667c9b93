#pragma once
// Training of byte-level BPE (Sennrich et al., "Neural Machine Translation of Rare Words with
// Subword Units", arXiv 1508.07909, on bytes as in GPT-2).
//
// First the pieces of the corpus are counted, by threads that share nothing; then merges are chosen
// on the distinct pieces: the most frequent pair first, ties by a rule of its own (see Ties), so
// the result depends on neither hash order, nor the number of threads, nor the memory limit.
// src/lmworks/tokenizer/train_reference.py is the readable twin.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
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

// Which of several equally frequent pairs is merged first.
enum class Ties {
  bytes,        // the greatest pair of byte strings, in lexicographic order
  huggingface,  // the smallest pair of ids, as in Hugging Face tokenizers' BpeTrainer
};

struct TrainOptions {
  // New tokens if all 256 bytes are tokens; each byte left out of the alphabet is room for one
  // more. Seed tokens take of it; initial merges do not.
  int64_t max_merges = 0;
  Ties ties = Ties::bytes;
  int64_t min_frequency = 1;              // a rarer pair is not merged
  uint64_t max_token_bytes = UINT64_MAX;  // no merge makes a longer token
  std::vector<Merge> initial_merges;      // of a vocabulary to extend: applied to all pieces first
  std::vector<std::string> seeds;         // become tokens whatever the corpus holds
  std::vector<std::string> reserved;      // byte strings that no merge may make
  std::string initial_alphabet;           // bytes that are tokens even if the corpus lacks them
  uint32_t alphabet_limit = 256;  // the most frequent bytes are kept, others dropped from text
};

// The work does not fit into the memory limit.
struct MemoryLimitError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// Counts could not be written to the spill folder.
struct SpillError : std::runtime_error {
  SpillError(int error, const std::string& spill_folder)
      : std::runtime_error("cannot keep counts in the spill folder"),
        code(error),
        folder(spill_folder) {}
  int code;  // of errno
  std::string folder;
};
// A file of counts is truncated, altered, foreign, or of another pattern or special tokens.
struct CountsFileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// A file changed while it was read.
struct FileChangedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct TrainerLimits {
  uint64_t max_memory_bytes = 0;  // of counts and of merging, as far as it can be; 0: no limit
  std::string spill_folder;       // where counts go when they reach it
};

class CountStore;
class SpecialFinder;

class BpeTrainer {
 public:
  // `pattern`: none if pieces are cut by the caller. Special tokens must be distinct and not empty;
  // num_threads >= 1. `settings`: whatever else pieces depend on; it goes into files of counts, and
  // those of other settings are refused.
  BpeTrainer(std::optional<Pattern> pattern, const std::vector<std::string>& special_tokens,
             unsigned num_threads, const std::string& settings = "",
             const TrainerLimits& limits = {});
  ~BpeTrainer();

  // Adds the pieces of a file, read in blocks. Throws std::system_error if it cannot be read and
  // FileChangedError if its size or time of change is another at the end.
  CountResult count_file(const std::string& path, bool allow_invalid_utf8,
                         const Progress& progress);

  // Adds the pieces of texts, each a document of its own.
  void count_texts(std::span<const std::string_view> texts);

  // Adds the pieces of a text cut by the caller: offsets of their ends, ascending, the last of them
  // the size of the text. Special tokens are not looked for.
  void count_pieces(std::string_view text, std::span<const uint64_t> ends);

  // Writes all counts so far to a file, sorted: for resuming, and for adding up those of several
  // machines. Equal counts give equal files.
  void save_counts(const std::string& path);
  // Throws CountsFileError, and adds nothing, if the file is not whole or of other settings.
  void add_counts(const std::string& path);

  // New merges in the order of choice, those of the seeds first; fewer than there is room for once
  // no pair is left. Consumes the counts. Throws std::invalid_argument for options that contradict
  // each other, std::overflow_error if counts sum up to 2^63, and MemoryLimitError if the distinct
  // pieces alone exceed the memory limit.
  std::vector<Merge> train(const TrainOptions& options, const Progress& progress);

  // The bytes that are tokens after train(), in the order of Hugging Face's ids.
  const std::string& alphabet() const { return alphabet_; }

  uint64_t num_pieces() const;  // counted so far

 private:
  Pattern pattern() const;

  std::optional<Pattern> pattern_;
  std::string alphabet_;
  std::unique_ptr<SpecialFinder> specials_;
  std::unique_ptr<CountStore> counts_;
};

}  // namespace lmworks
