// Vocabularies and rank files from strangers, without Python, for the sanitizers
// (tests/integration/ test_sanitizers.py builds and runs this). Random and hostile ones; results
// are compared with what is defined, computed slowly.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "lmworks/vocabulary.h"

using namespace lmworks;

namespace {

using Ids = std::vector<uint32_t>;
constexpr uint32_t kNone = 0xFFFFFFFF;

void check(bool condition, const char* claim) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", claim);
  std::exit(1);
}

// A copy in an allocation of exactly its size, so that a load past its end is seen.
template <typename T>
struct Exact {
  template <typename Range>
  explicit Exact(const Range& range) : size(range.size()), data(new T[size]) {
    std::copy(range.begin(), range.end(), data.get());
  }
  size_t size;
  std::unique_ptr<T[]> data;
};

// ---- vocabularies ----

// Tokens over a small alphabet: holes, equal ones, long ones, bytes that are not there.
struct Vocabulary {
  std::vector<std::string> tokens;
  Exact<char> bytes;
  Exact<uint64_t> offsets;

  explicit Vocabulary(std::vector<std::string> all)
      : tokens(std::move(all)), bytes(joined(tokens)), offsets(places(tokens)) {}
  TokenList list() const {
    return {{bytes.data.get(), bytes.size}, {offsets.data.get(), offsets.size}};
  }
  static std::string joined(const std::vector<std::string>& tokens) {
    std::string all;
    for (const std::string& token : tokens) all += token;
    return all;
  }
  static std::vector<uint64_t> places(const std::vector<std::string>& tokens) {
    std::vector<uint64_t> found{0};
    for (const std::string& token : tokens) found.push_back(found.back() + token.size());
    return found;
  }
};

Vocabulary random_vocabulary(std::mt19937& rng, bool has_duplicates) {
  const std::string letters("ab\0\xff\xc3\xa9", 6);
  const size_t num_letters = 1 + rng() % letters.size();
  std::vector<std::string> tokens;
  std::map<std::string, bool> known;
  for (size_t i = rng() % 60; i > 0; --i) {
    std::string token;
    const uint32_t kind = rng() % 10;
    if (kind == 0) {
      token.clear();  // a hole
    } else if (kind == 1) {
      token.assign(rng() % 300, letters[rng() % num_letters]);
    } else if (kind == 2) {
      for (size_t k = tokens.empty() ? 0 : rng() % 40; k > 0; --k)
        token += tokens[rng() % tokens.size()];
    } else if (kind < 5 && !tokens.empty()) {
      // Grows long, and is often what merging gives.
      const std::string& other = tokens[rng() % tokens.size()];
      token = kind == 3 ? tokens.back() + other : other + tokens.back();
    } else if (kind < 7 && !tokens.empty()) {
      token = tokens[rng() % tokens.size()] + tokens[rng() % tokens.size()];
    } else {
      for (size_t k = 1 + rng() % 3; k > 0; --k) token += letters[rng() % num_letters];
    }
    if (token.size() > 400 || (!has_duplicates && known[token])) token.clear();
    known[token] = true;
    tokens.push_back(token);
  }
  return Vocabulary(std::move(tokens));
}

std::map<std::string, uint32_t> first_ids(const Vocabulary& vocabulary) {
  std::map<std::string, uint32_t> ids;
  for (uint32_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!vocabulary.tokens[id].empty()) ids.emplace(vocabulary.tokens[id], id);
  }
  return ids;
}

void check_duplicates(const Vocabulary& vocabulary) {
  std::pair<uint32_t, uint32_t> expected{0, 0};
  const auto ids = first_ids(vocabulary);
  for (uint32_t id = 0; id < vocabulary.tokens.size() && expected.second == 0; ++id) {
    const std::string& token = vocabulary.tokens[id];
    if (!token.empty() && ids.at(token) != id) expected = {ids.at(token), id};
  }
  check(find_duplicate(vocabulary.list()) == expected, "the first duplicate is found");
}

void check_merges(const Vocabulary& vocabulary, std::mt19937& rng) {
  const auto ids = first_ids(vocabulary);
  const uint32_t size = static_cast<uint32_t>(vocabulary.tokens.size());
  Ids pairs;
  for (uint32_t left = 0; left < size; ++left) {
    for (uint32_t right = 0; right < size; ++right) {
      if (vocabulary.tokens[left].empty() || vocabulary.tokens[right].empty()) continue;
      if (!ids.contains(vocabulary.tokens[left] + vocabulary.tokens[right])) continue;
      pairs.insert(pairs.end(), {left, right});
    }
  }
  const auto table = [&] {
    const Exact<uint32_t> exact(pairs);
    return merge_table(vocabulary.list(), {exact.data.get(), exact.size});
  };
  const MergeTable right_one = table();
  check(right_one.error == MergeError::none, "good merges are taken");
  check(right_one.merges.size() == pairs.size() / 2 * 3, "each merge has a result");
  for (size_t i = 0; i < pairs.size() / 2; ++i) {
    const uint32_t* const merge = &right_one.merges[3 * i];
    check(merge[0] == pairs[2 * i] && merge[1] == pairs[2 * i + 1], "merges keep their order");
    check(merge[2] == ids.at(vocabulary.tokens[merge[0]] + vocabulary.tokens[merge[1]]),
          "a merge makes the token of its bytes");
  }
  const size_t rank = pairs.size() / 2;
  if (rank > 0) {
    const size_t again = rng() % rank;
    pairs.insert(pairs.end(), {pairs[2 * again], pairs[2 * again + 1]});
    check(table().error == MergeError::duplicate && table().rank == rank, "a repeat is told");
    pairs.resize(2 * rank);
  }
  const uint32_t outside[] = {size, size + 1, kNone, 1u << 31};
  pairs.insert(pairs.end(), {outside[rng() % 4], outside[rng() % 4]});
  check(table().error == MergeError::no_part && table().rank == rank, "an id outside is told");
}

// What tiktoken makes of a token with the ranks below its own.
std::vector<std::string> merged(const std::map<std::string, uint32_t>& ids,
                                const std::string& token, uint32_t limit) {
  std::vector<std::string> parts;
  for (const char c : token) parts.emplace_back(1, c);
  while (parts.size() > 2) {
    size_t best = 0;
    uint32_t best_id = kNone;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      if (!ids.contains(parts[i]) || !ids.contains(parts[i + 1])) continue;
      const auto found = ids.find(parts[i] + parts[i + 1]);
      if (found == ids.end() || found->second >= std::min(limit, best_id)) continue;
      best = i;
      best_id = found->second;
    }
    if (best_id == kNone) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  return parts;
}

void check_splits(const Vocabulary& vocabulary, bool is_distinct, std::mt19937& rng) {
  const auto ids = first_ids(vocabulary);
  const uint32_t size = static_cast<uint32_t>(vocabulary.tokens.size());
  const uint32_t first = rng() % (size + 2);
  Ids splits, recovered;
  bool has_unreachable = false;
  const auto add_splits = [&](Ids& merges, uint32_t id, bool whole_characters) {
    const std::string& token = vocabulary.tokens[id];
    for (size_t i = 1; i < token.size(); ++i) {
      if (whole_characters && (static_cast<uint8_t>(token[i]) & 0xC0) == 0x80) continue;
      const auto left = ids.find(token.substr(0, i)), right = ids.find(token.substr(i));
      if (left == ids.end() || right == ids.end()) continue;
      merges.insert(merges.end(), {left->second, right->second, id});
    }
  };
  for (uint32_t id = 0; id < size; ++id) {
    if (id >= first) add_splits(splits, id, true);
    if (vocabulary.tokens[id].size() < 2) continue;
    const auto parts = merged(ids, vocabulary.tokens[id], id);
    if (parts.size() == 2 && ids.contains(parts[0]) && ids.contains(parts[1])) {
      recovered.insert(recovered.end(), {ids.at(parts[0]), ids.at(parts[1]), id});
    } else {
      has_unreachable = true;
      add_splits(recovered, id, false);
    }
  }
  const Ids found_splits = all_splits(vocabulary.list(), first);
  const RecoveredMerges found = recover_merges(vocabulary.list());
  // Of equal tokens, any may be named.
  if (!is_distinct) return;
  check(found_splits == splits, "all splits between characters are found");
  check(found.merges == recovered, "ranks give tiktoken's merges");
  check(found.has_unreachable == has_unreachable, "tokens out of reach are told");
}

// Each token is a letter more than the one before, on one side: long ones merge from its other end.
void check_chains(std::mt19937& rng) {
  for (const bool grows_left : {false, true}) {
    std::vector<std::string> tokens;
    for (int i = 0; i < 60; ++i) tokens.emplace_back(1, static_cast<char>(40 + i));
    std::string token = tokens[0];
    for (int i = 1; i < 60; ++i) {
      token = grows_left ? tokens[i] + token : token + tokens[i];
      tokens.push_back(token);
    }
    check_splits(Vocabulary(tokens), true, rng);
  }
}

// ---- rank files ----

std::string base64(const std::string& bytes) {
  const char* const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) {
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0);
    }
    for (size_t k = 0; k < 4; ++k) {
      text += i + k <= bytes.size() ? digits[bits >> (18 - 6 * k) & 63] : '=';
    }
  }
  return text;
}

RankFile parsed(const std::string& file, size_t max_tokens) {
  const Exact<char> exact(file);
  RankFile ranks = parse_ranks({exact.data.get(), exact.size}, max_tokens);
  if (ranks.is_right) {
    const auto& offsets = ranks.token_offsets;
    check(offsets.front() == 0 && offsets.back() == ranks.token_bytes.size() &&
              std::is_sorted(offsets.begin(), offsets.end()) && offsets.size() - 1 <= max_tokens,
          "the offsets are those of the bytes");
  }
  return ranks;
}

void check_rank_file(std::mt19937& rng) {
  std::vector<std::string> tokens(1 + rng() % 20);
  std::vector<size_t> order(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    order[i] = i;
    if (rng() % 8 == 0 && i + 1 < tokens.size()) continue;  // a hole
    for (size_t k = 1 + rng() % 9; k > 0; --k) tokens[i] += static_cast<char>(rng());
  }
  if (rng() % 2) std::shuffle(order.begin(), order.end(), rng);
  std::string file;
  for (const size_t i : order) {
    if (tokens[i].empty()) continue;
    file += base64(tokens[i]) + ' ' + std::to_string(i) + (rng() % 4 ? "\n" : "\r\n");
    if (rng() % 9 == 0) file += '\n';
  }
  const RankFile ranks = parsed(file, 1000);
  check(ranks.is_right && ranks.token_bytes == Vocabulary::joined(tokens) &&
            ranks.token_offsets == Vocabulary::places(tokens),
        "a good file gives its tokens");
  check(!parsed(file, tokens.size() - 1).is_right, "a rank out of range is refused");
  check(!parsed(file + base64(tokens.back()) + ' ' + std::to_string(tokens.size() - 1), 1000)
             .is_right,
        "a rank that is there twice is refused");

  for (size_t size = 0; size < file.size(); ++size) parsed(file.substr(0, size), 1000);
  const std::string junk("= \n\r\0A/9-\xff", 10);
  for (int i = 0; i < 40; ++i) {
    std::string damaged = file;
    for (size_t k = 1 + rng() % 3; k > 0; --k) {
      damaged[rng() % damaged.size()] =
          rng() % 2 ? junk[rng() % junk.size()] : static_cast<char>(rng());
    }
    parsed(damaged, 1000);
  }
}

void check_bad_lines() {
  for (const std::string line :
       {"", "\n\n", "IQ==", "IQ== ", " 0", "IQ==  0", "IQ 0", "I=== 0", "==== 0", "IQ=A 0",
        "I Q==", "IQ== -1", "IQ== 1x", "IQ== 9999999999", "IQ== 18446744073709551616", "IQ== 0 0",
        "!!!! 0", "\xff\xff\xff\xff 0"}) {
    check(!parsed(line, 1000).is_right, "a line of another form is refused");
    check(!parsed("IQ== 5\n" + line + "\nIQ== 5", 1000).is_right, "and so between others");
  }
}

}  // namespace

int main() {
  std::mt19937 rng(1);
  check_bad_lines();
  check_chains(rng);
  for (int round = 0; round < 150; ++round) check_rank_file(rng);
  for (int round = 0; round < 600; ++round) {
    const bool has_duplicates = rng() % 2;
    const Vocabulary vocabulary = random_vocabulary(rng, has_duplicates);
    check_duplicates(vocabulary);
    check_merges(vocabulary, rng);
    check_splits(vocabulary, !has_duplicates, rng);
  }
  std::puts("ok");
}
