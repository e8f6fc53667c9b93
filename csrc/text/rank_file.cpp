// tiktoken's rank files.
#include <array>
#include <string>
#include <utility>

#include "lmworks/vocabulary.h"

namespace lmworks {
namespace {

constexpr uint8_t kNoDigit = 64;

constexpr std::array<uint8_t, 256> base64_digits() {
  std::array<uint8_t, 256> digits{};
  digits.fill(kNoDigit);
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < kAlphabet.size(); ++i) {
    digits[static_cast<uint8_t>(kAlphabet[i])] = static_cast<uint8_t>(i);
  }
  return digits;
}
constexpr std::array<uint8_t, 256> kDigits = base64_digits();

// Appends what the base64 text stands for; false when it is not whole groups of four.
bool decode_base64(std::string_view text, std::string& out) {
  if (text.empty() || text.size() % 4 != 0) return false;
  size_t num_pads = 0;
  while (num_pads < 2 && text[text.size() - 1 - num_pads] == '=') ++num_pads;
  const size_t num_digits = text.size() - num_pads;
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const uint8_t digit = i < num_digits ? kDigits[static_cast<uint8_t>(text[i])] : uint8_t{0};
    if (digit == kNoDigit) return false;
    bits = bits << 6 | digit;
    if (i % 4 != 3) continue;
    const char bytes[3] = {static_cast<char>(bits >> 16), static_cast<char>(bits >> 8),
                           static_cast<char>(bits)};
    out.append(bytes, i + 1 == text.size() ? 3 - num_pads : 3);
    bits = 0;
  }
  return true;
}

// A number of one to nine digits; false for anything else.
bool parse_rank(std::string_view text, uint64_t& rank) {
  if (text.empty() || text.size() > 9) return false;
  rank = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    rank = 10 * rank + static_cast<uint64_t>(c - '0');
  }
  return true;
}

}  // namespace

RankFile parse_ranks(std::string_view file, size_t max_tokens) {
  RankFile result;
  const RankFile wrong{{}, {}, false};
  struct Place {
    size_t begin = 0, end = 0;
  };
  std::vector<Place> places;  // by rank, in `bytes`
  std::string bytes;
  bytes.reserve(file.size() / 2);
  bool is_rising = true;
  for (size_t at = 0; at < file.size();) {
    const std::string_view rest = file.substr(at);
    std::string_view line = rest.substr(0, rest.find('\n'));
    at += line.size() + 1;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    if (space == std::string_view::npos) return wrong;
    const size_t begin = bytes.size();
    uint64_t rank;
    if (!decode_base64(line.substr(0, space), bytes) || !parse_rank(line.substr(space + 1), rank) ||
        rank >= max_tokens) {
      return wrong;
    }
    is_rising &= rank >= places.size();
    if (rank >= places.size()) places.resize(rank + 1);
    if (places[rank].end != 0) return wrong;
    places[rank] = {begin, bytes.size()};
  }
  if (places.empty()) return wrong;
  result.token_offsets.reserve(places.size() + 1);
  result.token_offsets.push_back(0);
  for (const Place& place : places) {
    const uint64_t size = place.end - place.begin;
    if (!is_rising) result.token_bytes.append(bytes, place.begin, size);
    result.token_offsets.push_back(result.token_offsets.back() + size);
  }
  if (is_rising) result.token_bytes = std::move(bytes);
  return result;
}

}  // namespace lmworks
