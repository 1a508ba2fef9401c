// The way to the other devices of a plan over gRPC, each under the keys of the cluster.
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
    absl::Duration patience;     // with links that do not open
    std::optional<bool> probes;  // on links that are idle; not said: to other machines only
  };
  explicit RpcTransport(Options options) : options_(std::move(options)) {}

  std::unique_ptr<Link> OpenLink(LinkOptions options) override;
  absl::Status ReadKv(const KvHolder& holder, const KvReadCall& call, const std::atomic<bool>& cancelled,
                      const KvTakeover::Take& take) override;
  void EndKvReads() override { kv_channels_.clear(); }

 private:
  const Options options_;
  std::map<std::string, std::shared_ptr<grpc::Channel>> kv_channels_;  // by address; of who loads
};

}  // namespace lime
