// Connects to the other devices of a plan with gRPC, under the cluster's keys.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "daemon/stage/transport.h"
#include "proto/channel.h"

namespace lime {

class RpcTransport final : public Transport {
 public:
  struct Options {
    ClusterKeys keys;
    absl::Duration patience;  // for opening a link
    // Send probes on idle links. Not set: on links to other machines only.
    std::optional<bool> probes;
  };
  explicit RpcTransport(Options options) : options_(std::move(options)) {}

  std::unique_ptr<Link> OpenLink(LinkOptions options) override;
  absl::Status ReadKv(const KvHolder& holder, const KvReadCall& call, const std::atomic<bool>& cancelled,
                      const KvTakeover::PageSink& sink) override;
  void EndKvReads() override { kv_channels_.clear(); }

 private:
  const Options options_;
  // By address. Used by the loading thread only.
  std::map<std::string, std::shared_ptr<grpc::Channel>> kv_channels_;
};

}  // namespace lime
