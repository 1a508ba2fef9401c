// Which pre-activations of a layer a low-bit copy of its weights does not prove to be at most a
// threshold (common/proven_zeros/proven_zeros.h has the inequality).
//
//   x ──► a = U'(x - mean), rest = x - mean - U a, norms     fp64, each direction in any order
//   codes.x                                                  exact, of x rounded to whole numbers times a step
//   kept codes.a                                             fp64
//   ──► BoundOf, in fp64
//
// A row that is left out is at most the threshold, as the layer computes it. Which rows are left out may
// depend on the instruction set; no result of a model does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/proven_zeros/proven_zeros.h"
#include "kernels/cpu/base/thread_pool.h"
#include "planner/base/bytes.h"
#include "planner/base/dtype.h"

namespace lime::cpu {

// Scratch memory of FindUnproven, allocated once for the largest copy.
class ProverWorkspace {
 public:
  struct Options {
    int64_t max_tokens = 0;
    int64_t max_rows = 0;
    int64_t max_cols = 0;
    int64_t max_directions = 0;
  };

  // Of x in whole numbers: a sign and so many bits.
  static constexpr int kWordBits = 15;
  static constexpr int kMostWord = (1 << kWordBits) - 1;

  explicit ProverWorkspace(const Options& options);
  // Bytes of such a workspace, without creating it.
  static Bytes BytesFor(const Options& options);
  Bytes bytes() const { return BytesFor(options_); }

  const Options& options() const { return options_; }
  float* x(int64_t token) { return x_.data() + token * options_.max_cols; }
  int16_t* words(int64_t token) { return words_.data() + token * PaddedCols(options_); }
  double& step(int64_t token) { return steps_[static_cast<size_t>(token)]; }
  double* rest(int64_t token) { return rest_.data() + token * options_.max_cols; }
  double* along(int64_t token) { return along_.data() + token * options_.max_directions; }
  InputNorms& norms(int64_t token) { return norms_[static_cast<size_t>(token)]; }
  uint8_t* unproven() { return unproven_.data(); }

 private:
  static int64_t PaddedCols(const Options& options) { return RoundUp(options.max_cols, kCodeBlock); }

  Options options_;
  std::vector<float> x_;              // [tokens][cols], as the order reads them
  std::vector<int16_t> words_;        // [tokens][padded cols]: x in whole numbers of a step
  std::vector<double> steps_;         // [tokens]
  std::vector<double> rest_, along_;  // [tokens][cols], [tokens][directions]
  std::vector<InputNorms> norms_;     // [tokens]
  std::vector<uint8_t> unproven_;     // [rows]
};

// The layer that a copy stands for.
struct ProvenLayer {
  const DeciderView* copy = nullptr;
  SumOrder order = SumOrder::kPortable;  // in which the layer is computed
  const void* bias = nullptr;            // [rows] in the dtype of x, or null
};

// Writes the rows whose output is not proven to be at most `threshold` for some token, ascending.
// Returns their number. x: [tokens, cols] of the working dtype `x_dtype`; ids: [rows]. Allocates
// nothing.  REQUIRES: tokens and the copy fit the workspace.
size_t FindUnproven(ThreadPool& pool, ProverWorkspace& ws, const ProvenLayer& layer, const void* x, DType x_dtype, int64_t tokens,
                    float threshold, int32_t* ids);

}  // namespace lime::cpu
