// Everything in a mixture's experts that is not a matrix product; see ExpertRows.
//
// Rows outside, channels inside, 1 vector at a time. Rows of one expert (a few hundred, 1 MB) stay
// in L2 between the products that write and read them. FLOPs per element: about 20 forward and 30
// backward, nearly all of them the exponential.
#include "lmworks/kernels.h"
#include "lmworks/simd.h"

namespace lmworks::LMWORKS_ISA {
namespace {

struct ValueAndSlope {
  FloatV value, slope;
};

// 1 / (1 + e^-x); the exponential never overflows.
inline FloatV sigmoid(FloatV x) {
  const FloatV small = exp(-abs(x));
  const FloatV reciprocal = 1.0f / (1.0f + small);
  return x < 0.0f ? small * reciprocal : reciprocal;
}

// Standard normal distribution function: Abramowitz & Stegun 7.1.26, absolute error below 1e-7.
inline FloatV normal_below(FloatV x) {
  const FloatV z = abs(x) * 0.70710678f;
  const FloatV t = 1.0f / (1.0f + 0.3275911f * z);
  FloatV p = t * 1.061405429f - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const FloatV tail = 0.5f * p * t * exp(-z * z);
  return x < 0.0f ? tail : 1.0f - tail;
}

// kSlope false: the slope is not computed.
template <Activation kActivation, bool kSlope>
inline ValueAndSlope bend(FloatV x) {
  const FloatV zero = splat(0.0f), one = splat(1.0f);
  if constexpr (kActivation == Activation::identity) {
    return {x, one};
  } else if constexpr (kActivation == Activation::relu) {
    return {x > 0.0f ? x : zero, x > 0.0f ? one : zero};
  } else if constexpr (kActivation == Activation::relu2) {
    const FloatV positive = x > 0.0f ? x : zero;
    return {positive * positive, 2.0f * positive};
  } else if constexpr (kActivation == Activation::sigmoid) {
    const FloatV s = sigmoid(x);
    return {s, s * (1.0f - s)};
  } else if constexpr (kActivation == Activation::silu) {
    const FloatV s = sigmoid(x);
    return {x * s, s * (1.0f + x * (1.0f - s))};
  } else if constexpr (kActivation == Activation::gelu) {
    const FloatV below = normal_below(x);
    if constexpr (!kSlope) return {x * below, zero};
    return {x * below, below + x * 0.39894228f * exp(-0.5f * x * x)};
  } else {
    static_assert(kActivation == Activation::gelu_tanh);
    constexpr float kScale = 0.79788456f, kCubic = 0.044715f;
    const FloatV square = x * x;
    const FloatV t = tanh(kScale * x * (1.0f + kCubic * square));
    const FloatV half = 0.5f * (1.0f + t);
    return {x * half, half + 0.5f * x * (1.0f - t * t) * kScale * (1.0f + 3 * kCubic * square)};
  }
}

// Calls body(offset, load function, store function) for whole vectors and for the rest of a row.
template <typename Body>
inline void over_row(int64_t size, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    body([i](const auto* p) { return load(p + i); }, [i](auto* p, FloatV x) { store(p + i, x); });
  }
  if (i == size) return;
  const int64_t left = size - i;
  body([i, left](const auto* p) { return load_partial(p + i, left, 0.0f); },
       [i, left](auto* p, FloatV x) { store_partial(p + i, x, left); });
}

template <typename T, Activation kActivation, bool kGated>
void activate(const ExpertRows& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * a.d_ff;
    const T* gate = kGated ? static_cast<const T*>(a.gate) + at : nullptr;
    const T* up = static_cast<const T*>(a.up) + at;
    T* hidden = static_cast<T*>(a.hidden) + at;
    over_row(a.d_ff, [&](auto get, auto put) {
      if constexpr (kGated) {
        put(hidden, bend<kActivation, false>(get(gate)).value * get(up));
      } else {
        put(hidden, bend<kActivation, false>(get(up)).value);
      }
    });
  }
}

template <typename T, Activation kActivation, bool kGated>
void activate_backward(const ExpertRows& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * a.d_ff;
    const T* gate = kGated ? static_cast<const T*>(a.gate) + at : nullptr;
    const T* up = static_cast<const T*>(a.up) + at;
    const T* grad = static_cast<const T*>(a.grad) + at;
    T* hidden = static_cast<T*>(a.hidden) + at;
    T* grad_gate = kGated ? static_cast<T*>(a.grad_gate) + at : nullptr;
    T* grad_up = static_cast<T*>(a.grad_up) + at;
    const float weight = a.weights[row];
    FloatV sum = splat(0.0f);
    over_row(a.d_ff, [&](auto get, auto put) {
      const FloatV g = get(grad), linear = get(up);
      if constexpr (kGated) {
        const ValueAndSlope bent = bend<kActivation, true>(get(gate));
        const FloatV product = bent.value * linear;
        sum = sum + g * product;
        put(hidden, weight * product);
        put(grad_up, weight * g * bent.value);
        put(grad_gate, weight * g * linear * bent.slope);
      } else {
        const ValueAndSlope bent = bend<kActivation, true>(linear);
        sum = sum + g * bent.value;
        put(hidden, weight * bent.value);
        put(grad_up, weight * g * bent.slope);
      }
    });
    a.grad_weights[row] = static_cast<float>(sum_lanes(sum));
  }
}

template <typename T>
void add_rows(const ExpertRows& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* from = static_cast<const T*>(a.result) + row * a.d_model;
    float* to = a.sums + a.tokens[row] * a.d_model;
    const float weight = a.weights == nullptr ? 1.0f : a.weights[row];
    over_row(a.d_model, [&](auto get, auto put) { put(to, get(to) + weight * get(from)); });
  }
}

template <typename T, Activation kActivation>
void pass(const ExpertRows& a, bool is_backward, int64_t begin, int64_t end) {
  if (a.gate != nullptr) {
    is_backward ? activate_backward<T, kActivation, true>(a, begin, end)
                : activate<T, kActivation, true>(a, begin, end);
  } else {
    is_backward ? activate_backward<T, kActivation, false>(a, begin, end)
                : activate<T, kActivation, false>(a, begin, end);
  }
}

template <typename T>
void pass(const ExpertRows& a, bool is_backward, int64_t begin, int64_t end) {
  switch (a.activation) {
    case Activation::identity:
      return pass<T, Activation::identity>(a, is_backward, begin, end);
    case Activation::relu:
      return pass<T, Activation::relu>(a, is_backward, begin, end);
    case Activation::relu2:
      return pass<T, Activation::relu2>(a, is_backward, begin, end);
    case Activation::sigmoid:
      return pass<T, Activation::sigmoid>(a, is_backward, begin, end);
    case Activation::silu:
      return pass<T, Activation::silu>(a, is_backward, begin, end);
    case Activation::gelu:
      return pass<T, Activation::gelu>(a, is_backward, begin, end);
    case Activation::gelu_tanh:
      return pass<T, Activation::gelu_tanh>(a, is_backward, begin, end);
  }
}

}  // namespace

void expert_activation(const ExpertRows& args, bool is_backward, int64_t begin, int64_t end) {
  args.dtype == Dtype::float32 ? pass<float>(args, is_backward, begin, end)
                               : pass<uint16_t>(args, is_backward, begin, end);
}

void expert_add_rows(const ExpertRows& args, int64_t begin, int64_t end) {
  args.dtype == Dtype::float32 ? add_rows<float>(args, begin, end)
                               : add_rows<uint16_t>(args, begin, end);
}

}  // namespace lmworks::LMWORKS_ISA
