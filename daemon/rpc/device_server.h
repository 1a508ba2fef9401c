// The server of limed, without its command line: listens, installs plans and runs them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/rpc/plan_installation.h"
#include "planner/base/finding.h"
#include "planner/base/release.h"
#include "proto/convert/convert.h"

namespace lime {

class StoreDisk;

// Measures the device's kernels and disk; tests give known results. Takes seconds. Returns
// kCancelled soon after `cancelled` is set. No plan is installed meanwhile.
using Profiler = std::function<absl::StatusOr<MeasuredDevice>(
    const ProfileCall& call, const std::function<void(const ProfileProgress&)>& say, const std::atomic<bool>& cancelled)>;

// Examines the daemon's machine: memory, disks, keys; tests give known results. Takes little more
// than call.seconds. Runs on its own thread, one call at a time, whether or not a plan is in use.
using Inspector = std::function<std::vector<Finding>(const InspectCall& call)>;

// Options of the stream of orders (orders_stream.h).
struct OrdersOptions {
  absl::Duration beat = absl::Milliseconds(500);  // longest pause between two messages
  absl::Duration silence = absl::Seconds(4);      // a coordinator silent for this long is lost
  // Upper bound on messages that the coordinator has not taken yet.
  size_t queued = 1 << 16;
};

// Options for pushes of weights and reads of KV (bulk_service.h).
struct BulkOptions {
  std::string store;                           // folder; empty: pushes are refused
  absl::Duration silence = absl::Seconds(60);  // a coordinator silent for this long is lost
  StoreDisk* disk = nullptr;                   // null: the real one; outlives the service
};

class DeviceServer {
 public:
  struct Options {
    std::string listen = "127.0.0.1:0";  // port 0: a free one
    // Reported by Health, which adds what changes: the plan, its user, the clock.
    DeviceHealth health = {.settings = DaemonSettings(), .release = std::string(Release())};
    PlanInstallation::Options plans;
    Profiler profile;   // empty: this device does not measure itself
    Inspector inspect;  // empty: this device does not examine its machine
    // Receives details for debugging. Empty: nobody does.
    std::function<void(const std::string& sentence)> debug;
    OrdersOptions orders;
    BulkOptions bulk;
  };
  // If it cannot listen at the address, the error says why in one sentence.
  static absl::StatusOr<std::unique_ptr<DeviceServer>> Start(const Options& options);
  // Ends all streams, unloads the plan.
  virtual ~DeviceServer() = default;

  virtual int port() const = 0;

  // What the metrics show: of no plan, zeros and epoch -1.  Thread: any; may wait for the disk
  struct Snapshot {
    DeviceStatistics statistics;
    PlanMemory memory;
  };
  virtual Snapshot Now() const = 0;
};

}  // namespace lime
