// Counting: the corpus is cut into blocks at places where no pattern sees a difference; threads
// take blocks in turn, split them at special tokens and count pieces in tables of their own.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <system_error>

#include "bpe_train_words.h"
#include "lmworks/bpe_train.h"
#include "threads.h"

namespace lmworks {

// Finds special tokens from left to right; of those that start at one place the longest.
class SpecialFinder {
 public:
  explicit SpecialFinder(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {
    std::sort(tokens_.begin(), tokens_.end(),
              [](const auto& a, const auto& b) { return a.size() > b.size(); });
    if (tokens_.empty()) return;
    prefix_ = tokens_.front();
    for (const std::string& t : tokens_) {
      const size_t limit = std::min(prefix_.size(), t.size());
      size_t n = 0;
      while (n < limit && prefix_[n] == t[n]) ++n;
      prefix_.resize(n);
      is_first_[static_cast<uint8_t>(t[0])] = true;
    }
  }

  size_t max_size() const { return tokens_.empty() ? 0 : tokens_.front().size(); }

  // First special token in text[from...]; empty view if none.
  std::string_view find(std::string_view text, size_t from) const {
    if (tokens_.empty()) return {};
    for (size_t i = from; (i = next_candidate(text, i)) < text.size(); ++i) {
      for (const std::string& t : tokens_) {
        if (text.compare(i, t.size(), t) == 0) return text.substr(i, t.size());
      }
    }
    return {};
  }

  // Whether some special token starts before `place` and ends after it.
  bool straddles(std::string_view text, size_t place) const {
    const size_t reach = max_size();
    for (size_t i = place - std::min(place, reach); i < place; ++i) {
      if (!is_first_[static_cast<uint8_t>(text[i])]) continue;
      for (const std::string& t : tokens_) {
        if (i + t.size() > place && text.compare(i, t.size(), t) == 0) return true;
      }
    }
    return false;
  }

 private:
  size_t next_candidate(std::string_view text, size_t i) const {
    if (!prefix_.empty()) {
      const void* hit = memmem(text.data() + i, text.size() - i, prefix_.data(), prefix_.size());
      return hit ? static_cast<const char*>(hit) - text.data() : text.size();
    }
    while (i < text.size() && !is_first_[static_cast<uint8_t>(text[i])]) ++i;
    return i;
  }

  std::vector<std::string> tokens_;  // longest first
  std::string prefix_;               // shared by all
  bool is_first_[256] = {};
};

namespace {

constexpr size_t kBlockBytes = 2 << 20;

const uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

// A file mapped for reading.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) throw std::system_error(errno, std::generic_category(), path);
    struct stat info;
    int error = fstat(fd, &info) == 0 ? 0 : errno;
    if (error == 0 && info.st_size > 0) {
      size_ = info.st_size;
      data_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
      if (data_ == MAP_FAILED) error = errno;
    }
    close(fd);
    if (error != 0) throw std::system_error(error, std::generic_category(), path);
  }
  ~MappedFile() {
    if (data_ != nullptr) munmap(data_, size_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view text() const { return {static_cast<const char*>(data_), size_}; }

  // Drops the pages that lie wholly in [begin, end) from this process.
  void release(size_t begin, size_t end) const {
    const size_t page = sysconf(_SC_PAGESIZE);
    begin = (begin + page - 1) / page * page;
    end = end == size_ ? end : end / page * page;
    if (begin < end) madvise(static_cast<char*>(data_) + begin, end - begin, MADV_DONTNEED);
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Counts the pieces of text between special tokens. `readable` is the end of loadable memory.
template <Pattern P>
void count_pieces(std::string_view text, const uint8_t* readable, const SpecialFinder& specials,
                  WordTable& table) {
  size_t from = 0;
  while (true) {
    const std::string_view special = specials.find(text, from);
    const uint8_t* const end = special.empty() ? bytes_of(text) + text.size() : bytes_of(special);
    for (const uint8_t* p = bytes_of(text) + from; p < end;) {
      const uint8_t* const q = next_piece<P>(p, end);
      table.add(p, q - p, readable);
      p = q;
    }
    if (special.empty()) break;
    from = special.data() + special.size() - text.data();
  }
}

// Hands out consecutive blocks that may be counted apart.
class Blocks {
 public:
  Blocks(std::string_view text, const SpecialFinder& specials) : text_(text), specials_(specials) {}

  // [begin, end) of the next block; empty at the end or after stop().
  std::pair<size_t, size_t> next() {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return {text_.size(), text_.size()};
    const size_t begin = next_;
    next_ = cut_after(begin + kBlockBytes);
    return {begin, next_};
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }

 private:
  size_t cut_after(size_t place) const {
    if (place >= text_.size()) return text_.size();
    const uint8_t* const begin = bytes_of(text_);
    const uint8_t* const end = begin + text_.size();
    const uint8_t* p = find_safe_cut(begin, begin + place, end);
    while (p != end && specials_.straddles(text_, p - begin)) p = find_safe_cut(begin, p + 1, end);
    return p - begin;
  }

  std::string_view text_;
  const SpecialFinder& specials_;
  std::mutex mutex_;
  size_t next_ = 0;
  bool is_stopped_ = false;
};

}  // namespace

BpeTrainer::BpeTrainer(Pattern pattern, const std::vector<std::string>& special_tokens,
                       unsigned num_threads)
    : pattern_(pattern), specials_(std::make_unique<SpecialFinder>(special_tokens)) {
  for (unsigned i = 0; i < num_threads; ++i) tables_.push_back(std::make_unique<WordTable>());
}

BpeTrainer::~BpeTrainer() = default;

CountResult BpeTrainer::count_file(const std::string& path, bool allow_invalid_utf8,
                                   const Progress& progress) {
  const MappedFile file(path);
  const std::string_view text = file.text();
  const uint8_t* const readable = bytes_of(text) + text.size();
  Blocks blocks(text, *specials_);
  std::atomic<uint64_t> num_done = 0, error_offset = text.size();
  const auto work = [&](size_t thread) {
    while (true) {
      const auto [begin, end] = blocks.next();
      if (begin == end) break;
      const std::string_view block = text.substr(begin, end - begin);
      if (!allow_invalid_utf8) {
        const size_t valid = utf8_error_offset(bytes_of(block), block.size());
        if (valid != block.size()) {  // earlier blocks are still being read: keep the first error
          uint64_t seen = error_offset;
          while (begin + valid < seen && !error_offset.compare_exchange_weak(seen, begin + valid)) {
          }
          blocks.stop();
          break;
        }
      }
      with_pattern(pattern_, [&]<Pattern P>() {
        count_pieces<P>(block, readable, *specials_, *tables_[thread]);
      });
      file.release(begin, end);
      num_done += end - begin;
    }
  };
  run_threads(tables_.size(), work, [&] {
    if (!progress(num_done, text.size())) blocks.stop();
  });
  if (error_offset != text.size()) return {false, error_offset};
  return {};
}

void BpeTrainer::count_texts(std::span<const std::string_view> texts) {
  std::atomic<size_t> next = 0;
  const auto work = [&](size_t thread) {
    for (size_t i; (i = next++) < texts.size();) {
      with_pattern(pattern_, [&]<Pattern P>() {
        const uint8_t* const readable = bytes_of(texts[i]) + texts[i].size();
        count_pieces<P>(texts[i], readable, *specials_, *tables_[thread]);
      });
    }
  };
  if (texts.size() == 1 || tables_.size() == 1) return work(0);
  run_threads(std::min(tables_.size(), texts.size()), work, [] {});
}

uint64_t BpeTrainer::num_pieces() const {
  uint64_t sum = 0;
  for (const auto& t : tables_) sum += t->num_pieces();
  return sum;
}

}  // namespace lmworks
