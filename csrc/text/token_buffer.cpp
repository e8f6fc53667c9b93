#include "lmworks/token_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace lmworks {
namespace {

constexpr size_t kHugePage = size_t{1} << 21;
constexpr size_t kMappedIds = kHugePage / sizeof(uint32_t);  // from here on, mapped

uint32_t* map(size_t bytes) {
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  return static_cast<uint32_t*>(memory);
}

}  // namespace

TokenBuffer::~TokenBuffer() {
  if (capacity_ >= kMappedIds) {
    munmap(data_, capacity_ * sizeof(uint32_t));
  } else {
    std::free(data_);
  }
}

void TokenBuffer::resize(size_t count) {
  if (count < kMappedIds && capacity_ >= kMappedIds) count = kMappedIds;  // stays mapped
  const bool is_mapped = capacity_ >= kMappedIds;
  const size_t old_bytes = capacity_ * sizeof(uint32_t);
  if (count >= kMappedIds) count = (count + 1023) / 1024 * 1024;  // whole pages
  if (count > SIZE_MAX / sizeof(uint32_t)) throw std::bad_alloc();
  const size_t bytes = count * sizeof(uint32_t);
  if (count < kMappedIds) {
    void* const memory = std::realloc(data_, bytes);
    if (memory == nullptr) throw std::bad_alloc();
    data_ = static_cast<uint32_t*>(memory);
  } else if (!is_mapped) {
    uint32_t* const memory = map(bytes);
    if (size_ != 0) std::memcpy(memory, data_, size_ * sizeof(uint32_t));
    std::free(data_);
    data_ = memory;
  } else if (bytes < old_bytes) {
    munmap(reinterpret_cast<char*>(data_) + bytes, old_bytes - bytes);
  } else if (bytes > old_bytes) {
#ifdef MREMAP_MAYMOVE
    void* const memory = mremap(data_, old_bytes, bytes, MREMAP_MAYMOVE);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<uint32_t*>(memory);
#else
    uint32_t* const memory = map(bytes);
    std::memcpy(memory, data_, size_ * sizeof(uint32_t));
    munmap(data_, old_bytes);
    data_ = memory;
#endif
  }
  capacity_ = count;
}

}  // namespace lmworks
