// News that a device sends to the coordinator while a plan runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/activation.h"
#include "common/sampling/row_score.h"

namespace lime {

// The device is ready for orders.
struct Opened {
  bool wants_vocabulary = false;  // for masks; it has none, or another one
  friend bool operator==(const Opened&, const Opened&) = default;
};
struct SampledNews {
  int64_t step = 0;
  std::vector<SampledToken> tokens;
  // By token: the hash of all logits of its request so far; 0: not requested.
  std::vector<uint64_t> logits_hashes;
  // By token: the state of that hash (LogitsHash::State) behind a scored prompt; empty: not requested,
  // or the device's release sends none.
  std::vector<std::string> hash_states;
  // By token: the score of a prompt's id, or the log-probabilities of a generated token; nullopt:
  // not requested.
  std::vector<std::optional<cpu::RowScore>> scores;
  bool ends_step = false;  // also means StepEndedNews

  friend bool operator==(const SampledNews&, const SampledNews&) = default;
};
struct StepEndedNews {
  int64_t step = 0;
  friend bool operator==(const StepEndedNews&, const StepEndedNews&) = default;
};
// The device has given up the plan.
struct FailedNews {
  absl::Status status;
  friend bool operator==(const FailedNews&, const FailedNews&) = default;
};
// Sent when there is nothing else to send. The coordinator sends it too.
struct Alive {
  friend bool operator==(const Alive&, const Alive&) = default;
};
using FromDevice = std::variant<Opened, SampledNews, StepEndedNews, FailedNews, Alive>;

}  // namespace lime
