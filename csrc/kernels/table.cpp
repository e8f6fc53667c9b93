// Picks the kernel table of the active instruction set.
#include "lmworks/kernels.h"

namespace lmworks {

namespace portable {
extern const KernelTable kTable;
}
#if defined(__x86_64__)
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}
#endif

const KernelTable& kernels() {
  switch (active_isa()) {
#if defined(__x86_64__)
    case Isa::avx512:
      return avx512::kTable;
    case Isa::avx2:
      return avx2::kTable;
#endif
    default:
      return portable::kTable;
  }
}

}  // namespace lmworks
