// Teacher-forced logits: the model's probability of each id of a sequence, given the ids before it.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "coordinator/serving/serving.h"
#include "planner/base/status.h"

namespace lime::cli {

// Waits for requests that were sent together, until the user cancels.
//
// Owner: the sender of the requests. This object outlives the requests.
class RequestEnds {
 public:
  // REQUIRES: requests > 0
  explicit RequestEnds(int64_t requests) : remaining_(requests) {}

  // One request has ended.  Thread: that of Serving
  void Count() {
    if (--remaining_ == 0) all_.Notify();
  }
  // False if `cancel` was set before the last request ended.
  bool Wait(const std::atomic<bool>* cancel) const {
    constexpr absl::Duration kLook = absl::Milliseconds(100);  // how often a wait looks for Ctrl-C
    while (!all_.WaitForNotificationWithTimeout(kLook)) {
      if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) return false;
    }
    return true;
  }

 private:
  int64_t remaining_;
  absl::Notification all_;
};

struct ScoreOptions {
  int64_t top = 5;  // likeliest ids returned for each position
  // Sequences that run beside the scored one and whose logits are dropped. They must not change a
  // bit of the result.
  std::vector<std::vector<int32_t>> companions;
  const std::atomic<bool>* cancel = nullptr;
};

struct ScoredPosition {
  int32_t id = 0;
  std::optional<double> logprob;               // natural logarithm; nullopt for the first id
  std::vector<std::pair<int32_t, float>> top;  // of the distribution after this id, likeliest first
};

struct Scores {
  std::vector<ScoredPosition> positions;  // of all windows
  // Over all of their logits. nullopt: an older release computes the head, whose hash of a window
  // cannot continue with the next one.
  std::optional<uint64_t> logits_hash = 0;
};

// nullopt if nothing was scored: the first id of a window has no probability.
std::optional<double> PerplexityOf(const std::vector<ScoredPosition>& positions);

// Scores sequences one after another. kCancelled if options.cancel was set, and then `serving` has
// ended; else the errors of Serving.
absl::StatusOr<Scores> ScoreWindows(Serving& serving, const std::vector<std::vector<int32_t>>& windows, const ScoreOptions& options);

}  // namespace lime::cli
