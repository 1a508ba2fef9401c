// Connections between the programs of a cluster: listening addresses and trust.
//
// Between machines, both sides prove their identity with keys of the cluster's authority (`lime
// keys`). A device's certificate has the device's name, not its address, so the device may move.
#pragma once

#include <memory>
#include <string>

#include "proto/certificate.h"

// Forward declarations, because gRPC's headers take two seconds to compile.
namespace grpc {
class Channel;
class ServerBuilder;
class ServerCredentials;
}  // namespace grpc

namespace lime {

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const ClusterKeys& keys);

// The use of a connection. Each use has its own, so that nothing queues behind larger messages.
enum class ChannelUse {
  kControl,
  kActivations,
  kBulk,  // weights
};
// `device`: the name that its certificate must have.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address, const std::string& device, const ClusterKeys& keys, ChannelUse use);

// Limits and options of a server.
void SetServerOptions(grpc::ServerBuilder& builder);

}  // namespace lime
