// Bindings of pre-tokenization and BPE training.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "lmworks/boundaries.h"
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

// Ends of the pieces as the scanner of whole stretches finds them.
nb::list piece_ends(const nb::bytes& text, const std::string& pattern) {
  nb::list ends;
  uint32_t found[lmworks::kMaxScanPieces];
  const uint8_t* const end = data(text) + text.size();
  for (const uint8_t* p = data(text); p < end;) {
    const size_t count = lmworks::scan_pieces(pattern_named(pattern), p, end, found);
    for (size_t i = 0; i < count; ++i) ends.append(p - data(text) + found[i]);
    p += found[count - 1];
  }
  return ends;
}

// Number of pieces, without making Python objects (for measuring the scanner alone).
size_t count_pieces(const nb::bytes& text, const std::string& pattern) {
  size_t count = 0;
  uint32_t found[lmworks::kMaxScanPieces];
  const uint8_t* const end = data(text) + text.size();
  for (const uint8_t* p = data(text); p < end;) {
    const size_t n = lmworks::scan_pieces(pattern_named(pattern), p, end, found);
    p += found[n - 1];
    count += n;
  }
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

[[noreturn]] void raise_os_error(int code, const std::string& what, const nb::bytes& path) {
  const nb::object error = nb::handle(PyExc_OSError)(code, what, path);
  PyErr_SetObject(PyExc_OSError, error.ptr());
  throw nb::python_error();
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
    raise_os_error(e.code().value(), e.code().message(), path_bytes);
  } catch (const lmworks::FileChangedError& e) {
    raise_os_error(ESTALE, e.what(), path_bytes);
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

using Offsets = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void count_cut_pieces(lmworks::BpeTrainer& trainer, const nb::bytes& text, const Offsets& ends) {
  const nb::gil_scoped_release no_gil;
  trainer.count_pieces({text.c_str(), text.size()}, {ends.data(), ends.size()});
}

std::string string_of(const nb::bytes& b) { return {b.c_str(), b.size()}; }

// Runs work() without the GIL; a failure of the system is told with the path.
template <class Work>
void with_file(const nb::bytes& path, Work work) {
  try {
    const nb::gil_scoped_release no_gil;
    work();
  } catch (const std::system_error& e) {
    raise_os_error(e.code().value(), e.code().message(), path);
  }
}

void save_counts(lmworks::BpeTrainer& trainer, const nb::bytes& path) {
  const std::string name = string_of(path);
  with_file(path, [&] { trainer.save_counts(name); });
}

void add_counts(lmworks::BpeTrainer& trainer, const nb::bytes& path) {
  const std::string name = string_of(path);
  with_file(path, [&] { trainer.add_counts(name); });
}

std::vector<std::string> strings_of(const std::vector<nb::bytes>& list) {
  std::vector<std::string> strings;
  for (const nb::bytes& b : list) strings.push_back(string_of(b));
  return strings;
}

lmworks::Ties ties_named(const std::string& name) {
  if (name == "bytes") return lmworks::Ties::bytes;
  if (name == "huggingface") return lmworks::Ties::huggingface;
  throw nb::value_error(("unknown rule for ties: " + name).c_str());
}

nb::list train(lmworks::BpeTrainer& trainer, int64_t max_merges, nb::object report,
               const std::string& ties, int64_t min_frequency,
               std::optional<uint64_t> max_token_bytes,
               const std::vector<std::pair<nb::bytes, nb::bytes>>& initial_merges,
               const std::vector<nb::bytes>& seeds, const std::vector<nb::bytes>& reserved,
               std::optional<nb::bytes> initial_alphabet, uint32_t alphabet_limit) {
  lmworks::TrainOptions options;
  options.max_merges = max_merges;
  options.ties = ties_named(ties);
  options.min_frequency = min_frequency;
  options.max_token_bytes = max_token_bytes.value_or(UINT64_MAX);
  for (const auto& [left, right] : initial_merges) {
    options.initial_merges.emplace_back(string_of(left), string_of(right));
  }
  options.seeds = strings_of(seeds);
  options.reserved = strings_of(reserved);
  if (initial_alphabet) {
    options.initial_alphabet = string_of(*initial_alphabet);
  } else {
    for (int b = 0; b < 256; ++b) options.initial_alphabet.push_back(static_cast<char>(b));
  }
  options.alphabet_limit = alphabet_limit;
  const auto merges = run_watched(std::move(report), [&](const lmworks::Progress& progress) {
    return trainer.train(options, progress);
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
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const lmworks::MemoryLimitError& e) {
      PyErr_SetString(PyExc_MemoryError, e.what());
    } catch (const lmworks::CountsFileError& e) {
      PyErr_SetString(PyExc_ValueError, e.what());
    } catch (const lmworks::SpillError& e) {
      const std::string what = std::string(e.what()) + ": " + std::strerror(e.code);
      PyErr_SetObject(
          PyExc_OSError,
          nb::make_tuple(e.code, what, nb::bytes(e.folder.data(), e.folder.size())).ptr());
    }
  });
  m.def("split", &split, nb::arg("text"), nb::arg("pattern"));
  m.def("scan_piece_ends", &piece_ends, nb::arg("text"), nb::arg("pattern"));
  m.def("count_pieces", &count_pieces, nb::arg("text"), nb::arg("pattern"));
  m.def(
      "utf8_error_offset",
      [](const nb::bytes& text) { return lmworks::utf8_error_offset(data(text), text.size()); },
      nb::arg("text"), "Offset of the first byte that is not UTF-8, or the length.");
  m.def("safe_cut", &safe_cut, nb::arg("text"), nb::arg("start"));
  nb::class_<lmworks::BpeTrainer>(m, "BpeTrainer")
      .def(
          "__init__",
          [](lmworks::BpeTrainer* self, const std::optional<std::string>& pattern,
             const std::vector<nb::bytes>& special_tokens, unsigned num_threads,
             const nb::bytes& settings, uint64_t max_memory_bytes, const nb::bytes& spill_folder) {
            const auto known = pattern ? std::optional(pattern_named(*pattern)) : std::nullopt;
            new (self) lmworks::BpeTrainer(known, strings_of(special_tokens), num_threads,
                                           string_of(settings),
                                           {max_memory_bytes, string_of(spill_folder)});
          },
          nb::arg("pattern").none(), nb::arg("special_tokens"), nb::arg("num_threads"),
          nb::kw_only(), nb::arg("settings") = nb::bytes("", 0), nb::arg("max_memory_bytes") = 0,
          nb::arg("spill_folder") = nb::bytes("", 0))
      .def("count_file", &count_file, nb::arg("path"), nb::arg("allow_invalid_utf8"),
           nb::arg("report").none())
      .def("count_texts", &count_texts, nb::arg("texts"))
      .def("count_pieces", &count_cut_pieces, nb::arg("text"), nb::arg("ends"))
      .def("save_counts", &save_counts, nb::arg("path"))
      .def("add_counts", &add_counts, nb::arg("path"))
      .def("train", &train, nb::arg("max_merges"), nb::arg("report").none(), nb::kw_only(),
           nb::arg("ties") = "bytes", nb::arg("min_frequency") = 1,
           nb::arg("max_token_bytes") = nb::none(), nb::arg("initial_merges") = nb::list(),
           nb::arg("seeds") = nb::list(), nb::arg("reserved") = nb::list(),
           nb::arg("initial_alphabet") = nb::none(), nb::arg("alphabet_limit") = 256)
      .def_prop_ro("alphabet",
                   [](const lmworks::BpeTrainer& self) {
                     return nb::bytes(self.alphabet().data(), self.alphabet().size());
                   })
      .def_prop_ro("num_pieces", &lmworks::BpeTrainer::num_pieces);
  nb::dict patterns;
  for (const Pattern p : lmworks::kPatterns) {
    const auto name = lmworks::pattern_name(p), text = lmworks::pattern_regex(p);
    patterns[nb::str(name.data(), name.size())] = nb::str(text.data(), text.size());
  }
  m.attr("PATTERNS") = patterns;
}
