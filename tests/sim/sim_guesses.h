// Wrong guesses among the orders of a coordinator, as speculation makes them: a sequence computes ids
// that it will not have, and goes back. All later tokens show whether a row of a guess has left
// anything. Numbers steps as devices do, and as the coordinator does, who knows nothing of guesses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "common/order.h"
#include "planner/base/random.h"
#include "planner/plan/plan.h"

namespace lime {

class SimGuesses {
 public:
  explicit SimGuesses(uint64_t seed) : random_(seed) {}

  // Another plan is in use.
  void Begin() { under_way_.clear(), ends_.clear(), ended_ = ended_guesses_ = 0; }
  // The coordinator gives this order.
  void Note(const Order& order);

  struct Guess {
    StepOrder rows;
    RollbackOrder back;  // to the row before them; if the model has a state, to the snapshot that it has left
  };
  // A guess behind a step that was just noted, sometimes. Nothing if the devices have no room for its
  // rows, or cannot go back.
  std::optional<Guess> Draw(const Plan& plan, int64_t vocab_size, const StepOrder& step);
  bool guessing() const { return std::ranges::any_of(under_way_, &Step::guess); }
  bool idle() const { return under_way_.empty(); }

  // The coordinator's number of a device's step; nothing if it is a guess.
  std::optional<int64_t> StepOf(int64_t step) const;
  // The same, for the oldest step, which has ended.
  std::optional<int64_t> EndStep();

 private:
  struct Step {
    bool guess = false;
    int64_t rows = 0;
  };

  Random random_;
  std::map<int32_t, int64_t> ends_;        // by slot: positions that its sequence will have
  std::deque<Step> under_way_;             // oldest first
  int64_t ended_ = 0, ended_guesses_ = 0;  // steps, and the guesses among them
};

}  // namespace lime
