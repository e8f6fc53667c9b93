// Python module lmworks._text: the tokenizer core. Each part registers itself.
#include <nanobind/nanobind.h>

#include <exception>

#include "lmworks/dispatch.h"

namespace nb = nanobind;

void bind_train(nb::module_& m);       // text_train.cpp: pre-tokenization, BPE training
void bind_encode(nb::module_& m);      // text_encode.cpp: encoding, decoding
void bind_special(nb::module_& m);     // text_special.cpp: special tokens
void bind_vocabulary(nb::module_& m);  // text_vocabulary.cpp: vocabularies from files

namespace {

// A wrong LMWORKS_ISA is the user's to mend.
void translate_isa_error(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const lmworks::IsaError& e) {
    const nb::object type = nb::module_::import_("lmworks.base.errors").attr("ConfigError");
    PyErr_SetString(type.ptr(), e.what());
  }
}

}  // namespace

NB_MODULE(_text, m) {
  nb::register_exception_translator(translate_isa_error, nullptr);
  // Tokenizers that modules hold until the interpreter ends are no leak.
  nb::set_leak_warnings(false);
  m.doc() = "Tokenizer core: pre-tokenization, BPE training, encoding.";
  bind_train(m);
  bind_special(m);
  bind_encode(m);
  bind_vocabulary(m);
}
