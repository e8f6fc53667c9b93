// Sum of squares of one chunk.
//
// One pass: squares add up in float32 lanes over blocks of 4,096 (64 or fewer additions per lane
// and accumulator, relative error below 4e-6, typically 1e-7), blocks in double. When that leaves
// the range of float32 (elements above 1e19 or all below 1e-15), the chunk is summed again in
// double. Memory: 4 (2) bytes per float32 (bfloat16) element; 2 FLOPs: bound by memory.
#include "lmworks/kernels.h"
#include "lmworks/simd.h"

namespace lmworks::LMWORKS_ISA {
namespace {

constexpr int kUnroll = 4;
constexpr int64_t kStride = kUnroll * kLanes;
constexpr int64_t kBlock = 4096;
constexpr double kSmallest = 1e-30, kLargest = 1e38;

template <typename T>
double sum_exactly(const T* x, int64_t count) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double wide = static_cast<double>(to_float(x[i]));
    total += wide * wide;
  }
  return total;
}

template <typename T>
double sum_range(const T* x, int64_t count) {
  double total = 0;
  int64_t i = 0;
  while (i + kStride <= count) {
    const int64_t end = i + kBlock < count ? i + kBlock : count;
    FloatV sums[kUnroll] = {};
    for (; i + kStride <= end; i += kStride) {
      for (int u = 0; u < kUnroll; ++u) {
        const FloatV values = load(x + i + u * kLanes);
        sums[u] += values * values;
      }
    }
    total += sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
  total += sum_exactly(x + i, count - i);
  return total > kSmallest && total < kLargest ? total : sum_exactly(x, count);
}

}  // namespace

double sum_of_squares(const void* values, Dtype dtype, int64_t count) {
  return dtype == Dtype::float32 ? sum_range(static_cast<const float*>(values), count)
                                 : sum_range(static_cast<const uint16_t*>(values), count);
}

}  // namespace lmworks::LMWORKS_ISA
