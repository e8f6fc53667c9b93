#include "char_rules.h"

#include <algorithm>

namespace lmworks {
namespace {

void set_bit(std::vector<uint64_t>& words, size_t i) { words[i / 64] |= uint64_t{1} << i % 64; }

uint32_t pack_char(const uint8_t* p, size_t size) {
  uint32_t packed = 0;
  for (size_t i = 0; i < size; ++i) packed = packed << 8 | p[i];
  return packed;
}

const uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

std::string_view last_char(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && is_inner_byte(bytes_of(text)[begin])) --begin;
  return text.substr(begin);
}

std::string_view first_char(std::string_view text) {
  size_t size = 1;
  while (size < text.size() && is_inner_byte(bytes_of(text)[size])) ++size;
  return text.substr(0, size);
}

bool is_whole(std::string_view one_char) {
  return !is_inner_byte(bytes_of(one_char)[0]) &&
         one_char.size() == utf8_size(bytes_of(one_char)[0]);
}

size_t put_utf8(uint32_t code_point, uint8_t* bytes) {
  if (code_point < 0x800) {
    bytes[0] = static_cast<uint8_t>(0xC0 | code_point >> 6);
    bytes[1] = static_cast<uint8_t>(0x80 | (code_point & 63));
    return 2;
  }
  bytes[0] = static_cast<uint8_t>(0xE0 | code_point >> 12);
  bytes[1] = static_cast<uint8_t>(0x80 | (code_point >> 6 & 63));
  bytes[2] = static_cast<uint8_t>(0x80 | (code_point & 63));
  return 3;
}

}  // namespace

// The lowest rank of any merge across a border, by what it takes along on one side: a whole
// character, its first bytes or its last ones.
struct CharRules::CrossingRanks {
  std::vector<uint32_t> whole, before_2_bytes_after_ascii, before_2_bytes, after_2_bytes;
  uint32_t before_byte_after_ascii[256], before_byte[256], after_byte[256];

  CrossingRanks()
      : whole(kMaxSeeds, kNoMerge),
        before_2_bytes_after_ascii(kMaxSeeds, kNoMerge),
        before_2_bytes(kMaxSeeds, kNoMerge),
        after_2_bytes(kMaxSeeds, kNoMerge) {
    for (auto* ranks : {before_byte_after_ascii, before_byte, after_byte}) {
      std::fill_n(ranks, 256, kNoMerge);
    }
  }

  static void lower(uint32_t& rank, uint32_t to) { rank = std::min(rank, to); }

  void add(std::string_view left, std::string_view right, uint32_t rank) {
    const std::string_view l = last_char(left), r = first_char(right);
    const bool is_after_ascii = bytes_of(l)[l.size() - 1] < 0x80;
    add_whole(l, rank);
    add_whole(r, rank);
    if (is_inner_byte(bytes_of(l)[0])) {
      if (l.size() == 1) lower(after_byte[bytes_of(l)[0]], rank);
      if (l.size() == 2) lower(after_2_bytes[pack_char(bytes_of(l), 2)], rank);
    }
    if (r.size() < utf8_size(bytes_of(r)[0])) {
      if (r.size() == 1) {
        lower((is_after_ascii ? before_byte_after_ascii : before_byte)[bytes_of(r)[0]], rank);
      } else if (r.size() == 2) {
        auto& ranks = is_after_ascii ? before_2_bytes_after_ascii : before_2_bytes;
        lower(ranks[pack_char(bytes_of(r), 2)], rank);
      }
    }
  }

  void add_whole(std::string_view one_char, uint32_t rank) {
    const uint8_t* const p = bytes_of(one_char);
    const CodePoint c = decode_utf8(p, p + one_char.size());
    if (c.size == one_char.size() && c.value < kMaxSeeds) lower(whole[c.value], rank);
  }

  // The lowest rank that takes along the character of these bytes, or a part of it.
  uint32_t of(uint32_t code_point, const uint8_t* bytes, size_t size, bool is_after_ascii) const {
    uint32_t rank = std::min(whole[code_point], after_byte[bytes[size - 1]]);
    lower(rank, (is_after_ascii ? before_byte_after_ascii : before_byte)[bytes[0]]);
    if (size == 3) {
      lower(rank, after_2_bytes[pack_char(bytes + 1, 2)]);
      lower(rank,
            (is_after_ascii ? before_2_bytes_after_ascii : before_2_bytes)[pack_char(bytes, 2)]);
    }
    return rank;
  }
};

CharRules::CharRules(const BpeModel& model, std::span<const uint32_t> merges)
    : pairs_(kPairBits / 64), bytes_((1 << 16) / 64), seeds_(kMaxSeeds), is_safe_(kMaxSeeds) {
  CrossingRanks crossing;
  for (size_t i = 0; i < merges.size(); i += 3) {
    const std::string_view left = model.token(merges[i]), right = model.token(merges[i + 1]);
    if (is_inner_byte(bytes_of(right)[0])) continue;  // inside of a character
    add_border(left, right);
    crossing.add(left, right, model.rank(static_cast<uint32_t>(i / 3)));
  }
  for (uint32_t code_point = 0x80; code_point < kMaxSeeds; ++code_point) {
    if (code_point < 0xD800 || code_point >= 0xE000) add_seed(model, code_point, crossing);
  }
}

void CharRules::add_border(std::string_view left, std::string_view right) {
  const std::string_view l = last_char(left), r = first_char(right);
  if (is_whole(l) && is_whole(r) && (l.size() > 1 || r.size() > 1)) {
    set_bit(pairs_, hash(pack_char(bytes_of(l), l.size()), pack_char(bytes_of(r), r.size())));
  } else {
    set_bit(bytes_, bytes_of(l)[l.size() - 1] << 8 | bytes_of(r)[0]);
  }
}

void CharRules::add_seed(const BpeModel& model, uint32_t code_point,
                         const CrossingRanks& crossing) {
  uint8_t bytes[3];
  size_t count = put_utf8(code_point, bytes);
  const size_t size = count;
  uint32_t tokens[3] = {kNoToken, kNoToken, kNoToken};
  for (size_t i = 0; i < size; ++i) tokens[i] = model.byte_token(bytes[i]);
  // The highest rank used, plus one; a rank across the border must not be lower.
  uint32_t needed = 0;
  while (count > 1) {
    const uint32_t first = model.merge_of(tokens[0], tokens[1]);
    const uint32_t second = count > 2 ? model.merge_of(tokens[1], tokens[2]) : kNoMerge;
    const size_t at = model.rank(first) <= model.rank(second) ? 0 : 1;
    const uint32_t merge = at == 0 ? first : second;
    if (merge == kNoMerge) break;
    needed = std::max(needed, model.rank(merge) + 1);
    tokens[at] = model.result_of(merge);
    if (at == 0) tokens[1] = tokens[2];
    tokens[--count] = kNoToken;
  }
  std::copy_n(tokens, 3, seeds_[code_point].tokens);
  for (const bool is_after_ascii : {false, true}) {
    if (crossing.of(code_point, bytes, size, is_after_ascii) < needed) continue;
    is_safe_[code_point] |= is_after_ascii ? kSafeAfterAscii : kSafeAfterOther;
  }
}

}  // namespace lmworks
