#include "lmworks/unicode.h"

#include <cstring>

namespace lmworks {

size_t utf8_error_offset(const uint8_t* text, size_t size) {
  const uint8_t* p = text;
  const uint8_t* const end = text + size;
  while (p < end) {
    uint64_t word;
    while (end - p >= 8) {  // eight ASCII bytes at a time
      std::memcpy(&word, p, 8);
      if (word & 0x8080808080808080ull) break;
      p += 8;
    }
    if (p >= end) break;
    const CodePoint c = decode_utf8(p, end);
    if (c.size == 0) return p - text;
    p += c.size;
  }
  return size;
}

}  // namespace lmworks
