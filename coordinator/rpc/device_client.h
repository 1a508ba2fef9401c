// One device as the coordinator asks it something, whether or not a plan is installed.
//
// Threads: any; calls wait.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/bulk_convert.h"
#include "proto/certificate.h"
#include "proto/convert.h"
#include "proto/diagnosis.h"

namespace lime {

class DeviceClient {
 public:
  // `start`: what to type where nobody listens (ProbeTarget).
  DeviceClient(std::string name, std::string address, const ClusterKeys& keys, std::string start = "");
  ~DeviceClient();

  // As AskHealth.
  absl::StatusOr<DeviceHealth> Health(absl::Duration patience) const;

  // Of the plan in use, and how fast its ways out are.
  absl::StatusOr<DeviceStatistics> Statistics(absl::Duration patience) const;

  // Unloads what is there for a person: FailedPrecondition names who uses it, unless `force`.
  absl::StatusOr<ReleasedPlan> Release(bool force) const;

  // Lets it measure itself; takes as long as call.seconds says, about, and ends at once after `cancelled` is set.
  absl::StatusOr<MeasuredDevice> Profile(const ProfileCall& call, const std::function<void(const ProfileProgress&)>& progress,
                                         const std::atomic<bool>* cancelled) const;
  // Lets it measure the way to another device.
  absl::StatusOr<MeasuredLink> ProbeLink(const LinkProbe& probe) const;

  // Which blocks of a model a plan may make it read.
  absl::StatusOr<DeviceHoldings> Holdings(const HoldingsCall& call, absl::Duration patience) const;

  // What it holds of what was pushed to it.
  absl::StatusOr<StoreContent> ListStore() const;
  // The bytes that are free again. FailedPrecondition while a plan that reads the model is installed, or it is being pushed.
  absl::StatusOr<Bytes> RemoveStored(uint64_t model) const;

  // Spans that it has recorded of the plan in use, and its clock.
  absl::StatusOr<TraceChunk> Trace(const TraceCall& call) const;

  // It looks at its own machine, for as long as call.seconds and little more.
  absl::StatusOr<std::vector<Finding>> Inspect(const InspectCall& call) const;

  const std::string& name() const { return target_.name; }
  const std::string& address() const { return target_.address; }
  const ProbeTarget& target() const { return target_; }

 private:
  std::string Who() const;

  const ProbeTarget target_;
  struct Stubs;
  const std::unique_ptr<Stubs> stubs_;
};

// This program as devices are told of it: user, host, and a number that no other call has got.
Coordinator NewCoordinator();

}  // namespace lime
