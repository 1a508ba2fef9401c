// How programs of a cluster reach each other: where they listen, whom they trust.
//
// Between machines both sides prove who they are with keys of the cluster's own authority (`lime keys`). A device's certificate names the
// device, not its address, so that it may move.
#pragma once

#include <memory>
#include <string>

#include "proto/certificate.h"

// By their names: gRPC's headers take every file that includes them two seconds to compile.
namespace grpc {
class Channel;
class ServerBuilder;
class ServerCredentials;
}  // namespace grpc

namespace lime {

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const ClusterKeys& keys);

// What a connection is for. Each has one of its own, so that nothing queues behind what is larger.
enum class ChannelUse {
  kControl,
  kActivations,
  kBulk,  // weights
};
// `device`: the name that its certificate must carry.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address, const std::string& device, const ClusterKeys& keys, ChannelUse use);

// Limits and options of whatever listens.
void SetServerOptions(grpc::ServerBuilder& builder);

}  // namespace lime
