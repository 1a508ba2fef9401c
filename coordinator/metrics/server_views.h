// GET /metrics, /lime/cluster and /lime/events of `lime serve`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "coordinator/cluster_view/cluster_watch.h"
#include "coordinator/metrics/server_metrics.h"
#include "coordinator/server/server_observer.h"

namespace lime {

class WatchedViews final : public ServerViews {
 public:
  // `connections`: open ones of the HTTP server; may be empty.
  // REQUIRES: all arguments outlive this object
  WatchedViews(ServerMetrics& metrics, ClusterWatch& watch, std::function<int64_t()> connections)
      : metrics_(metrics), watch_(watch), connections_(std::move(connections)) {}

  std::string Metrics() override { return metrics_.Text(watch_.Facts(), connections_ ? connections_() : 0); }
  std::string ClusterJson() override { return watch_.Json(); }
  std::unique_ptr<BodySource> ClusterEvents(std::shared_ptr<HttpAnswer> answer) override { return watch_.Events(std::move(answer)); }

 private:
  ServerMetrics& metrics_;
  ClusterWatch& watch_;
  const std::function<int64_t()> connections_;
};

}  // namespace lime
