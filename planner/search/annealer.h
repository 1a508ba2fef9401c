// Local search with simulated annealing on the quick evaluation. Moves shift and slide stages;
// move, merge and exchange runs of blocks; and swap residency. After each move, blocks are streamed
// on a device that is too full, and made resident where there is room.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/base/random.h"
#include "planner/evaluation/assignment.h"
#include "planner/evaluation/first_token.h"
#include "planner/evaluation/quick_evaluator.h"
#include "planner/search/search_budget.h"

namespace lime {

class Annealer {
 public:
  // A plan that does not fit costs this, plus an amount that grows with the missing memory.
  static constexpr double kDoesNotFit = 1e200;

  struct Candidate {
    Assignment plan;
    // Milliseconds per step, plus moving, plus a multiple of the excess over the first-token bound.
    double cost = 0;
  };

  struct Schedule {
    double work = 0;  // share of the budget
    double hot = 0;   // a move that costs this share more is accepted with probability 1/e
    double cold = 0;
    // Penalty, as a share of the cost, for every disk as busy as the busiest. The busiest disk
    // alone sets the pace. Without a penalty a plan gains nothing when one of several busy disks
    // reads less, so the search never reduces all of them.
    double per_busy_disk = 0;
    // Whether blocks become resident wherever there is room. If false, only on devices that the
    // move changed; other rings then keep their depth. Which is better depends on the instance.
    bool tidies = true;
  };

  struct Options {
    Granularity granularity = Granularity::kBlock;
    std::optional<MoveCost> move_cost;
    const FirstTokenBound* first_token = nullptr;  // outlives this
    uint64_t seed = 1;
  };

  // REQUIRES: instance.Validate().ok(); `instance` and `budget` outlive this.
  Annealer(const Instance& instance, Options options, SearchBudget& budget);

  // The cost if it is below `limit`; else any value not less than `limit`.
  double Cost(const Assignment& plan, double limit = std::numeric_limits<double>::infinity());
  // The cost after streaming blocks of devices that are too full, if possible. Changes `plan`.
  Candidate Repaired(Assignment plan);

  // The best plan seen, including `start`. Ends early with the budget.
  Candidate Run(const Candidate& start, const Schedule& schedule);

 private:
  double LateMs(const Assignment& plan);  // excess over the first-token bound
  bool Propose();
  void Accept(double cost, double judged, Candidate& best);  // makes draft_ the current_
  bool ShiftCut();
  bool SlideStage();
  bool TradeAtCuts();
  bool MoveRun();
  bool Exchange();
  bool SwapAlike();
  bool Alike(int u, int v) const;
  bool MergeStage();
  bool SwapStageDevices();
  bool SwapDevicesInRange();
  bool Toggle();
  bool SwapResidency(bool near);
  int PartRun();
  int SetStreamed(int block, int count, uint8_t streamed);

  void SetUnits(int begin, int end, int device);
  int UnitDevice(int unit) const { return draft_.device[unit_begins_[unit]]; }
  int StageBegin(int unit) const;
  int StageEnd(int unit) const;
  int RunLength();
  double UnitMb(int unit) const { return mb_before_[unit_begins_[unit + 1]] - mb_before_[unit_begins_[unit]]; }
  int UnitBeside(int device, int other, double most_mb);
  void Look();

  void Repair();
  void MeasureMemory();
  void PlaceEmbedding(int device);
  void StreamUntilFits(int device);
  void KeepWhatFits(int device);
  double StageStreamedMb(int block) const;

  const Instance& instance_;
  const Options options_;
  SearchBudget& budget_;
  QuickEvaluator evaluator_;
  std::optional<FirstTokenPredictor> first_token_;
  Random random_;
  std::vector<int32_t> unit_begins_;
  int units_;
  int longest_run_;  // of parts whose residency changes together
  bool may_move_;

  Assignment draft_;  // current_ after one move
  Candidate current_;
  bool tidies_ = true;
  // Whether the token of current_ waits for disks during a large share of a step.
  bool waits_ = false;
  double judged_ = 0;          // cost of current_ plus the penalty for busy disks
  std::vector<int32_t> cuts_;  // of current_: units at which a stage begins
  // By device, for draft_: resident memory, ring that it needs, smallest streamed block.
  std::vector<double> used_mb_, need_mb_, smallest_mb_;
  std::vector<double> current_used_mb_;  // used_mb_ of current_
  std::vector<double> mb_before_;        // by block: weights and KV of all blocks before it
  std::vector<int32_t> blocks_of_;       // scratch
};

}  // namespace lime
