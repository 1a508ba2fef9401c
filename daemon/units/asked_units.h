// Units of this device's stages that other devices, the hosts, have (PlanPart::host): asks a host
// to compute them for the rows of a micro-batch, and hands its results to the backend; tells hosts
// what they may read ahead.
//
// Thread: any, under the engine's lock, except UseAnswer.
// Memory: results go to the backend as they come; a question takes what the plan counts
// (UnitsMessageBytes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "daemon/logic/hosting/units_message.h"
#include "kernels/backend.h"
#include "planner/base/status.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/plan.h"

namespace lime {

class AskedUnits {
 public:
  struct Options {
    int32_t device = 0;
    Backend* backend = nullptr;
    // Sends a question or a guess to a host. Called under the lock.
    std::function<void(int32_t to, std::vector<std::byte> message)> send;
  };

  // REQUIRES: `plan` is valid. It and what the options point to outlive this object.
  AskedUnits(const Plan& plan, Options options);

  // Asks the host of a part for the units that the rows of a micro-batch have chosen. True if there
  // are any; OnAnswer then says when all results are here. REQUIRES: the backend has chosen the
  // units of the part's block; the last answer has been used
  absl::StatusOr<bool> Ask(int part, int32_t microbatch, const MicroBatch& batch);
  // Takes results. Returns the part and micro-batch whose results are all here now, if any.
  // InvalidArgument for results that were not asked for; nothing has changed then.
  absl::StatusOr<std::optional<std::pair<int32_t, int32_t>>> OnAnswer(int32_t from, const UnitsAnswer& answer);
  // Tells the host of a part which of its units the next question will probably name, the likeliest
  // first.  REQUIRES: 1 to kMaxAheadPlaces units
  void Guess(int part, std::span<const int32_t> units);
  // Computes with the results for the part.  Thread: the compute thread, without the lock
  absl::Status UseAnswer(int part);

 private:
  // The newest question to one host.
  struct Question {
    int64_t number = -1;
    int32_t part = -1, microbatch = 0;
    std::vector<int32_t> experts;  // of its units
    std::vector<bool> is_here;     // by unit of `experts`
    size_t missing = 0;
  };

  int32_t ExpertOf(int part, int32_t unit) const { return experts_.at(part)[static_cast<size_t>(unit)]; }

  const Plan& plan_;
  const Options options_;
  std::map<int, std::vector<int32_t>> experts_;  // by part with a host: the expert of each unit, ascending
  std::map<int32_t, Question> questions_;        // by host
};

}  // namespace lime
