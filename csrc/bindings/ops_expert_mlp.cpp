// The experts of a mixture, one after the other: gather its rows, matrix products, what is between
// them, add to the tokens. Products are torch's own (oneDNN and MKL, on all its threads); the rest
// is in csrc/kernels/isa/expert_mlp.cpp.
//
// One expert's rows stay in cache from the first product to the last, no intermediate of all rows
// is written but the two that the backward pass reads, and there is no dispatch by Python. oneDNN
// compiles a kernel for every new number of rows (1.5 to 2.5 ms for bfloat16 on AMX, ten times the
// product itself), and loads of experts are new in every step: so bfloat16 products run on a number
// of rows rounded up to one of few, with rows of zeros that nothing reads.
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <vector>

#include "lmworks/kernels.h"

namespace {

using lmworks::Dtype;
using lmworks::ExpertRows;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Rows per task: a row of 512 channels takes a fraction of a microsecond.
constexpr int64_t kRowGrain = 32;

// Row-major matrix of one dtype in someone else's memory.
struct Matrix {
  void* data;
  int64_t rows, columns;
  ScalarType type;
  bool is_transposed = false;

  Matrix t() const { return {data, rows, columns, type, !is_transposed}; }

  Tensor tensor() const {
    const int64_t sizes[] = {is_transposed ? columns : rows, is_transposed ? rows : columns};
    const int64_t strides[] = {is_transposed ? 1 : columns, is_transposed ? columns : 1};
    return torch::stable::from_blob(data, {sizes, 2}, {strides, 2},
                                    torch::stable::Device(torch::headeronly::DeviceType::CPU),
                                    type);
  }
};

// out = a b, or out += a b.
void multiply(const Matrix& a, const Matrix& b, const Matrix& out, bool accumulate = false) {
  const Tensor left = a.tensor(), right = b.tensor(), result = out.tensor();
  if (accumulate) {
    STABLE_TORCH_ERROR_CODE_CHECK(
        aoti_torch_cpu_addmm_out(result.get(), result.get(), left.get(), right.get(), 1.0, 1.0));
  } else {
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_mm_out(result.get(), left.get(), right.get()));
  }
}

int64_t rounded_rows(int64_t num_rows, Dtype dtype) {
  if (dtype == Dtype::float32 || num_rows == 0) return num_rows;
  // Steps of an eighth of the power of two below: at most 12 % too many.
  const auto floor = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(num_rows)));
  const int64_t step = std::max<int64_t>(16, floor / 8);
  return (num_rows + step - 1) / step * step;
}

void check(const Tensor& tensor, ScalarType type, int64_t numel, const char* name) {
  STD_TORCH_CHECK(tensor.scalar_type() == type && tensor.is_contiguous() && tensor.numel() == numel,
                  name, " must be contiguous, of the right dtype, with ", numel, " elements");
}

// Arguments that forward and backward share, checked.
class Experts {
 public:
  Experts(const Tensor& x, const Tensor& tokens, const Tensor& weights, const Tensor& ends,
          const std::optional<Tensor>& gate, const Tensor& up, const Tensor& down,
          int64_t activation)
      : type_(x.scalar_type()),
        dtype_(type_ == ScalarType::Float ? Dtype::float32 : Dtype::bfloat16),
        width_(type_ == ScalarType::Float ? 4 : 2) {
    STD_TORCH_CHECK(type_ == ScalarType::Float || type_ == ScalarType::BFloat16,
                    "x must be float32 or bfloat16");
    STD_TORCH_CHECK(up.dim() == 3 && x.dim() == 2, "x must be a matrix, up a stack of them");
    num_experts_ = up.size(0), d_ff_ = up.size(1), d_model_ = up.size(2);
    num_tokens_ = x.size(0), num_rows_ = tokens.numel();
    check(x, type_, num_tokens_ * d_model_, "x");
    check(up, type_, num_experts_ * d_ff_ * d_model_, "up");
    check(down, type_, num_experts_ * d_ff_ * d_model_, "down");
    if (gate.has_value()) check(*gate, type_, num_experts_ * d_ff_ * d_model_, "gate");
    check(tokens, ScalarType::Long, num_rows_, "tokens");
    check(weights, ScalarType::Float, num_rows_, "weights");
    check(ends, ScalarType::Long, num_experts_, "ends");
    STD_TORCH_CHECK(
        activation >= 0 && activation <= static_cast<int64_t>(lmworks::Activation::gelu_tanh),
        "activation ", activation, " is unknown");
    activation_ = static_cast<lmworks::Activation>(activation);
    x_ = x.mutable_data_ptr(), up_ = up.mutable_data_ptr(), down_ = down.mutable_data_ptr();
    gate_ = gate.has_value() ? gate->mutable_data_ptr() : nullptr;
    tokens_ = static_cast<const int64_t*>(tokens.const_data_ptr());
    weights_ = static_cast<const float*>(weights.const_data_ptr());
    read_ends(static_cast<const int64_t*>(ends.const_data_ptr()));
    for (int64_t row = 0; row < starts_.back(); ++row) {
      STD_TORCH_CHECK(tokens_[row] >= 0 && tokens_[row] < num_tokens_, "token ", tokens_[row],
                      " is outside [0, ", num_tokens_, ")");
    }
  }

  // `pre`: what gate and up give, [1 or 2, num_rows + padding, d_ff], or with keep_pre = false room
  // for the largest expert. `sums`: [tokens, d_model].
  void forward(const Tensor& pre, bool keep_pre, const Tensor& scratch, const Tensor& sums) {
    Scratch memory = take(scratch, 2 * d_model_ + d_ff_);
    const Matrix x = memory.next(d_model_), hidden = memory.next(d_ff_),
                 result = memory.next(d_model_);
    read_pre(pre, keep_pre);
    check(sums, ScalarType::Float, num_tokens_ * d_model_, "sums");
    for (int64_t expert = 0; expert < num_experts_; ++expert) {
      if (!enter(expert)) continue;
      const Matrix xs = first_rows(x), hiddens = first_rows(hidden), results = first_rows(result);
      gather(x_, xs);
      if (gate_ != nullptr) multiply(xs, inward(gate_).t(), pre_rows(0));
      multiply(xs, inward(up_).t(), pre_rows(num_pre_ - 1));
      ExpertRows rows = expert_rows();
      rows.hidden = hidden.data;
      activate(rows, false);
      multiply(hiddens, outward(down_).t(), results);
      rows.result = result.data;
      rows.sums = static_cast<float*>(sums.mutable_data_ptr());
      add(rows);
    }
  }

  // grads of x (float32 sums), the weights of the rows, and of the matrices where they are given.
  void backward(const Tensor& grad_out, const Tensor& pre, const Tensor& scratch,
                const Tensor& grad_sums, const Tensor& grad_weights,
                const std::optional<Tensor>& grad_gate, const std::optional<Tensor>& grad_up,
                const std::optional<Tensor>& grad_down) {
    Scratch memory = take(scratch, 2 * d_model_ + 4 * d_ff_);
    const Matrix x = memory.next(d_model_), grad = memory.next(d_model_),
                 hidden = memory.next(d_ff_), grad_hidden = memory.next(d_ff_),
                 grad_a = memory.next(d_ff_), grad_b = memory.next(d_ff_);
    read_pre(pre, true);
    check(grad_out, type_, num_tokens_ * d_model_, "grad_out");
    check(grad_sums, ScalarType::Float, num_tokens_ * d_model_, "grad_sums");
    check(grad_weights, ScalarType::Float, num_rows_, "grad_weights");
    void* d_gate = destination(grad_gate);
    void* d_up = destination(grad_up);
    void* d_down = destination(grad_down);
    for (int64_t expert = 0; expert < num_experts_; ++expert) {
      if (!enter(expert)) {
        for (void* empty : {d_gate, d_up, d_down}) clear_weight(empty);
        continue;
      }
      const Matrix xs = first_rows(x), grads = first_rows(grad), hiddens = first_rows(hidden),
                   grad_hiddens = first_rows(grad_hidden), grad_as = first_rows(grad_a),
                   grad_bs = first_rows(grad_b);
      gather(grad_out.mutable_data_ptr(), grads);
      multiply(grads, outward(down_), grad_hiddens);
      ExpertRows rows = expert_rows();
      rows.hidden = hidden.data;
      rows.grad = grad_hidden.data;
      rows.grad_gate = grad_a.data;
      rows.grad_up = grad_b.data;
      rows.grad_weights = static_cast<float*>(grad_weights.mutable_data_ptr()) + start_;
      activate(rows, true);
      // Rows of zeros are left out of the sums over rows that follow.
      for (const Matrix& m : {hiddens, grad_bs}) clear_padding(m);
      if (gate_ != nullptr) clear_padding(grad_as);
      if (d_down != nullptr) multiply(grads.t(), hiddens, outward(d_down));
      if (d_up != nullptr || d_gate != nullptr) gather(x_, xs);
      if (d_up != nullptr) multiply(grad_bs.t(), xs, inward(d_up));
      if (d_gate != nullptr) multiply(grad_as.t(), xs, inward(d_gate));
      // The gathered gradient is done with: its memory takes the gradient of x.
      multiply(grad_bs, inward(up_), grads);
      if (gate_ != nullptr) multiply(grad_as, inward(gate_), grads, true);
      rows.result = grad.data;
      rows.sums = static_cast<float*>(grad_sums.mutable_data_ptr());
      rows.weights = nullptr;
      add(rows);
    }
  }

 private:
  // Buffers of `capacity` rows, one after the other.
  struct Scratch {
    char* at;
    int64_t capacity, width;
    ScalarType type;

    Matrix next(int64_t columns) {
      const Matrix matrix = {at, capacity, columns, type};
      at += capacity * columns * width;
      return matrix;
    }
  };

  void read_ends(const int64_t* ends) {
    int64_t start = 0;
    starts_.push_back(0);
    for (int64_t expert = 0; expert < num_experts_; ++expert) {
      STD_TORCH_CHECK(ends[expert] >= start && ends[expert] <= num_rows_,
                      "ends must rise to at most ", num_rows_, ", but there is ", ends[expert],
                      " after ", start);
      max_rows_ = std::max(max_rows_, ends[expert] - start);
      starts_.push_back(start = ends[expert]);
    }
  }

  Scratch take(const Tensor& scratch, int64_t columns) const {
    STD_TORCH_CHECK(scratch.dim() == 2, "scratch must be a matrix");
    const int64_t capacity = scratch.size(0);
    check(scratch, type_, capacity * columns, "scratch");
    STD_TORCH_CHECK(capacity >= rounded_rows(max_rows_, dtype_), "scratch has ", capacity,
                    " rows, too few for an expert with ", max_rows_);
    return {static_cast<char*>(scratch.mutable_data_ptr()), capacity, width_, type_};
  }

  void read_pre(const Tensor& pre, bool keep) {
    num_pre_ = gate_ != nullptr ? 2 : 1;
    keeps_pre_ = keep;
    STD_TORCH_CHECK(pre.dim() == 3 && pre.size(0) == num_pre_, "pre must be one or two matrices");
    pre_stride_ = pre.size(1);
    check(pre, type_, num_pre_ * pre_stride_ * d_ff_, "pre");
    for (int64_t expert = 0; expert < num_experts_; ++expert) {
      const int64_t count = starts_[expert + 1] - starts_[expert];
      const int64_t start = keep ? starts_[expert] : 0;
      STD_TORCH_CHECK(start + rounded_rows(count, dtype_) <= pre_stride_, "pre has ", pre_stride_,
                      " rows: too few");
    }
    pre_ = static_cast<char*>(pre.mutable_data_ptr());
  }

  void* destination(const std::optional<Tensor>& grad) const {
    if (!grad.has_value()) return nullptr;
    check(*grad, type_, num_experts_ * d_ff_ * d_model_, "gradient of a matrix");
    return grad->mutable_data_ptr();
  }

  // Goes to an expert; false if it has no rows.
  bool enter(int64_t expert) {
    expert_ = expert;
    start_ = starts_[expert];
    count_ = starts_[expert + 1] - start_;
    if (count_ == 0) return false;
    padded_ = rounded_rows(count_, dtype_);
    return true;
  }

  Matrix first_rows(const Matrix& matrix) const {
    return {matrix.data, padded_, matrix.columns, type_};
  }

  // The expert's matrix in a stack like gate and up, and in one like down.
  Matrix inward(void* stack) const { return {of_expert(stack), d_ff_, d_model_, type_}; }
  Matrix outward(void* stack) const { return {of_expert(stack), d_model_, d_ff_, type_}; }
  char* of_expert(void* stack) const {
    return static_cast<char*>(stack) + expert_ * d_ff_ * d_model_ * width_;
  }

  Matrix pre_rows(int64_t number) const {
    const int64_t row = number * pre_stride_ + (keeps_pre_ ? start_ : 0);
    return {pre_ + row * d_ff_ * width_, padded_, d_ff_, type_};
  }

  void clear_weight(void* stack) const {
    if (stack == nullptr) return;
    std::memset(of_expert(stack), 0, static_cast<size_t>(d_ff_ * d_model_ * width_));
  }

  void clear_padding(const Matrix& matrix) const {
    const int64_t row_bytes = matrix.columns * width_;
    std::memset(static_cast<char*>(matrix.data) + count_ * row_bytes, 0,
                static_cast<size_t>((padded_ - count_) * row_bytes));
  }

  void gather(const void* from, const Matrix& to) const {
    const int64_t row_bytes = d_model_ * width_;
    torch::stable::parallel_for(0, count_, kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        std::memcpy(static_cast<char*>(to.data) + row * row_bytes,
                    static_cast<const char*>(from) + tokens_[start_ + row] * row_bytes,
                    static_cast<size_t>(row_bytes));
      }
    });
    clear_padding(to);
  }

  ExpertRows expert_rows() const {
    ExpertRows rows = {};
    rows.dtype = dtype_;
    rows.activation = activation_;
    rows.d_ff = d_ff_;
    rows.d_model = d_model_;
    rows.tokens = tokens_ + start_;
    rows.weights = weights_ + start_;
    rows.gate = gate_ != nullptr ? pre_rows(0).data : nullptr;
    rows.up = pre_rows(num_pre_ - 1).data;
    return rows;
  }

  void activate(const ExpertRows& rows, bool is_backward) const {
    const auto& table = lmworks::kernels();
    torch::stable::parallel_for(0, count_, kRowGrain, [&](int64_t begin, int64_t end) {
      table.expert_activation(rows, is_backward, begin, end);
    });
  }

  void add(const ExpertRows& rows) const {
    const auto& table = lmworks::kernels();
    torch::stable::parallel_for(0, count_, kRowGrain, [&](int64_t begin, int64_t end) {
      table.expert_add_rows(rows, begin, end);
    });
  }

  ScalarType type_;
  Dtype dtype_;
  int64_t width_;
  int64_t num_experts_, d_ff_, d_model_, num_tokens_, num_rows_, max_rows_ = 0;
  lmworks::Activation activation_;
  void *x_, *gate_, *up_, *down_;
  const int64_t* tokens_;
  const float* weights_;
  std::vector<int64_t> starts_;
  char* pre_ = nullptr;
  int64_t num_pre_ = 0, pre_stride_ = 0;
  bool keeps_pre_ = true;
  // Of the expert at hand.
  int64_t expert_ = 0, start_ = 0, count_ = 0, padded_ = 0;
};

void expert_mlp_forward(const Tensor& x, const Tensor& tokens, const Tensor& weights,
                        const Tensor& ends, std::optional<Tensor> gate, const Tensor& up,
                        const Tensor& down, int64_t activation, Tensor pre, bool keep_pre,
                        Tensor scratch, Tensor sums) {
  Experts(x, tokens, weights, ends, gate, up, down, activation)
      .forward(pre, keep_pre, scratch, sums);
}

void expert_mlp_backward(const Tensor& x, const Tensor& tokens, const Tensor& weights,
                         const Tensor& ends, std::optional<Tensor> gate, const Tensor& up,
                         const Tensor& down, int64_t activation, const Tensor& grad_out,
                         const Tensor& pre, Tensor scratch, Tensor grad_sums, Tensor grad_weights,
                         std::optional<Tensor> grad_gate, std::optional<Tensor> grad_up,
                         std::optional<Tensor> grad_down) {
  Experts(x, tokens, weights, ends, gate, up, down, activation)
      .backward(grad_out, pre, scratch, grad_sums, grad_weights, grad_gate, grad_up, grad_down);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(lmworks, m) {
  m.def(
      "expert_mlp_forward_(Tensor x, Tensor tokens, Tensor weights, Tensor ends, Tensor? gate, "
      "Tensor up, Tensor down, int activation, Tensor(a!) pre, bool keep_pre, "
      "Tensor(b!) scratch, Tensor(c!) sums) -> ()");
  m.def(
      "expert_mlp_backward_(Tensor x, Tensor tokens, Tensor weights, Tensor ends, Tensor? gate, "
      "Tensor up, Tensor down, int activation, Tensor grad_out, Tensor pre, "
      "Tensor(a!) scratch, Tensor(b!) grad_sums, Tensor(c!) grad_weights, Tensor(d!)? grad_gate, "
      "Tensor(e!)? grad_up, Tensor(f!)? grad_down) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(lmworks, CPU, m) {
  m.impl("expert_mlp_forward_", TORCH_BOX(&expert_mlp_forward));
  m.impl("expert_mlp_backward_", TORCH_BOX(&expert_mlp_backward));
}
