// Bindings of encoding and decoding.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_encode(nb::module_&) {}
