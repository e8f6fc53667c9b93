// Sum of squares of one chunk, in double.
//
// One pass; squares of float32 lanes are widened before they are added, so the result is exact to
// about 1e-16 times the count. Memory: 4 (2) bytes per float32 (bfloat16) element; 2 FLOPs.
#include "lmworks/kernels.h"
#include "lmworks/simd.h"

namespace lmworks::LMWORKS_ISA {
namespace {

// As many doubles as there are float lanes: two registers.
typedef double DoubleV __attribute__((vector_size(kLanes * 8)));

template <typename T>
double sum_range(const T* x, int64_t count) {
  DoubleV sums[2] = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    for (int u = 0; u < 2; ++u) {
      const DoubleV wide = __builtin_convertvector(load(x + i + u * kLanes), DoubleV);
      sums[u] += wide * wide;
    }
  }
  double total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += sums[0][lane] + sums[1][lane];
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
