// The kernels that exist once per instruction set, as one table of function pointers per set.
//
// To add a kernel: write csrc/kernels/isa/NAME.cpp, add a line to KernelTable and one to
// csrc/kernels/isa/table.cpp. Kernels assume valid arguments; the bindings check them.
#pragma once

#include <cstdint>

#include "lmworks/dispatch.h"

namespace lmworks {

enum class Dtype { float32, bfloat16 };

// Softmax cross-entropy over rows of logits, gradient written over the logits.
struct CrossEntropyArgs {
  void* logits;  // [num_rows, vocab_size], row-major, of `dtype`
  Dtype dtype;
  int64_t vocab_size;
  const int64_t* targets;  // [num_rows], in [0, vocab_size) or ignore_index
  int64_t ignore_index;
  float z_loss_weight;
  float logit_softcap;  // 0: none
  bool want_grad;
  float* losses;    // [num_rows]
  float* z_losses;  // [num_rows]
};

// One tensor of an AdamW step. weight is the float32 master, or the parameter itself.
struct AdamWTensor {
  float* weight;
  uint16_t* rounded;  // bfloat16 parameter, or nullptr
  const void* grad;
  Dtype grad_dtype;
  float* exp_avg;
  float* exp_avg_sq;
};

struct AdamWScalars {
  float decay_factor;    // 1 - lr * weight_decay
  float step_size;       // lr / (1 - beta1^t)
  float inv_root_bias2;  // 1 / sqrt(1 - beta2^t)
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float eps;
  float grad_scale;
};

// In the order of the activations of lmworks/ops/expert_mlp/cpu.py.
enum class Activation { identity, relu, relu2, sigmoid, silu, gelu, gelu_tanh };

// The rows of one expert, between its matrix products. Matrices are row-major, of `dtype`.
//   forward   hidden = act(gate) * up                                    [num_rows, d_ff]
//   backward  hidden = weight act(gate) up, and from grad = d loss / d (act(gate) up) / weight the
//             gradients of gate and up and, summed over a row, of the weight
//   add rows  sums[tokens[row]] += weights[row] result[row]              [.., d_model]
struct ExpertRows {
  Dtype dtype;
  Activation activation;
  int64_t d_ff, d_model;
  const int64_t* tokens;  // no token twice
  const float* weights;   // nullptr: all 1, for add rows only
  const void* gate;       // nullptr: hidden = act(up)
  const void* up;
  void* hidden;
  const void* grad;
  void* grad_gate;
  void* grad_up;
  float* grad_weights;
  const void* result;
  float* sums;
};

struct KernelTable {
  void (*cross_entropy_rows)(const CrossEntropyArgs& args, int64_t begin, int64_t end);
  void (*adamw_range)(const AdamWTensor& tensor, const AdamWScalars& scalars, int64_t begin,
                      int64_t end);
  double (*sum_of_squares)(const void* values, Dtype dtype, int64_t count);
  void (*expert_activation)(const ExpertRows& args, bool is_backward, int64_t begin, int64_t end);
  void (*expert_add_rows)(const ExpertRows& args, int64_t begin, int64_t end);
};

// The table of the active instruction set.
const KernelTable& kernels();

}  // namespace lmworks
