// Takes weights that a coordinator pushes, into the store of this device, says which are there, and gives KV that a plan has left here to
// its next device.
//
//   BulkStream ── messages ──► worker: PushReceiver says what fits, PushedStore writes it ── events ──► BulkStream
//
// One push at a time, on one thread of its own that may wait for disk and network. Blocks that an installed plan reads are not written.
#pragma once

#include <memory>

#include "daemon/rpc/device_server.h"
#include "lime/v1/bulk.grpc.pb.h"

namespace lime {

class BulkService : public v1::Bulk::CallbackService {
 public:
  using Options = BulkOptions;
  // `plans` outlives it.
  static std::unique_ptr<BulkService> Make(const PlanKeeper& plans, const Options& options, const DeviceLog& log);

  // Every now and then.
  virtual void Tick(absl::Time now) = 0;
  // Ends what is under way and takes nothing new: before the server shuts down.
  virtual void Stop() = 0;
};

}  // namespace lime
