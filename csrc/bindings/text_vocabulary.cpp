// Bindings of vocabulary checks: arguments checked, the GIL released.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#include <vector>

#include "lmworks/bpe_model.h"
#include "lmworks/vocabulary.h"

namespace nb = nanobind;
using namespace lmworks;

namespace {

using IdsIn = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OffsetsIn = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IdsOut = nb::ndarray<nb::numpy, uint32_t, nb::ndim<1>>;

TokenList token_list(const nb::bytes& bytes, const OffsetsIn& offsets) {
  if (offsets.size() == 0 || offsets.data()[offsets.size() - 1] != bytes.size()) {
    throw nb::value_error("token offsets");
  }
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    if (offsets.data()[i] > offsets.data()[i + 1]) throw nb::value_error("token offsets");
  }
  return {{bytes.c_str(), bytes.size()}, {offsets.data(), offsets.size()}};
}

template <typename T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> to_numpy(std::vector<T> values) {
  auto* const owned = new std::vector<T>(std::move(values));
  const nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return {owned->data(), {owned->size()}, owner};
}

nb::object find_duplicate_tokens(const nb::bytes& bytes, OffsetsIn offsets) {
  const TokenList tokens = token_list(bytes, offsets);
  std::pair<uint32_t, uint32_t> found;
  {
    const nb::gil_scoped_release release;
    found = find_duplicate(tokens);
  }
  if (found.second == 0) return nb::none();
  return nb::make_tuple(found.first, found.second);
}

nb::object table_of_merges(const nb::bytes& bytes, OffsetsIn offsets, IdsIn pairs) {
  const TokenList tokens = token_list(bytes, offsets);
  MergeTable table;
  {
    const nb::gil_scoped_release release;
    table = merge_table(tokens, {pairs.data(), pairs.size()});
  }
  if (table.error == MergeError::none) return nb::cast(to_numpy(std::move(table.merges)));
  const char* const reason = table.error == MergeError::no_part     ? "no part"
                             : table.error == MergeError::no_result ? "no result"
                                                                    : "duplicate";
  return nb::make_tuple(table.rank, reason);
}

nb::tuple merges_from_ranks(const nb::bytes& bytes, OffsetsIn offsets) {
  const TokenList tokens = token_list(bytes, offsets);
  RecoveredMerges recovered;
  {
    const nb::gil_scoped_release release;
    recovered = recover_merges(tokens);
  }
  return nb::make_tuple(nb::cast(to_numpy(std::move(recovered.merges))), recovered.has_unreachable);
}

IdsOut splits_of_tokens(const nb::bytes& bytes, OffsetsIn offsets, uint32_t first) {
  const TokenList tokens = token_list(bytes, offsets);
  std::vector<uint32_t> merges;
  {
    const nb::gil_scoped_release release;
    merges = all_splits(tokens, first);
  }
  return to_numpy(std::move(merges));
}

nb::object tokens_of_ranks(const nb::bytes& file) {
  RankFile ranks;
  {
    const nb::gil_scoped_release release;
    ranks = parse_ranks({file.c_str(), file.size()}, kMaxTokens);
  }
  if (!ranks.is_right) return nb::none();
  return nb::make_tuple(nb::bytes(ranks.token_bytes.data(), ranks.token_bytes.size()),
                        to_numpy(std::move(ranks.token_offsets)));
}

}  // namespace

void bind_vocabulary(nb::module_& m) {
  m.def("find_duplicate_tokens", &find_duplicate_tokens, nb::arg("token_bytes"),
        nb::arg("token_offsets"), "The first two ids of the same bytes, or None.");
  m.def("merge_table", &table_of_merges, nb::arg("token_bytes"), nb::arg("token_offsets"),
        nb::arg("pairs"),
        "(left, right, result) of each merge, flat; or (rank, reason) of one that is wrong.");
  m.def("recover_merges", &merges_from_ranks, nb::arg("token_bytes"), nb::arg("token_offsets"),
        "Merges (left, right, result), flat, from ranks = ids; and whether some token has none.");
  m.def("all_splits", &splits_of_tokens, nb::arg("token_bytes"), nb::arg("token_offsets"),
        nb::arg("first"),
        "(left, right, result), flat, of every split of a token, from `first` on, into two.");
  m.def("parse_ranks", &tokens_of_ranks, nb::arg("file"),
        "Token bytes and offsets in a tiktoken file; None when it is not of the usual form.");
}
