// Bindings of pre-tokenization and BPE training.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_train(nb::module_&) {}
