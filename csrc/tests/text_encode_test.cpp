// BPE encoder, special tokens and stream borders without Python, for the sanitizers (tests/
// integration/test_sanitizers.py builds and runs this). Ids are compared with merging as it is
// defined, one pair after the other; that they are those of tiktoken and Hugging Face is tested
// from Python.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "lmworks/bpe_encode.h"
#include "lmworks/utf8_encode.h"

using namespace lmworks;

namespace {

constexpr uint32_t kFirstSpecialId = 100'000;
constexpr size_t kMaxSlowPiece = 310;
const std::string_view kSpecials[] = {"<|e|>", "<|e|><", "<"};
const uint32_t kSpecialIds[] = {kFirstSpecialId, kFirstSpecialId + 1, kFirstSpecialId + 2};

using Ids = std::vector<uint32_t>;

void check(bool condition, const char* claim) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", claim);
  std::exit(1);
}

// A text in an allocation of exactly its size, so that a load past its end is seen.
struct Bytes {
  explicit Bytes(std::string_view text) : size(text.size()), data(new uint8_t[size]) {
    std::copy(text.begin(), text.end(), data.get());
  }
  size_t size;
  std::unique_ptr<uint8_t[]> data;
};

// The 256 bytes and random merges of them, some made of merges. Tokens are whole characters, parts
// of them, and parts of several.
struct Vocabulary {
  std::vector<std::string> tokens;
  Ids merges, ranks, outputs;
  std::string bytes;
  std::vector<uint64_t> offsets{0}, output_offsets;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> merge_of;
  std::map<std::string, uint32_t> known;
  bool ignore_merges;
  bool drops = false;  // some tokens are written as nothing

  Vocabulary(std::mt19937& rng, bool has_ties, bool has_outputs) : ignore_merges(rng() % 2) {
    const std::string_view letters = "abe \n'x\xc3\xa9\xe4\xb8\xad\xe3\x80";
    for (int i = 0; i < 256; ++i) known[tokens.emplace_back(1, static_cast<char>(i))] = i;
    add_character("\xc3\xa9");                     // é
    if (rng() % 2) add_character("\xe4\xb8\xad");  // 中
    for (int k = 0; k < 300; ++k) {
      const auto letter = [&] { return static_cast<uint8_t>(letters[rng() % letters.size()]); };
      const auto any = [&] { return k < 60 ? letter() : uint32_t(rng() % tokens.size()); };
      const uint32_t left = any();
      add_merge(left, any());
    }
    // Tokens that merging does not lead to.
    for (const size_t size : {5, 20, 40, 300}) add_token(std::string(size, '-'));
    for (const std::string& token : tokens) offsets.push_back((bytes += token).size());
    if (has_ties) {
      uint32_t rank = 0;
      for (size_t k = 0; k < merges.size() / 3; ++k) ranks.push_back(rank += rng() % 2);
    }
    if (has_outputs) add_outputs(rng);
  }

  BpeModel model(std::optional<Pattern> pattern) const {
    const auto* const p = reinterpret_cast<const uint8_t*>(bytes.data());
    return BpeModel({pattern,
                     ignore_merges,
                     {p, bytes.size()},
                     offsets,
                     merges,
                     ranks,
                     outputs,
                     output_offsets});
  }

  // The ids of a piece, by definition.
  Ids encode(std::string_view piece) const {
    Ids symbols;
    const auto token = known.find(std::string(piece));
    if (ignore_merges && token != known.end()) {
      symbols = {token->second};
    } else {
      for (const char c : piece) symbols.push_back(static_cast<uint8_t>(c));
    }
    for (;;) {
      size_t at = 0;
      uint32_t lowest = kNoMerge, result = 0;
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        const auto merge = merge_of.find({symbols[i], symbols[i + 1]});
        if (merge == merge_of.end()) continue;
        const uint32_t rank = ranks.empty() ? merge->second : ranks[merge->second];
        if (rank < lowest) at = i, lowest = rank, result = merges[3 * merge->second + 2];
      }
      if (lowest == kNoMerge) break;
      symbols[at] = result;
      symbols.erase(symbols.begin() + at + 1);
    }
    if (output_offsets.empty()) return symbols;
    Ids written;
    for (const uint32_t id : symbols) {
      for (uint64_t i = output_offsets[id]; i < output_offsets[id + 1]; ++i) {
        written.push_back(outputs[i]);
      }
    }
    return written;
  }

 private:
  uint32_t add_token(const std::string& token) {
    known[token] = static_cast<uint32_t>(tokens.size());
    tokens.push_back(token);
    return known[token];
  }

  void add_merge(uint32_t left, uint32_t right) {
    const std::string joined = tokens[left] + tokens[right];
    if (joined.size() > 40 || known.contains(joined)) return;
    merge_of[{left, right}] = static_cast<uint32_t>(merges.size() / 3);
    merges.insert(merges.end(), {left, right, add_token(joined)});
  }

  void add_character(const std::string& bytes_of_it) {
    for (size_t i = 1; i < bytes_of_it.size(); ++i) {
      add_merge(known[bytes_of_it.substr(0, i)], static_cast<uint8_t>(bytes_of_it[i]));
    }
  }

  // A token is written as itself, as its bytes, or as nothing.
  void add_outputs(std::mt19937& rng) {
    drops = rng() % 2;
    output_offsets.push_back(0);
    for (uint32_t id = 0; id < tokens.size(); ++id) {
      const uint32_t way = rng() % (drops ? 3 : 2);
      if (way == 0) outputs.push_back(id);
      if (way == 1) {
        for (const char c : tokens[id]) outputs.push_back(static_cast<uint8_t>(c));
      }
      output_offsets.push_back(outputs.size());
    }
  }
};

std::string random_text(std::mt19937& rng) {
  static const std::string kParts[] = {
      "a",  "b",      "e",  " ",       "\n",     "'",    "x",        "A",      "aaeb", "12",
      "中", "é",      "々", "゛",      "\u3040", "⺀",   "\x01",     "\u0301", "/",    "<|e|>",
      "<",  "<|e|><", "|",  "中中é中", "😀",     "\xff", "\xe4\xb8", "-----",  "\xc3"};
  std::string text;
  for (size_t n = rng() % (rng() % 8 == 0 ? 3000 : 120); n > 0; --n) {
    text += kParts[rng() % std::size(kParts)];
  }
  if (rng() % 8 == 0) std::erase_if(text, [](char c) { return c != 'a' && c != 'b'; });
  return text;
}

// A word of exactly `size` bytes.
std::string random_word(std::mt19937& rng, size_t size) {
  static const std::string kLetters[] = {"a", "b", "e", "x", "é", "中", "々"};
  const size_t num_letters = rng() % 2 ? 4 : std::size(kLetters);
  std::string word;
  while (word.size() < size) word += kLetters[rng() % num_letters];
  return word.substr(0, size);
}

bool begins_with(const TokenBuffer& ids, const TokenBuffer& first) {
  return first.size() <= ids.size() &&
         std::equal(first.data(), first.data() + first.size(), ids.data());
}

void check_text(const Vocabulary& vocabulary, const BpeModel& model, PieceCache& cache,
                const SpecialQuery& query, bool strips, const std::string& text) {
  const Bytes copy(text);
  TokenBuffer ids, first_ids, again;
  encode(model, query, kSpecialIds, cache, copy.data.get(), copy.size, ids);
  std::string decoded;
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t id = ids.data()[i];
    if (id >= kFirstSpecialId) {
      decoded += kSpecials[id - kFirstSpecialId];
    } else {
      decoded += vocabulary.tokens[id];
    }
  }
  check(strips || vocabulary.drops || decoded == text, "the ids stand for the text");
  encode(model, query, kSpecialIds, cache, copy.data.get(), copy.size, again);
  check(again.size() == ids.size() && begins_with(ids, again), "the cache changes no ids");
  const size_t cut = query.stream_cut({false, model.pattern()}, copy.data.get(), copy.size);
  check(cut <= text.size(), "a cut lies in the text");
  encode(model, query, kSpecialIds, cache, copy.data.get(), cut, first_ids);
  check(begins_with(ids, first_ids), "what is before a cut has the ids that it has in the whole");
}

// `text` as these pieces.
void check_pieces(const Vocabulary& vocabulary, const BpeModel& model, PieceCache& cache,
                  const std::vector<std::string>& pieces) {
  std::string text;
  std::vector<uint64_t> ends;
  Ids expected;
  bool is_short = true;
  for (const std::string& piece : pieces) {
    ends.push_back((text += piece).size());
    is_short &= piece.size() <= kMaxSlowPiece;
    if (!is_short) continue;
    const Ids ids = vocabulary.encode(piece);
    expected.insert(expected.end(), ids.begin(), ids.end());
  }
  const Bytes copy(text);
  for (int i = 0; i < 2; ++i) {  // the second time from the cache
    TokenBuffer ids;
    cache.encode_cut(model, copy.data.get(), ends, ids);
    if (!is_short) continue;
    check(Ids(ids.data(), ids.data() + ids.size()) == expected, "merging is as it is defined");
  }
}

// Pieces of every size that is kept in another way, cut by the caller, the last one at the end of
// the memory.
void check_sizes(const Vocabulary& vocabulary, const BpeModel& model, PieceCache& cache,
                 std::mt19937& rng) {
  for (const size_t size :
       {1, 2, 3, 7, 8, 15, 16, 23, 24, 31, 32, 33, 40, 64, 65, 200, 255, 256, 300}) {
    const std::string word = random_word(rng, size);
    check_pieces(vocabulary, model, cache, {word});
    check_pieces(vocabulary, model, cache, {"a", word, " ", word});
    check_pieces(vocabulary, model, cache, {std::string(size, '-'), word + "\xe4"});
  }
  std::vector<std::string> many;
  for (int i = 0; i < 300; ++i) many.push_back(random_word(rng, 1 + rng() % 40));
  check_pieces(vocabulary, model, cache, many);
  check_pieces(vocabulary, model, cache, {random_word(rng, 10'000), random_word(rng, 10'000)});
}

// Text of a model without a pattern is one piece.
void check_uncut(const Vocabulary& vocabulary, const BpeModel& model, PieceCache& cache,
                 std::mt19937& rng) {
  for (int i = 0; i < 40; ++i) {
    const std::string text =
        i % 2 ? random_word(rng, 1 + rng() % kMaxSlowPiece) : random_text(rng).substr(0, 250);
    const Bytes copy(text);
    TokenBuffer ids;
    cache.encode(model, copy.data.get(), copy.size, ids);
    check(text.empty() || Ids(ids.data(), ids.data() + ids.size()) == vocabulary.encode(text),
          "a text is one piece");
  }
}

void check_vocabulary(const Vocabulary& vocabulary, std::optional<Pattern> pattern, bool has_flags,
                      std::mt19937& rng) {
  const BpeModel model = vocabulary.model(pattern);
  std::vector<uint8_t> flags(std::size(kSpecials));
  for (uint8_t& f : flags) f = has_flags ? rng() % 16 : 0;
  const SpecialMatcher matcher({std::begin(kSpecials), std::end(kSpecials)}, flags);
  const char actions[] = {1, 1, static_cast<char>(rng() % 2)};
  const auto query = matcher.query({actions, std::size(actions)});
  PieceCache cache(size_t{64} << rng() % 6);  // small, so that it grows and is emptied
  for (int i = 0; i < 40; ++i) {
    check_text(vocabulary, model, cache, *query, has_flags, random_text(rng));
  }
  check_sizes(vocabulary, model, cache, rng);
  if (!pattern) check_uncut(vocabulary, model, cache, rng);
}

std::string slow_utf8(const std::vector<uint32_t>& units) {
  std::string bytes;
  for (size_t i = 0; i < units.size(); ++i) {
    uint32_t c = units[i];
    if (c >= 0xD800 && c < 0xE000) {
      const bool is_pair =
          c < 0xDC00 && i + 1 < units.size() && units[i + 1] >= 0xDC00 && units[i + 1] < 0xE000;
      c = is_pair ? 0x10000 + (c - 0xD800) * 0x400 + (units[++i] - 0xDC00) : 0xFFFD;
    }
    const int num_inner = (c >= 0x80) + (c >= 0x800) + (c >= 0x10000);
    const uint32_t leads[] = {0, 0xC0, 0xE0, 0xF0};
    bytes += static_cast<char>(leads[num_inner] | c >> 6 * num_inner);
    for (int k = num_inner - 1; k >= 0; --k) bytes += static_cast<char>(0x80 | (c >> 6 * k & 63));
  }
  return bytes;
}

// Units and bytes in memory of exactly their sizes.
template <class Unit>
void check_utf8(const std::vector<uint32_t>& units, TextView::Unit kind) {
  const std::unique_ptr<Unit[]> copy(new Unit[units.size()]);
  std::copy(units.begin(), units.end(), copy.get());
  const TextView text{copy.get(), units.size(), kind};
  const std::unique_ptr<uint8_t[]> out(new uint8_t[max_utf8_bytes(text)]);
  const uint8_t* const end = encode_utf8(text, out.get());
  check(std::string(out.get(), out.get() + (end - out.get())) == slow_utf8(units), "UTF-8");
}

void check_utf8_of_all_widths(std::mt19937& rng) {
  const uint32_t limits[] = {0x80, 0x100, 0x800, 0x3000, 0x10000, 0x110000};
  for (int round = 0; round < 4000; ++round) {
    std::vector<uint32_t> units(rng() % 70);
    const uint32_t most = limits[rng() % std::size(limits)], often = limits[rng() % 4];
    const uint32_t from = rng() % 2 ? 0 : 0x800;
    const uint32_t rare = rng() % 3 == 0 ? 0 : 1 + rng() % 30;
    for (uint32_t& c : units) {
      c = rare != 0 && rng() % rare == 0 ? rng() % most : (from + rng() % often) % most;
      if (rng() % 20 == 0 && most > 0xE000) c = 0xD800 + rng() % 0x800;
    }
    if (most <= 0x100) check_utf8<uint8_t>(units, TextView::Unit::kLatin1);
    if (most <= 0x10000) check_utf8<uint16_t>(units, TextView::Unit::kUcs2);
    check_utf8<uint32_t>(units, TextView::Unit::kUcs4);
  }
}

}  // namespace

int main() {
  std::mt19937 rng(1);
  check_utf8_of_all_widths(rng);
  for (int round = 0; round < 8; ++round) {
    const Vocabulary vocabulary(rng, round & 1, round & 2);
    for (const Pattern pattern : kPatterns) check_vocabulary(vocabulary, pattern, round & 4, rng);
    for (int i = 0; i < 4; ++i) check_vocabulary(vocabulary, std::nullopt, round & 4, rng);
  }
  std::puts("ok");
}
