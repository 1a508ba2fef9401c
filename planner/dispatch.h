// Where in the model every device's units stand, by playing the steps: the token takes whatever block has just come from a disk, so that no
// disk waits for room, and resident units in between. Pools may then be little more than one block.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/assignment.h"
#include "planner/mixed_counts.h"

namespace lime {

class Dispatcher {
 public:
  struct Question {
    const std::vector<MixedCountProgram::Share>& shares;  // an answer of MixedCountProgram
    const std::vector<int32_t>& order;                    // the first device has the embedding, the last one the head
    double limit_ms = 0;                                  // what a step is to take
    double ahead = 0;                                     // resident units of a size that may be taken before their time
    uint64_t seed = 0;                                    // of the order of sizes on a disk
  };

  // REQUIRES: `counts` outlives this and applies.
  Dispatcher(const Instance& instance, const MixedCountProgram& counts);

  Assignment Arrange(const Question& question);

  // What the last Arrange took, in units of SearchBudget.
  double work() const { return work_; }

 private:
  static constexpr int kSteps = 3;  // the last one is the plan

  // A device: what it reads, in turn, and what it holds.
  struct Machine {
    std::vector<int8_t> reads;    // sizes, of one step
    std::vector<double> come_ms;  // by load of a step: when the last one of it came
    int64_t loaded = 0, used = 0;
    double pool_mb = 0, disk_free_ms = 0, room_ms = 0;
    std::array<int, 2> held = {}, left = {};  // resident units, and those not yet taken in this step
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
  double Take(const Pick& pick, int size, double now_ms);

  const Instance& instance_;
  const MixedCountProgram& counts_;
  std::vector<Machine> machines_;
  std::array<int, 2> held_ = {}, left_ = {};
  double work_ = 0;
};

}  // namespace lime
