// Reads KV that a plan has left on another device, for the plan that follows.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "daemon/engine/kv_left.h"
#include "planner/base/status.h"
#include "proto/channel.h"
#include "proto/kv_convert.h"

namespace lime {

// For a device that says nothing before it is given up. Slow links bring little at a time; and a device that is lost is noticed by the
// coordinator, which cancels the installation everywhere.
inline constexpr absl::Duration kKvPatience = absl::Minutes(1);

struct KvSource {
  std::string name, address;
  std::shared_ptr<grpc::Channel> channel;        // to it, of ChannelUse::kBulk
  const std::atomic<bool>* cancelled = nullptr;  // outlives the call
};

// All that `call` asks for. Unavailable where the device is lost or silent for kKvPatience; kCancelled soon after that is set; what the
// device refuses; DataLoss where pages come damaged, or not all of them do; the error of `take`.
absl::Status ReadKvFrom(const KvSource& source, const KvReadCall& call, const KvTakeover::Take& take);

}  // namespace lime
