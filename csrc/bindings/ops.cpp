// Registers the CPU kernels with torch through its stable ABI (module lmworks._ops, loaded with
// torch.ops.load_library). Checks arguments here; kernels assume valid ones.
#include <torch/csrc/stable/library.h>

#include "lmworks/dispatch.h"

static int64_t active_isa() { return static_cast<int64_t>(lmworks::active_isa()); }

STABLE_TORCH_LIBRARY(lmworks, m) { m.def("active_isa() -> int"); }
STABLE_TORCH_LIBRARY_IMPL(lmworks, CompositeExplicitAutograd, m) {
  m.impl("active_isa", TORCH_BOX(&active_isa));
}
