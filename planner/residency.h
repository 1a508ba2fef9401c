// Which blocks of a model one device keeps in memory, and how large the ring for the others is.
//
// A fixed resident set is the right cache for a sweep that begins anew with every token (algorithms.md, section 1): the least bytes to
// stream first, then the placement and the ring whose schedule the exact evaluation finds fastest.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/placement.h"

namespace lime {

struct ResidencyProblem {
  enum class Kind : uint8_t {
    kRows,  // read by single rows when it is not resident: the embedding
    kAttention,
    kMlp,
    kHead,
  };
  struct Block {
    Kind kind = Kind::kMlp;
    Bytes resident = 0;         // memory it takes when it is resident
    double comp_ms = 0;         // its computation in one step
    std::vector<Bytes> pieces;  // room of each in the ring; its bytes are read for every step
  };
  std::vector<Block> blocks;  // in order of use
  Bytes memory = 0;           // for resident blocks and the ring
  double disk_bytes_per_ms = 0;
  double disk_latency_ms = 0;  // of a piece
  double row_ms = 0;           // reading the rows of a step, where kRows is not resident
  bool tied = false;           // kRows is the head's memory, and is resident when the head is

  Placement placement = Placement::kAuto;
  std::optional<Bytes> ring;    // as asked for; else chosen
  std::optional<double> share;  // of the bytes to keep resident, 0 to 1, as asked for; else as much as fits
};

struct ResidencyPlan {
  std::vector<bool> resident;  // by block
  Bytes ring = 0;              // 0: nothing streams
  Bytes resident_bytes = 0;
  Bytes streamed_bytes = 0;  // read in every step
  double ms_per_step = 0;    // exact evaluation
  double limit_ms = 0;       // max(computation, streamed bytes / disk rate): what no placement can beat

  bool streams() const { return ring > 0; }
};

// Deterministic. ResourceExhausted, with the numbers, when not even two pieces fit.
absl::StatusOr<ResidencyPlan> PlanResidency(const ResidencyProblem& problem);

// Milliseconds of a step of `plan` at the rates of `problem`, which may have changed since `plan` was made for it.
double ResidencyMsPerStep(const ResidencyProblem& problem, const ResidencyPlan& plan);

}  // namespace lime
