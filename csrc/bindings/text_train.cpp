// Bindings of pre-tokenization and BPE training.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "lmworks/pretokenize.h"

namespace nb = nanobind;
using lmworks::Pattern;

namespace {

Pattern pattern_named(const std::string& name) {
  const auto pattern = lmworks::parse_pattern(name);
  if (!pattern) throw nb::value_error(("unknown pattern: " + name).c_str());
  return *pattern;
}

const uint8_t* data(const nb::bytes& text) {
  return static_cast<const uint8_t*>(text.data());
}

nb::list split(const nb::bytes& text, const std::string& pattern) {
  nb::list pieces;
  lmworks::for_each_piece(pattern_named(pattern), data(text), text.size(),
                          [&](const uint8_t* p, size_t n) { pieces.append(nb::bytes(p, n)); });
  return pieces;
}

// Number of pieces, without making Python objects (for measuring the scanner alone).
size_t count_pieces(const nb::bytes& text, const std::string& pattern) {
  size_t count = 0;
  lmworks::for_each_piece(pattern_named(pattern), data(text), text.size(),
                          [&](const uint8_t*, size_t) { ++count; });
  return count;
}

}  // namespace

void bind_train(nb::module_& m) {
  m.def("split", &split, nb::arg("text"), nb::arg("pattern"));
  m.def("count_pieces", &count_pieces, nb::arg("text"), nb::arg("pattern"));
  m.def(
      "utf8_error_offset",
      [](const nb::bytes& text) { return lmworks::utf8_error_offset(data(text), text.size()); },
      nb::arg("text"), "Offset of the first byte that is not UTF-8, or the length.");
  nb::dict patterns;
  for (const Pattern p : lmworks::kPatterns) {
    const auto name = lmworks::pattern_name(p), text = lmworks::pattern_regex(p);
    patterns[nb::str(name.data(), name.size())] = nb::str(text.data(), text.size());
  }
  m.attr("PATTERNS") = patterns;
}
