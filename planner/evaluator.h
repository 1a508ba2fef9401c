// The exact evaluation: what a plan needs of every device's memory, and how long a step takes once the pipeline has settled.
//
// The schedule is deterministic. Device d runs its visits in the order (step, stage, micro-batch); where the embedding is read by rows the
// first stage of each begins with that, before its first block; a streamed block waits for its load; after the last micro-batch its space
// is free again. Loads of a device run one after another in order of use, cyclically over the steps,
// each as soon as its whole space is free: load k waits for the release of load k - w, where w consecutive loads ending with k fit in the
// pool together.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "planner/plan/instance.h"
#include "planner/plan/stage_plan.h"

namespace lime {

// Keeps its memory between calls: a search makes one and asks it thousands of times.
//
// Thread: any one at a time.
class Evaluator {
 public:
  static constexpr int kSteps = 48;        // simulated from an idle start with empty pools
  static constexpr int kSettledStep = 15;  // the steady rate is that of the steps after this one

  // How often a streamed block is read in a step.
  enum class Reload {
    kOncePerStep,      // it stays until the last micro-batch has used it: the schedule of LIME
    kEveryMicrobatch,  // every micro-batch reads it again: a plain pipeline with offloading
  };

  // REQUIRES: instance.Validate().ok(), and `instance` outlives this, unchanged but for its devices' mem_mb between two calls. With
  // kEveryMicrobatch plans visit a device once at most.
  explicit Evaluator(const Instance& instance, Reload reload = Reload::kOncePerStep);

  // Milliseconds per step; infinity where the plan does not fit, and then Infeasibility() says why.
  // REQUIRES: plan.Validate(instance).ok()
  double MsPerStep(const StagePlan& plan);

  // The same with a flag per block, for searches that toggle residency.  REQUIRES: streamed.size() == NumBlocks()
  double MsPerStep(std::span<const Stage> stages, std::span<const uint8_t> streamed, bool embedding_by_rows = false);

  // A prompt in `chunks`, each a micro-batch, `per_sweep` of them in a step (in the last what is left) and none waiting for another to end:
  // from an idle start until the last has been through all stages. Steps after kSteps are taken to go on at the steady rate. Infinity where
  // that does not fit.
  // REQUIRES: chunks >= 1, per_sweep >= 1, kOncePerStep, plan.Validate(instance).ok()
  double PromptMs(const StagePlan& plan, int64_t chunks, int per_sweep);

  // Of the last plan. Per device: resident weights, KV of all its blocks and a resident embedding; what is left for streaming (may be
  // negative).
  std::span<const double> used_mb() const { return used_mb_; }
  std::span<const double> pool_mb() const { return pool_mb_; }
  // Of the last plan that fitted: when each step ended.
  std::span<const double, kSteps> step_ends_ms() const { return step_ends_; }
  // Of the last plan: one sentence, empty where it fitted.
  std::string Infeasibility() const;

 private:
  enum class Problem {
    kNone,
    kMemory,  // what must stay does not fit
    kPool,    // the pool is too small for a streamed block, or for those of one stage
    kNoDisk,  // a device streams and cannot read
  };

  // One streamed block of a device, in order of use.
  struct Load {
    double ms = 0;       // reading it
    int32_t window = 0;  // w: loads up to this one, itself included, that fit in the pool together
  };

  // What is compiled of a device, then its state while the schedule runs.
  struct Runner {
    const double* comp_ms = nullptr;
    int32_t num_loads = 0;   // per step
    int32_t first_load = 0;  // where its loads begin in loads_
    double free_ms = 0;      // the compute is idle from here on
    double egress_free_ms = 0;
    double load_end_ms = 0;        // of the latest load
    int32_t next_wait = 0;         // loads awaited by the first micro-batch so far
    int32_t next_release = 0;      // loads released by the last one so far
    double* release_ms = nullptr;  // of its loads, by step
  };

  // Some steps of the schedule.
  struct Course {
    int steps = kSteps;
    int last_microbatches = 0;  // of the last of them
    bool feeds_back = true;     // a micro-batch begins a step when it has ended the one before
  };

  void SetMicrobatches(int microbatches);
  bool Compile(std::span<const Stage> stages, int steps);  // false where it does not fit
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
  const Reload reload_;
  int microbatches_ = 1;
  int loads_per_step_ = 1;             // of one block
  bool together_ = false;              // blocks of a stage wait in the pool for the last micro-batch
  std::span<const uint8_t> streamed_;  // of the plan being evaluated
  bool by_rows_ = false;               // its embedding
  std::vector<uint8_t> flags_;         // backs streamed_ when a StagePlan was given
  std::vector<double> used_mb_, pool_mb_;
  std::vector<Runner> runners_;
  std::vector<Load> loads_;          // by device, in order of use
  std::vector<double> load_mb_;      // beside loads_
  std::vector<int32_t> stage_rank_;  // beside loads_: loads of the same stage up to this one, itself included
  std::vector<double> prefix_mb_;    // of the windows of one device
  std::vector<double> release_ms_;   // by device, steps x num_loads
  std::vector<double> ready_ms_;     // by micro-batch
  std::array<double, kSteps> step_ends_{};

  Problem problem_ = Problem::kNone;
  int problem_device_ = 0;
  int problem_stage_ = 0;
  double need_mb_ = 0;
  double have_mb_ = 0;
};

}  // namespace lime
