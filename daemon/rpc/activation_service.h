// Receives activations: one stream from each other device, with its messages in order. It reads the
// next message when the stage has taken the last one.
//
// Input is hostile. A stream ends with an error if its epoch is not the installed plan's, if its
// sender is not the device that it names, or if a message is invalid. Other streams do not notice.
#pragma once

#include <grpcpp/generic/async_generic_service.h>

#include "daemon/rpc/plan_installation.h"

namespace lime {

class ActivationService final : public grpc::CallbackGenericService {
 public:
  // REQUIRES: `plans` outlives the server that this service is registered with.
  explicit ActivationService(PlanInstallation& plans, DeviceLog log) : plans_(plans), log_(std::move(log)) {}

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

 private:
  PlanInstallation& plans_;
  const DeviceLog log_;
};

}  // namespace lime
