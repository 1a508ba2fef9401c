// Reads KV that a plan has left on another device, for the plan that follows.
#pragma once

#include <atomic>
#include <string>

#include "absl/time/time.h"
#include "daemon/engine/kv_left.h"
#include "planner/base/status.h"
#include "proto/channel.h"
#include "proto/kv_convert.h"

namespace lime {

// For a device that says nothing, or that nobody reads from, before it is given up.
inline constexpr absl::Duration kKvPatience = absl::Seconds(10);

struct KvSource {
  std::string name, address;
  ClusterKeys keys;
  const std::atomic<bool>* cancelled = nullptr;  // outlives the call
};

// All that `call` asks for. Unavailable where the device is lost or silent for kKvPatience; kCancelled soon after that is set; what the
// device refuses; DataLoss where pages come damaged, or not all of them do; the error of `take`.
absl::Status ReadKvFrom(const KvSource& source, const KvReadCall& call, const KvTakeover::Take& take);

}  // namespace lime
