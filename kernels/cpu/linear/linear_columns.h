// y = x W^T from strips: single rows of one matrix, single columns of another. A sparse MLP computes
// with the strips of its active neurons alone (docs/reference/numerics.md).
//
// Each sum has the bits of Linear. A row is a dot product of its own. Columns that are left out must
// have x = 0, of either sign, and finite weights: their products would change no lane but for the
// sign of a zero, and no sum of Linear is -0. So a product needs only the place that Linear gives it:
// the lane of its column, in ascending order. With packed weights of bf16 models, this is its pair in
// the sum of its group; a group whose columns are all left out adds nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/cpu/linear/linear.h"
#include "planner/base/status.h"

namespace lime::cpu {

// One row or column of a matrix, in memory of its own. Packed: its codes, in the format of a row of
// Matrix; scales and biases are those of the matrix. Aligned to 4 bytes.
struct Strip {
  int32_t index = 0;
  const void* data = nullptr;
};

class StripWorkspace {
 public:
  struct Options {
    int num_threads = 1;
    int64_t max_tokens = 0;
    int64_t max_row_cols = 0;  // of a matrix whose rows are computed
    int64_t max_rows = 0;      // of a matrix whose columns are computed
    int64_t max_columns = 0;   // of that matrix
    Numerics numerics = Numerics::kAuto;
  };

  explicit StripWorkspace(const Options& options);
  ~StripWorkspace();
  StripWorkspace(const StripWorkspace&) = delete;
  StripWorkspace& operator=(const StripWorkspace&) = delete;
  // Bytes of such a workspace, without creating it.
  static Bytes BytesFor(const Options& options);
  Bytes bytes() const;
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// Unimplemented, with the reason, for a matrix whose columns have no kernel.
absl::Status CheckColumns(const Matrix& matrix);

// out[t][i] = the output of row rows[i].index, with its bias. `matrix`: format, scales and biases;
// its data is not used. x: [tokens, cols]; out: [tokens, out_stride]. REQUIRES: as Linear; tokens and
// cols fit both workspaces.
void LinearRows(ThreadPool& pool, LinearWorkspace& ws, StripWorkspace& strips, const void* x, DType x_dtype, int64_t tokens,
                const Matrix& matrix, const void* bias, std::span<const Strip> rows, float* out, int64_t out_stride);

// A sum of columns takes three steps: begin, any number of additions, finish.
//
// `matrix`: as in LinearRows; it outlives the sum. REQUIRES: CheckColumns; all fits the workspace.
void BeginColumns(StripWorkspace& ws, const Matrix& matrix, DType x_dtype, int64_t tokens);
// Adds columns, ascending and above those of all additions before. x: [tokens, x_stride], in the
// order of `columns`. `next`: the first column that the next addition will bring; -1: there is none.
// All memory may be freed afterwards.
void AddColumns(ThreadPool& pool, StripWorkspace& ws, std::span<const Strip> columns, const void* x, int64_t x_stride, int32_t next);
// Writes the sums as Linear does. task.weight is not used.
void FinishColumns(ThreadPool& pool, StripWorkspace& ws, const LinearTask& task);

}  // namespace lime::cpu
