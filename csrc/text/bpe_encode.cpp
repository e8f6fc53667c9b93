// The piece cache and the encoding loop around it.
//
// The borders of some thousand pieces are found at once (boundaries.h). Then per piece: its bytes
// are packed into a key and its slot is prefetched; a batch of pieces later the slot is read. The
// tables are larger than the L2 cache, so the loads of a batch overlap instead of waiting for each
// other.
#include "lmworks/bpe_encode.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "char_rules.h"
#include "lmworks/boundaries.h"

namespace lmworks {

namespace {

constexpr size_t kMaxShort = ShortTable::Key::kMaxBytes, kMaxMiddle = MiddleTable::Key::kMaxBytes;
// Pieces of 16..31 bytes are rarer than shorter ones, longer ones are rare.
constexpr size_t kMiddleShare = 4;
constexpr size_t kBatch = 128;
using Place = uint16_t;  // of a piece in its batch

// Chinese and Japanese write no blanks: their pieces are long, and most are seen once.
bool is_unspaced(const uint8_t* piece) {
  const uint8_t first = piece[*piece == ' '];  // pieces of a blank alone do not come here
  return first >= 0xE3 && first <= 0xE9;
}

// Pieces of 32..255 bytes: rules, indentation, long names. Longer ones are merged each time.
class LongTable {
 public:
  static constexpr size_t kMaxBytes = 255;
  explicit LongTable(size_t max_slots) : slots_(kFirstSlots), max_slots_(max_slots) {}

  // The ids of the piece, or nothing.
  std::span<const uint32_t> find(const uint8_t* piece, size_t size, uint64_t hash) const {
    for (size_t i = hash & mask(); slots_[i].size != 0; i = (i + 1) & mask()) {
      const Slot& slot = slots_[i];
      if (slot.hash != hash || slot.size != size) continue;
      if (std::memcmp(&bytes_[slot.bytes_at], piece, size) != 0) continue;
      return {tokens_.data() + slot.tokens_at, slot.count};
    }
    return {};
  }

  void insert(const uint8_t* piece, size_t size, uint64_t hash, const uint32_t* ids, size_t count) {
    if (2 * (used_ + 1) > slots_.size()) grow();
    place({hash, static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(size),
           static_cast<uint32_t>(tokens_.size()), static_cast<uint32_t>(count)});
    bytes_.insert(bytes_.end(), piece, piece + size);
    tokens_.insert(tokens_.end(), ids, ids + count);
  }

  static uint64_t hash(const uint8_t* p, size_t size) {
    uint64_t h = size;
    const auto add = [&](const uint8_t* at) {
      uint64_t word;
      std::memcpy(&word, at, 8);
      h = (h ^ word) * 0x9E3779B97F4A7C15u;
      h ^= h >> 32;
    };
    for (size_t i = 0; i + 8 <= size; i += 8) add(p + i);
    add(p + size - 8);
    return h;
  }

 private:
  struct Slot {
    uint64_t hash;
    uint32_t bytes_at, size, tokens_at, count;  // size 0: empty slot
  };
  static constexpr size_t kFirstSlots = size_t{1} << 8;

  size_t mask() const { return slots_.size() - 1; }

  void place(const Slot& slot) {
    size_t i = slot.hash & mask();
    while (slots_[i].size != 0) i = (i + 1) & mask();
    slots_[i] = slot;
    ++used_;
  }

  void grow() {
    used_ = 0;
    if (slots_.size() >= max_slots_) {
      std::fill(slots_.begin(), slots_.end(), Slot{});
      bytes_.clear();
      tokens_.clear();
      return;
    }
    const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(4 * slots_.size()));
    for (const Slot& slot : old) {
      if (slot.size != 0) place(slot);
    }
  }

  std::vector<Slot> slots_;
  size_t used_ = 0, max_slots_;
  std::vector<uint8_t> bytes_;
  std::vector<uint32_t> tokens_;
};

}  // namespace

struct PieceCache::State {
  explicit State(size_t max_slots)
      : shorts(max_slots), middles(max_slots / kMiddleShare), longs(max_slots / 16) {}

  // Encodes pieces one after another; `next_ends(p)` gives the ends of the pieces from p on.
  template <class NextEnds>
  void encode(const BpeModel& model, const uint8_t* text, size_t size, TokenBuffer& out,
              NextEnds next_ends);
  void encode_batch(const BpeModel& model, const uint8_t* p, const uint8_t* text_end,
                    std::span<const uint32_t> ends, TokenBuffer& out);
  // A piece of any size; `at` has room for one id per byte and some more.
  uint32_t* encode_whole(const BpeModel& model, const uint8_t* piece, size_t size, size_t readable,
                         uint32_t* at);
  // The same, cut where no token can cross.
  uint32_t* encode_parts(const BpeModel& model, const uint8_t* piece, size_t size, size_t readable,
                         uint32_t* at);
  template <class Table>
  uint32_t* look_up(const BpeModel& model, Table& table, const Table& known,
                    const typename Table::Key& key, uint64_t hash, uint32_t* at);
  template <class Table>
  uint32_t* add(const BpeModel& model, Table& table, const Table& known,
                const typename Table::Key& key, uint64_t hash, uint32_t* at);
  uint32_t* encode_long(const BpeModel& model, const uint8_t* piece, size_t size, uint32_t* at);
  // Adds those of the pieces that are new. Keys of 0 are none.
  void add_shorts(const BpeModel& model, std::span<const ShortTable::Key> keys,
                  const uint64_t* hashes);

  ShortTable shorts;
  MiddleTable middles;
  LongTable longs;
  MergeScratch scratch;
  size_t num_added = 0;  // pieces that the last batch had to add
  uint32_t ends[kMaxScanPieces];
};

// The same as scan_pieces for text that has no pattern.
size_t cut_parts(const BpeModel& model, const uint8_t* p, const uint8_t* end, uint32_t* ends) {
  size_t count = 0;
  for (const uint8_t* q = p; q < end && static_cast<size_t>(q - p) < kScanBytes;) {
    q = model.has_borders() ? model.chars().part_end(q, end) : end;
    if (q - p > kMaxPieceBytes) {
      if (count == 0) throw std::length_error("a piece of text of 4 GiB or more");
      break;
    }
    ends[count++] = static_cast<uint32_t>(q - p);
  }
  return count;
}

PieceCache::PieceCache(size_t max_slots) : state_(std::make_unique<State>(max_slots)) {}
PieceCache::~PieceCache() = default;

template <class Table>
inline uint32_t* PieceCache::State::look_up(const BpeModel& model, Table& table, const Table& known,
                                            const typename Table::Key& key, uint64_t hash,
                                            uint32_t* at) {
  if (const auto* const slot = table.find(key, hash)) [[likely]]
    return table.write(*slot, at);
  return add(model, table, known, key, hash, at);
}

template <class Table>
[[gnu::noinline]] uint32_t* PieceCache::State::add(const BpeModel& model, Table& table,
                                                   const Table& known,
                                                   const typename Table::Key& key, uint64_t hash,
                                                   uint32_t* at) {
  ++num_added;
  const typename Table::Slot* token = nullptr;
  if (!std::is_same_v<Table, ShortTable> || model.may_know(hash)) token = known.find(key, hash);
  uint32_t* const end = token != nullptr
                            ? known.write(*token, at)
                            : at + model.encode_piece(key.bytes(), key.size(), at, scratch);
  table.insert(key, hash, at, end - at);
  return end;
}

// Merging waits for memory at each step, so the new pieces of a batch are merged together.
void PieceCache::State::add_shorts(const BpeModel& model, std::span<const ShortTable::Key> keys,
                                   const uint64_t* hashes) {
  Place missing[kBatch];
  size_t num_missing = 0;
  for (size_t k = 0; k < keys.size(); ++k) {
    missing[num_missing] = static_cast<Place>(k);
    num_missing += !(shorts.slot_of(hashes[k]).key == keys[k]);
  }
  const ShortTable& known = model.known_shorts();
  size_t num_new = 0;
  for (const Place k : std::span(missing, num_missing)) {
    if (shorts.find(keys[k], hashes[k]) != nullptr) continue;
    missing[num_new++] = k;  // some may be the same
    if (model.may_know(hashes[k])) known.prefetch(hashes[k]);
  }
  num_added += num_new;
  for (size_t next = 0; next < num_new;) {
    ShortTable::Key pieces[BpeModel::kMaxAtOnce];
    Place places[BpeModel::kMaxAtOnce];
    ShortMerge merges[BpeModel::kMaxAtOnce];
    size_t count = 0;
    for (; count < BpeModel::kMaxAtOnce && next < num_new; ++next) {
      const Place k = missing[next];
      const uint64_t hash = hashes[k];
      const ShortTable::Slot* const token =
          model.may_know(hash) ? known.find(keys[k], hash) : nullptr;
      if (token == nullptr) {
        places[count] = k;
        pieces[count++] = keys[k];
      } else if (shorts.find(keys[k], hash) == nullptr) {
        uint32_t ids[ShortMerge::kMaxIds + 1];
        shorts.insert(keys[k], hash, ids, known.write(*token, ids) - ids);
      }
    }
    model.encode_shorts({pieces, count}, merges, scratch);
    for (size_t i = 0; i < count; ++i) {
      const uint64_t hash = hashes[places[i]];
      if (shorts.find(pieces[i], hash) != nullptr) continue;  // twice in the batch
      shorts.insert(pieces[i], hash, merges[i].symbols, merges[i].count);
    }
  }
}

uint32_t* PieceCache::State::encode_long(const BpeModel& model, const uint8_t* piece, size_t size,
                                         uint32_t* at) {
  const uint64_t hash = LongTable::hash(piece, size);
  const auto known = longs.find(piece, size, hash);
  if (!known.empty()) return std::copy(known.begin(), known.end(), at);
  const size_t count = model.encode_piece(piece, size, at, scratch);
  if (count != 0) longs.insert(piece, size, hash, at, count);
  return at + count;
}

uint32_t* PieceCache::State::encode_whole(const BpeModel& model, const uint8_t* piece, size_t size,
                                          size_t readable, uint32_t* at) {
  if (size <= kMaxShort) {
    const auto key = pack_piece<2>(piece, size, readable);
    return look_up(model, shorts, model.known_shorts(), key, key.hash(), at);
  }
  if (size <= kMaxMiddle) {
    const auto key = pack_piece<4>(piece, size, readable);
    return look_up(model, middles, model.known_middles(), key, key.hash(), at);
  }
  if (size <= LongTable::kMaxBytes) return encode_long(model, piece, size, at);
  return at + model.encode_piece(piece, size, at, scratch);
}

uint32_t* PieceCache::State::encode_parts(const BpeModel& model, const uint8_t* piece, size_t size,
                                          size_t readable, uint32_t* at) {
  const CharRules& chars = model.chars();
  const uint8_t* const end = piece + size;
  const uint8_t* const readable_end = piece + readable;
  for (const uint8_t* p = piece; p < end;) {
    const uint8_t* const part_end = chars.part_end(p, end);
    const CodePoint c = decode_utf8(p, part_end);
    const bool is_char = c.size == static_cast<size_t>(part_end - p);
    if (is_char && c.value >= 0x80 && c.value < CharRules::kMaxSeeds && !model.has_outputs()) {
      const CharRules::Seed& seed = chars.alone(c.value);
      std::copy_n(seed.tokens, 3, at);
      at += 1 + (seed.tokens[1] != kNoToken) + (seed.tokens[2] != kNoToken);
    } else if (part_end - p <= static_cast<ptrdiff_t>(kMaxMiddle) ||
               (p == piece && part_end == end)) {
      at = encode_whole(model, p, part_end - p, readable_end - p, at);
    } else {
      at += model.encode_piece(p, part_end - p, at, scratch);  // hardly to be seen again
    }
    p = part_end;
  }
  return at;
}

void PieceCache::State::encode_batch(const BpeModel& model, const uint8_t* p,
                                     const uint8_t* text_end, std::span<const uint32_t> batch,
                                     TokenBuffer& out) {
  constexpr uint64_t kHighBits = 0x8080808080808080u;
  PieceKey<2> keys[kBatch] = {};
  uint64_t hashes[kBatch] = {};
  const uint8_t* pieces[kBatch + 1];
  Place others[kBatch];  // numbers of the pieces whose keys and hashes do not count
  const bool has_borders = model.has_borders();
  pieces[0] = p;
  // Each piece gets no more ids than bytes, and a table writes a few more.
  uint32_t* at = out.reserve(batch.back() + 16);
  for (size_t first = 0; first < batch.size(); first += kBatch) {
    const size_t count = std::min(kBatch, batch.size() - first);
    size_t num_others = 0;
    for (size_t k = 0; k < count; ++k) {
      const uint8_t* const piece = pieces[k];
      pieces[k + 1] = p + batch[first + k];
      const size_t size = pieces[k + 1] - piece, readable = text_end - piece;
      if (size <= kMaxShort) [[likely]] {
        const PieceKey<2> key = pack_piece<2>(piece, size, readable);
        if (((key.word[0] | key.word[1]) & kHighBits) == 0 || !has_borders || size <= 3 ||
            !is_unspaced(piece)) [[likely]] {
          keys[k] = key;
          hashes[k] = key.hash();
          shorts.prefetch(hashes[k]);
          continue;
        }
      } else if (size <= kMaxMiddle) {
        hashes[k] = pack_piece<4>(piece, size, readable).hash();
        middles.prefetch(hashes[k]);
      }
      keys[k] = {};
      others[num_others++] = static_cast<Place>(k);
    }
    if (num_added != 0) {
      num_added = 0;
      add_shorts(model, {keys, count}, hashes);
    }
    size_t k = 0;
    for (size_t i = 0; i <= num_others; ++i, ++k) {
      const size_t next_other = i < num_others ? others[i] : count;
      for (; k < next_other; ++k) {
        const ShortTable::Slot& slot = shorts.slot_of(hashes[k]);
        at = slot.key == keys[k]
                 ? shorts.write(slot, at)
                 : look_up(model, shorts, model.known_shorts(), keys[k], hashes[k], at);
      }
      if (k == count) break;
      const size_t size = pieces[k + 1] - pieces[k], readable = text_end - pieces[k];
      if (has_borders && (size > kMaxMiddle || is_unspaced(pieces[k]))) {
        at = encode_parts(model, pieces[k], size, readable, at);
      } else {
        at = encode_whole(model, pieces[k], size, readable, at);
      }
    }
    pieces[0] = pieces[count];
  }
  out.advance_to(at);
}

template <class NextEnds>
void PieceCache::State::encode(const BpeModel& model, const uint8_t* text, size_t size,
                               TokenBuffer& out, NextEnds next_ends) {
  const uint8_t* const end = text + size;
  for (const uint8_t* p = text; p < end;) {
    const std::span<const uint32_t> found = next_ends(p);
    encode_batch(model, p, end, found, out);
    p += found.back();
  }
}

void PieceCache::encode(const BpeModel& model, const uint8_t* text, size_t size, TokenBuffer& out) {
  State& state = *state_;
  const uint8_t* const end = text + size;
  if (!model.pattern()) {
    state.encode(model, text, size, out, [&](const uint8_t* p) {
      return std::span<const uint32_t>(state.ends, cut_parts(model, p, end, state.ends));
    });
    return;
  }
  state.encode(model, text, size, out, [&](const uint8_t* p) {
    return std::span<const uint32_t>(state.ends, scan_pieces(*model.pattern(), p, end, state.ends));
  });
}

void PieceCache::encode_cut(const BpeModel& model, const uint8_t* text,
                            std::span<const uint64_t> ends, TokenBuffer& out) {
  State& state = *state_;
  size_t next = 0;
  state.encode(model, text, ends.empty() ? 0 : ends.back(), out, [&](const uint8_t* p) {
    const uint64_t begin = p - text;
    size_t count = 0;
    for (; count < kMaxScanPieces && next < ends.size(); ++next) {
      if (ends[next] - begin > kMaxPieceBytes) break;
      state.ends[count++] = static_cast<uint32_t>(ends[next] - begin);
    }
    if (count == 0) throw std::length_error("a piece of text of 4 GiB or more");
    return std::span<const uint32_t>(state.ends, count);
  });
}

uint32_t encode(const BpeModel& model, const SpecialQuery& query,
                std::span<const uint32_t> special_ids, PieceCache& cache, const uint8_t* text,
                size_t size, TokenBuffer& out) {
  const uint32_t forbidden = query.find_forbidden(text, size);
  if (forbidden != kNoToken) return forbidden;
  query.split(text, size, [&](const SpecialSegment& segment) {
    if (segment.index == kNoToken) {
      cache.encode(model, text + segment.begin, segment.end - segment.begin, out);
    } else {
      out.push(special_ids[segment.index]);
    }
  });
  return kNoToken;
}

}  // namespace lmworks
