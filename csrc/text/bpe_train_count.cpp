// Counting: the corpus is cut into blocks at places where no pattern sees a difference; threads
// take blocks in turn, split them at special tokens and count pieces in tables of their own.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <system_error>

#include "bpe_train_counts.h"
#include "lmworks/boundaries.h"
#include "lmworks/bpe_train.h"
#include "lmworks/threads.h"

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

// Counts the pieces of the texts between special tokens.
class PieceCounter {
 public:
  PieceCounter(Pattern pattern, const SpecialFinder& specials, WordTable& table)
      : pattern_(pattern), specials_(specials), table_(table) {}

  // `readable` is the end of loadable memory.
  void count(std::string_view text, const uint8_t* readable) {
    size_t from = 0;
    while (true) {
      const std::string_view special = specials_.find(text, from);
      const uint8_t* const end = special.empty() ? bytes_of(text) + text.size() : bytes_of(special);
      count_between(bytes_of(text) + from, end, readable);
      if (special.empty()) break;
      from = special.data() + special.size() - text.data();
    }
  }

 private:
  void count_between(const uint8_t* p, const uint8_t* end, const uint8_t* readable) {
    while (p < end) {
      const size_t num_pieces = scan_pieces(pattern_, p, end, ends_);
      uint32_t begin = 0;
      for (size_t i = 0; i < num_pieces; ++i) {
        table_.add(p + begin, ends_[i] - begin, readable);
        begin = ends_[i];
      }
      p += begin;
    }
  }

  const Pattern pattern_;
  const SpecialFinder& specials_;
  WordTable& table_;
  uint32_t ends_[kMaxScanPieces];
};

// A file read block by block; a block ends where no piece and no special token crosses. Not mapped:
// a file that shrinks while it is mapped kills the process.
class FileBlocks {
 public:
  // What a thread reads into; text is followed by kSlack readable bytes.
  struct Block {
    std::vector<char> buffer;
    uint64_t offset = 0;  // in the file
    size_t size = 0;

    std::string_view text() const { return {buffer.data(), size}; }
  };
  static constexpr size_t kSlack = 16;

  FileBlocks(const std::string& path, const SpecialFinder& specials)
      : path_(path), specials_(specials), fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) fail();
    struct stat info;
    if (fstat(fd_, &info) != 0) {
      const int error = errno;
      close(fd_);
      throw std::system_error(error, std::generic_category(), path_);
    }
    at_start_ = info;
  }
  ~FileBlocks() { close(fd_); }
  FileBlocks(const FileBlocks&) = delete;
  FileBlocks& operator=(const FileBlocks&) = delete;

  uint64_t size() const { return at_start_.st_size; }

  // Reads the next block; false at the end or after stop().
  bool next(Block& block) {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return false;
    block.offset = next_ - rest_.size();
    std::vector<char>& buffer = block.buffer;
    if (buffer.size() < rest_.size()) buffer.resize(rest_.size());
    std::copy(rest_.begin(), rest_.end(), buffer.begin());
    size_t filled = rest_.size(), searched = 1, cut, wanted;
    do {  // a text without a place to cut is read on, twice as much each time
      wanted = std::max(kBlockBytes, 2 * filled);
      if (buffer.size() < wanted + kSlack) buffer.resize(wanted + kSlack);
      const size_t before = filled;
      filled += read_into(buffer.data() + filled, wanted - filled);
      const std::string_view text(buffer.data(), filled);
      cut = filled < wanted ? filled : last_cut(text, std::min(searched, filled));
      searched = before;
      if (cut == 0 && filled >= kMaxUncutBytes) {
        throw std::system_error(EFBIG, std::generic_category(), path_);
      }
    } while (cut == 0 && filled == wanted);
    rest_.assign(buffer.data() + cut, buffer.data() + filled);
    block.size = cut;
    return cut != 0;
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }

  // Throws if the file is another than when reading began.
  void check_unchanged() const {
    struct stat info;
    if (fstat(fd_, &info) != 0) fail();
    const bool is_read = next_ == size() || is_stopped_;
    if (info.st_size == at_start_.st_size && info.st_mtim.tv_sec == at_start_.st_mtim.tv_sec &&
        info.st_mtim.tv_nsec == at_start_.st_mtim.tv_nsec && is_read) {
      return;
    }
    throw FileChangedError(
        "the file changed while it was read: " + std::to_string(at_start_.st_size) +
        " bytes, now " + std::to_string(info.st_size));
  }

 private:
  [[noreturn]] void fail() const { throw std::system_error(errno, std::generic_category(), path_); }

  // Bytes read: fewer than `size` only at the end of the file as it was when reading began.
  size_t read_into(char* out, size_t size) {
    size = std::min<uint64_t>(size, this->size() - next_);
    size_t done = 0;
    while (done < size) {
      const ssize_t n = pread(fd_, out + done, size - done, next_ + done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail();
      if (n == 0) break;  // truncated meanwhile: check_unchanged() tells
      done += n;
    }
    next_ += done;
    return done;
  }

  // The last place from `from` on where the text may be cut though it goes on; 0 if there is none.
  size_t last_cut(std::string_view text, size_t from) const {
    const uint8_t* const begin = bytes_of(text);
    const uint8_t* const end = begin + text.size();
    const size_t reach = specials_.max_size();  // a special token near the end may go on behind it
    for (size_t back = kFirstLookBack;; back *= 8) {
      const bool is_all = back >= text.size() || text.size() - back <= from;
      const uint8_t* p = begin + (is_all ? from : text.size() - back);
      size_t cut = 0;
      for (p = find_safe_cut(begin, p, end); p + reach < end;
           p = find_safe_cut(begin, p + 1, end)) {
        if (!specials_.straddles(text, p - begin)) cut = p - begin;
      }
      if (cut != 0 || is_all) return cut;
    }
  }

  static constexpr size_t kFirstLookBack = 512;
  // Of text without a place to cut, in memory at once: a sparse file of zeros must not fill it.
  static constexpr size_t kMaxUncutBytes = size_t{1} << 30;

  const std::string path_;
  const SpecialFinder& specials_;
  const int fd_;
  struct stat at_start_ = {};
  std::mutex mutex_;
  uint64_t next_ = 0;       // offset of the first byte not yet read
  std::vector<char> rest_;  // read, but not yet handed out
  bool is_stopped_ = false;
};

}  // namespace

namespace {

// All that pieces depend on, as text.
std::string describe(std::optional<Pattern> pattern, const std::vector<std::string>& specials,
                     const std::string& settings) {
  std::string text = "pattern " + (pattern ? std::string(pattern_name(*pattern)) : "of the caller");
  for (const std::string& s : specials) {
    text += ", special token (" + std::to_string(s.size()) + " bytes) " + s;
  }
  return settings.empty() ? text : text + ", " + settings;
}

}  // namespace

BpeTrainer::BpeTrainer(std::optional<Pattern> pattern,
                       const std::vector<std::string>& special_tokens, unsigned num_threads,
                       const std::string& settings, const TrainerLimits& limits)
    : pattern_(pattern),
      specials_(std::make_unique<SpecialFinder>(special_tokens)),
      counts_(std::make_unique<CountStore>(num_threads, describe(pattern, special_tokens, settings),
                                           limits.max_memory_bytes, limits.spill_folder)) {}

BpeTrainer::~BpeTrainer() = default;

CountResult BpeTrainer::count_file(const std::string& path, bool allow_invalid_utf8,
                                   const Progress& progress) {
  FileBlocks blocks(path, *specials_);
  const uint64_t size = blocks.size();
  std::atomic<uint64_t> num_done = 0, error_offset = UINT64_MAX;
  const auto work = [&](size_t thread) {
    PieceCounter counter(pattern(), *specials_, counts_->table(thread));
    FileBlocks::Block block;
    while (blocks.next(block)) {
      const std::string_view text = block.text();
      if (!allow_invalid_utf8) {
        const size_t valid = utf8_error_offset(bytes_of(text), text.size());
        if (valid != text.size()) {  // earlier blocks are still being read: keep the first error
          const uint64_t place = block.offset + valid;
          uint64_t seen = error_offset;
          while (place < seen && !error_offset.compare_exchange_weak(seen, place)) {
          }
          blocks.stop();
          break;
        }
      }
      counter.count(text, bytes_of(text) + text.size() + FileBlocks::kSlack);
      num_done += text.size();
    }
  };
  run_threads(counts_->num_tables(), work, [&] {
    if (!progress(num_done, size)) blocks.stop();
  });
  blocks.check_unchanged();
  if (error_offset != UINT64_MAX) return {false, error_offset};
  return {};
}

void BpeTrainer::count_texts(std::span<const std::string_view> texts) {
  std::atomic<size_t> next = 0;
  const auto work = [&](size_t thread) {
    PieceCounter counter(pattern(), *specials_, counts_->table(thread));
    for (size_t i; (i = next++) < texts.size();) {
      counter.count(texts[i], bytes_of(texts[i]) + texts[i].size());
    }
  };
  if (texts.size() == 1 || counts_->num_tables() == 1) return work(0);
  run_threads(std::min(counts_->num_tables(), texts.size()), work, nullptr);
}

void BpeTrainer::count_pieces(std::string_view text, std::span<const uint64_t> ends) {
  const uint8_t* const begin = bytes_of(text);
  uint64_t last = 0;
  for (const uint64_t end : ends) {
    if (end <= last || end > text.size()) {
      throw std::invalid_argument("ends of pieces must ascend up to the size of the text");
    }
    last = end;
  }
  if (last != text.size()) throw std::invalid_argument("the last piece must end with the text");
  last = 0;
  for (const uint64_t end : ends) {
    counts_->table(0).add(begin + last, end - last, begin + text.size());
    last = end;
  }
}

Pattern BpeTrainer::pattern() const {
  if (!pattern_) throw std::invalid_argument("no pattern: pieces are cut by the caller");
  return *pattern_;
}

uint64_t BpeTrainer::num_pieces() const { return counts_->num_pieces(); }

void BpeTrainer::save_counts(const std::string& path) { counts_->save(path); }

void BpeTrainer::add_counts(const std::string& path) { counts_->add(path); }

}  // namespace lmworks
