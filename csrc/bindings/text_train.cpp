// Bindings of pre-tokenization and BPE training.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "lmworks/bpe_train.h"
#include "lmworks/pretokenize.h"

namespace nb = nanobind;
using lmworks::Pattern;

namespace {

Pattern pattern_named(const std::string& name) {
  const auto pattern = lmworks::parse_pattern(name);
  if (!pattern) throw nb::value_error(("unknown pattern: " + name).c_str());
  return *pattern;
}

const uint8_t* data(const nb::bytes& text) { return static_cast<const uint8_t*>(text.data()); }

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

// First p >= start where the text may be cut without changing any piece; its length if none.
size_t safe_cut(const nb::bytes& text, size_t start) {
  const uint8_t* const begin = data(text);
  const uint8_t* const end = begin + text.size();
  return lmworks::find_safe_cut(begin, begin + std::min(start, text.size()), end) - begin;
}

// Calls report(done, total) and looks for Ctrl-C from within work that runs without the GIL. The
// exception of either stops the work and is raised by rethrow() after it.
class Watch {
 public:
  explicit Watch(nb::object report) : report_(std::move(report)) {}

  bool operator()(uint64_t done, uint64_t total) {
    const nb::gil_scoped_acquire gil;
    try {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (!report_.is_none()) report_(done, total);
      return true;
    } catch (...) {
      error_ = std::current_exception();
      return false;
    }
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  nb::object report_;
  std::exception_ptr error_;
};

// Runs work(progress) without the GIL.
template <class Work>
auto run_watched(nb::object report, Work work) {
  Watch watch(std::move(report));
  const auto run = [&] {
    const nb::gil_scoped_release no_gil;
    return work([&](uint64_t done, uint64_t total) { return watch(done, total); });
  };
  auto result = run();
  watch.rethrow();
  return result;
}

// Byte offset of the first invalid UTF-8, or None.
// The path is bytes, as the system has it: a file's name need not be UTF-8.
nb::object count_file(lmworks::BpeTrainer& trainer, const nb::bytes& path_bytes,
                      bool allow_invalid_utf8, nb::object report) {
  const std::string path(path_bytes.c_str(), path_bytes.size());
  try {
    const auto result = run_watched(std::move(report), [&](const lmworks::Progress& progress) {
      return trainer.count_file(path, allow_invalid_utf8, progress);
    });
    return result.is_valid ? nb::none() : nb::object(nb::int_(result.error_offset));
  } catch (const std::system_error& e) {
    errno = e.code().value();
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
    throw nb::python_error();
  }
}

void count_texts(lmworks::BpeTrainer& trainer, const nb::list& texts) {
  std::vector<std::string_view> views;
  views.reserve(texts.size());
  for (const nb::handle text : texts) {
    const auto bytes = nb::cast<nb::bytes>(text);
    views.emplace_back(bytes.c_str(), bytes.size());
  }
  const nb::gil_scoped_release no_gil;
  trainer.count_texts(views);
}

nb::list train(lmworks::BpeTrainer& trainer, uint64_t max_merges, nb::object report) {
  const auto merges = run_watched(std::move(report), [&](const lmworks::Progress& progress) {
    return trainer.train(max_merges, progress);
  });
  nb::list result;
  for (const auto& [left, right] : merges) {
    result.append(
        nb::make_tuple(nb::bytes(left.data(), left.size()), nb::bytes(right.data(), right.size())));
  }
  return result;
}

}  // namespace

void bind_train(nb::module_& m) {
  m.def("split", &split, nb::arg("text"), nb::arg("pattern"));
  m.def("count_pieces", &count_pieces, nb::arg("text"), nb::arg("pattern"));
  m.def(
      "utf8_error_offset",
      [](const nb::bytes& text) { return lmworks::utf8_error_offset(data(text), text.size()); },
      nb::arg("text"), "Offset of the first byte that is not UTF-8, or the length.");
  m.def("safe_cut", &safe_cut, nb::arg("text"), nb::arg("start"));
  nb::class_<lmworks::BpeTrainer>(m, "BpeTrainer")
      .def(
          "__init__",
          [](lmworks::BpeTrainer* self, const std::string& pattern,
             const std::vector<nb::bytes>& special_tokens, unsigned num_threads) {
            std::vector<std::string> specials;
            for (const nb::bytes& s : special_tokens) specials.emplace_back(s.c_str(), s.size());
            new (self) lmworks::BpeTrainer(pattern_named(pattern), specials, num_threads);
          },
          nb::arg("pattern"), nb::arg("special_tokens"), nb::arg("num_threads"))
      .def("count_file", &count_file, nb::arg("path"), nb::arg("allow_invalid_utf8"),
           nb::arg("report").none())
      .def("count_texts", &count_texts, nb::arg("texts"))
      .def("train", &train, nb::arg("max_merges"), nb::arg("report").none())
      .def_prop_ro("num_pieces", &lmworks::BpeTrainer::num_pieces);
  nb::dict patterns;
  for (const Pattern p : lmworks::kPatterns) {
    const auto name = lmworks::pattern_name(p), text = lmworks::pattern_regex(p);
    patterns[nb::str(name.data(), name.size())] = nb::str(text.data(), text.size());
  }
  m.attr("PATTERNS") = patterns;
}
