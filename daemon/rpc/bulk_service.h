// Receives weights that a coordinator pushes into this device's store, reports which blocks are
// there, and sends KV that a plan has left here to the device that needs it under the next plan.
//
//   BulkStream ── messages ──► PushReceiver decides, PushedStore writes ── events ──► BulkStream
//
// One push at a time, on its own thread, which may wait for disk and network. Blocks that the
// installed plan reads are not written.
#pragma once

#include <memory>

#include "daemon/rpc/device_server.h"
#include "lime/v1/bulk.grpc.pb.h"

namespace lime {

class BulkService : public v1::Bulk::CallbackService {
 public:
  using Options = BulkOptions;
  // REQUIRES: `plans` outlives the service.
  static std::unique_ptr<BulkService> Make(const PlanInstallation& plans, const Options& options, const DeviceLog& log);

  // Call it regularly.
  virtual void Tick(absl::Time now) = 0;
  // Ends running pushes and accepts no new ones. Call it before the server shuts down.
  virtual void Stop() = 0;
};

}  // namespace lime
