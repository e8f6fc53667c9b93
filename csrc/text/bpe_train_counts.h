#pragma once
// All that was counted: a table per thread and, under a memory limit, sorted runs on disk.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bpe_train_store.h"
#include "bpe_train_words.h"
#include "lmworks/bpe_train.h"

namespace lmworks {

// Sorted runs of one table in a temporary file, made with the first of them.
class Runs {
 public:
  explicit Runs(std::string folder) : folder_(std::move(folder)) {}

  void add(WordTable::Content content);
  size_t num_runs() const { return ends_.size(); }
  void open(size_t buffer_bytes, std::vector<std::unique_ptr<SortedWords>>& sources) const;

 private:
  std::string folder_;
  std::unique_ptr<OwnedFile> file_;
  std::vector<uint64_t> ends_;
};

class CountStore {
 public:
  // `settings`: what pieces depend on; counts of other settings are not added. `max_bytes` 0: no
  // limit, else tables that reach it spill into `spill_folder`.
  CountStore(unsigned num_threads, std::string settings, size_t max_bytes,
             const std::string& spill_folder);

  size_t num_tables() const { return tables_.size(); }
  WordTable& table(size_t thread) { return *tables_[thread]; }
  uint64_t num_pieces() const;
  size_t max_bytes() const { return max_bytes_; }

  void save(const std::string& path);
  void add(const std::string& path);

  // To be called before for_each(): no word is then in two places, or all are on disk.
  void gather();
  // Moves all words to disk if they and `more_bytes` exceed the limit.
  void make_room(size_t more_bytes);
  // f(bytes, size, count) for each distinct word.
  void for_each(const std::function<void(const uint8_t*, size_t, int64_t)>& f) const;
  void clear();

 private:
  size_t tables_bytes() const;
  size_t num_runs() const;
  void combine();
  void spill_all();
  std::vector<std::unique_ptr<SortedWords>> open_runs() const;

  unsigned num_threads_;
  std::string settings_;
  size_t max_bytes_;
  std::string folder_;
  std::vector<std::unique_ptr<WordTable>> tables_;
  std::vector<Runs> runs_;            // of each thread
  uint64_t num_pieces_combined_ = 0;  // which tables_ no longer know of
};

}  // namespace lmworks
