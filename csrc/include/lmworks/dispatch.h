// Chooses the instruction set that native kernels run with.
//
// Each file in csrc/kernels/isa is compiled once per instruction set into its own namespace
// (lmworks::portable, lmworks::avx2, lmworks::avx512). active_isa() is the best one this CPU and OS
// support, or the one that the environment variable LMWORKS_ISA names.
#pragma once

#include <stdexcept>

namespace lmworks {

enum class Isa { portable, avx2, avx512 };

// Best instruction set of this machine, ignoring LMWORKS_ISA.
Isa best_isa();

struct IsaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The one in use. Throws IsaError when LMWORKS_ISA names an unknown or unsupported one.
Isa active_isa();

const char* isa_name(Isa isa);

}  // namespace lmworks
