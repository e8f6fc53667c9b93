#pragma once
// Special and added tokens: whole strings that are found in text before any pre-tokenization.
//
// The semantics are Hugging Face's (added_vocabulary.rs) and, for forbidden tokens, tiktoken's:
//   * a forbidden token anywhere in the text is an error, even inside a longer allowed one;
//   * of the tokens that count, the earliest wins, of those that start together the longest;
//   * tokens with the flag `normalized` are looked for in a second pass, between those of the
//   first;
//   * `single_word`: a match beside a word character (Unicode \w) is dropped, and the search goes
//   on
//     behind it; `lstrip`, `rstrip`: the match swallows the white space beside it.
//
// The tokens of one query form an Aho-Corasick automaton (Aho and Corasick 1975): the cost per byte
// of text does not depend on how many tokens there are. Queries are kept, since building one takes
// time in proportion to all tokens.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lmworks/pretokenize.h"

namespace lmworks {

constexpr uint32_t kNoToken = 0xFFFFFFFF;

// What to do with a special token that stands in the text; one byte per token.
enum class SpecialAction : uint8_t { as_text = 0, match = 1, forbid = 2 };

enum SpecialFlag : uint8_t {
  kStripLeft = 1,
  kStripRight = 2,
  kSingleWord = 4,
  kNormalized = 8,
};

// Unicode \w: Alphabetic, M, Nd, Pc, Join_Control. Tables: make_word_ranges.py.
bool is_word_character(uint32_t code_point);

// Aho-Corasick automaton over byte strings.
class StringMatcher {
 public:
  struct Hit {
    size_t begin, end;
    uint32_t index;  // of the string; kNoToken: none was found
    // Where an occurrence may begin that the end of the text cut off; the text's size if none may.
    size_t pending;
  };
  StringMatcher() = default;
  // Finds the strings whose place is in `indices`.
  StringMatcher(std::span<const std::string> strings, std::vector<uint32_t> indices);
  bool is_empty() const { return nodes_.size() <= 1; }
  // Earliest and then longest occurrence at or after `from`.
  Hit find(const uint8_t* text, size_t size, size_t from) const;

 private:
  struct Node {
    uint32_t first_child = 0;  // children lie side by side, by rising byte
    uint16_t num_children = 0;
    uint8_t byte = 0;  // on the edge to this node
    uint32_t depth = 0;
    uint32_t fail = 0;          // the longest proper suffix that is a node
    uint32_t index = kNoToken;  // of the longest string that ends here
    uint32_t length = 0;        // of that string
    uint32_t dense = 0;         // 1 + place of its table in dense_; 0: none
  };
  uint32_t child_of(uint32_t node, uint8_t byte) const;
  uint32_t step(uint32_t node, uint8_t byte) const;
  size_t skip_to_first_byte(const uint8_t* text, size_t size, size_t from) const;
  void link();

  std::vector<Node> nodes_;
  std::vector<uint32_t> dense_;  // 256 children of each node with many
  bool is_first_byte_[256] = {};
  int num_first_bytes_ = 0;
  uint8_t only_first_byte_ = 0;
};

// A stretch of text: a special token, or plain text (index kNoToken).
struct SpecialSegment {
  size_t begin, end;
  uint32_t index;
};

// Where plain text may be cut without a change of its ids.
struct Borders {
  bool anywhere = false;           // each character has its ids
  std::optional<Pattern> pattern;  // between its pieces; none and not anywhere: nowhere
};

// What one kind of call looks for; immutable.
class SpecialQuery {
 public:
  SpecialQuery(std::span<const std::string> tokens, std::span<const uint8_t> flags,
               std::string actions);
  const std::string& actions() const { return actions_; }
  bool is_empty() const { return forbidden_.is_empty() && is_inert(); }

  // The first forbidden token in the text, or kNoToken.
  uint32_t find_forbidden(const uint8_t* text, size_t size) const {
    return forbidden_.find(text, size, 0).index;
  }

  // Calls emit(SpecialSegment) for all stretches of the text in order.
  template <class Emit>
  void split(const uint8_t* text, size_t size, Emit&& emit) const {
    if (is_inert()) {
      if (size != 0) emit(SpecialSegment{0, size, kNoToken});
      return;
    }
    for_each_match(first_, text, size, [&](const SpecialSegment& s) {
      if (s.index != kNoToken || second_.is_empty()) return emit(s);
      for_each_match(second_, text + s.begin, s.end - s.begin, [&](const SpecialSegment& t) {
        emit(SpecialSegment{s.begin + t.begin, s.begin + t.end, t.index});
      });
    });
  }

  // Longest prefix of a stream's text whose token ids cannot change, whatever text follows.
  size_t stream_cut(Borders borders, const uint8_t* text, size_t size) const;

 private:
  struct Open;  // the part of a stream's text that more text may change
  bool is_inert() const { return first_.is_empty() && second_.is_empty(); }
  bool is_beside_word(const uint8_t* text, size_t size, size_t begin, size_t end) const;
  Open open_end(const StringMatcher& matcher, const uint8_t* text, size_t begin, size_t end) const;

  template <class Emit>
  void for_each_match(const StringMatcher& matcher, const uint8_t* text, size_t size,
                      Emit&& emit) const;

  std::string actions_;
  std::vector<uint8_t> flags_;
  StringMatcher forbidden_, first_, second_;
  bool has_strip_left_ = false, has_single_word_ = false;
};

size_t spaces_begin(const uint8_t* text, size_t from, size_t end);
size_t spaces_end(const uint8_t* text, size_t from, size_t size);

template <class Emit>
void SpecialQuery::for_each_match(const StringMatcher& matcher, const uint8_t* text, size_t size,
                                  Emit&& emit) const {
  size_t at = 0;         // all before it has been emitted
  size_t space_end = 0;  // of the last white space swallowed: it is never scanned twice
  StringMatcher::Hit hit{};
  for (size_t scan = 0; scan < size; scan = hit.end) {
    hit = matcher.find(text, size, scan);
    if (hit.index == kNoToken) break;
    const uint8_t flags = flags_[hit.index];
    size_t begin = hit.begin, end = hit.end;
    if ((flags & kSingleWord) && is_beside_word(text, size, begin, end)) continue;
    if (flags & kStripLeft) begin = at < begin ? spaces_begin(text, at, begin) : at;
    if (flags & kStripRight)
      end = space_end = end < space_end ? space_end : spaces_end(text, end, size);
    if (end < begin) end = begin;
    if (at < begin) emit(SpecialSegment{at, begin, kNoToken});
    emit(SpecialSegment{begin, end, hit.index});
    at = end;
  }
  if (at < size) emit(SpecialSegment{at, size, kNoToken});
}

// All special tokens of one tokenizer.
class SpecialMatcher {
 public:
  // `flags`: SpecialFlag bits of each token.
  SpecialMatcher(std::vector<std::string> tokens, std::vector<uint8_t> flags)
      : tokens_(std::move(tokens)), flags_(std::move(flags)) {}
  size_t num_tokens() const { return tokens_.size(); }
  // The query for these actions, one byte per token. One thread at a time.
  std::shared_ptr<const SpecialQuery> query(std::string_view actions) const;

 private:
  std::vector<std::string> tokens_;
  std::vector<uint8_t> flags_;
  mutable std::vector<std::shared_ptr<const SpecialQuery>> queries_;  // the latest first
};

}  // namespace lmworks
