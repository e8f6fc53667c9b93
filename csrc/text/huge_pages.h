#pragma once
// Memory for large tables that are read in random order: in pages of 2 MiB where the system has
// them, asked for before the first touch, so that a look-up does not miss the TLB as well.
#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <vector>

namespace lmworks {

template <class T>
struct HugePages {
  using value_type = T;

  HugePages() = default;
  template <class U>
  explicit HugePages(const HugePages<U>&) {}

  // Large blocks come from the system and go back to it at once.
  T* allocate(size_t n) {
    const size_t bytes = n * sizeof(T);
    if (!is_large(bytes)) return static_cast<T*>(operator new(bytes, kLine));
    const size_t rounded = round_up(bytes), all = rounded + kPage;
    void* const block =
        mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) throw std::bad_alloc();
    char* const begin = static_cast<char*>(block);
    const size_t before =
        round_up(reinterpret_cast<size_t>(begin)) - reinterpret_cast<size_t>(begin);
    if (before > 0) munmap(begin, before);
    if (before < kPage) munmap(begin + before + rounded, kPage - before);
    madvise(begin + before, rounded, MADV_HUGEPAGE);  // a hint: its failure changes nothing
    return reinterpret_cast<T*>(begin + before);
  }

  void deallocate(T* p, size_t n) {
    const size_t bytes = n * sizeof(T);
    if (is_large(bytes)) {
      munmap(p, round_up(bytes));
    } else {
      operator delete(p, kLine);
    }
  }

  template <class U>
  bool operator==(const HugePages<U>&) const {
    return true;
  }

 private:
  static constexpr size_t kPage = 2 << 20;
  static constexpr std::align_val_t kLine{64};

  static bool is_large(size_t bytes) { return bytes >= 2 * kPage; }
  static size_t round_up(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
};

template <class T>
using HugeVector = std::vector<T, HugePages<T>>;

}  // namespace lmworks
