#pragma once
// A growing array of token ids. Not a std::vector: growing must neither zero nor copy, and large
// ones take pages of 2 MiB, because touching a fresh page costs more than filling it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace lmworks {

class TokenBuffer {
 public:
  TokenBuffer() = default;
  TokenBuffer(const TokenBuffer&) = delete;
  TokenBuffer& operator=(const TokenBuffer&) = delete;
  TokenBuffer(TokenBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  TokenBuffer& operator=(TokenBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~TokenBuffer();

  uint32_t* data() { return data_; }
  const uint32_t* data() const { return data_; }
  size_t size() const { return size_; }
  // Room for `count` more ids; returns where they go. Throws std::bad_alloc.
  uint32_t* reserve(size_t count) {
    if (capacity_ - size_ < count) resize(std::max(capacity_ + capacity_ / 2, size_ + count));
    return data_ + size_;
  }
  void advance_to(const uint32_t* end) { size_ = static_cast<size_t>(end - data_); }
  void push(uint32_t id) { *reserve(1) = id, ++size_; }
  void clear() { size_ = 0; }
  void shrink_to_fit() {
    if (size_ != 0) resize(size_);
  }

 private:
  // To a capacity of at least `count` >= size(), not 0.
  void resize(size_t count);

  uint32_t* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;  // of many ids: the memory is a mapping of its own
};

}  // namespace lmworks
