// Registers the CPU kernels with torch through its stable ABI (module lmworks._ops, loaded with
// torch.ops.load_library). Checks arguments here; kernels assume valid ones. Work is split over
// torch's own threads, so torch.set_num_threads holds for it.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "lmworks/kernels.h"

namespace {

using lmworks::Dtype;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Tensors = std::vector<Tensor>;

// Elements per task of the multi-tensor kernels: small enough to balance one big embedding over
// threads, large enough to hide the hand-over (64 Ki * 28 bytes take about 100 us).
constexpr int64_t kTaskSize = 65536;

int64_t active_isa() { return static_cast<int64_t>(lmworks::active_isa()); }

Dtype dtype_of(const Tensor& tensor, const char* name) {
  const ScalarType type = tensor.scalar_type();
  STD_TORCH_CHECK(type == ScalarType::Float || type == ScalarType::BFloat16, name,
                  " must be float32 or bfloat16");
  return type == ScalarType::Float ? Dtype::float32 : Dtype::bfloat16;
}

float* floats(const Tensor& tensor, int64_t numel, const char* name) {
  STD_TORCH_CHECK(tensor.scalar_type() == ScalarType::Float && tensor.is_contiguous() &&
                      tensor.numel() == numel,
                  name, " must be contiguous float32 with ", numel, " elements");
  return static_cast<float*>(tensor.mutable_data_ptr());
}

void cross_entropy_rows(Tensor logits, const Tensor& targets, Tensor losses, Tensor z_losses,
                        int64_t ignore_index, double z_loss_weight, double logit_softcap,
                        bool want_grad) {
  STD_TORCH_CHECK(logits.dim() == 2 && logits.is_contiguous(),
                  "logits must be a contiguous matrix");
  const int64_t num_rows = logits.size(0);
  STD_TORCH_CHECK(targets.scalar_type() == ScalarType::Long && targets.is_contiguous() &&
                      targets.numel() == num_rows,
                  "targets must be contiguous int64, one per row");
  lmworks::CrossEntropyArgs args;
  args.dtype = dtype_of(logits, "logits");
  args.logits = logits.mutable_data_ptr();
  args.vocab_size = logits.size(1);
  args.targets = static_cast<const int64_t*>(targets.const_data_ptr());
  args.ignore_index = ignore_index;
  args.z_loss_weight = static_cast<float>(z_loss_weight);
  args.logit_softcap = static_cast<float>(logit_softcap);
  args.want_grad = want_grad;
  args.losses = floats(losses, num_rows, "losses");
  args.z_losses = floats(z_losses, num_rows, "z_losses");
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t target = args.targets[row];
    STD_TORCH_CHECK(target == ignore_index || (target >= 0 && target < args.vocab_size), "target ",
                    target, " is outside [0, ", args.vocab_size, ")");
  }
  const auto& table = lmworks::kernels();
  torch::stable::parallel_for(0, num_rows, 8, [&](int64_t begin, int64_t end) {
    table.cross_entropy_rows(args, begin, end);
  });
}

// A piece of one tensor; the pieces of all tensors are shared out over threads.
struct Task {
  size_t tensor;
  int64_t begin, end;
};

std::vector<Task> split(const Tensors& tensors) {
  std::vector<Task> tasks;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const int64_t numel = tensors[t].numel();
    for (int64_t begin = 0; begin < numel; begin += kTaskSize) {
      tasks.push_back({t, begin, std::min(begin + kTaskSize, numel)});
    }
  }
  return tasks;
}

void adamw_step(const Tensors& params, const Tensors& grads, const Tensors& exp_avgs,
                const Tensors& exp_avg_sqs, const Tensors& masters, double lr, double beta1,
                double beta2, double eps, double weight_decay, int64_t step, double grad_scale) {
  const size_t count = params.size();
  STD_TORCH_CHECK(grads.size() == count && exp_avgs.size() == count &&
                      exp_avg_sqs.size() == count && masters.size() == count,
                  "params, grads, exp_avgs, exp_avg_sqs, masters must have one length");
  std::vector<lmworks::AdamWTensor> tensors(count);
  for (size_t i = 0; i < count; ++i) {
    const int64_t numel = params[i].numel();
    auto& t = tensors[i];
    STD_TORCH_CHECK(
        params[i].is_contiguous() && grads[i].is_contiguous() && grads[i].numel() == numel,
        "params and grads must be contiguous and of one size");
    t.weight = floats(masters[i], numel, "master");
    t.rounded = dtype_of(params[i], "param") == Dtype::bfloat16
                    ? static_cast<uint16_t*>(params[i].mutable_data_ptr())
                    : nullptr;
    STD_TORCH_CHECK(t.rounded != nullptr || t.weight == params[i].const_data_ptr(),
                    "a float32 param must be its own master");
    t.grad = grads[i].const_data_ptr();
    t.grad_dtype = dtype_of(grads[i], "grad");
    t.exp_avg = floats(exp_avgs[i], numel, "exp_avg");
    t.exp_avg_sq = floats(exp_avg_sqs[i], numel, "exp_avg_sq");
  }
  const double t = static_cast<double>(step);
  const lmworks::AdamWScalars scalars = {
      .decay_factor = static_cast<float>(1.0 - lr * weight_decay),
      .step_size = static_cast<float>(lr / (1.0 - std::pow(beta1, t))),
      .inv_root_bias2 = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, t))),
      .one_minus_beta1 = static_cast<float>(1.0 - beta1),
      .beta2 = static_cast<float>(beta2),
      .one_minus_beta2 = static_cast<float>(1.0 - beta2),
      .eps = static_cast<float>(eps),
      .grad_scale = static_cast<float>(grad_scale),
  };
  const std::vector<Task> tasks = split(params);
  const auto& table = lmworks::kernels();
  torch::stable::parallel_for(
      0, static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const Task& task = tasks[static_cast<size_t>(i)];
          table.adamw_range(tensors[task.tensor], scalars, task.begin, task.end);
        }
      });
}

// Partial sums are added in the order of the tasks, so the result does not depend on threads.
double sum_of_squares(const Tensors& tensors) {
  std::vector<const char*> starts;
  std::vector<Dtype> dtypes;
  for (const Tensor& tensor : tensors) {
    STD_TORCH_CHECK(tensor.is_contiguous(), "tensors must be contiguous");
    starts.push_back(static_cast<const char*>(tensor.const_data_ptr()));
    dtypes.push_back(dtype_of(tensor, "tensor"));
  }
  const std::vector<Task> tasks = split(tensors);
  std::vector<double> partial(tasks.size());
  const auto& table = lmworks::kernels();
  torch::stable::parallel_for(
      0, static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
        for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
          const Task& task = tasks[i];
          const Dtype dtype = dtypes[task.tensor];
          const int64_t width = dtype == Dtype::float32 ? 4 : 2;
          partial[i] = table.sum_of_squares(starts[task.tensor] + task.begin * width, dtype,
                                            task.end - task.begin);
        }
      });
  double total = 0;
  for (double p : partial) total += p;
  return total;
}

}  // namespace

STABLE_TORCH_LIBRARY(lmworks, m) {
  m.def("active_isa() -> int");
  m.def(
      "cross_entropy_rows_(Tensor(a!) logits_NV, Tensor targets_N, Tensor(b!) losses_N, "
      "Tensor(c!) z_losses_N, int ignore_index, float z_loss_weight, float logit_softcap, "
      "bool want_grad) -> ()");
  m.def(
      "adamw_step_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, "
      "Tensor(c!)[] exp_avg_sqs, Tensor(d!)[] masters, float lr, float beta1, float beta2, "
      "float eps, float weight_decay, int step, float grad_scale) -> ()");
  m.def("sum_of_squares(Tensor[] tensors) -> float");
}
STABLE_TORCH_LIBRARY_IMPL(lmworks, CompositeExplicitAutograd, m) {
  m.impl("active_isa", TORCH_BOX(&active_isa));
}
STABLE_TORCH_LIBRARY_IMPL(lmworks, CPU, m) {
  m.impl("cross_entropy_rows_", TORCH_BOX(&cross_entropy_rows));
  m.impl("adamw_step_", TORCH_BOX(&adamw_step));
  m.impl("sum_of_squares", TORCH_BOX(&sum_of_squares));
}
