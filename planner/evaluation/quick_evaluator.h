// The exact evaluation in a tenth of the time, for searches. It sums up the resident blocks between
// two loads in advance, and ends when all times of a step equal the times of the previous step plus
// one constant. It differs from Evaluator only by rounding; Evaluator evaluates the final plan.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "planner/evaluation/assignment.h"
#include "planner/plan/instance/instance.h"

namespace lime {

// Thread: any, one at a time.
class QuickEvaluator {
 public:
  // REQUIRES: instance.Validate().ok(); `instance` outlives this and changes only its devices'
  // mem_mb between calls.
  explicit QuickEvaluator(const Instance& instance);

  // Milliseconds per step. Infinity if the plan does not fit, or if a bound shows that it reaches
  // `limit_ms`.
  double MsPerStep(const Assignment& plan, double limit_ms = std::numeric_limits<double>::infinity());

  // For the last plan: missing megabytes on all devices. 0: the plan fits.
  double overflow_mb() const { return overflow_mb_; }
  // For the last plan: time of one micro-batch without waiting.
  double path_ms() const { return path_ms_; }
  // For the last plan: the number of disks about as busy as one that reads `ms` in every step.
  double BusyDisks(double ms) const;
  // Work of the last call, in units of SearchBudget.
  double work() const { return work_; }

 private:
  // A streamed block, in order of use.
  struct Load {
    double gap_ms = 0;   // compute time (and hops, with one micro-batch) since the previous load
    double comp_ms = 0;  // of the block itself
    double load_ms = 0;
    double mb = 0;
    double stage_mb = 0;  // of the stage, in the ring when this load ends
    // The release that this load waits for, as an offset in release_ms_ from its own entry of this
    // step.
    int64_t waits_for = 0;
    int32_t device = 0;
    int32_t rank = 0;  // loads of the stage in the ring when this load ends
  };

  struct Visit {
    int32_t device = 0;
    int32_t first_load = 0, end_load = 0;  // loads_[first_load, end_load) are of this stage
    double comp_ms = 0;                    // of the whole visit
    double tail_ms = 0;                    // after its last load
  };

  struct DeviceState {
    double used_mb = 0;
    double pool_need_mb = 0;
    double comp_ms = 0;
    double load_ms = 0;
    std::vector<int32_t> loads;  // into loads_
  };

  void Compile(const Assignment& plan);
  void AddLoad(int block, double gap_ms);
  bool Fits();
  double LeastMs() const;
  void CompileWindows();
  void CompileWindows(const DeviceState& device, double pool_mb);
  double RunOne();
  double RunMany();
  double RunVisit(const Visit& visit, double now, bool first, double* row);
  bool Settles(double shift_low, double shift_high);

  const Instance& instance_;
  std::vector<double> mb_before_;       // by block: weights and KV of all blocks before it
  std::vector<double> comp_before_ms_;  // by device and block: compute time of all blocks before it
  std::vector<DeviceState> devices_;
  std::vector<Visit> visits_;
  std::vector<Load> loads_;
  std::vector<double> prefix_mb_;
  std::vector<double> release_ms_;  // one row of loads_ per step
  // By visit: when it ended for the first and for the last micro-batch of the previous step.
  std::vector<double> ends_ms_;
  // By micro-batch.
  std::vector<double> ready_ms_;
  std::vector<double> free_ms_, egress_free_ms_, load_end_ms_, load_end_before_ms_;  // by device
  double path_ms_ = 0;
  int max_reach_ = 0;      // steps back to the earliest release that a load waits for
  int settled_steps_ = 0;  // consecutive steps equal to the step before plus one constant
  double overflow_mb_ = 0;
  double work_ = 0;
};

}  // namespace lime
