// Python module lmworks._text: the tokenizer core. Each part registers itself.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_train(nb::module_& m);       // text_train.cpp: pre-tokenization, BPE training
void bind_encode(nb::module_& m);      // text_encode.cpp: encoding, decoding
void bind_special(nb::module_& m);     // text_special.cpp: special tokens
void bind_vocabulary(nb::module_& m);  // text_vocabulary.cpp: vocabularies from files

NB_MODULE(_text, m) {
  // Tokenizers that modules hold until the interpreter ends are no leak.
  nb::set_leak_warnings(false);
  m.doc() = "Tokenizer core: pre-tokenization, BPE training, encoding.";
  bind_train(m);
  bind_special(m);
  bind_encode(m);
  bind_vocabulary(m);
}
