// Bindings of special tokens: arguments checked, the GIL released while text is searched.
#include "text_special.h"

#include <nanobind/stl/string.h>

#include <string>
#include <vector>

namespace nb = nanobind;
using namespace lmworks;

namespace lmworks {
namespace {

const uint8_t* data(const nb::bytes& text) { return static_cast<const uint8_t*>(text.data()); }

}  // namespace

std::shared_ptr<const SpecialQuery> make_query(const SpecialMatcher& matcher,
                                               const nb::bytes& actions) {
  if (actions.size() != matcher.num_tokens()) throw nb::value_error("one action per special token");
  return matcher.query({actions.c_str(), actions.size()});
}

SpecialSplitter::SpecialSplitter(const nb::list& tokens, const nb::bytes& flags) {
  if (flags.size() != tokens.size()) throw nb::value_error("one byte of flags per special token");
  std::vector<std::string> strings;
  strings.reserve(tokens.size());
  for (const nb::handle token : tokens) {
    const nb::bytes bytes = nb::cast<nb::bytes>(token);
    if (bytes.size() == 0) throw nb::value_error("a special token is empty");
    strings.emplace_back(bytes.c_str(), bytes.size());
  }
  matcher_ = std::make_shared<const SpecialMatcher>(
      std::move(strings), std::vector<uint8_t>(data(flags), data(flags) + flags.size()));
}

// (begin, end, index) of each special token, or the index of a forbidden one.
nb::object SpecialSplitter::find(const nb::bytes& text, const nb::bytes& actions) const {
  const auto query = make_query(*matcher_, actions);
  std::vector<SpecialSegment> found;
  uint32_t forbidden;
  {
    const nb::gil_scoped_release release;
    forbidden = query->find_forbidden(data(text), text.size());
    if (forbidden == kNoToken) {
      query->split(data(text), text.size(), [&](const SpecialSegment& segment) {
        if (segment.index != kNoToken) found.push_back(segment);
      });
    }
  }
  if (forbidden != kNoToken) return nb::int_(forbidden);
  nb::list result;
  for (const SpecialSegment& s : found) result.append(nb::make_tuple(s.begin, s.end, s.index));
  return result;
}

// The pattern: None, when text may be cut anywhere; the name of a native one; or anything else,
// when its pieces are not known here and text is cut behind special tokens only.
size_t SpecialSplitter::cut(const nb::bytes& text, const nb::bytes& actions,
                            const nb::object& pattern) const {
  const auto query = make_query(*matcher_, actions);
  Borders borders;
  borders.anywhere = pattern.is_none();
  if (!borders.anywhere) borders.pattern = parse_pattern(nb::cast<std::string>(pattern));
  const nb::gil_scoped_release release;
  return query->stream_cut(borders, data(text), text.size());
}

}  // namespace lmworks

void bind_special(nb::module_& m) {
  nb::class_<SpecialSplitter>(m, "SpecialSplitter")
      .def(nb::init<const nb::list&, const nb::bytes&>(), nb::arg("tokens"), nb::arg("flags"))
      .def("find", &SpecialSplitter::find, nb::arg("text"), nb::arg("actions"),
           "(begin, end, index) of each special token in order; or a forbidden one's index.")
      .def("cut", &SpecialSplitter::cut, nb::arg("text"), nb::arg("actions"),
           nb::arg("pattern").none(),
           "Length of the longest prefix whose ids no further text can change.");
}
