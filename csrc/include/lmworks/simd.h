// Short vectors of the instruction set this file is compiled for, on GCC's and Clang's vector
// extensions: one source gives SSE2/NEON, AVX2 and AVX-512 code.
//
// Include only from csrc/kernels/isa (LMWORKS_ISA names the namespace). bfloat16 values are handled
// as uint16_t: the upper half of a float.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace lmworks::LMWORKS_ISA {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

typedef float FloatV __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntV __attribute__((vector_size(kLanes * 4)));
typedef uint32_t BitsV __attribute__((vector_size(kLanes * 4)));
typedef uint16_t HalfBitsV __attribute__((vector_size(kLanes * 2)));

inline FloatV splat(float x) { return FloatV{} + x; }
// b when either is NaN, as the max instructions do.
inline FloatV max(FloatV a, FloatV b) { return a > b ? a : b; }
inline FloatV abs(FloatV x) { return std::bit_cast<FloatV>(std::bit_cast<BitsV>(x) & 0x7fffffffu); }

inline FloatV load(const float* p) {
  FloatV x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline FloatV load(const uint16_t* p) {
  HalfBitsV half;
  std::memcpy(&half, p, sizeof half);
  return std::bit_cast<FloatV>(__builtin_convertvector(half, BitsV) << 16);
}
inline void store(float* p, FloatV x) { std::memcpy(p, &x, sizeof x); }
// Rounds to nearest, ties to even. The value must not be NaN.
inline void store(uint16_t* p, FloatV x) {
  const BitsV bits = std::bit_cast<BitsV>(x);
  const BitsV rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const HalfBitsV half = __builtin_convertvector(rounded >> 16, HalfBitsV);
  std::memcpy(p, &half, sizeof half);
}

inline float to_float(float x) { return x; }
inline float to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
inline void from_float(float x, float* out) { *out = x; }
// Rounds to nearest, ties to even; a NaN stays a NaN.
inline void from_float(float x, uint16_t* out) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  *out = static_cast<uint16_t>((x == x ? rounded : 0x7fc00000u) >> 16);
}

// The first n < kLanes values, the rest filled.
template <typename T>
inline FloatV load_partial(const T* p, int64_t n, float fill) {
  FloatV x = splat(fill);
  for (int64_t i = 0; i < n; ++i) x[i] = to_float(p[i]);
  return x;
}
template <typename T>
inline void store_partial(T* p, FloatV x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) from_float(x[i], p + i);
}

inline double sum_lanes(FloatV x) {
  double total = 0;
  for (int i = 0; i < kLanes; ++i) total += static_cast<double>(x[i]);
  return total;
}
inline float max_lanes(FloatV x) {
  float top = x[0];
  for (int i = 1; i < kLanes; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

// e^x for x <= 88, relative error below 2e-7; results under 2^-126 become 0, NaN stays NaN.
//
// x = n ln2 + r with |r| <= ln2 / 2 (ln2 in two parts), minimax polynomial of degree 5 for e^r
// (9.2e-8, fitted by iteratively reweighted least squares), times 2^n through the exponent bits.
inline FloatV exp(FloatV x) {
  constexpr float kRoundMagic = 12582912.0f;  // 1.5 * 2^23: adding it leaves rint in the low bits
  x = max(splat(-88.0f), x);
  const FloatV shifted = x * 1.44269504f + kRoundMagic;
  const FloatV n = shifted - kRoundMagic;
  FloatV r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  FloatV p = r * 0.00829027220606804f + 0.04189816117286682f;
  p = p * r + 0.1666763871908188f;
  p = p * r + 0.4999914765357971f;
  p = p * r + 0.9999997019767761f;
  p = p * r + 1.0f;
  const BitsV scale = (std::bit_cast<BitsV>(shifted) << 23) + 0x3f800000u;
  return p * std::bit_cast<FloatV>(scale);
}

// tanh, relative error below 5e-7: Cephes' odd polynomial below 0.625, 1 - 2 / (e^2x + 1) above.
inline FloatV tanh(FloatV x) {
  const FloatV magnitude = abs(x);
  const FloatV square = x * x;
  FloatV p = square * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const FloatV small = x + x * square * p;
  const FloatV capped = magnitude > 10.0f ? splat(10.0f) : magnitude;
  const FloatV large = 1.0f - 2.0f / (exp(2.0f * capped) + 1.0f);
  const FloatV signed_large = x < 0.0f ? -large : large;
  return magnitude < 0.625f ? small : signed_large;
}

}  // namespace lmworks::LMWORKS_ISA
