#include "lmworks/pretokenize.h"

namespace lmworks {
namespace {

struct Published {
  std::string_view name;
  std::string_view regex;
};

// In the order of enum Pattern. gpt2: encoder.py of openai/gpt-2. cl100k, o200k:
// tiktoken_ext/openai_public.py. llama3, qwen2, qwen35, tekken: the Split step of the models'
// tokenizer.json. nanochat: tokenizer.py of karpathy/nanochat. kimi2: tokenization_kimi.py, which
// writes [...&&[^\p{Han}]] for (?!\p{Han})[...]. smollm, deepseek3: one expression for all steps.
constexpr Published kPublished[] = {
    {"gpt2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {"cl100k",
     R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)"},
    {"o200k",
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"llama3",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"qwen2",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"smollm",
     R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+)"},
    {"qwen35",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"deepseek3",
     // Numbers; words of ASCII punctuation and letters.
     R"(\p{N}{1,3}|[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|)"
     // Words, outside and inside of runs of kCjkRun.
     R"([^\r\n\p{L}\p{P}\p{S}\p{N}一-龥぀-ヿ]?(?:(?![一-龥぀-ヿ])[\p{L}\p{M}])+|)"
     R"((?:(?=[一-龥぀-ヿ])[^\p{L}\p{P}\p{S}])?(?:(?=[一-龥぀-ヿ])[\p{L}\p{M}])+|)"
     // Symbols, likewise; white space.
     R"( ?(?:(?![一-龥぀-ヿ])[\p{P}\p{S}])+[\r\n]*|(?:(?=[一-龥぀-ヿ])[\p{P}\p{S}])+|)"
     R"(\s*[\r\n]+|\s+(?![^\s\p{N}一-龥぀-ヿ])|\s+|)"
     // What the expression of the third step leaves between its matches, likewise.
     R"((?:(?![一-龥぀-ヿ])[^\s\p{L}\p{M}\p{N}\p{P}\p{S}](?!(?![一-龥぀-ヿ])[\p{L}\p{M}]))+|)"
     R"((?:(?=[一-龥぀-ヿ])[^\p{L}\p{M}\p{P}\p{S}](?!(?=[一-龥぀-ヿ])[\p{L}\p{M}]))+)"},
    {"kimi2",
     R"(\p{Han}+|)"
     R"([^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])*(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"([^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])+(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"tekken", R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
               R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
               R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"nanochat",
     R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)"},
};

// Whether a valid character other than white space ends just before p.
bool follows_non_space(const uint8_t* begin, const uint8_t* p) {
  for (const uint8_t* q = p - 1; q >= begin && p - q <= 4; --q) {
    if ((*q & 0xC0) == 0x80) continue;
    const Char c = classify(q, p);
    return q + c.size == p && !(c.cls & kAnySpace);
  }
  return false;
}

bool is_ascii_letter(uint8_t b) { return kAsciiClass[b] & kAnyLetter; }

}  // namespace

bool is_safe_cut(const uint8_t* begin, const uint8_t* p, const uint8_t* end) {
  if (*p == ' ') return p + 1 < end && is_ascii_letter(p[-1]) && is_ascii_letter(p[1]);
  return p[-1] == '\n' && (classify(p, end).cls & kAnyLetter) && follows_non_space(begin, p - 1);
}

const uint8_t* find_safe_cut(const uint8_t* begin, const uint8_t* from, const uint8_t* end) {
  for (const uint8_t* p = from == begin ? from + 1 : from; p < end; ++p) {
    if (is_safe_cut(begin, p, end)) return p;
  }
  return end;
}

std::optional<Pattern> parse_pattern(std::string_view name) {
  for (const Pattern p : kPatterns) {
    if (pattern_name(p) == name) return p;
  }
  return std::nullopt;
}

std::string_view pattern_name(Pattern pattern) {
  return kPublished[static_cast<size_t>(pattern)].name;
}

std::string_view pattern_regex(Pattern pattern) {
  return kPublished[static_cast<size_t>(pattern)].regex;
}

}  // namespace lmworks
