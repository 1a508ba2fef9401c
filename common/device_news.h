// What a device tells the coordinator while a plan runs.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/activation.h"
#include "common/row_score.h"

namespace lime {

// It awaits orders.
struct Opened {
  friend bool operator==(const Opened&, const Opened&) = default;
};
struct SampledNews {
  int64_t step = 0;
  std::vector<SampledToken> tokens;
  std::vector<uint64_t> logits_hashes;               // of each token's request so far; 0 where nobody asked
  std::vector<std::optional<cpu::RowScore>> scores;  // likewise, of each token
  bool ends_step = false;                            // as StepEndedNews says

  friend bool operator==(const SampledNews&, const SampledNews&) = default;
};
struct StepEndedNews {
  int64_t step = 0;
  friend bool operator==(const StepEndedNews&, const StepEndedNews&) = default;
};
// The device has given the plan up.
struct FailedNews {
  absl::Status status;
  friend bool operator==(const FailedNews&, const FailedNews&) = default;
};
// It is there, and has nothing else to tell; a coordinator says it too.
struct Alive {
  friend bool operator==(const Alive&, const Alive&) = default;
};
using FromDevice = std::variant<Opened, SampledNews, StepEndedNews, FailedNews, Alive>;

}  // namespace lime
