// BPE encoder, special tokens and stream borders without Python, for the sanitizers (tests/
// integration/test_sanitizers.py builds and runs this).
// That the ids are the right ones is tested from Python, against tiktoken and Hugging Face.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "lmworks/bpe_encode.h"

using namespace lmworks;

namespace {

constexpr uint32_t kFirstSpecialId = 100'000;
const std::string_view kSpecials[] = {"<|e|>", "<|e|><", "<"};
const uint32_t kSpecialIds[] = {kFirstSpecialId, kFirstSpecialId + 1, kFirstSpecialId + 2};

void check(bool condition, const char* claim) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", claim);
  std::exit(1);
}

// The 256 bytes and random merges of them, some made of merges.
struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<uint32_t> merges;
  std::string bytes;
  std::vector<uint64_t> offsets{0};

  explicit Vocabulary(std::mt19937& rng) {
    const std::string_view letters = "abe \n'x";
    std::map<std::string, uint32_t> known;
    for (int i = 0; i < 256; ++i) known[tokens.emplace_back(1, static_cast<char>(i))] = i;
    const auto letter = [&] { return static_cast<uint32_t>(letters[rng() % letters.size()]); };
    for (int k = 0; k < 300; ++k) {
      const auto any = [&] {
        return k < 40 ? letter() : static_cast<uint32_t>(rng() % tokens.size());
      };
      const uint32_t left = any(), right = any();
      const std::string joined = tokens[left] + tokens[right];
      if (joined.size() > 40 || known.contains(joined)) continue;
      known[joined] = static_cast<uint32_t>(tokens.size());
      merges.insert(merges.end(), {left, right, known[joined]});
      tokens.push_back(joined);
    }
    for (const std::string& token : tokens) offsets.push_back((bytes += token).size());
  }

  BpeModel model(Pattern pattern, bool ignore_merges) const {
    const auto* const p = reinterpret_cast<const uint8_t*>(bytes.data());
    return BpeModel({pattern, ignore_merges, {p, bytes.size()}, offsets, merges});
  }
};

std::string random_text(std::mt19937& rng) {
  static const std::string kParts[] = {"a",      "b",    "e",    " ",       "\n", "'",     "x",
                                       "A",      "aaeb", "12",   "中",      "é",  "々",    "゛",
                                       "\u3040", "⺀",   "\x01", "\u0301",  "/",  "<|e|>", "<|e|><",
                                       "<",      "|",    "\xff", "\xe4\xb8"};
  std::string text;
  for (size_t n = rng() % (rng() % 8 == 0 ? 3000 : 120); n > 0; --n) {
    text += kParts[rng() % std::size(kParts)];
  }
  if (rng() % 8 == 0) std::erase_if(text, [](char c) { return c != 'a' && c != 'b'; });
  return text;
}

void check_text(const Vocabulary& vocabulary, const BpeModel& model, PieceCache& cache,
                const SpecialQuery& query, bool strips, const std::string& text) {
  // Exactly its size on the heap, so that a load past the end is seen.
  const auto copy = std::make_unique<uint8_t[]>(text.size());
  std::copy(text.begin(), text.end(), copy.get());
  TokenBuffer ids, first_ids;
  encode(model, query, kSpecialIds, cache, copy.get(), text.size(), ids);
  std::string decoded;
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t id = ids.data()[i];
    if (id >= kFirstSpecialId) {
      decoded += kSpecials[id - kFirstSpecialId];
    } else {
      decoded += vocabulary.tokens[id];
    }
  }
  check(strips || decoded == text, "the ids stand for the text");
  const size_t cut = query.stream_cut({false, model.pattern()}, copy.get(), text.size());
  check(cut <= text.size(), "a cut lies in the text");
  encode(model, query, kSpecialIds, cache, copy.get(), cut, first_ids);
  check(first_ids.size() <= ids.size() &&
            std::equal(first_ids.data(), first_ids.data() + first_ids.size(), ids.data()),
        "what is before a cut has the ids that it has in the whole");
}

}  // namespace

int main() {
  std::mt19937 rng(1);
  for (int round = 0; round < 20; ++round) {
    std::vector<uint8_t> flags(std::size(kSpecials));
    for (uint8_t& f : flags) f = round % 2 ? rng() % 16 : 0;
    const SpecialMatcher matcher({std::begin(kSpecials), std::end(kSpecials)}, flags);
    const Vocabulary vocabulary(rng);
    for (const Pattern pattern : kPatterns) {
      const BpeModel model = vocabulary.model(pattern, rng() % 2);
      const char actions[] = {1, 1, static_cast<char>(rng() % 2)};
      const auto query = matcher.query({actions, std::size(actions)});
      PieceCache cache(size_t{64} << rng() % 6);  // small, so that it grows and is emptied
      for (int i = 0; i < 40; ++i) {
        check_text(vocabulary, model, cache, *query, round % 2, random_text(rng));
      }
    }
  }
  std::puts("ok");
}
