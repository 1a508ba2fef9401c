// The metrics of `lime serve`: counts what its server reports, and shows the facts of its cluster.
//
// Threads: any. OnFirstToken and OnToken allocate nothing.
// Bounds: labels have known values. A route is a pattern.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "coordinator/cluster_view/cluster_facts.h"
#include "coordinator/cluster_view/token_meter.h"
#include "coordinator/server/server_observer.h"

namespace lime {

class ServerMetrics final : public ServerObserver {
 public:
  ServerMetrics();
  ~ServerMetrics() override;

  void OnRejected(Rejection why) override;
  void OnFirstToken(absl::Duration since_arrival) override;
  void OnToken(absl::Duration since_last) override;
  void OnAnswer(const SeenAnswer& answer) override;
  void OnExchange(const SeenExchange& exchange) override;

  // What was counted, and the gauges of now. `connections`: open ones of the HTTP server.
  std::string Text(const ClusterFacts& facts, int64_t connections) const;
  // How fast tokens come, for the facts.
  const TokenMeter& tokens() const { return tokens_; }

 private:
  struct Counts;
  const std::unique_ptr<Counts> counts_;
  TokenMeter tokens_;
};

}  // namespace lime
