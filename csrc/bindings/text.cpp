// Python bindings of the tokenizer core (module lmworks._text).
#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(_text, m) { m.doc() = "Tokenizer core: pre-tokenization, BPE training, encoding."; }
