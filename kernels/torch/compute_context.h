// What is behind ops::ComputeContext, for the CPU operators.
#pragma once

#include <optional>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/torch/ops.h"

namespace lime::ops {

struct ComputeContext::Impl {
  explicit Impl(const Options& options)
      : pool(options.num_threads),
        linear(options.num_threads, options.max_rows, options.max_cols, options.numerics),
        attention(AttentionOptions(options, options.carries)) {
    if (options.attends_for_others) for_others.emplace(AttentionOptions(options, true));
  }

  static lime::cpu::AttentionWorkspace::Options AttentionOptions(const Options& options, bool carries) {
    return {.max_rows = options.max_rows,
            .heads = options.heads,
            .head_dim = options.head_dim,
            .max_positions = options.max_positions,
            .carries = carries};
  }

  lime::cpu::ThreadPool pool;
  lime::cpu::LinearWorkspace linear;
  lime::cpu::AttentionWorkspace attention;
  std::optional<lime::cpu::AttentionWorkspace> for_others;  // what one's own batch carries stays as it is
};

// The context of the innermost ContextScope of this thread; an error where there is none.
ComputeContext::Impl& CurrentContext();

}  // namespace lime::ops
