#include "coordinator/rpc/device_client.h"

#include <grpcpp/channel.h>
#include <unistd.h>

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/rpc/ask_health.h"
#include "daemon/weights/files.h"
#include "lime/v1/bulk.grpc.pb.h"
#include "lime/v1/control.grpc.pb.h"
#include "proto/channel.h"
#include "proto/grpc_status.h"

namespace lime {
namespace {

constexpr absl::Duration kProfilePatience = absl::Minutes(2), kProbePatience = absl::Seconds(15);
// Freeing the memory of a large plan takes time.
constexpr absl::Duration kReleasePatience = absl::Seconds(15);
constexpr absl::Duration kTracePatience = absl::Seconds(2), kInspectPatience = absl::Seconds(15);
constexpr double kProfileFactor = 10;  // measuring may take this many times call.seconds

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

uint64_t NewId() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;  // 0 means "not given"
}

}  // namespace

struct DeviceClient::Stubs {
  explicit Stubs(const std::shared_ptr<grpc::Channel>& channel)
      : control(v1::Control::NewStub(channel)), bulk(v1::Bulk::NewStub(channel)) {}

  const std::unique_ptr<v1::Control::Stub> control;
  const std::unique_ptr<v1::Bulk::Stub> bulk;
};

DeviceClient::DeviceClient(std::string name, std::string address, const ClusterKeys& keys, std::string start)
    : target_{.name = std::move(name), .address = std::move(address), .keys = keys, .start = std::move(start)},
      stubs_(std::make_unique<Stubs>(OpenChannel(target_.address, target_.name, keys, ChannelUse::kControl))) {}

DeviceClient::~DeviceClient() = default;

std::string DeviceClient::Who() const {
  return absl::StrCat("device \"", name(), "\" at ", address());
}

absl::StatusOr<DeviceHealth> DeviceClient::Health(absl::Duration patience) const {
  return AskHealth(*stubs_->control, target_, {.patience = patience});
}

absl::StatusOr<std::vector<Finding>> DeviceClient::Inspect(const InspectCall& call) const {
  v1::InspectRequest request;
  ToProto(call, request);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kInspectPatience + absl::Seconds(4 * call.seconds)));
  v1::InspectReply reply;
  LIME_RETURN_IF_ERROR(FromGrpc(stubs_->control->Inspect(&context, request, &reply), Who()));
  return FromProto(reply);
}

absl::StatusOr<DeviceStatistics> DeviceClient::Statistics(absl::Duration patience) const {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + patience));
  v1::StatisticsReply reply;
  LIME_RETURN_IF_ERROR(FromGrpc(stubs_->control->Statistics(&context, v1::StatisticsRequest(), &reply), Who()));
  return FromProto(reply);
}

absl::StatusOr<ReleasedPlan> DeviceClient::Release(bool force) const {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kReleasePatience));
  v1::ReleaseRequest request;
  ToProto(ReleaseCall{.force = force, .by = NewCoordinator()}, request);
  v1::ReleaseReply reply;
  LIME_RETURN_IF_ERROR(FromGrpc(stubs_->control->Release(&context, request, &reply), Who()));
  return FromProto(reply);
}

absl::StatusOr<MeasuredDevice> DeviceClient::Profile(const ProfileCall& call, const std::function<void(const ProfileProgress&)>& progress,
                                                     const std::atomic<bool>* cancelled) const {
  v1::ProfileRequest request;
  ToProto(call, request);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kProfilePatience + absl::Seconds(kProfileFactor * call.seconds)));
  const auto reader = stubs_->control->Profile(&context, request);
  absl::StatusOr<MeasuredDevice> measured = absl::InternalError(absl::StrCat(Who(), " has ended the measurement without a word"));
  for (v1::ProfileEvent event; reader->Read(&event);) {
    absl::StatusOr<ProfileNews> news = FromProto(event);
    if (!news.ok()) {
      context.TryCancel();
      measured = absl::Status(news.status().code(), absl::StrCat(Who(), ": ", news.status().message()));
    } else if (auto* const done = std::get_if<MeasuredDevice>(&*news)) {
      measured = std::move(*done);
    } else if (progress) {
      progress(std::get<ProfileProgress>(*news));
    }
    if (cancelled != nullptr && cancelled->load()) context.TryCancel();
  }
  const absl::Status status = FromGrpc(reader->Finish(), Who());
  if (cancelled != nullptr && cancelled->load()) return absl::CancelledError("interrupted");
  if (!status.ok() && (measured.ok() || absl::IsInternal(measured.status()))) return status;
  return measured;
}

absl::StatusOr<MeasuredLink> DeviceClient::ProbeLink(const LinkProbe& probe) const {
  v1::ProbeLinkRequest request;
  ToProto(probe, request);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kProbePatience + absl::Seconds(4 * probe.seconds)));
  v1::ProbeLinkReply reply;
  LIME_RETURN_IF_ERROR(FromGrpc(stubs_->control->ProbeLink(&context, request, &reply), Who()));
  return FromProto(reply);
}

absl::StatusOr<DeviceHoldings> DeviceClient::Holdings(const HoldingsCall& call, absl::Duration patience) const {
  v1::HoldingsRequest request;
  ToProto(call, request);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + patience));
  context.set_wait_for_ready(true);
  v1::HoldingsReply reply;
  LIME_RETURN_IF_ERROR(FromGrpc(stubs_->bulk->Holdings(&context, request, &reply), Who()));
  return FromProto(reply);
}

absl::StatusOr<TraceChunk> DeviceClient::Trace(const TraceCall& call) const {
  v1::TraceRequest request;
  ToProto(call, request);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kTracePatience));
  v1::TraceReply reply;
  LIME_RETURN_IF_ERROR(FromGrpc(stubs_->control->Trace(&context, request, &reply), Who()));
  return FromProto(reply);
}

Coordinator NewCoordinator() {
  return {.user = UserName(geteuid()), .host = HostName(), .id = NewId()};
}

}  // namespace lime
