// Collects the kernels of one instruction set.
#include "lmworks/kernels.h"

namespace lmworks::LMWORKS_ISA {

void cross_entropy_rows(const CrossEntropyArgs& args, int64_t begin, int64_t end);
void adamw_range(const AdamWTensor& tensor, const AdamWScalars& scalars, int64_t begin,
                 int64_t end);
double sum_of_squares(const void* values, Dtype dtype, int64_t count);
void expert_activation(const ExpertRows& args, bool is_backward, int64_t begin, int64_t end);
void expert_add_rows(const ExpertRows& args, int64_t begin, int64_t end);

extern const KernelTable kTable;
const KernelTable kTable = {cross_entropy_rows, adamw_range, sum_of_squares, expert_activation,
                            expert_add_rows};

}  // namespace lmworks::LMWORKS_ISA
