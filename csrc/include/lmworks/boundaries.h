#pragma once
// Piece borders of a stretch of text at once, as bits: what next_piece finds one by one.
//
// Sixty-four bytes become one word of bits per character class (AVX-512 or AVX2; characters that
// are not ASCII are filled in one by one). Where pieces start then follows from shifts and ands of
// these words, the same few instructions for any text, so that word lengths cost no mispredicted
// branches. What bits express badly (contractions; o200k's words that mix cased and caseless
// letters) is set right afterwards. Patterns without such rules, and text without a place to cut
// it, go through next_piece. The results are equal on every input: tests/unit/tokenizer/
// test_pretokenize.py.
#include <cstddef>
#include <cstdint>

#include "lmworks/pretokenize.h"

namespace lmworks {

constexpr size_t kScanBytes = 8192;
constexpr int64_t kMaxPieceBytes = 0xFFFFFFF0;  // positions inside a piece are 32-bit
// Room for the ends of one call's pieces: at most one per byte, and whole words of bits are
// written.
constexpr size_t kMaxScanPieces = kScanBytes + 64;

// Finds the pieces that start at `p`: writes their ends, as offsets from `p`, and returns how many
// (at least one, p < end). Together they cover about kScanBytes bytes or one longer piece.
size_t scan_pieces(Pattern pattern, const uint8_t* p, const uint8_t* end, uint32_t* ends);

}  // namespace lmworks
