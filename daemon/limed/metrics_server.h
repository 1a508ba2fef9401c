// Answers GET /metrics with a text, and nothing else.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/input/host_port.h"
#include "planner/base/status.h"

namespace lime {

class MetricsServer {
 public:
  // `text` is called on the server's thread. Errors: as HttpServer::Create.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const HostPort& address, std::function<std::string()> text);
  virtual ~MetricsServer() = default;

  virtual int port() const = 0;
};

}  // namespace lime
