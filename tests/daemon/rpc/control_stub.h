// Calls to a device that any program of the cluster can make.
#pragma once

#include <grpcpp/channel.h>

#include <memory>

#include "coordinator/rpc/cluster_client.h"
#include "lime/v1/control.grpc.pb.h"
#include "proto/channel.h"

namespace lime {

inline std::unique_ptr<v1::Control::Stub> ControlOf(const ClusterClient::Device& device) {
  return v1::Control::NewStub(OpenChannel(device.address, "", {}, ChannelUse::kControl));
}

}  // namespace lime
