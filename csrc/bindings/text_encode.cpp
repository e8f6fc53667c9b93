// Bindings of encoding and decoding: arguments checked, the GIL released, results as numpy arrays.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lmworks/bpe_encode.h"
#include "lmworks/threads.h"
#include "lmworks/utf8_encode.h"
#include "text_special.h"

namespace nb = nanobind;
using namespace lmworks;

namespace {

using IdsIn = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OffsetsIn = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IdsOut = nb::ndarray<nb::numpy, uint32_t, nb::ndim<1>>;
using OffsetsOut = nb::ndarray<nb::numpy, uint64_t, nb::ndim<1>>;

const uint8_t* data(const nb::bytes& text) { return static_cast<const uint8_t*>(text.data()); }

// The memory of the last array that was freed: fresh pages cost as much as a tenth of encoding.
std::atomic<TokenBuffer*> spare_ids = nullptr;
constexpr size_t kMaxSpareIds = size_t{8} << 20;

TokenBuffer take_spare() {
  const std::unique_ptr<TokenBuffer> spare(spare_ids.exchange(nullptr));
  return spare ? std::move(*spare) : TokenBuffer();
}

void free_ids(void* p) noexcept {
  std::unique_ptr<TokenBuffer> ids(static_cast<TokenBuffer*>(p));
  if (ids->size() > kMaxSpareIds) return;
  ids->clear();
  ids.reset(spare_ids.exchange(ids.release()));
}

IdsOut to_numpy(TokenBuffer&& ids) {
  ids.shrink_to_fit();
  if (ids.size() == 0) ids.reserve(1);
  auto* const kept = new TokenBuffer(std::move(ids));
  const nb::capsule owner(kept, free_ids);
  return IdsOut(kept->data(), {kept->size()}, owner);
}

// Texts as Python holds them, until they are cleared. Their UTF-8 is made where they are encoded:
// that which Python would make stays in each str, in fresh memory.
class Texts {
 public:
  // `to_bytes` refuses what is no text.
  void add(nb::handle text, const nb::callable& to_bytes) {
    if (PyUnicode_Check(text.ptr())) return add_str(nb::borrow(text));
    const auto bytes = nb::cast<nb::bytes>(
        nb::isinstance<nb::bytes>(text) ? nb::borrow(text) : nb::object(to_bytes(text)));
    add_view(bytes, {bytes.data(), bytes.size(), TextView::Unit::kUtf8});
  }
  void clear() {
    kept_.clear();
    views_.clear();
    num_bytes_ = 0;
  }
  std::span<const TextView> views() const { return views_; }
  // At least what the UTF-8 of the texts takes.
  size_t num_bytes() const { return num_bytes_; }

 private:
  void add_str(nb::object text) {
    PyObject* const p = text.ptr();
#if PY_VERSION_HEX < 0x030C0000
    if (PyUnicode_READY(p) != 0) throw nb::python_error();
#endif
    using Unit = TextView::Unit;
    const auto kind = PyUnicode_KIND(p);
    const Unit unit = PyUnicode_IS_ASCII(p)          ? Unit::kUtf8
                      : kind == PyUnicode_1BYTE_KIND ? Unit::kLatin1
                      : kind == PyUnicode_2BYTE_KIND ? Unit::kUcs2
                                                     : Unit::kUcs4;
    add_view(std::move(text),
             {PyUnicode_DATA(p), static_cast<size_t>(PyUnicode_GET_LENGTH(p)), unit});
  }
  void add_view(nb::object owner, const TextView& view) {
    kept_.push_back(std::move(owner));
    views_.push_back(view);
    num_bytes_ += max_utf8_bytes(view);
  }

  std::vector<nb::object> kept_;
  std::vector<TextView> views_;
  size_t num_bytes_ = 0;
};

Pattern pattern_named(const std::string& name) {
  const auto pattern = parse_pattern(name);
  if (!pattern) throw nb::value_error(("unknown pattern: " + name).c_str());
  return *pattern;
}

constexpr std::string_view kNoPattern = "none";

// Every token has its outputs, at most one per byte: room for a text's bytes is room for its ids.
void check_outputs(const IdsIn& outputs, const OffsetsIn& at, const OffsetsIn& token_offsets) {
  if (at.size() != token_offsets.size() || at.data()[0] != 0 ||
      at.data()[at.size() - 1] != outputs.size()) {
    throw nb::value_error("output offsets");
  }
  for (size_t i = 0; i + 1 < at.size(); ++i) {
    const uint64_t num_bytes = token_offsets.data()[i + 1] - token_offsets.data()[i];
    if (at.data()[i] > at.data()[i + 1] || at.data()[i + 1] - at.data()[i] > num_bytes) {
      throw nb::value_error(("outputs of token " + std::to_string(i)).c_str());
    }
  }
}

// The caches are handed out and taken back while the GIL is held, so they need no lock of their own
// and a fork can never copy a held one.
class Encoder {
 public:
  Encoder(const std::string& pattern, bool ignore_merges, const nb::bytes& token_bytes,
          OffsetsIn token_offsets, IdsIn merges, const SpecialSplitter& specials,
          std::vector<uint32_t> special_ids, size_t max_cache_slots, std::optional<IdsIn> outputs,
          std::optional<OffsetsIn> output_offsets, std::optional<IdsIn> ranks)
      : model_(make_model(pattern, ignore_merges, token_bytes, token_offsets, merges, outputs,
                          output_offsets, ranks)),
        matcher_(specials.matcher()),
        special_ids_(std::move(special_ids)),
        max_cache_slots_(max_cache_slots) {
    if (special_ids_.size() != matcher_->num_tokens()) {
      throw nb::value_error("one id per special token");
    }
  }
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  // The ids, or the index of the forbidden special token that the text holds (an int).
  nb::object encode_to_numpy(const nb::bytes& text, const nb::bytes& actions) {
    TokenBuffer ids;
    const uint32_t forbidden = run(text, actions, ids);
    if (forbidden != kNoToken) return nb::int_(forbidden);
    return nb::cast(to_numpy(std::move(ids)));
  }

  nb::object encode_to_list(const nb::bytes& text, const nb::bytes& actions) {
    TokenBuffer ids;
    const uint32_t forbidden = run(text, actions, ids);
    if (forbidden != kNoToken) return nb::int_(forbidden);
    return to_list(ids.data(), ids.size());
  }

  // Ids of all texts and where each text's begin (one more offset than texts); or a forbidden
  // index.
  nb::object encode_batch(const nb::sequence& texts, const nb::bytes& actions, size_t num_threads,
                          const nb::callable& to_bytes);

  // Ids of pieces that the caller cut: rising offsets of their ends, the last one the text's size.
  IdsOut encode_pieces(const nb::bytes& text, OffsetsIn ends) {
    for (size_t i = 0; i < ends.size(); ++i) {
      if (ends.data()[i] <= (i == 0 ? 0 : ends.data()[i - 1])) throw nb::value_error("piece ends");
    }
    if ((ends.size() == 0 ? 0 : ends.data()[ends.size() - 1]) != text.size()) {
      throw nb::value_error("piece ends: the last is not the end of the text");
    }
    TokenBuffer ids;
    Worker worker = take_worker();
    {
      const nb::gil_scoped_release release;
      worker.cache->encode_cut(model_, data(text), {ends.data(), ends.size()}, ids);
    }
    workers_.push_back(std::move(worker));
    return to_numpy(std::move(ids));
  }

  nb::list ids_to_list(IdsIn ids) { return to_list(ids.data(), ids.size()); }

 private:
  // What an encoding thread works with; kept between calls.
  struct Worker {
    std::unique_ptr<PieceCache> cache;
    TokenBuffer ids;
    Utf8Buffer utf8;
  };

  static BpeModel make_model(const std::string& pattern, bool ignore_merges,
                             const nb::bytes& token_bytes, OffsetsIn offsets, IdsIn merges,
                             std::optional<IdsIn> outputs, std::optional<OffsetsIn> output_offsets,
                             std::optional<IdsIn> ranks);
  uint32_t run(const nb::bytes& text, const nb::bytes& actions, TokenBuffer& ids);
  nb::list to_list(const uint32_t* ids, size_t size);
  uint32_t encode_window(const SpecialQuery& query, std::span<const TextView> texts,
                         std::vector<Worker>& workers, std::vector<uint64_t>& starts,
                         TokenBuffer& all) const;

  Worker take_worker() {
    if (workers_.empty()) return {std::make_unique<PieceCache>(max_cache_slots_), {}, {}};
    Worker worker = std::move(workers_.back());
    workers_.pop_back();
    return worker;
  }

  BpeModel model_;
  std::shared_ptr<const SpecialMatcher> matcher_;
  std::vector<uint32_t> special_ids_;
  size_t max_cache_slots_;
  std::vector<Worker> workers_;
  std::vector<nb::object> interned_;  // int objects by id: a list costs a pointer per token
};

BpeModel Encoder::make_model(const std::string& pattern, bool ignore_merges,
                             const nb::bytes& token_bytes, OffsetsIn offsets, IdsIn merges,
                             std::optional<IdsIn> outputs, std::optional<OffsetsIn> output_offsets,
                             std::optional<IdsIn> ranks) {
  const size_t num_tokens = offsets.size() - 1;
  if (offsets.size() == 0 || num_tokens >= kMaxTokens) throw nb::value_error("too many tokens");
  if (offsets.data()[num_tokens] != token_bytes.size()) throw nb::value_error("token offsets");
  for (size_t i = 0; i < num_tokens; ++i) {
    if (offsets.data()[i] > offsets.data()[i + 1]) throw nb::value_error("token offsets");
  }
  if (merges.size() % 3 != 0 || merges.size() / 3 > kMaxMerges) {
    throw nb::value_error("merges: not (left, right, result) triples, or too many");
  }
  for (size_t i = 0; i < merges.size(); ++i) {
    const uint32_t id = merges.data()[i];
    if (id >= num_tokens || offsets.data()[id] == offsets.data()[id + 1]) {
      throw nb::value_error("a merge of an unknown token");
    }
  }
  if (outputs.has_value() != output_offsets.has_value()) {
    throw nb::value_error("outputs and output_offsets go together");
  }
  BpeVocabulary v;
  v.ignore_merges = ignore_merges;
  v.token_bytes = {data(token_bytes), token_bytes.size()};
  v.token_offsets = {offsets.data(), offsets.size()};
  v.merges = {merges.data(), merges.size()};
  if (pattern != kNoPattern) v.pattern = pattern_named(pattern);
  if (ranks) {
    const std::span<const uint32_t> r(ranks->data(), ranks->size());
    if (3 * r.size() != merges.size() || !std::is_sorted(r.begin(), r.end())) {
      throw nb::value_error("ranks: one for each merge, never falling");
    }
    v.ranks = r;
  }
  if (outputs) {
    check_outputs(*outputs, *output_offsets, offsets);
    v.outputs = {outputs->data(), outputs->size()};
    v.output_offsets = {output_offsets->data(), output_offsets->size()};
  }
  return BpeModel(v);
}

uint32_t Encoder::run(const nb::bytes& text, const nb::bytes& actions, TokenBuffer& ids) {
  const auto query = make_query(*matcher_, actions);
  Worker worker = take_worker();
  uint32_t forbidden;
  {
    const nb::gil_scoped_release release;
    ids.reserve(text.size() / 4 + 1024);
    forbidden =
        lmworks::encode(model_, *query, special_ids_, *worker.cache, data(text), text.size(), ids);
  }
  workers_.push_back(std::move(worker));
  return forbidden;
}

nb::list Encoder::to_list(const uint32_t* ids, size_t size) {
  PyObject* const list = PyList_New(static_cast<Py_ssize_t>(size));
  if (list == nullptr) throw nb::python_error();
  const nb::list result = nb::steal<nb::list>(list);
  for (size_t i = 0; i < size; ++i) {
    const uint32_t id = ids[i];
    if (id >= interned_.size()) {
      if (id >= kMaxTokens) throw nb::value_error("a token id out of range");
      interned_.resize(id + 1);
    }
    nb::object& number = interned_[id];
    if (!number.is_valid()) number = nb::int_(id);
    PyList_SetItem(list, static_cast<Py_ssize_t>(i), nb::object(number).release().ptr());
  }
  return result;
}

// Texts are taken a window at a time: the threads' own ids then need no more memory than that.
nb::object Encoder::encode_batch(const nb::sequence& texts, const nb::bytes& actions,
                                 size_t num_threads, const nb::callable& to_bytes) {
  constexpr size_t kWindowBytes = size_t{16} << 20;
  const auto query = make_query(*matcher_, actions);
  auto starts = std::make_unique<std::vector<uint64_t>>(1, 0);
  std::vector<Worker> workers;
  for (size_t i = 0; i < num_threads; ++i) workers.push_back(take_worker());
  TokenBuffer all = take_spare();
  Texts window;
  std::atomic<uint32_t> forbidden = kNoToken;
  const size_t num_texts = nb::len(texts);
  size_t total = 0;
  for (size_t i = 0; i < num_texts; ++i) {
    const Py_ssize_t size = PyObject_Size(nb::object(texts[i]).ptr());
    if (size < 0) PyErr_Clear();  // to_bytes will tell
    total += size < 0 ? 0 : size;
  }
  if (num_texts != 0) all.reserve(total / 2);  // memory is taken only where ids are written
  for (size_t i = 0; i < num_texts && forbidden == kNoToken;) {
    window.clear();
    while (i < num_texts && window.num_bytes() < kWindowBytes) window.add(texts[i++], to_bytes);
    const nb::gil_scoped_release release;
    // An error may leave its cache half-changed: then none is kept.
    const uint32_t found = encode_window(*query, window.views(), workers, *starts, all);
    if (found != kNoToken) forbidden = found;
  }
  for (Worker& worker : workers) {
    worker.utf8.shrink();
    workers_.push_back(std::move(worker));
  }
  if (forbidden != kNoToken) return nb::int_(forbidden.load());
  uint64_t* const p = starts->data();
  const size_t size = starts->size();
  const nb::capsule owner(starts.release(), [](void* kept) noexcept {
    delete static_cast<std::vector<uint64_t>*>(kept);
  });
  return nb::make_tuple(nb::cast(to_numpy(std::move(all))), nb::cast(OffsetsOut(p, {size}, owner)));
}

// Hands out texts from both ends until none is left.
class TextQueue {
 public:
  explicit TextQueue(size_t num_texts) : back_(num_texts) {}
  // The number of a text, or kNone. From the front they come in order.
  size_t take_front() {
    const std::lock_guard lock(mutex_);
    return front_ < back_ ? front_++ : kNone;
  }
  size_t take_back() {
    const std::lock_guard lock(mutex_);
    return front_ < back_ ? --back_ : kNone;
  }
  static constexpr size_t kNone = SIZE_MAX;

 private:
  std::mutex mutex_;
  size_t front_ = 0, back_;
};

// Appends the ids of the texts to `all` and their ends to `starts`; or the forbidden token's index.
// The first worker takes texts from the front and writes where the ids belong; the others take them
// from the back, and only their ids are copied.
uint32_t Encoder::encode_window(const SpecialQuery& query, std::span<const TextView> texts,
                                std::vector<Worker>& workers, std::vector<uint64_t>& starts,
                                TokenBuffer& all) const {
  const size_t num_threads = std::max<size_t>(1, std::min(workers.size(), texts.size()));
  struct Span {
    size_t worker, begin, end;
  };
  std::vector<Span> spans(texts.size());
  TextQueue queue(texts.size());
  std::atomic<uint32_t> forbidden = kNoToken;
  run_threads(
      num_threads,
      [&](size_t number) {
        Worker& worker = workers[number];
        TokenBuffer& ids = number == 0 ? all : worker.ids;
        while (forbidden == kNoToken) {
          const size_t i = number == 0 ? queue.take_front() : queue.take_back();
          if (i == TextQueue::kNone) break;
          const size_t begin = ids.size();
          const auto text = worker.utf8.utf8_of(texts[i]);
          const uint32_t found = lmworks::encode(model_, query, special_ids_, *worker.cache,
                                                 text.data(), text.size(), ids);
          if (found != kNoToken) forbidden = found;
          spans[i] = {number, begin, ids.size()};
        }
      },
      nullptr);
  const size_t first = starts.size() - 1;
  for (const Span& span : spans) starts.push_back(starts.back() + span.end - span.begin);
  if (num_threads == 1) return forbidden;
  all.reserve(starts.back() - all.size());
  run_threads(
      num_threads,
      [&](size_t number) {
        for (size_t i = number; i < spans.size(); i += num_threads) {
          const auto& [worker, begin, end] = spans[i];
          const uint32_t* const ids = workers[worker].ids.data();
          if (worker != 0) std::copy(ids + begin, ids + end, all.data() + starts[first + i]);
        }
      },
      nullptr);
  all.advance_to(all.data() + starts.back());
  for (Worker& worker : workers) worker.ids.clear();
  return forbidden;
}

// The bytes of the tokens one after another. An id without bytes: ValueError with its place.
nb::bytes decode_bytes(const nb::bytes& token_bytes, OffsetsIn offsets, IdsIn ids) {
  const uint64_t* const at = offsets.data();
  size_t total = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t id = ids.data()[i];
    if (id + size_t{1} >= offsets.size() || at[id] == at[id + 1]) {
      throw nb::index_error(std::to_string(i).c_str());
    }
    total += at[id + 1] - at[id];
  }
  std::string text;
  text.reserve(total);
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t id = ids.data()[i];
    text.append(token_bytes.c_str() + at[id], at[id + 1] - at[id]);
  }
  return nb::bytes(text.data(), text.size());
}

}  // namespace

void bind_encode(nb::module_& m) {
  m.attr("MAX_TOKENS") = kMaxTokens;
  m.attr("MAX_MERGES") = kMaxMerges;
  m.def("decode_bytes", &decode_bytes, nb::arg("token_bytes"), nb::arg("token_offsets"),
        nb::arg("ids"), "Bytes of the tokens in a row; IndexError(place) for an id without bytes.");
  nb::class_<Encoder>(m, "BpeEncoder")
      .def(nb::init<const std::string&, bool, const nb::bytes&, OffsetsIn, IdsIn,
                    const SpecialSplitter&, std::vector<uint32_t>, size_t, std::optional<IdsIn>,
                    std::optional<OffsetsIn>, std::optional<IdsIn>>(),
           nb::arg("pattern"), nb::arg("ignore_merges"), nb::arg("token_bytes"),
           nb::arg("token_offsets"), nb::arg("merges"), nb::arg("specials"), nb::arg("special_ids"),
           nb::arg("max_cache_slots"), nb::arg("outputs") = nb::none(),
           nb::arg("output_offsets") = nb::none(), nb::arg("ranks") = nb::none())
      .def("encode_to_numpy", &Encoder::encode_to_numpy, nb::arg("text"), nb::arg("actions"))
      .def("encode_to_list", &Encoder::encode_to_list, nb::arg("text"), nb::arg("actions"))
      .def("encode_batch", &Encoder::encode_batch, nb::arg("texts"), nb::arg("actions"),
           nb::arg("num_threads"), nb::arg("to_bytes"))
      .def("encode_pieces", &Encoder::encode_pieces, nb::arg("text"), nb::arg("ends"))
      .def("ids_to_list", &Encoder::ids_to_list, nb::arg("ids"));
}
