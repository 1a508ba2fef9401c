// Questions of the coordinator to one device, with or without an installed plan.
//
// Threads: any; calls block.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/certificate.h"
#include "proto/convert/bulk_convert.h"
#include "proto/convert/convert.h"
#include "proto/diagnosis/diagnosis.h"

namespace lime {

class DeviceClient {
 public:
  // `start`: how to start the daemon, for errors if it does not run (ProbeTarget).
  DeviceClient(std::string name, std::string address, const ClusterKeys& keys, std::string start = "");
  ~DeviceClient();

  // See AskHealth.
  absl::StatusOr<DeviceHealth> Health(absl::Duration patience) const;
  // The same, of a device that was just started: connections that it closes do not end the wait.
  absl::StatusOr<DeviceHealth> AwaitHealth(absl::Duration patience) const;

  // Statistics of the plan in use, with the rates of the device's outgoing links.
  absl::StatusOr<DeviceStatistics> Statistics(absl::Duration patience) const;

  // Unloads the plan on a user's request. FailedPrecondition names the user of the plan, unless
  // `force`.
  absl::StatusOr<ReleasedPlan> Release(bool force) const;

  // Makes the device measure itself, for about call.seconds. Ends soon after `cancelled` is set.
  absl::StatusOr<MeasuredDevice> Profile(const ProfileCall& call, const std::function<void(const ProfileProgress&)>& progress,
                                         const std::atomic<bool>* cancelled) const;
  // Makes the device measure the link to another device.
  absl::StatusOr<MeasuredLink> ProbeLink(const LinkProbe& probe) const;

  // The blocks of a model that a plan may read on this device.
  absl::StatusOr<DeviceHoldings> Holdings(const HoldingsCall& call, absl::Duration patience) const;

  // The pushed weights that the device stores.
  absl::StatusOr<StoreContent> ListStore() const;
  // Removes a stored model and returns the bytes that are free again. FailedPrecondition while a
  // plan that reads the model is installed, or while it is being pushed.
  absl::StatusOr<Bytes> RemoveStored(uint64_t model) const;

  // The spans recorded for the plan in use, and the device's clock.
  absl::StatusOr<TraceChunk> Trace(const TraceCall& call) const;

  // Makes the device inspect its own machine, for a little more than call.seconds.
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

using DeviceClients = std::vector<std::unique_ptr<DeviceClient>>;

// How devices name this program: user, host, and a random number that identifies this call.
Coordinator NewCoordinator();

}  // namespace lime
