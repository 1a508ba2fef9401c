// The exact evaluation: the memory that a plan needs on every device, and its time per step in the
// steady state.
//
// The schedule is deterministic. Device d runs its visits in the order (step, stage, micro-batch).
// With an embedding by rows, each visit of the first stage begins by reading its embedding rows. A
// streamed block waits for its load. Its memory is free again after the last micro-batch. The loads
// of a device run one after another in order of use, and repeat in every step. Load k waits for the
// release of load k - w, where w is the number of consecutive loads ending with k that fit in the
// pool together.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "planner/plan/instance/instance.h"
#include "planner/plan/instance/stage_plan.h"

namespace lime {

// Reuses its memory, so a search can call one evaluator thousands of times.
//
// Thread: any, one at a time.
class Evaluator {
 public:
  static constexpr int kSteps = 48;  // simulated steps, from an idle start with empty pools
  // The steady rate is the mean of the steps after this one.
  static constexpr int kSettledStep = 15;

  // REQUIRES: instance.Validate().ok(); `instance` outlives this and changes only its devices'
  // mem_mb between calls. Unless `reads_once` (Plan::reads_once), a plan visits each device at most
  // once.
  explicit Evaluator(const Instance& instance, bool reads_once = true);

  // Milliseconds per step. Infinity if the plan does not fit; Infeasibility() then says why.
  // REQUIRES: plan.Validate(instance).ok()
  double MsPerStep(const StagePlan& plan);

  // The same with one flag per block, for searches.  REQUIRES: streamed.size() == NumBlocks()
  double MsPerStep(std::span<const Stage> stages, std::span<const uint8_t> streamed, bool embedding_by_rows = false);

  // Time of a prompt in `chunks` micro-batches, `per_sweep` of them per step (the last step has the
  // rest). Starts idle and ends when the last chunk has passed all stages. No chunk waits for the
  // end of another. Steps after kSteps take the steady rate. Infinity if the plan does not fit.
  // REQUIRES: chunks >= 1, per_sweep >= 1, reads_once, plan.Validate(instance).ok()
  double PromptMs(const StagePlan& plan, int64_t chunks, int per_sweep);

  // Memory of the last plan, by device. used_mb: resident weights, all KV and a resident
  // embedding. pool_mb: the rest, which is for streamed blocks; negative if the plan does not fit.
  std::span<const double> used_mb() const { return used_mb_; }
  std::span<const double> pool_mb() const { return pool_mb_; }
  // End of each step of the last plan that fitted.
  std::span<const double, kSteps> step_ends_ms() const { return step_ends_; }
  // One sentence about the last plan; empty if it fitted.
  std::string Infeasibility() const;

 private:
  enum class Problem {
    kNone,
    kMemory,  // resident data does not fit
    kPool,    // the pool is too small for a streamed block, or for all of one stage
    kNoDisk,  // a device must stream but has no disk
  };

  // One streamed block of a device, in order of use.
  struct Load {
    double ms = 0;              // time to read it
    int32_t loads_in_ring = 0;  // w: loads that fit in the pool together, this one being the last
  };

  // The compiled work of a device, and its state while the schedule runs.
  struct Runner {
    const double* comp_ms = nullptr;
    int32_t num_loads = 0;   // per step
    int32_t first_load = 0;  // index in loads_
    double free_ms = 0;      // when the compute becomes idle
    double egress_free_ms = 0;
    double load_end_ms = 0;        // end of the latest load
    int32_t next_wait = 0;         // loads that the first micro-batch has awaited
    int32_t next_release = 0;      // loads that the last micro-batch has released
    double* release_ms = nullptr;  // of its loads, by step
  };

  // A number of steps of the schedule.
  struct Course {
    int steps = kSteps;
    int last_microbatches = 0;  // in the last step
    bool feeds_back = true;     // a micro-batch begins a step when it has ended the previous one
  };

  void SetMicrobatches(int microbatches);
  bool Compile(std::span<const Stage> stages, int steps);  // false if it does not fit
  double RateMs() const { return (step_ends_[kSteps - 1] - step_ends_[kSettledStep]) / (kSteps - 1 - kSettledStep); }
  bool CheckMemory(std::span<const Stage> stages);
  bool CheckPools(std::span<const Stage> stages);
  void CompileLoads(std::span<const Stage> stages, int steps);
  void ComputeWindows(const Runner& runner, double pool_mb);
  void Run(std::span<const Stage> stages, const Course& course);
  double RunStage(const Stage& stage, double start, bool first, bool last);
  template <bool kFirst, bool kLast>
  double RunBlocks(const Stage& stage, double now);
  bool Fail(Problem problem, int device, int stage, double need_mb, double have_mb);

  const Instance& instance_;
  const bool reads_once_;
  int microbatches_ = 1;
  int loads_per_step_ = 1;  // of one block
  // Blocks of a stage stay in the pool until the last micro-batch.
  bool together_ = false;
  std::span<const uint8_t> streamed_;  // of the plan being evaluated
  bool by_rows_ = false;               // for its embedding
  std::vector<uint8_t> flags_;         // storage of streamed_ for a StagePlan
  std::vector<double> used_mb_, pool_mb_;
  std::vector<Runner> runners_;
  std::vector<Load> loads_;      // by device, in order of use
  std::vector<double> load_mb_;  // parallel to loads_
  // Parallel to loads_: loads of the same stage up to this one, inclusive.
  std::vector<int32_t> stage_rank_;
  std::vector<double> prefix_mb_;   // scratch of one device's windows
  std::vector<double> release_ms_;  // by device, steps x num_loads
  std::vector<double> ready_ms_;    // by micro-batch
  std::array<double, kSteps> step_ends_{};

  Problem problem_ = Problem::kNone;
  int problem_device_ = 0;
  int problem_stage_ = 0;
  double need_mb_ = 0;
  double have_mb_ = 0;
};

}  // namespace lime
