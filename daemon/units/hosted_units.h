// Units of other devices' stages that this device, their host, has (PlanPart::host): computes them
// for rows that the owners send.
//
//   owner ── UnitsQuery ──► OnQuery ──► StageLogic::OnUnitsAsked ──► units come into memory
//                                                                         │ OnReady
//   owner ◄── UnitsAnswer ── EndCompute ◄── Compute ◄── BeginCompute ◄────┘
//
// A question is answered in as many messages as it takes: units that are in memory are computed and
// sent while others are read.
//
// Thread: any, under the engine's lock, except Compute.
// Memory: Create allocates all of it but the questions (UnitsMessageBytes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "daemon/logic/hosting/units_message.h"
#include "daemon/logic/stage_logic.h"
#include "kernels/backend.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"

namespace lime {

class HostedUnits {
 public:
  struct Options {
    int32_t device = 0;
    int64_t max_rows = 0;  // of a micro-batch
    Backend* backend = nullptr;
    // Appends all rows of a unit in a place, in order of use.  Thread: the compute thread
    std::function<void(int part, const UnitInPlace& unit, std::vector<RowsInMemory>& matrices)> matrices_of;
    // Sends an answer to an owner. Called under the lock.
    std::function<void(int32_t to, std::vector<std::byte> message)> send;
  };

  // REQUIRES: `plan` is valid for `spec`. Both, and what the options point to, outlive this object.
  HostedUnits(const Plan& plan, const ModelSpec& spec, Options options);

  // What a question needs. `units` is valid until the next question of the owner.
  struct Visit {
    int32_t part = 0;
    std::span<const int32_t> units;  // ascending
    int32_t rows = 0;
    bool decodes = false;
  };
  // Takes a question. InvalidArgument for one that is not expected; nothing has changed then.
  absl::StatusOr<Visit> OnQuery(int32_t from, const UnitsQuery& query);
  // InvalidArgument for a guess about units that this device does not have for `from`. Guesses may
  // come at any time, even too late to help.
  absl::Status CheckGuess(int32_t from, const UnitsGuess& guess) const;
  // A unit that a question needs is in memory, and stays there until EndCompute returns it.
  void OnReady(int32_t part, const UnitInPlace& unit);

  bool ready() const { return !ready_.empty(); }
  // Chooses units to compute next, the oldest first. Returns the owner.
  // REQUIRES: ready(), and nothing is being computed
  int32_t BeginCompute();
  // Computes them.  Thread: the compute thread, without the lock
  absl::Status Compute();
  // Sends the results. What it returns is valid until the next BeginCompute.
  struct Computed {
    int32_t part = 0;
    std::span<const UnitInPlace> units;
  };
  Computed EndCompute();

 private:
  // The newest question of one owner.
  struct Question {
    int64_t number = -1;
    int32_t part = 0;
    std::vector<std::byte> rows;
    std::vector<int32_t> units;                 // ascending
    std::vector<std::vector<int32_t>> rows_of;  // by unit of `units`: rows, ascending
    size_t missing = 0;                         // units without a result
  };
  struct Ready {
    int32_t owner = 0;
    UnitInPlace unit;
  };

  absl::Status Check(int32_t from, const UnitsQuery& query) const;
  // Checks that the part is of `from` on this device, and has all of these units; -1: none.
  absl::Status CheckUnits(int32_t from, int32_t part, std::span<const int32_t> units) const;
  static std::span<const int32_t> RowsOf(const Question& question, int32_t unit);

  const Plan& plan_;
  const Options options_;
  const int64_t hidden_, row_bytes_, most_rows_;  // most_rows_: of units that are computed together
  std::map<int32_t, Question> questions_;         // by owner
  std::deque<Ready> ready_;
  // Chosen by BeginCompute.
  int32_t owner_ = 0;
  std::vector<UnitInPlace> computing_;
  std::vector<float> results_;  // made by Compute
  size_t num_results_ = 0;
};

}  // namespace lime
