// Reports what sparse MLPs have computed and read in a run.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/device_report.h"
#include "nlohmann/json_fwd.hpp"
#include "planner/plan/plan.h"

namespace lime {

// Of all devices of a plan, for each token that computed active neurons: of every sequence of a decode
// step, and of short chunks.
struct SparseUse {
  bool exact = false;         // the plan has sparse parts
  double tokens = 0;          // 0: nothing was computed that way
  double active_share = 0;    // neurons computed, of all neurons of the sparse layers, in one micro-batch
  double neurons_loaded = 0;  // a token
  double reads = 0;
  double bytes = 0;
  double io_ms = 0;           // in which any read was under way
  double expected_bytes = 0;  // as the plan says

  // "sparse MLPs: 12 % of the neurons active; a token reads 34 of them in 20 reads, 120 KiB (at most 1.2
  // MiB expected), 0.31 ms"; empty without sparse parts.
  std::string Text() const;
};
SparseUse SparseUseOf(const Plan& plan, std::span<const DeviceStatistics> devices);

// Adds sparsity, lossless and, with sparse parts, neurons_loaded_per_token, sparse_bytes_per_token and
// sparse_io_ms_per_token; null if nothing was computed that way.
void AddSparsity(const SparseUse& use, nlohmann::json& answer);

}  // namespace lime
