// The exact evaluation in a tenth of the time, for searches: the same schedule with the computing of resident blocks between two loads
// added up beforehand, ended as soon as every time of a step is that of the step before plus one constant. It differs from Evaluator by
// rounding alone; what a search finally picks is evaluated by that one.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "planner/assignment.h"
#include "planner/plan/instance.h"

namespace lime {

// Thread: any one at a time.
class QuickEvaluator {
 public:
  // REQUIRES: instance.Validate().ok(), and `instance` outlives this, unchanged but for its devices' mem_mb between two calls.
  explicit QuickEvaluator(const Instance& instance);

  // Milliseconds per step; infinity where the plan does not fit, or where it is clear beforehand that `limit_ms` is reached.
  double MsPerStep(const Assignment& plan, double limit_ms = std::numeric_limits<double>::infinity());

  // Of the last plan: megabytes missing, over all devices. Where it is 0 the plan fits.
  double overflow_mb() const { return overflow_mb_; }
  // Of the last plan: what one micro-batch takes where it waits for nothing.
  double path_ms() const { return path_ms_; }
  // Of the last plan: how many disks are about as busy as one that reads for `ms` in every step.
  double BusyDisks(double ms) const;
  // What the last call took, in units of SearchBudget.
  double work() const { return work_; }

 private:
  // A streamed block, in order of use.
  struct Load {
    double gap_ms = 0;   // computing (and, for one micro-batch, hops) between the load before and this one
    double comp_ms = 0;  // of the block itself
    double load_ms = 0;
    double mb = 0;
    double stage_mb = 0;    // that its stage holds at once when it has come
    int64_t waits_for = 0;  // the release it waits for, in release_ms_, from its own of this step
    int32_t device = 0;
    int32_t rank = 0;  // loads the stage holds at once when it has come
  };

  struct Visit {
    int32_t device = 0;
    int32_t first_load = 0, end_load = 0;  // loads_[first_load, end_load) are of this stage
    double comp_ms = 0;                    // all of it
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
  std::vector<double> mb_before_;       // by block: weights and KV of all before it
  std::vector<double> comp_before_ms_;  // by device and block: computing of all before it
  std::vector<DeviceState> devices_;
  std::vector<Visit> visits_;
  std::vector<Load> loads_;
  std::vector<double> prefix_mb_;
  std::vector<double> release_ms_;  // a row of loads_ by step
  std::vector<double> ends_ms_;     // of the step before: by visit, of the first and of the last micro-batch
  std::vector<double> ready_ms_;    // by micro-batch
  std::vector<double> free_ms_, egress_free_ms_, load_end_ms_, load_end_before_ms_;  // by device
  double path_ms_ = 0;
  int max_reach_ = 0;      // steps back to the earliest release waited for
  int settled_steps_ = 0;  // in a row that were the step before plus one constant
  double overflow_mb_ = 0;
  double work_ = 0;
};

}  // namespace lime
