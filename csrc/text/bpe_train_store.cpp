#include "bpe_train_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

namespace lmworks {
namespace {

constexpr char kMagic[] = "lmwcount";
constexpr uint32_t kVersion = 1;
constexpr size_t kWriteBytes = 1 << 18;
constexpr size_t kMaxSettings = 1 << 24;

[[noreturn]] void fail(const std::string& path) {
  throw std::system_error(errno, std::generic_category(), path);
}

}  // namespace

OwnedFile OwnedFile::open_to_read(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(path);
  return OwnedFile(fd);
}

OwnedFile OwnedFile::create(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) fail(path);
  return OwnedFile(fd);
}

OwnedFile OwnedFile::temporary(const std::string& folder) {
  std::string name = folder + "/lmworks-counts-XXXXXX";
  const int fd = mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) fail(folder);
  unlink(name.c_str());
  return OwnedFile(fd);
}

OwnedFile::~OwnedFile() {
  if (fd_ >= 0) close(fd_);
}

uint64_t OwnedFile::size() const {
  struct stat info;
  if (fstat(fd_, &info) != 0) fail("");
  return info.st_size;
}

// ---- checksum: 64 x 64 bit products, as in wyhash ----

void Checksum::mix(uint64_t word) {
  __extension__ using Wide = unsigned __int128;
  const Wide m = static_cast<Wide>(state_ ^ 0xa0761d6478bd642full) * (word ^ 0xe7037ed1a0b428dbull);
  state_ = (static_cast<uint64_t>(m) ^ static_cast<uint64_t>(m >> 64)) + word;
}

void Checksum::add(const uint8_t* bytes, size_t size) {
  for (size_t i = 0; i < size;) {
    if (size_ % 8 == 0 && size - i >= 8) {
      uint64_t word = 0;
      for (int k = 0; k < 8; ++k) word |= static_cast<uint64_t>(bytes[i + k]) << 8 * k;
      mix(word);
      size_ += 8;
      i += 8;
      continue;
    }
    partial_ |= static_cast<uint64_t>(bytes[i++]) << 8 * (size_ % 8);
    if (++size_ % 8 == 0) mix(std::exchange(partial_, 0));
  }
}

uint64_t Checksum::value() const {
  Checksum last = *this;
  last.mix(partial_);
  last.mix(size_);
  return last.state_;
}

// ---- writing ----

CountsWriter::CountsWriter(int fd, uint64_t offset, std::string_view settings)
    : fd_(fd), offset_(offset) {
  buffer_.reserve(kWriteBytes);
  put(kMagic, 8);
  const uint32_t numbers[] = {kVersion, static_cast<uint32_t>(settings.size())};
  for (const uint32_t n : numbers) {
    for (int i = 0; i < 4; ++i) buffer_.push_back(static_cast<uint8_t>(n >> 8 * i));
  }
  put(settings.data(), settings.size());
}

void CountsWriter::put(const void* bytes, size_t size) {
  const auto* p = static_cast<const uint8_t*>(bytes);
  while (size > 0) {
    const size_t n = std::min(size, kWriteBytes - buffer_.size());
    buffer_.insert(buffer_.end(), p, p + n);
    p += n;
    size -= n;
    if (buffer_.size() == kWriteBytes) flush();
  }
}

void CountsWriter::put_varint(uint64_t value) {
  uint8_t bytes[10];
  size_t n = 0;
  do {
    bytes[n++] = static_cast<uint8_t>((value & 127) | (value > 127 ? 128 : 0));
    value >>= 7;
  } while (value != 0);
  put(bytes, n);
}

void CountsWriter::flush() {
  checksum_.add(buffer_.data(), buffer_.size());
  for (size_t done = 0; done < buffer_.size();) {
    const ssize_t n = pwrite(fd_, buffer_.data() + done, buffer_.size() - done, offset_);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("");
    done += n;
    offset_ += n;
  }
  buffer_.clear();
}

void CountsWriter::add(std::string_view word, int64_t count) {
  const auto same = std::mismatch(last_.begin(), last_.end(), word.begin(), word.end());
  const size_t shared = same.first - last_.begin();
  put_varint(shared);
  put_varint(word.size() - shared);
  put(word.data() + shared, word.size() - shared);
  put_varint(count);
  last_ = word;
  ++num_words_;
  num_pieces_ += count;
}

uint64_t CountsWriter::finish() {
  put("\0\0", 2);
  const auto put_int = [&](uint64_t value) {
    uint8_t bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(value >> 8 * i);
    put(bytes, 8);
  };
  put_int(num_words_);
  put_int(num_pieces_);
  flush();
  put_int(checksum_.value());
  flush();
  return offset_;
}

// ---- reading ----

CountsReader::CountsReader(int fd, uint64_t offset, uint64_t end, size_t buffer_bytes)
    : fd_(fd), offset_(offset), end_(end), buffer_(buffer_bytes) {
  char magic[8];
  if (end - offset < sizeof(magic)) throw CountsFileError("it is no file of counts");
  get(magic, sizeof(magic));
  if (std::memcmp(magic, kMagic, sizeof(magic)) != 0) {
    throw CountsFileError("it is no file of counts");
  }
  const auto version = get_int<uint32_t>();
  if (version != kVersion) {
    throw CountsFileError("its version is " + std::to_string(version) + ", not " +
                          std::to_string(kVersion));
  }
  const auto size = get_int<uint32_t>();
  if (size > kMaxSettings || size > end - offset) throw CountsFileError("it is truncated");
  settings_.resize(size);
  get(settings_.data(), size);
}

void CountsReader::fill() {
  checksum_.add(buffer_.data(), filled_);
  const uint64_t wanted = std::min<uint64_t>(buffer_.size(), end_ - offset_);
  ssize_t n;
  do {
    n = pread(fd_, buffer_.data(), wanted, offset_);
  } while (n < 0 && errno == EINTR);
  if (n < 0) fail("");
  if (n == 0) throw CountsFileError("it is truncated");
  offset_ += n;
  filled_ = n;
  next_ = 0;
}

uint8_t CountsReader::get() {
  if (next_ == filled_) fill();
  return buffer_[next_++];
}

void CountsReader::get(void* out, size_t size) {
  auto* p = static_cast<uint8_t*>(out);
  while (size > 0) {
    if (next_ == filled_) fill();
    const size_t n = std::min(size, filled_ - next_);
    std::memcpy(p, &buffer_[next_], n);
    next_ += n;
    p += n;
    size -= n;
  }
}

template <class Int>
Int CountsReader::get_int() {
  Int value = 0;
  for (size_t i = 0; i < sizeof(Int); ++i) value |= static_cast<Int>(get()) << 8 * i;
  return value;
}

uint64_t CountsReader::get_varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const uint8_t b = get();
    value |= static_cast<uint64_t>(b & 127) << shift;
    if (b < 128) return value;
  }
  throw CountsFileError("it is damaged: a number is too long");
}

bool CountsReader::next() {
  if (is_done_) return false;
  const uint64_t shared = get_varint(), rest = get_varint();
  if (shared == 0 && rest == 0) {
    finish();
    return false;
  }
  if (rest == 0 || shared > text_.size()) throw CountsFileError("it is damaged: a wrong length");
  if (rest > end_ - offset_ + (filled_ - next_)) throw CountsFileError("it is truncated");
  const std::string before = text_.substr(shared);
  text_.resize(shared + rest);
  get(text_.data() + shared, rest);
  if (std::string_view(text_).substr(shared) <= before) {
    throw CountsFileError("it is damaged: its words are not in order");
  }
  const uint64_t count = get_varint();
  if (count == 0 || count > INT64_MAX || num_pieces_ + count > INT64_MAX) {
    throw CountsFileError("it is damaged: a wrong count");
  }
  num_pieces_ += count;
  ++num_words_;
  word_ = text_;
  count_ = static_cast<int64_t>(count);
  return true;
}

void CountsReader::finish() {
  is_done_ = true;
  if (get_int<uint64_t>() != num_words_ || get_int<uint64_t>() != num_pieces_) {
    throw CountsFileError("it is damaged: the sums differ");
  }
  Checksum checksum = checksum_;
  checksum.add(buffer_.data(), next_);
  if (get_int<uint64_t>() != checksum.value()) {
    throw CountsFileError("it is damaged: the checksum differs");
  }
  if (next_ != filled_ || offset_ != end_) throw CountsFileError("something follows its end");
}

// ---- a table ----

namespace {

// Key whose order is that of the bytes.
struct ShortOrder {
  uint64_t first, second;

  explicit ShortOrder(const WordTable::Short& s)
      : first(__builtin_bswap64(s.lo)),
        second(__builtin_bswap64(s.hi & 0x00FFFFFFFFFFFFFFull) | s.hi >> 56) {}
  bool operator<(const ShortOrder& other) const {
    return first != other.first ? first < other.first : second < other.second;
  }
};

}  // namespace

SortedTable::SortedTable(WordTable::Content content) : content_(std::move(content)) {
  std::sort(content_.shorts.begin(), content_.shorts.end(),
            [](const auto& x, const auto& y) { return ShortOrder(x) < ShortOrder(y); });
  std::sort(content_.longs.begin(), content_.longs.end(), [&](const auto& x, const auto& y) {
    return content_.text_of(x) < content_.text_of(y);
  });
}

bool SortedTable::next() {
  const auto& shorts = content_.shorts;
  const auto& longs = content_.longs;
  std::string_view a, b;
  if (next_short_ < shorts.size()) {
    const WordTable::Short& s = shorts[next_short_];
    WordTable::unpack(s, bytes_);
    a = {reinterpret_cast<const char*>(bytes_), static_cast<size_t>(s.hi >> 56)};
  }
  if (next_long_ < longs.size()) b = content_.text_of(longs[next_long_]);
  if (a.empty() && b.empty()) return false;
  if (b.empty() || (!a.empty() && a < b)) {
    word_ = a;
    count_ = shorts[next_short_++].count;
  } else {
    word_ = b;
    count_ = longs[next_long_++].count;
  }
  return true;
}

}  // namespace lmworks
