#pragma once
// A vocabulary to start from: symbols, and how its merges cut a word.
#include <algorithm>
#include <cstdint>
#include <queue>
#include <span>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "bpe_train_symbols.h"
#include "lmworks/bpe_train.h"

namespace lmworks {

// Hugging Face numbers bytes in the order of the characters that GPT-2's byte alphabet maps them
// to: printable ones to themselves, the rest behind them.
inline std::string huggingface_byte_order() {
  std::string printable, rest;
  for (int b = 0; b < 256; ++b) {
    const bool is_printable = (b > 32 && b < 127) || (b > 160 && b != 173);
    (is_printable ? printable : rest).push_back(static_cast<char>(b));
  }
  return printable + rest;
}

// Symbols for bytes, then one per merge, and the words that the merges leave.
class StartVocabulary {
 public:
  // `bytes`: symbol -> byte. Throws std::invalid_argument for a merge of unknown tokens.
  StartVocabulary(const std::string& bytes, const std::vector<Merge>& merges) {
    std::fill(std::begin(symbol_of_byte_), std::end(symbol_of_byte_), kDropped);
    for (const char b : bytes) {
      symbol_of_byte_[static_cast<uint8_t>(b)] = add_token(std::string(1, b));
    }
    for (const auto& [left, right] : merges) add_merge(left, right);
  }

  const std::vector<std::string>& tokens() const { return tokens_; }

  // The word as symbols, after all merges; bytes that have no symbol are dropped from it. The
  // result is valid until the next call.
  std::span<const uint32_t> segment(const uint8_t* bytes, size_t size) {
    symbols_.clear();
    for (size_t i = 0; i < size; ++i) {
      if (const uint32_t s = symbol_of_byte_[bytes[i]]; s != kDropped) symbols_.push_back(s);
    }
    if (!rules_.empty()) apply_merges();
    return symbols_;
  }

 private:
  static constexpr uint32_t kDropped = UINT32_MAX;
  static constexpr uint32_t kEnd = UINT32_MAX;
  struct Rule {
    uint32_t rank, merged;
  };
  struct Candidate {
    uint32_t rank, place, left, right;
    bool operator<(const Candidate& other) const {  // the heap gives the greatest first
      return rank != other.rank ? rank > other.rank : place > other.place;
    }
  };

  uint32_t add_token(std::string token) {
    const auto [at, is_new] = symbol_of_.emplace(token, tokens_.size());
    if (is_new) tokens_.push_back(std::move(token));
    return at->second;
  }

  void add_merge(const std::string& left, const std::string& right) {
    const auto a = symbol_of_.find(left), b = symbol_of_.find(right);
    if (a == symbol_of_.end() || b == symbol_of_.end()) {
      throw std::invalid_argument("initial merge " + std::to_string(num_merges_) +
                                  " joins a token that no merge before it makes");
    }
    const uint32_t l = a->second, r = b->second, merged = add_token(left + right);
    const uint32_t index = index_.find_or_insert(PairMap::key(l, r), rules_.size());
    if (index == rules_.size()) rules_.push_back({num_merges_, merged});
    ++num_merges_;
  }

  // Lowest rank first, then leftmost; a heap, so that long words take no quadratic time.
  void apply_merges() {
    const uint32_t size = symbols_.size();
    next_.resize(size);
    previous_.resize(size);
    for (uint32_t i = 0; i < size; ++i) {
      next_[i] = i + 1 < size ? i + 1 : kEnd;
      previous_[i] = i > 0 ? i - 1 : kEnd;
    }
    for (uint32_t i = 0; i + 1 < size; ++i) propose(i);
    while (!heap_.empty()) {
      const Candidate c = heap_.top();
      heap_.pop();
      const uint32_t after = next_[c.place];
      if (symbols_[c.place] != c.left || after == kEnd || symbols_[after] != c.right) continue;
      symbols_[c.place] = rules_[index_.find(PairMap::key(c.left, c.right))].merged;
      symbols_[after] = kDropped;
      next_[c.place] = next_[after];
      if (next_[after] != kEnd) previous_[next_[after]] = c.place;
      if (previous_[c.place] != kEnd) propose(previous_[c.place]);
      propose(c.place);
    }
    std::erase(symbols_, kDropped);
  }

  void propose(uint32_t place) {
    if (next_[place] == kEnd) return;
    const uint32_t left = symbols_[place], right = symbols_[next_[place]];
    const uint32_t index = index_.find(PairMap::key(left, right));
    if (index != PairMap::kNone) heap_.push({rules_[index].rank, place, left, right});
  }

  std::vector<std::string> tokens_;
  std::unordered_map<std::string, uint32_t> symbol_of_;
  uint32_t symbol_of_byte_[256];
  PairMap index_;
  std::vector<Rule> rules_;
  uint32_t num_merges_ = 0;
  std::vector<uint32_t> symbols_, next_, previous_;
  std::priority_queue<Candidate> heap_;
};

}  // namespace lmworks
