// Scanners and BPE trainer without Python, for the sanitizers (tests/integration/
// test_sanitizers.py builds and runs this).
// What the pieces and merges are is tested from Python, against regex and the reference.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>

#include "lmworks/bpe_train.h"

using namespace lmworks;

namespace {

void check(bool condition, const char* claim) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", claim);
  std::exit(1);
}

// Words, white space, digits, marks and broken UTF-8, so that every branch is taken.
std::string random_text(std::mt19937& rng, size_t max_parts) {
  // clang-format off
  static const std::string kParts[] = {
      "a", "B", " ", "\n", "\r", "'", "'s", "'LL", "7", "x y", "é", "ſ", "中", "ʰ", "\u0301", "!",
      "/", "\u00a0", "👍", "\xff", "\xc3", "\xe2\x82", "\xf0\x9f", "<|e|>", "the", "゛",
      "\u3040", "々", "⺀", "\x01", "abcdefghijklmnopqrstuvwxyz"};
  // clang-format on
  std::string text;
  for (size_t n = rng() % (max_parts + 1); n > 0; --n) text += kParts[rng() % std::size(kParts)];
  return text;
}

// A copy of exactly its size on the heap, so that a load past the end is seen.
std::unique_ptr<uint8_t[]> exact_copy(const std::string& text) {
  auto copy = std::make_unique<uint8_t[]>(text.size());
  std::copy(text.begin(), text.end(), copy.get());
  return copy;
}

void pieces_cover_the_text(std::mt19937& rng) {
  for (int i = 0; i < 5000; ++i) {
    const std::string text = random_text(rng, 12);
    const auto copy = exact_copy(text);
    for (const Pattern pattern : kPatterns) {
      const uint8_t* at = copy.get();
      for_each_piece(pattern, copy.get(), text.size(), [&](const uint8_t* p, size_t n) {
        check(p == at && n > 0, "pieces follow each other");
        at = p + n;
      });
      check(at == copy.get() + text.size(), "pieces cover the text");
    }
    check(utf8_error_offset(copy.get(), text.size()) <= text.size(), "offset lies in the text");
  }
}

void merges_do_not_depend_on_threads(std::mt19937& rng) {
  const auto go_on = [](uint64_t, uint64_t) { return true; };
  for (int i = 0; i < 50; ++i) {
    std::vector<std::string> texts(1 + rng() % 8);
    for (std::string& text : texts) text = random_text(rng, 60);
    std::vector<std::unique_ptr<uint8_t[]>> copies;
    std::vector<std::string_view> views;
    for (const std::string& text : texts) {
      copies.push_back(exact_copy(text));
      views.emplace_back(reinterpret_cast<const char*>(copies.back().get()), text.size());
    }
    std::vector<std::vector<Merge>> results;
    for (const unsigned num_threads : {1u, 3u}) {
      BpeTrainer trainer(Pattern::o200k, {"<|e|>", "a"}, num_threads);
      trainer.count_texts(views);
      results.push_back(trainer.train({.max_merges = 100}, go_on));
    }
    check(results[0] == results[1], "merges do not depend on the number of threads");
  }
}

void file_gives_the_merges_of_its_text(std::mt19937& rng, const std::string& path) {
  const auto go_on = [](uint64_t, uint64_t) { return true; };
  std::string text;
  while (text.size() < 5'000'000) text += random_text(rng, 200);
  std::ofstream(path, std::ios::binary) << text;
  BpeTrainer from_file(Pattern::gpt2, {"<|e|>"}, 2), from_text(Pattern::gpt2, {"<|e|>"}, 1);
  check(!from_file.count_file(path, false, go_on).is_valid, "broken UTF-8 is told");
  BpeTrainer fresh(Pattern::gpt2, {"<|e|>"}, 2);
  check(fresh.count_file(path, true, go_on).is_valid, "broken UTF-8 is allowed");
  const std::string_view view = text;
  from_text.count_texts({&view, 1});
  const TrainOptions options{.max_merges = 60};
  check(fresh.train(options, go_on) == from_text.train(options, go_on), "file equals text");
  std::remove(path.c_str());
}

void counts_survive_a_file_and_a_memory_limit(std::mt19937& rng, const std::string& path) {
  const auto go_on = [](uint64_t, uint64_t) { return true; };
  std::vector<std::string> texts(400);
  for (std::string& text : texts) text = random_text(rng, 200);
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  TrainOptions options{.max_merges = 200, .ties = Ties::huggingface, .min_frequency = 2};
  options.max_token_bytes = 9;
  options.seeds = {"seed"};
  BpeTrainer whole(Pattern::cl100k, {"<|e|>"}, 2), from_file(Pattern::cl100k, {"<|e|>"}, 1);
  BpeTrainer limited(Pattern::cl100k, {"<|e|>"}, 2, "",
                     {.max_memory_bytes = 32 << 20, .spill_folder = "."});
  whole.count_texts(views);
  limited.count_texts(views);
  whole.save_counts(path);
  from_file.add_counts(path);
  const auto merges = whole.train(options, go_on);
  check(!merges.empty() && from_file.train(options, go_on) == merges, "counts survive a file");
  check(limited.train(options, go_on) == merges, "a memory limit changes no merge");
  std::remove(path.c_str());
}

}  // namespace

int main() {
  std::mt19937 rng(1);
  pieces_cover_the_text(rng);
  merges_do_not_depend_on_threads(rng);
  file_gives_the_merges_of_its_text(rng, "text_train_test.tmp");
  counts_survive_a_file_and_a_memory_limit(rng, "text_train_test.counts");
  std::puts("ok");
}
