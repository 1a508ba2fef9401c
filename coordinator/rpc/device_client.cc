#include "coordinator/rpc/device_client.h"

#include <grpcpp/channel.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/rpc/ask_health.h"
#include "daemon/machine/files.h"
#include "lime/v1/bulk.grpc.pb.h"
#include "lime/v1/control.grpc.pb.h"
#include "proto/channel.h"
#include "proto/grpc_status.h"

namespace lime {

static absl::StatusOr<Bytes> FromProto(const v1::RemoveStoredReply& reply) {
  return std::max<Bytes>(0, reply.freed_bytes());
}

namespace {

constexpr absl::Duration kProfilePatience = absl::Minutes(2), kProbePatience = absl::Seconds(15);
// Freeing the memory of a large plan takes time.
constexpr absl::Duration kReleasePatience = absl::Seconds(15);
constexpr absl::Duration kTracePatience = absl::Seconds(2), kInspectPatience = absl::Seconds(15);
// A slow disk looks at every file of its models, or removes a large one.
constexpr absl::Duration kListPatience = absl::Seconds(30), kRemovePatience = absl::Minutes(5);
constexpr double kProfileFactor = 10;  // measuring may take this many times call.seconds

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

uint64_t NewId() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;  // 0 means "not given"
}

template <typename Request, typename Call>
Request MessageOf(const Call& call) {
  Request request;
  ToProto(call, request);
  return request;
}

// A question that is one message, and so is its answer.
template <typename Stub, typename Request, typename Reply>
auto Ask(Stub& stub, grpc::Status (Stub::*question)(grpc::ClientContext*, const Request&, Reply*), const Request& request,
         absl::Duration patience, const std::string& who, bool wait_for_ready = false) -> decltype(FromProto(Reply())) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + patience));
  if (wait_for_ready) context.set_wait_for_ready(true);
  Reply reply;
  LIME_RETURN_IF_ERROR(FromGrpc((stub.*question)(&context, request, &reply), who));
  return FromProto(reply);
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

absl::StatusOr<DeviceHealth> DeviceClient::AwaitHealth(absl::Duration patience) const {
  return AskHealth(*stubs_->control, target_, {.patience = patience, .expected = true});
}

absl::StatusOr<std::vector<Finding>> DeviceClient::Inspect(const InspectCall& call) const {
  return Ask(*stubs_->control, &v1::Control::Stub::Inspect, MessageOf<v1::InspectRequest>(call),
             kInspectPatience + absl::Seconds(4 * call.seconds), Who());
}

absl::StatusOr<DeviceStatistics> DeviceClient::Statistics(absl::Duration patience) const {
  return Ask(*stubs_->control, &v1::Control::Stub::Statistics, v1::StatisticsRequest(), patience, Who());
}

absl::StatusOr<ReleasedPlan> DeviceClient::Release(bool force) const {
  const ReleaseCall call{.force = force, .by = NewCoordinator()};
  return Ask(*stubs_->control, &v1::Control::Stub::Release, MessageOf<v1::ReleaseRequest>(call), kReleasePatience, Who());
}

absl::StatusOr<MeasuredDevice> DeviceClient::Profile(const ProfileCall& call, const std::function<void(const ProfileProgress&)>& progress,
                                                     const std::atomic<bool>* cancelled) const {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kProfilePatience + absl::Seconds(kProfileFactor * call.seconds)));
  const auto reader = stubs_->control->Profile(&context, MessageOf<v1::ProfileRequest>(call));
  absl::StatusOr<MeasuredDevice> measured = absl::InternalError(absl::StrCat(Who(), " ended the measurement without an answer"));
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
  return Ask(*stubs_->control, &v1::Control::Stub::ProbeLink, MessageOf<v1::ProbeLinkRequest>(probe),
             kProbePatience + absl::Seconds(4 * probe.seconds), Who());
}

absl::StatusOr<DeviceHoldings> DeviceClient::Holdings(const HoldingsCall& call, absl::Duration patience) const {
  return Ask(*stubs_->bulk, &v1::Bulk::Stub::Holdings, MessageOf<v1::HoldingsRequest>(call), patience, Who(), /*wait_for_ready=*/true);
}

absl::StatusOr<StoreContent> DeviceClient::ListStore() const {
  return Ask(*stubs_->bulk, &v1::Bulk::Stub::ListStore, v1::ListStoreRequest(), kListPatience, Who());
}

absl::StatusOr<Bytes> DeviceClient::RemoveStored(uint64_t model) const {
  v1::RemoveStoredRequest request;
  request.set_model(model);
  return Ask(*stubs_->bulk, &v1::Bulk::Stub::RemoveStored, request, kRemovePatience, Who());
}

absl::StatusOr<TraceChunk> DeviceClient::Trace(const TraceCall& call) const {
  return Ask(*stubs_->control, &v1::Control::Stub::Trace, MessageOf<v1::TraceRequest>(call), kTracePatience, Who());
}

Coordinator NewCoordinator() {
  return {.user = UserName(geteuid()), .host = HostName(), .id = NewId()};
}

}  // namespace lime
