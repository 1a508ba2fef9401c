// Where the activations of other devices arrive: one stream from each, its messages in order, the next read when the stage has taken one.
//
// Hostile: a stream of another epoch, of who is not the device that it says, or with a message that cannot be, ends with an error; nobody
// else notices.
#pragma once

#include <grpcpp/generic/async_generic_service.h>

#include "daemon/rpc/plan_keeper.h"

namespace lime {

class ActivationService final : public grpc::CallbackGenericService {
 public:
  // `keeper` outlives the server that this is registered with.
  explicit ActivationService(PlanKeeper& keeper, DeviceLog log) : keeper_(keeper), log_(std::move(log)) {}

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

 private:
  PlanKeeper& keeper_;
  const DeviceLog log_;
};

}  // namespace lime
