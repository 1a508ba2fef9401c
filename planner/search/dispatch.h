// Places every device's units in the model by simulating steps. The token takes the block that has
// just arrived from a disk, so that no disk waits for room. In between it takes resident units.
// Pools can then be little larger than one block.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/evaluation/assignment.h"
#include "planner/search/mixed_counts.h"

namespace lime {

class Dispatcher {
 public:
  struct Question {
    const std::vector<MixedCountProgram::Share>& shares;  // a result of MixedCountProgram
    const std::vector<int32_t>& order;                    // the first device has the embedding, the last one the head
    double limit_ms = 0;                                  // target time of a step
    // Resident units per size that may be taken early.
    double ahead = 0;
    uint64_t seed = 0;  // for the order of sizes on a disk
  };

  // REQUIRES: `counts` outlives this, and applies().
  Dispatcher(const Instance& instance, const MixedCountProgram& counts);

  Assignment Arrange(const Question& question);

  // Work of the last Arrange, in units of SearchBudget.
  double work() const { return work_; }

 private:
  static constexpr int kSteps = 3;  // the last one is the plan

  // A device: the blocks that it reads in turn, and the resident ones.
  struct Machine {
    std::vector<uint8_t> reads;   // sizes, in order, of one step
    std::vector<double> come_ms;  // by load of a step: its latest arrival
    int64_t loaded = 0, used = 0;
    double pool_mb = 0, disk_free_ms = 0, room_ms = 0;
    // Resident units, and the ones not taken yet in this step.
    std::array<int, 2> held = {}, remaining = {};
    int streams_left = 0;
  };
  struct Pick {
    int device = -1;
    bool streamed = false;
  };

  void Prepare(const Question& question);
  void Load(int d);
  Pick PickFor(const Question& question, int size, double now_ms, double begin_ms, int at, bool first) const;
  Pick PickOutOfTurn(int size);
  int Holder(int size, int at, bool first, const Question& question) const;
  void BeginStep();
  double Assign(const Pick& pick, int size, double now_ms);

  const Instance& instance_;
  const MixedCountProgram& counts_;
  std::vector<Machine> machines_;
  std::array<int, 2> held_ = {}, remaining_ = {};
  double work_ = 0;
};

}  // namespace lime
