#pragma once
// Checks and completes vocabularies as files give them: token bytes by id, merges as pairs of ids.
//
// Files come from strangers, so every step is linear in the bytes of the tokens, up to a logarithm:
// hashes are seeded, and those of all parts of a token follow from those of its prefixes.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lmworks {

// Token bytes by id; an empty token is a hole.
class TokenList {
 public:
  TokenList(std::string_view bytes, std::span<const uint64_t> offsets)
      : bytes_(bytes), offsets_(offsets) {}
  size_t size() const { return offsets_.size() - 1; }
  std::string_view operator[](size_t id) const {
    return bytes_.substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
  }

 private:
  std::string_view bytes_;
  std::span<const uint64_t> offsets_;
};

// The first two ids with the same bytes; (0, 0) when all differ.
std::pair<uint32_t, uint32_t> find_duplicate(const TokenList& tokens);

enum class MergeError { none, no_part, no_result, duplicate };

struct MergeTable {
  std::vector<uint32_t> merges;  // left, right, result; in rank order
  MergeError error = MergeError::none;
  size_t rank = 0;  // of the merge that is wrong
};

// The token that each merge (left, right) makes.
MergeTable merge_table(const TokenList& tokens, std::span<const uint32_t> pairs);

struct RecoveredMerges {
  std::vector<uint32_t> merges;  // left, right, result; in rank order
  bool has_unreachable = false;
};

// Merges that give tiktoken's results, and whether some token is reached only as a whole piece.
//
// tiktoken merges whatever two neighbours make a token of lowest rank (= id). Run on a token itself
// with the ranks below its own, this ends in the two parts that form it. When it ends in more, the
// token is unreachable from its bytes alone, but two parts may still meet inside a longer piece:
// then every split into two tokens is a merge.
RecoveredMerges recover_merges(const TokenList& tokens);

// (left, right, result) of every way to split a token, from `first` on, between two of its UTF-8
// characters into two tokens.
std::vector<uint32_t> all_splits(const TokenList& tokens, uint32_t first);

struct RankFile {
  std::string token_bytes;
  std::vector<uint64_t> token_offsets;  // by rank; one more than ranks
  bool is_right = true;
};

// The tokens in a tiktoken file: lines of base64, white space and a rank, as such files are
// written. Not right when any line is of another form, a rank is there twice or is `max_tokens` or
// more.
RankFile parse_ranks(std::string_view file, size_t max_tokens);

}  // namespace lmworks
