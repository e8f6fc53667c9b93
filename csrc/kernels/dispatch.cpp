#include "lmworks/dispatch.h"

#include <cstdlib>
#include <string>

namespace lmworks {

Isa best_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (has_avx2 && has_avx512) return Isa::avx512;
  if (has_avx2) return Isa::avx2;
#endif
  return Isa::portable;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return "avx512";
    case Isa::avx2:
      return "avx2";
    case Isa::portable:
      return "portable";
  }
  return "portable";
}

Isa active_isa() {
  const char* wanted = std::getenv("LMWORKS_ISA");
  const Isa best = best_isa();
  if (wanted == nullptr || *wanted == '\0') return best;
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
    if (std::string(wanted) != isa_name(isa)) continue;
    if (isa > best) {
      throw IsaError(std::string("LMWORKS_ISA=") + wanted + ": this CPU supports at most " +
                     isa_name(best));
    }
    return isa;
  }
  throw IsaError(std::string("LMWORKS_ISA=") + wanted +
                 ": unknown; allowed: portable, avx2, avx512");
}

}  // namespace lmworks
