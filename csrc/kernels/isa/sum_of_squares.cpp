// Sum of squares of one chunk, in double.
//
// One pass; squares of float32 lanes are widened before they are added, so the result is exact to
// about 1e-16 times the count. Memory: 4 (2) bytes per float32 (bfloat16) element; 2 FLOPs.
#include "lmworks/kernels.h"
#include "lmworks/simd.h"

namespace lmworks::LMWORKS_ISA {
namespace {

// One register of doubles, and the float lanes that fill it.
typedef double DoubleV __attribute__((vector_size(kLanes * 4)));
typedef float HalfV __attribute__((vector_size(kLanes * 2)));

template <typename T>
double sum_range(const T* x, int64_t count) {
  DoubleV sums[4] = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    for (int u = 0; u < 2; ++u) {
      const FloatV values = load(x + i + u * kLanes);
      HalfV halves[2];
      std::memcpy(halves, &values, sizeof values);
      for (int h = 0; h < 2; ++h) {
        const DoubleV wide = __builtin_convertvector(halves[h], DoubleV);
        sums[2 * u + h] += wide * wide;
      }
    }
  }
  const DoubleV all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  double total = 0;
  for (int lane = 0; lane < kLanes / 2; ++lane) total += all[lane];
  for (; i < count; ++i) {
    const double wide = static_cast<double>(to_float(x[i]));
    total += wide * wide;
  }
  return total;
}

}  // namespace

double sum_of_squares(const void* values, Dtype dtype, int64_t count) {
  return dtype == Dtype::float32 ? sum_range(static_cast<const float*>(values), count)
                                 : sum_range(static_cast<const uint16_t*>(values), count);
}

}  // namespace lmworks::LMWORKS_ISA
