#pragma once
// Counted words in sorted order: on disk, from memory, and merged from several sources.
//
// One format serves the files that users keep and the runs that tables spill:
//   "lmwcount", u32 version, u32 size of settings, settings
//   records, ascending by bytes: varint (bytes shared with the word before), varint (other bytes),
//   the other bytes, varint count; then two zero bytes
//   u64 words, u64 sum of counts, u64 checksum of all before
// Numbers are little-endian; varints have 7 bits a byte, the lowest first.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bpe_train_words.h"
#include "lmworks/bpe_train.h"

namespace lmworks {

// A file descriptor that is closed at the end.
class OwnedFile {
 public:
  static OwnedFile open_to_read(const std::string& path);
  static OwnedFile create(const std::string& path);
  // In `folder`, and gone as soon as the process ends, however it ends.
  static OwnedFile temporary(const std::string& folder);

  OwnedFile(OwnedFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFile& operator=(OwnedFile&&) = delete;
  ~OwnedFile();

  int fd() const { return fd_; }
  uint64_t size() const;

 private:
  explicit OwnedFile(int fd) : fd_(fd) {}
  int fd_;
};

// 64-bit checksum of a stream.
class Checksum {
 public:
  void add(const uint8_t* bytes, size_t size);
  uint64_t value() const;

 private:
  void mix(uint64_t word);

  uint64_t state_ = 0x9E3779B97F4A7C15ull, size_ = 0, partial_ = 0;
};

// Writes words at an offset of a file.
class CountsWriter {
 public:
  CountsWriter(int fd, uint64_t offset, std::string_view settings);
  void add(std::string_view word, int64_t count);
  // Returns the offset of the end.
  uint64_t finish();

 private:
  void put(const void* bytes, size_t size);
  void put_varint(uint64_t value);
  void flush();

  int fd_;
  uint64_t offset_, num_words_ = 0, num_pieces_ = 0;
  std::string last_;
  std::vector<uint8_t> buffer_;
  Checksum checksum_;
};

// Words in ascending order, each once.
class SortedWords {
 public:
  virtual ~SortedWords() = default;
  virtual bool next() = 0;  // false at the end
  std::string_view word() const { return word_; }
  int64_t count() const { return count_; }

 protected:
  std::string_view word_;
  int64_t count_ = 0;
};

// Reads what CountsWriter wrote. Any other content throws CountsFileError; whether the checksum is
// right is known when next() has returned false.
class CountsReader : public SortedWords {
 public:
  // [offset, end) of the file; `buffer_bytes` are kept in memory.
  CountsReader(int fd, uint64_t offset, uint64_t end, size_t buffer_bytes);
  bool next() override;

  const std::string& settings() const { return settings_; }
  uint64_t num_pieces() const { return num_pieces_; }  // so far

 private:
  uint8_t get();
  void get(void* out, size_t size);
  uint64_t get_varint();
  template <class Int>
  Int get_int();
  void fill();
  void finish();

  int fd_;
  uint64_t offset_, end_;
  std::vector<uint8_t> buffer_;
  size_t next_ = 0, filled_ = 0;
  std::string settings_, text_;
  uint64_t num_words_ = 0, num_pieces_ = 0;
  bool is_done_ = false;
  Checksum checksum_;
};

// The words of a table, sorted. Takes the table's memory.
class SortedTable : public SortedWords {
 public:
  explicit SortedTable(WordTable::Content content);
  bool next() override;
  void rewind() { next_short_ = next_long_ = 0; }

 private:
  WordTable::Content content_;
  size_t next_short_ = 0, next_long_ = 0;
  uint8_t bytes_[16];
};

// f(word, count) for each distinct word of all sources, in ascending order.
template <class F>
void merge_sorted(std::vector<std::unique_ptr<SortedWords>> sources, F&& f) {
  const auto is_after = [](const auto& x, const auto& y) { return x->word() > y->word(); };
  std::erase_if(sources, [](const auto& s) { return !s->next(); });
  std::make_heap(sources.begin(), sources.end(), is_after);
  std::string word;
  while (!sources.empty()) {
    word = sources.front()->word();
    int64_t count = 0;
    while (!sources.empty() && sources.front()->word() == word) {
      std::pop_heap(sources.begin(), sources.end(), is_after);
      count += sources.back()->count();
      if (sources.back()->next()) {
        std::push_heap(sources.begin(), sources.end(), is_after);
      } else {
        sources.pop_back();
      }
    }
    f(std::string_view(word), count);
  }
}

}  // namespace lmworks
