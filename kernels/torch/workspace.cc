#include "kernels/torch/workspace.h"

#include <sys/mman.h>

#include <array>
#include <cstring>

namespace lime {
namespace {

// A change of the first size, in place: no storage, no view, no allocation. The storage holds the largest.
void Resize(at::Tensor& tensor, int64_t rows) {
  if (tensor.dim() == 1) {
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous({rows});
  } else {
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous({rows, tensor.size(1)});
  }
}

}  // namespace

at::ScalarType ToTorch(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return at::kBFloat16;
    case DType::kF16:
      return at::kHalf;
    default:
      return at::kFloat;
  }
}

Workspace::Workspace(const ModelSpec& spec, const BackendOptions& options, at::DeviceType device) : device_(device) {
  const ModelConfig& config = spec.config;
  const at::ScalarType working = ToTorch(spec.working_dtype);
  const int64_t rows = options.max_rows;
  const int64_t q_cols = config.num_heads * config.head_dim, kv_cols = config.num_kv_heads * config.head_dim;
  tokens = Make(rows, 0, at::kInt);
  slots = Make(rows, 0, at::kInt);
  positions = Make(rows, 0, at::kInt);
  x = Make(rows, config.hidden_size, working);
  normed = Make(rows, config.hidden_size, working);
  q = Make(rows, q_cols, at::kFloat);
  k = Make(rows, kv_cols, at::kFloat);
  v = Make(rows, kv_cols, at::kFloat);
  attended = Make(rows, q_cols, working);
  gate = config.gated_mlp() ? Make(rows, config.intermediate_size, at::kFloat) : at::Tensor();
  up = Make(rows, config.intermediate_size, at::kFloat);
  mixed = Make(rows, config.intermediate_size, working);
  head_rows = Make(options.max_logit_rows, 0, at::kInt);
  head_x = Make(options.max_logit_rows, config.hidden_size, working);
  logits = Make(options.max_logit_rows, config.vocab_size, at::kFloat);
  if (options.attends_pieces) taken = Make(options.max_sequences, 0, at::kInt);
}

at::Tensor EmptyPrefaulted(at::IntArrayRef sizes, at::ScalarType dtype) {
  at::Tensor tensor = at::empty(sizes, dtype);
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage, last = (begin + tensor.nbytes()) / kHugePage * kHugePage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  std::memset(tensor.data_ptr(), 0, tensor.nbytes());
  return tensor;
}

// cols 0: a vector.
at::Tensor Workspace::Make(int64_t rows, int64_t cols, at::ScalarType dtype) {
  const std::array<int64_t, 2> sizes = {rows, cols};
  const at::IntArrayRef shape(sizes.data(), cols > 0 ? 2 : 1);
  at::Tensor tensor = device_ == at::kMeta ? at::empty(shape, at::dtype(dtype).device(device_)) : EmptyPrefaulted(shape, dtype);
  bytes_ += static_cast<Bytes>(tensor.nbytes());
  return tensor;
}

void Workspace::SetRows(int64_t rows, int64_t logit_rows) {
  for (at::Tensor* tensor : {&tokens, &slots, &positions, &x, &normed, &q, &k, &v, &attended, &up, &mixed}) Resize(*tensor, rows);
  if (gate.defined()) Resize(gate, rows);
  head_selected = false;
  pieces_attended = -1;
  records_taken = false;
  for (at::Tensor* tensor : {&head_rows, &head_x, &logits}) Resize(*tensor, logit_rows);
}

}  // namespace lime
