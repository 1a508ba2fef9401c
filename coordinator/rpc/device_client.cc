#include "coordinator/rpc/device_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/grpc_status.h"

namespace lime {

DeviceClient::DeviceClient(std::string name, std::string address, const ClusterKeys& keys)
    : name_(std::move(name)),
      address_(std::move(address)),
      stub_(v1::Control::NewStub(OpenChannel(address_, name_, keys, ChannelUse::kControl))) {}

std::string DeviceClient::Who() const {
  return absl::StrCat("device \"", name_, "\" at ", address_);
}

absl::StatusOr<DeviceHealth> DeviceClient::Health(absl::Duration patience) const {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + patience));
  context.set_wait_for_ready(true);
  v1::HealthReply reply;
  const grpc::Status status = stub_->Health(&context, v1::HealthRequest(), &reply);
  if (!status.ok()) {
    return absl::UnavailableError(
        absl::StrCat(Who(), " does not answer (", status.error_message(), "); is limed running there, with the same keys?"));
  }
  LIME_ASSIGN_OR_RETURN(DeviceHealth health, FromProto(reply));
  if (health.protocol != kProtocol) {
    return absl::FailedPreconditionError(
        absl::StrCat(Who(), " speaks protocol ", health.protocol, " and this program ", kProtocol, "; run the same release everywhere"));
  }
  if (health.name != name_) {
    return absl::FailedPreconditionError(
        absl::StrCat(Who(), " calls itself \"", health.name, "\"; correct its address, or start limed there with --name ", name_));
  }
  return health;
}

}  // namespace lime
