// Local search on assignments: shift and slide stages, move, merge and trade runs of blocks, swap residency, with simulated annealing on
// the quick evaluation. After every move that overfills a device some of its blocks are streamed, and some made resident where room is
// left.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/assignment.h"
#include "planner/first_token.h"
#include "planner/quick_evaluator.h"
#include "planner/random.h"
#include "planner/search_budget.h"

namespace lime {

class Annealer {
 public:
  // Costs from here on are of plans that do not fit: the more is missing, the higher.
  static constexpr double kDoesNotFit = 1e200;

  struct Candidate {
    Assignment plan;
    double cost = 0;  // ms per step, what moving costs, and many times what the first token takes beyond its bound
  };

  struct Schedule {
    double work = 0;  // of the budget
    double hot = 0;   // a move that costs this share more is accepted one time in e
    double cold = 0;
    // The share of its cost that a plan is judged worse by for every disk as busy as the busiest. That one alone sets the pace, so without
    // this a plan gains nothing by streaming less on one of several, and never comes to stream less on all.
    double per_busy_disk = 0;
    // Whether blocks become resident wherever there is room, or only where the move has changed what a device holds: pools elsewhere then
    // stay as deep as they are. Which is better differs from instance to instance.
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

  // Below `limit`; from there on it may be anything that is no less.
  double Cost(const Assignment& plan, double limit = std::numeric_limits<double>::infinity());
  // The same with what overfills devices streamed, if it can be: `plan` is changed.
  Candidate Repaired(Assignment plan);

  // The best plan seen on the way, `start` included. Ends early when the budget does.
  Candidate Run(const Candidate& start, const Schedule& schedule);

 private:
  double LateMs(const Assignment& plan);  // beyond the bound on the first token
  bool Propose();
  void Accept(double cost, double judged, Candidate& best);  // draft_ becomes current_
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
  int PieceRun();
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
  int longest_run_;  // of pieces whose residency changes at once
  bool may_move_;

  Assignment draft_;  // current_ and one move
  Candidate current_;
  bool tidies_ = true;
  bool waits_ = false;                                   // the token of current_ for disks, a good part of a step
  double judged_ = 0;                                    // the cost of current_, and what its busy disks count for
  std::vector<int32_t> cuts_;                            // of current_: units at which another stage begins
  std::vector<double> used_mb_, need_mb_, smallest_mb_;  // of draft_, by device: what stays, the pool it needs, its smallest streamed block
  std::vector<double> current_used_mb_;                  // as used_mb_, of current_
  std::vector<double> mb_before_;                        // by block: weights and KV of all before it
  std::vector<int32_t> blocks_of_;                       // scratch
};

}  // namespace lime
