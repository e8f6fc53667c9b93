#include "bpe_train_counts.h"

#include <algorithm>
#include <system_error>

#include "lmworks/threads.h"

namespace lmworks {
namespace {

constexpr size_t kReadBytes = 1 << 18;
constexpr size_t kMinReadBytes = 1 << 12;
constexpr size_t kBytesBesideTable = 3 << 20;  // of a thread: a block of text, the table's front
constexpr size_t kMinTableBytes = 1 << 20;

}  // namespace

void Runs::add(WordTable::Content content) try {
  if (!file_) file_ = std::make_unique<OwnedFile>(OwnedFile::temporary(folder_));
  CountsWriter writer(file_->fd(), ends_.empty() ? 0 : ends_.back(), "");
  SortedTable words(std::move(content));
  while (words.next()) writer.add(words.word(), words.count());
  ends_.push_back(writer.finish());
} catch (const std::system_error& e) {
  throw SpillError(e.code().value(), folder_);
}

void Runs::open(size_t buffer_bytes, std::vector<std::unique_ptr<SortedWords>>& sources) const {
  uint64_t begin = 0;
  for (const uint64_t end : ends_) {
    sources.push_back(std::make_unique<CountsReader>(file_->fd(), begin, end, buffer_bytes));
    begin = end;
  }
}

CountStore::CountStore(unsigned num_threads, std::string settings, size_t max_bytes,
                       const std::string& spill_folder)
    : num_threads_(num_threads),
      settings_(std::move(settings)),
      max_bytes_(max_bytes),
      folder_(spill_folder) {
  const size_t smallest = num_threads * (kBytesBesideTable + kMinTableBytes);
  if (max_bytes != 0 && max_bytes < smallest) {
    throw MemoryLimitError("the memory limit of " + std::to_string(max_bytes) + " bytes is below " +
                           std::to_string(smallest) + ", the least for " +
                           std::to_string(num_threads) + " threads");
  }
  if (max_bytes != 0 && folder_.empty()) {
    throw std::invalid_argument("a memory limit needs a folder for what exceeds it");
  }
  clear();
}

void CountStore::clear() {
  tables_.clear();
  runs_.clear();
  num_pieces_combined_ = 0;
  for (unsigned i = 0; i < num_threads_; ++i) {
    tables_.push_back(std::make_unique<WordTable>());
    runs_.emplace_back(folder_);
  }
  if (max_bytes_ == 0) return;
  for (unsigned i = 0; i < num_threads_; ++i) {
    tables_[i]->set_limit(
        max_bytes_ / num_threads_ - kBytesBesideTable,
        [this, i](WordTable::Content content) { runs_[i].add(std::move(content)); });
  }
}

uint64_t CountStore::num_pieces() const {
  uint64_t sum = num_pieces_combined_;
  for (const auto& t : tables_) sum += t->num_pieces();
  return sum;
}

size_t CountStore::tables_bytes() const {
  size_t sum = 0;
  for (const auto& t : tables_) sum += t->size_bytes();
  return sum;
}

size_t CountStore::num_runs() const {
  size_t sum = 0;
  for (const Runs& r : runs_) sum += r.num_runs();
  return sum;
}

std::vector<std::unique_ptr<SortedWords>> CountStore::open_runs() const {
  std::vector<std::unique_ptr<SortedWords>> sources;
  const size_t share = max_bytes_ / 4 / std::max<size_t>(num_runs(), 1);
  for (const Runs& r : runs_) r.open(std::clamp(share, kMinReadBytes, kReadBytes), sources);
  return sources;
}

void CountStore::spill_all() {
  for (size_t i = 0; i < tables_.size(); ++i) {
    tables_[i]->flush();
    runs_[i].add(tables_[i]->take());
  }
}

void CountStore::save(const std::string& path) {
  if (max_bytes_ != 0) spill_all();  // the copy of a table might not fit beside it
  for (const auto& t : tables_) t->flush();
  auto sources = open_runs();
  for (const auto& t : tables_) sources.push_back(std::make_unique<SortedTable>(t->copy()));
  const OwnedFile file = OwnedFile::create(path);
  CountsWriter writer(file.fd(), 0, settings_);
  merge_sorted(std::move(sources),
               [&](std::string_view word, int64_t count) { writer.add(word, count); });
  writer.finish();
}

// Read twice: nothing is added from a file that turns out to be damaged.
void CountStore::add(const std::string& path) {
  const OwnedFile file = OwnedFile::open_to_read(path);
  const uint64_t size = file.size();
  CountsReader check(file.fd(), 0, size, kReadBytes);
  if (check.settings() != settings_) {
    throw CountsFileError("its pieces were cut otherwise: " + check.settings() +
                          "; here: " + settings_);
  }
  while (check.next()) {
  }
  if (check.num_pieces() > INT64_MAX - num_pieces()) {
    throw std::overflow_error("the counts of pieces are too large: their sum exceeds 2^63");
  }
  CountsReader words(file.fd(), 0, size, kReadBytes);
  for (size_t i = 0; words.next(); ++i) {
    table((i >> 10) % tables_.size()).add_count(words.word(), words.count());
  }
}

void CountStore::gather() {
  for (const auto& t : tables_) t->flush();
  if (num_runs() > 0) return spill_all();
  make_room(tables_.size() > 1 ? tables_bytes() : 0);
  if (num_runs() == 0) combine();
}

void CountStore::make_room(size_t more_bytes) {
  if (max_bytes_ != 0 && tables_bytes() + more_bytes > max_bytes_) spill_all();
}

// One table per part of the hash space, so that threads need no lock.
void CountStore::combine() {
  const size_t n = tables_.size();
  if (n == 1) return;
  std::vector<std::unique_ptr<WordTable>> parts(n);
  const auto work = [&](size_t part) {
    parts[part] = std::make_unique<WordTable>();
    for (const auto& t : tables_) parts[part]->add_part(*t, part, n);
  };
  run_threads(n, work, nullptr);
  num_pieces_combined_ = num_pieces();
  tables_ = std::move(parts);
}

void CountStore::for_each(const std::function<void(const uint8_t*, size_t, int64_t)>& f) const {
  for (const auto& t : tables_) t->for_each(f);
  merge_sorted(open_runs(), [&](std::string_view word, int64_t count) {
    f(reinterpret_cast<const uint8_t*>(word.data()), word.size(), count);
  });
}

}  // namespace lmworks
