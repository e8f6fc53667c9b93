// Special tokens in text, and the borders at which a stream may be cut.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "lmworks/special_tokens.h"

namespace lmworks {
namespace {

// A node with more children than this gets a table of all 256: at most 16 bytes per child.
constexpr uint16_t kMaxSparse = 64;
constexpr size_t kMaxQueries = 16;

// Start of the character that ends before `end`; a byte that is part of none stands for itself.
size_t character_before(const uint8_t* text, size_t begin, size_t end) {
  size_t p = end - 1;
  while (p > begin && end - p < 4 && (text[p] & 0xC0) == 0x80) --p;
  const CodePoint c = decode_utf8(text + p, text + end);
  return c.size == end - p ? p : end - 1;
}

bool is_space_at(const uint8_t* text, size_t at, size_t size) {
  return classify(text + at, text + size).cls & kAnySpace;
}

bool is_word_at(const uint8_t* text, size_t at, size_t size) {
  const CodePoint c = decode_utf8(text + at, text + size);
  return c.size != 0 && is_word_character(c.value);
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

// Start of the white space that ends at `end`, not before `from`.
size_t spaces_begin(const uint8_t* text, size_t from, size_t end) {
  while (end > from) {
    const size_t p = character_before(text, from, end);
    if (!is_space_at(text, p, end)) break;
    end = p;
  }
  return end;
}

// End of the white space that starts at `from`.
size_t spaces_end(const uint8_t* text, size_t from, size_t size) {
  while (from < size) {
    const Char c = classify(text + from, text + size);
    if (!(c.cls & kAnySpace)) break;
    from += c.size;
  }
  return from;
}

// ---- the automaton ----

// Level by level: the strings in order, and a node for each stretch of them with a common prefix.
StringMatcher::StringMatcher(std::span<const std::string> strings, std::vector<uint32_t> indices) {
  if (indices.empty()) return;
  std::sort(indices.begin(), indices.end(), [&](uint32_t a, uint32_t b) {
    const int order = strings[a].compare(strings[b]);
    return order != 0 ? order < 0 : a < b;
  });
  struct Range {
    size_t begin, end;
  };
  std::vector<Range> ranges{{0, indices.size()}};
  nodes_.resize(1);
  for (size_t n = 0; n < nodes_.size(); ++n) {
    auto [k, end] = ranges[n];
    const uint32_t depth = nodes_[n].depth;
    for (; k < end && strings[indices[k]].size() == depth; ++k) {
      if (depth == 0 || nodes_[n].index != kNoToken) continue;  // of equal strings the first
      nodes_[n].index = indices[k];
      nodes_[n].length = depth;
    }
    nodes_[n].first_child = static_cast<uint32_t>(nodes_.size());
    while (k < end) {
      const char byte = strings[indices[k]][depth];
      size_t next = k + 1;
      while (next < end && strings[indices[next]][depth] == byte) ++next;
      Node child;
      child.byte = static_cast<uint8_t>(byte);
      child.depth = depth + 1;
      nodes_.push_back(child);
      ranges.push_back({k, next});
      ++nodes_[n].num_children;
      k = next;
    }
  }
  link();
}

void StringMatcher::link() {
  for (size_t n = 0; n < nodes_.size(); ++n) {
    Node& node = nodes_[n];
    if (n != 0 && node.num_children <= kMaxSparse) continue;
    dense_.resize(dense_.size() + 256);
    node.dense = static_cast<uint32_t>(dense_.size() / 256);
    for (uint32_t c = 0; c < node.num_children; ++c) {
      dense_[256 * (node.dense - 1) + nodes_[node.first_child + c].byte] = node.first_child + c;
    }
  }
  // Parents come before children, and a suffix is shallower than what it is a suffix of.
  for (size_t n = 0; n < nodes_.size(); ++n) {
    for (uint32_t c = 0; c < nodes_[n].num_children; ++c) {
      Node& child = nodes_[nodes_[n].first_child + c];
      child.fail = n == 0 ? 0 : step(nodes_[n].fail, child.byte);
      if (child.index == kNoToken) {
        child.index = nodes_[child.fail].index;
        child.length = nodes_[child.fail].length;
      }
    }
  }
  for (uint32_t c = 0; c < nodes_[0].num_children; ++c) {
    only_first_byte_ = nodes_[nodes_[0].first_child + c].byte;
    is_first_byte_[only_first_byte_] = true;
    ++num_first_bytes_;
  }
}

uint32_t StringMatcher::child_of(uint32_t n, uint8_t byte) const {
  const Node& node = nodes_[n];
  if (node.dense != 0) return dense_[256 * (node.dense - 1) + byte];
  uint32_t low = node.first_child, size = node.num_children;
  while (size > 4) {
    const uint32_t half = size / 2;
    if (nodes_[low + half].byte <= byte) low += half;
    size -= half;
  }
  for (uint32_t c = low; c < low + size; ++c) {
    if (nodes_[c].byte == byte) return c;
  }
  return 0;
}

// The longest suffix of the node's string plus this byte that is a node.
uint32_t StringMatcher::step(uint32_t node, uint8_t byte) const {
  for (;;) {
    const uint32_t child = child_of(node, byte);
    if (child != 0 || node == 0) return child;
    node = nodes_[node].fail;
  }
}

size_t StringMatcher::skip_to_first_byte(const uint8_t* text, size_t size, size_t from) const {
  if (num_first_bytes_ == 1) {
    const void* const hit = std::memchr(text + from, only_first_byte_, size - from);
    return hit ? static_cast<size_t>(static_cast<const uint8_t*>(hit) - text) : size;
  }
  while (from < size && !is_first_byte_[text[from]]) ++from;
  return from;
}

// The automaton's state is the longest suffix of the text so far that may grow into a string. An
// occurrence is the answer as soon as that suffix begins after it.
StringMatcher::Hit StringMatcher::find(const uint8_t* text, size_t size, size_t from) const {
  Hit hit{0, 0, kNoToken, size};
  if (is_empty()) return hit;
  uint32_t state = 0;
  for (size_t i = from; i < size; ++i) {
    if (state == 0) {
      if (hit.index != kNoToken) return hit;
      i = skip_to_first_byte(text, size, i);
      if (i == size) return hit;
    }
    state = step(state, text[i]);
    const Node& node = nodes_[state];
    if (hit.index != kNoToken && i + 1 - node.depth > hit.begin) return hit;
    if (node.index == kNoToken) continue;
    const size_t begin = i + 1 - node.length;
    if (hit.index == kNoToken || begin <= hit.begin) hit = {begin, i + 1, node.index, size};
  }
  // What may grow: the longest suffix that is not a whole string with nothing longer behind it.
  while (state != 0 && nodes_[state].num_children == 0) state = nodes_[state].fail;
  if (state != 0) hit.pending = size - nodes_[state].depth;
  return hit;
}

// ---- queries ----

SpecialQuery::SpecialQuery(std::span<const std::string> tokens, std::span<const uint8_t> flags,
                           std::string actions)
    : actions_(std::move(actions)), flags_(flags.begin(), flags.end()) {
  std::vector<uint32_t> forbidden, first, second;
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    const auto action = SpecialAction{static_cast<uint8_t>(actions_[i])};
    if (action == SpecialAction::forbid) forbidden.push_back(i);
    if (action != SpecialAction::match) continue;
    (flags_[i] & kNormalized ? second : first).push_back(i);
    has_strip_left_ |= (flags_[i] & kStripLeft) != 0;
    has_single_word_ |= (flags_[i] & kSingleWord) != 0;
  }
  forbidden_ = StringMatcher(tokens, std::move(forbidden));
  first_ = StringMatcher(tokens, std::move(first));
  second_ = StringMatcher(tokens, std::move(second));
}

bool SpecialQuery::is_beside_word(const uint8_t* text, size_t size, size_t begin,
                                  size_t end) const {
  if (begin > 0 && is_word_at(text, character_before(text, 0, begin), begin)) return true;
  return end < size && is_word_at(text, end, size);
}

struct SpecialQuery::Open {
  size_t begin;  // end of the last match that stands
  size_t end;    // start of what may yet become (part of) a match, or the end of the text
  // Matches that a word character beside them forbids, in order. A cut in one of them, or at its
  // ends, would let it or a part of it stand.
  std::vector<std::pair<size_t, size_t>> dropped;

  bool has_dropped(size_t at) const {
    const auto next = std::upper_bound(dropped.begin(), dropped.end(), std::pair{at, SIZE_MAX});
    return next != dropped.begin() && std::prev(next)->second >= at;
  }
};

// Matches in text that goes on after `end`.
SpecialQuery::Open SpecialQuery::open_end(const StringMatcher& matcher, const uint8_t* text,
                                          size_t begin, size_t end) const {
  Open open{begin, end, {}};
  StringMatcher::Hit hit{};
  for (size_t scan = begin; scan < end; scan = hit.end) {
    hit = matcher.find(text, end, scan);
    open.end = hit.pending;
    if (hit.index == kNoToken || hit.pending <= hit.begin) break;
    const uint8_t flags = flags_[hit.index];
    size_t stop = hit.end;
    if (flags & kStripRight) stop = spaces_end(text, stop, end);
    if (stop == end && (flags & (kStripRight | kSingleWord))) {
      open.end = hit.begin;
      break;
    }
    open.end = end;
    if ((flags & kSingleWord) &&
        is_beside_word(text + begin, end - begin, hit.begin - begin, hit.end - begin)) {
      open.dropped.emplace_back(hit.begin, hit.end);
    } else {
      open.begin = stop;
    }
  }
  if (has_strip_left_) open.end = spaces_begin(text, std::min(open.begin, open.end), open.end);
  return open;
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
size_t SpecialQuery::stream_cut(Borders where, const uint8_t* text, size_t size) const {
  size = static_cast<size_t>(end_of_whole_characters(text, text + size) - text);
  // Up to the end of a forbidden token: encoding will refuse it.
  const StringMatcher::Hit forbidden = forbidden_.find(text, size, 0);
  if (forbidden.index != kNoToken) return forbidden.end;
  const Open first = open_end(first_, text, 0, size);
  const Open open = open_end(second_, text, first.begin, std::max(first.begin, first.end));
  const size_t end = std::min(open.end, forbidden.pending);
  const auto may_cut = [&](size_t at) {
    if (first.has_dropped(at) || open.has_dropped(at)) return false;
    // A token that begins here would no longer see the character before it.
    return at < end || at == 0 || !has_single_word_ ||
           !is_word_at(text, character_before(text, 0, at), at);
  };
  if (end < open.begin || !may_cut(open.begin)) return 0;
  if (where.anywhere) return may_cut(end) ? end : open.begin;
  if (!where.pattern) return open.begin;
  // The last three borders, and the last good one before each of them.
  size_t good[3] = {open.begin, open.begin, open.begin};
  for_each_piece(*where.pattern, text + open.begin, end - open.begin,
                 [&](const uint8_t* piece, size_t length) {
                   good[0] = good[1];
                   good[1] = good[2];
                   const size_t border = static_cast<size_t>(piece + length - text);
                   const size_t last = character_before(text, open.begin, border);
                   if (!is_space_at(text, last, border) && may_cut(border)) good[2] = border;
                 });
  return good[0];
}

// ---- all tokens ----

std::shared_ptr<const SpecialQuery> SpecialMatcher::query(std::string_view actions) const {
  for (size_t i = 0; i < queries_.size(); ++i) {
    if (queries_[i]->actions() != actions) continue;
    std::rotate(queries_.begin(), queries_.begin() + static_cast<std::ptrdiff_t>(i),
                queries_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    return queries_.front();
  }
  if (queries_.size() == kMaxQueries) queries_.pop_back();
  queries_.insert(queries_.begin(),
                  std::make_shared<const SpecialQuery>(tokens_, flags_, std::string(actions)));
  return queries_.front();
}

}  // namespace lmworks
