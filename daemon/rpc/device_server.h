// limed without its command line: listens, installs plans, runs them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/rpc/plan_keeper.h"
#include "planner/base/finding.h"
#include "planner/base/release.h"
#include "proto/convert.h"

namespace lime {

class StoreDisk;

// What a daemon measures itself with: the kernels and the disk, or in tests something that knows the answer. Takes seconds; returns
// kCancelled within moments after `cancelled` is set. No plan is installed meanwhile.
using Profiler = std::function<absl::StatusOr<MeasuredDevice>(
    const ProfileCall& call, const std::function<void(const ProfileProgress&)>& say, const std::atomic<bool>& cancelled)>;

// What looks at a daemon's own machine: memory, disks, keys; or in tests something that knows the answer. Takes little more than
// call.seconds; on a thread of its own, one at a time, whether or not a plan is in use.
using Inspector = std::function<std::vector<Finding>(const InspectCall& call)>;

// Of the stream of orders (orders_stream.h).
struct OrdersOptions {
  absl::Duration beat = absl::Milliseconds(500);  // something is said at least so often
  absl::Duration silence = absl::Seconds(4);      // a coordinator that says nothing for so long is lost
  size_t queued = 1 << 16;                        // news that it does not take, at most
};

// Of what weights and KV are pushed to and read from (bulk_service.h).
struct BulkOptions {
  std::string store;                           // folder; empty: pushes are refused
  absl::Duration silence = absl::Seconds(60);  // a coordinator that sends nothing for so long is lost
  StoreDisk* disk = nullptr;                   // null: the real one; outlives the service
};

class DeviceServer {
 public:
  struct Options {
    std::string listen = "127.0.0.1:0";  // port 0: a free one
    std::string name;
    Bytes memory = 0;   // that the process may use; 0: not said
    Bytes runtime = 0;  // that it held when it started; 0: not said
    PlanKeeper::Options plans;
    DaemonSettings settings;                                 // told to who asks how the device is
    Profiler profile;                                        // empty: this device does not measure itself
    Inspector inspect;                                       // empty: it does not look at its machine
    std::function<void(const std::string& sentence)> debug;  // where to tell who looks for a fault; empty: nowhere
    std::string release = std::string(Release());
    uint32_t protocol = kProtocol;
    OrdersOptions orders;
    BulkOptions bulk;
  };
  // Where nothing can listen at the address, one sentence says why.
  static absl::StatusOr<std::unique_ptr<DeviceServer>> Start(const Options& options);
  // Ends all streams, unloads the plan.
  virtual ~DeviceServer() = default;

  virtual int port() const = 0;
};

}  // namespace lime
