// Python module lmworks._text: the tokenizer core. Each part registers itself.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_train(nb::module_& m);   // text_train.cpp: pre-tokenization, BPE training
void bind_encode(nb::module_& m);  // text_encode.cpp: encoding, decoding

NB_MODULE(_text, m) {
  // Tokenizers that modules hold until the interpreter ends are no leak.
  nb::set_leak_warnings(false);
  m.doc() = "Tokenizer core: pre-tokenization, BPE training, encoding.";
  bind_train(m);
  bind_encode(m);
}
