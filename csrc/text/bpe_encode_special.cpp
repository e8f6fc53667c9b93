// Special tokens in text, and the borders at which a stream may be cut.
#include <cstring>

#include "lmworks/bpe_encode.h"

namespace lmworks {
namespace {

bool ends_in_space(const uint8_t* begin, const uint8_t* end) {
  const uint8_t* p = end - 1;
  while (p > begin && (*p & 0xC0) == 0x80) --p;
  return classify(p, end).cls & kAnySpace;
}

// End of the text without a character at its end of which bytes may be missing.
const uint8_t* end_of_whole_characters(const uint8_t* begin, const uint8_t* end) {
  for (const uint8_t* p = end; p > begin && end - p < 3;) {
    const uint8_t lead = *--p;
    if ((lead & 0xC0) == 0x80) continue;
    const int size = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    return end - p < size ? p : end;
  }
  return end;
}

}  // namespace

SpecialMatcher::SpecialMatcher(std::span<const std::string_view> tokens)
    : nodes_(1), num_tokens_(tokens.size()) {
  for (uint32_t index = 0; index < tokens.size(); ++index) {
    uint32_t node = 0;
    for (const char c : tokens[index]) {
      const uint8_t byte = static_cast<uint8_t>(c);
      uint32_t child = child_of(node, byte);
      if (child == 0) {
        child = static_cast<uint32_t>(nodes_.size());
        nodes_.push_back({0, nodes_[node].child, kNoToken, byte});
        nodes_[node].child = child;
      }
      node = child;
    }
    nodes_[node].token = index;
    first_bytes_.push_back(static_cast<uint8_t>(tokens[index][0]));
  }
}

uint32_t SpecialMatcher::child_of(uint32_t node, uint8_t byte) const {
  uint32_t child = nodes_[node].child;
  while (child != 0 && nodes_[child].byte != byte) child = nodes_[child].sibling;
  return child;
}

SpecialMatcher::Query::Query(const SpecialMatcher& matcher, const uint8_t* actions)
    : matcher_(matcher), actions_(actions) {
  for (size_t i = 0; i < matcher.num_tokens_; ++i) {
    if (action(static_cast<uint32_t>(i)) == SpecialAction::as_text) continue;
    only_first_byte_ = matcher.first_bytes_[i];
    num_first_bytes_ += !is_first_byte_[only_first_byte_];
    is_first_byte_[only_first_byte_] = true;
  }
}

size_t SpecialMatcher::Query::next_candidate(const uint8_t* text, size_t size, size_t from) const {
  if (num_first_bytes_ == 0 || from >= size) return size;
  if (num_first_bytes_ == 1) {
    const void* const hit = std::memchr(text + from, only_first_byte_, size - from);
    return hit ? static_cast<size_t>(static_cast<const uint8_t*>(hit) - text) : size;
  }
  while (from < size && !is_first_byte_[text[from]]) ++from;
  return from;
}

bool SpecialMatcher::Query::find(const uint8_t* text, size_t size, size_t from, bool is_stream,
                                 SpecialMatch* out) const {
  for (size_t begin = next_candidate(text, size, from); begin < size;
       begin = next_candidate(text, size, begin + 1)) {
    out->end = 0;
    out->is_incomplete = false;
    uint32_t node = 0;
    for (size_t i = begin;; ++i) {
      const uint32_t token = matcher_.nodes_[node].token;
      if (token != kNoToken && action(token) != SpecialAction::as_text) {
        out->end = i;
        out->index = token;
      }
      if (i == size) {
        out->is_incomplete = is_stream && matcher_.nodes_[node].child != 0;
        break;
      }
      node = matcher_.child_of(node, text[i]);
      if (node == 0) break;
    }
    out->begin = begin;
    if (out->end != 0 || out->is_incomplete) return true;
  }
  return false;
}

// A piece is final once the scanner's choice cannot depend on bytes past the end of the text. From
// the start of a piece every pattern looks at most to the end of the run of letters and marks, of
// ideographs, of symbols and line ends, of controls, of digits, or of white space that holds the
// piece's last character, and, when that run ends before the text does, at the one character (a
// contraction: three) after it. The text after a piece that looked up to the end of the text is
// therefore the rest of one such run, and that rest is at most one more piece: after a cased word
// of o200k an upper-case rest, after the line ends of cl100k the blanks behind them, after a word
// or an apostrophe the letters of an unfinished contraction. So all pieces but the last two are
// final. That holds of whole characters only (those of an unfinished one are symbols until it is
// complete): what may be the beginning of one is left out.
//
// The prefix is encoded on its own, so its last piece must also be what it is without the text
// after it. Only white space looks at what follows (\s+(?!\S), \s++$): never cut behind white
// space.
size_t stream_cut(const SpecialMatcher::Query& query, std::optional<Pattern> pattern,
                  const uint8_t* text, size_t size) {
  size_t begin = 0, end = size;  // of the text after the last complete special token
  SpecialMatch match;
  while (query.find(text, size, begin, true, &match)) {
    if (match.is_incomplete) {
      end = match.begin;
      break;
    }
    begin = match.end;
  }
  if (!pattern) return end;
  end = end_of_whole_characters(text + begin, text + end) - text;
  // The last three borders, and the last good one before each of them.
  size_t good[3] = {begin, begin, begin};
  for_each_piece(*pattern, text + begin, end - begin, [&](const uint8_t* piece, size_t length) {
    good[0] = good[1];
    good[1] = good[2];
    const uint8_t* const border = piece + length;
    if (!ends_in_space(piece, border)) good[2] = static_cast<size_t>(border - text);
  });
  return good[0];
}

}  // namespace lmworks
