// One device as the coordinator asks it something, whether or not a plan is installed.
//
// Threads: any; calls wait.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "lime/v1/bulk.grpc.pb.h"
#include "lime/v1/control.grpc.pb.h"
#include "proto/bulk_convert.h"
#include "proto/channel.h"
#include "proto/convert.h"

namespace lime {

class DeviceClient {
 public:
  DeviceClient(std::string name, std::string address, const ClusterKeys& keys);

  // Unavailable where it does not answer in time; FailedPrecondition where it speaks another protocol or is another device.
  absl::StatusOr<DeviceHealth> Health(absl::Duration patience) const;

  // Of the plan in use, and how fast its ways out are.
  absl::StatusOr<DeviceStatistics> Statistics(absl::Duration patience) const;

  // Lets it measure itself; takes as long as call.seconds says, about, and ends at once after `cancelled` is set.
  absl::StatusOr<MeasuredDevice> Profile(const ProfileCall& call, const std::function<void(const ProfileProgress&)>& progress,
                                         const std::atomic<bool>* cancelled) const;
  // Lets it measure the way to another device.
  absl::StatusOr<MeasuredLink> ProbeLink(const LinkProbe& probe) const;

  // Which blocks of a model a plan may make it read.
  absl::StatusOr<DeviceHoldings> Holdings(const HoldingsCall& call, absl::Duration patience) const;

  // Spans that it has recorded of the plan in use, and its clock.
  absl::StatusOr<TraceChunk> Trace(const TraceCall& call) const;

  const std::string& name() const { return name_; }
  const std::string& address() const { return address_; }

 private:
  std::string Who() const;

  const std::string name_, address_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Control::Stub> stub_;
  const std::unique_ptr<v1::Bulk::Stub> bulk_;
};

}  // namespace lime
