// limed without its command line: listens, installs plans, runs them.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "daemon/rpc/bulk_service.h"
#include "daemon/rpc/inspector.h"
#include "daemon/rpc/orders_stream.h"
#include "daemon/rpc/plan_keeper.h"
#include "daemon/rpc/profiler.h"
#include "planner/base/release.h"

namespace lime {

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
    OrdersStream::Options orders;
    BulkService::Options bulk;
  };
  // Where nothing can listen at the address, one sentence says why.
  static absl::StatusOr<std::unique_ptr<DeviceServer>> Start(const Options& options);
  // Ends all streams, unloads the plan.
  ~DeviceServer();

  int port() const;

 private:
  class Impl;
  explicit DeviceServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lime
