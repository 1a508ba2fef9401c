// Reports what sparse MLPs have computed and read in a run.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/device_report.h"
#include "nlohmann/json_fwd.hpp"
#include "planner/plan/plan.h"

namespace lime {

// What a token computes and reads in sparse MLPs: of every sequence of a decode step, and of short chunks.
struct SparseFigures {
  double computed_share = 0;  // neurons computed, of all neurons of the sparse layers, in one micro-batch
  double neurons_loaded = 0;  // a token
  double reads = 0;
  double bytes = 0;
  double io_ms = 0;  // in which any read was under way
};

// Of all devices of a plan.
struct SparseUse {
  bool exact = false;      // the plan has sparse parts
  bool predicted = false;  // a predictor names the neurons
  double tokens = 0;       // 0: nothing was computed that way
  SparseFigures measured;
  // As the plan says. Without a calibration it knows nothing of zeros, and has at most so many bytes.
  SparseFigures expected;
  bool calibrated = false;
  // Layers that a copy of the decider decides: they compute all neurons without a proof. Without any, the neurons
  // that are computed are the active ones.
  int64_t certified = 0;
  double expected_active_share = 0;  // neurons that are not zero
  int64_t copied = 0;                // neurons of all prompts, from the matrices that these had read

  // "sparse MLPs: 5.9 % of the neurons active (6.1 predicted); a token reads 31.4 of them (33.0 predicted)
  // in 24.2 reads (25.1), 502 KiB (510 KiB), 2.31 ms (2.50)"; with copies of deciders "7.1 % of the neurons
  // computed (7.0 predicted, 6.1 active), the others are proven to be zero in 4 layers; …"; without a calibration "…, 120 KiB (at most 1.2
  // MiB expected), …". Ends with "; 2345 were copied from prompts" if any were. Empty without sparse parts.
  std::string Text() const;
};
SparseUse SparseUseOf(const Plan& plan, std::span<const DeviceStatistics> devices);

// Adds sparsity, lossless and, with sparse parts, certified_layers, neurons_copied, sparse_active_share, which
// only the prediction knows if layers are certified, and sparse_computed_share, neurons_loaded_per_token,
// sparse_bytes_per_token and sparse_io_ms_per_token, null if nothing was computed that way, with the
// predicted figures beside them.
void AddSparsity(const SparseUse& use, nlohmann::json& answer);

}  // namespace lime
