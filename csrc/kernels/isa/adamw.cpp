// AdamW over a range of one tensor; see AdamWTensor.
//
// One pass, one element after the other, vectorised by the compiler. Memory per element: 28 bytes
// for float32 (weight, exp_avg, exp_avg_sq read and written, grad read), 2 more written for a
// bfloat16 parameter, 2 fewer read for a bfloat16 gradient. 12 FLOPs, one root, one division:
// bound by memory.
#include <cmath>

#include "lmworks/kernels.h"
#include "lmworks/simd.h"

namespace lmworks::LMWORKS_ISA {
namespace {

template <bool kHasMaster, typename Grad>
void update(float* __restrict weight, uint16_t* __restrict rounded, const Grad* __restrict grad,
            float* __restrict exp_avg, float* __restrict exp_avg_sq, const AdamWScalars s,
            int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float g = to_float(grad[i]) * s.grad_scale;
    const float m = exp_avg[i] + s.one_minus_beta1 * (g - exp_avg[i]);
    const float v = exp_avg_sq[i] * s.beta2 + s.one_minus_beta2 * g * g;
    const float denominator = std::sqrt(v) * s.inv_root_bias2 + s.eps;
    const float w = weight[i] * s.decay_factor - s.step_size * (m / denominator);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    weight[i] = w;
    if constexpr (kHasMaster) from_float(w, rounded + i);
  }
}

template <typename Grad>
void update_range(const AdamWTensor& t, const AdamWScalars& s, int64_t begin, int64_t end) {
  const Grad* grad = static_cast<const Grad*>(t.grad) + begin;
  if (t.rounded == nullptr) {
    update<false>(t.weight + begin, t.rounded, grad, t.exp_avg + begin, t.exp_avg_sq + begin, s,
                  end - begin);
  } else {
    update<true>(t.weight + begin, t.rounded + begin, grad, t.exp_avg + begin, t.exp_avg_sq + begin,
                 s, end - begin);
  }
}

}  // namespace

void adamw_range(const AdamWTensor& tensor, const AdamWScalars& scalars, int64_t begin,
                 int64_t end) {
  if (tensor.grad_dtype == Dtype::float32) {
    update_range<float>(tensor, scalars, begin, end);
  } else {
    update_range<uint16_t>(tensor, scalars, begin, end);
  }
}

}  // namespace lmworks::LMWORKS_ISA
