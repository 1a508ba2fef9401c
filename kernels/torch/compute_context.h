// What is behind ops::ComputeContext, for the CPU operators.
#pragma once

#include "kernels/cpu/attention.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/torch/ops.h"

namespace lime::ops {

struct ComputeContext::Impl {
  explicit Impl(const Options& options)
      : pool(options.num_threads),
        linear(options.num_threads, options.max_rows, options.max_cols, options.numerics),
        attention(AttentionOptions(options)) {}

  static lime::cpu::AttentionWorkspace::Options AttentionOptions(const Options& options) {
    return {.max_rows = options.max_rows,
            .heads = options.heads,
            .head_dim = options.head_dim,
            .max_positions = options.max_positions,
            .carries = options.carries};
  }

  lime::cpu::ThreadPool pool;
  lime::cpu::LinearWorkspace linear;
  lime::cpu::AttentionWorkspace attention;
};

// The context of the innermost ContextScope of this thread; an error where there is none.
ComputeContext::Impl& CurrentContext();

}  // namespace lime::ops
