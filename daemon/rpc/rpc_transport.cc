#include "daemon/rpc/rpc_transport.h"

#include <utility>

#include "common/host_port.h"
#include "daemon/rpc/activation_link.h"
#include "daemon/rpc/kv_reader.h"

namespace lime {
namespace {

bool IsHere(const std::string& address) {
  const absl::StatusOr<bool> loopback = IsLoopback(address);
  return loopback.ok() && *loopback;
}

}  // namespace

std::unique_ptr<Link> RpcTransport::OpenLink(LinkOptions options) {
  const bool probes = options_.probes.value_or(!IsHere(options.address));
  return OpenActivationLink({.link = std::move(options), .keys = options_.keys, .patience = options_.patience, .probes = probes});
}

absl::Status RpcTransport::ReadKv(const KvHolder& holder, const KvReadCall& call, const std::atomic<bool>& cancelled,
                                  const KvTakeover::Take& take) {
  std::shared_ptr<grpc::Channel>& channel = kv_channels_[holder.address];
  if (channel == nullptr) channel = OpenChannel(holder.address, holder.name, options_.keys, ChannelUse::kBulk);
  return ReadKvFrom({.name = holder.name, .address = holder.address, .channel = channel, .cancelled = &cancelled}, call, take);
}

}  // namespace lime
