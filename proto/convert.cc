#include "proto/convert.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "planner/plan/cluster_plan_json.h"
#include "proto/fields.h"
#include "proto/kv_convert.h"
#include "proto/weights_convert.h"

namespace lime {
namespace {

constexpr double kMaxUseSeconds = 1e9;  // thirty years
constexpr int32_t kMaxWireThreads = 1 << 20;

using fields::Ascii;
using fields::Between;
using fields::kMaxCount;
using fields::kMaxName;
using fields::Printable;
using fields::Sentence;
using fields::Within;
using fields::Wrong;

void CoordinatorToProto(const Coordinator& coordinator, v1::Coordinator& message) {
  message.set_user(Ascii(coordinator.user));
  message.set_host(Ascii(coordinator.host));
  message.set_id(coordinator.id);
}

absl::StatusOr<Coordinator> CoordinatorFromProto(const v1::Coordinator& message) {
  LIME_RETURN_IF_ERROR(Printable("user", message.user(), kMaxName));
  LIME_RETURN_IF_ERROR(Printable("host", message.host(), kMaxName));
  return Coordinator{.user = message.user(), .host = message.host(), .id = message.id()};
}

void UserToProto(const PlanUser& user, v1::PlanUser& message) {
  CoordinatorToProto(user.coordinator, *message.mutable_coordinator());
  message.set_address(Ascii(user.address));
  message.set_seconds(user.seconds);
}

absl::StatusOr<PlanUser> UserFromProto(const v1::PlanUser& message) {
  PlanUser user{.address = message.address(), .seconds = message.seconds()};
  LIME_ASSIGN_OR_RETURN(user.coordinator, CoordinatorFromProto(message.coordinator()));
  LIME_RETURN_IF_ERROR(Printable("address", message.address(), kMaxWireAddress));
  LIME_RETURN_IF_ERROR(Between("seconds", message.seconds(), 0, kMaxUseSeconds));
  return user;
}

void SettingsToProto(const DaemonSettings& settings, v1::DaemonSettings& message) {
  message.set_listen(Sentence(settings.listen));
  message.set_weights(Sentence(settings.weights));
  message.set_store(Sentence(settings.store));
  message.set_tls(Sentence(settings.tls));
  message.set_threads(settings.threads);
  message.set_backend(Ascii(settings.backend));
  message.set_cluster(Ascii(settings.cluster));
  message.set_user(Ascii(settings.user));
  message.set_process(settings.process);
}

absl::StatusOr<DaemonSettings> SettingsFromProto(const v1::DaemonSettings& message) {
  for (const std::string* const path : {&message.listen(), &message.weights(), &message.store(), &message.tls()})
    LIME_RETURN_IF_ERROR(Printable("settings", *path, kMaxWirePath));
  LIME_RETURN_IF_ERROR(Printable("backend", message.backend(), kMaxName));
  LIME_RETURN_IF_ERROR(Printable("cluster", message.cluster(), kMaxName));
  LIME_RETURN_IF_ERROR(Printable("user", message.user(), kMaxName));
  LIME_RETURN_IF_ERROR(Within("threads", message.threads(), 0, kMaxWireThreads));
  LIME_RETURN_IF_ERROR(Within("process", message.process(), 0, kMaxCount));
  return DaemonSettings{.listen = message.listen(),
                        .weights = message.weights(),
                        .store = message.store(),
                        .tls = message.tls(),
                        .threads = message.threads(),
                        .backend = message.backend().empty() ? kCpuBackend : message.backend(),
                        .cluster = message.cluster(),
                        .user = message.user(),
                        .process = message.process()};
}

}  // namespace

std::string PlanUser::Name() const {
  std::string who = coordinator.user.empty() ? "somebody" : coordinator.user;
  if (!coordinator.host.empty()) absl::StrAppend(&who, "@", coordinator.host);
  if (!address.empty()) absl::StrAppend(&who, " (", address, ")");
  return who;
}

std::string PlanUser::Who() const {
  const absl::Duration age = absl::Seconds(seconds);
  return absl::StrCat(Name(), ", for ",
                      absl::FormatDuration(absl::Trunc(age, age < absl::Minutes(10) ? absl::Seconds(1) : absl::Minutes(1))));
}

std::string PeerAddress(std::string_view peer) {
  const size_t colon = peer.find(':');
  const std::string_view scheme = peer.substr(0, colon);
  const bool ip = colon != std::string_view::npos && (scheme == "ipv4" || scheme == "ipv6");
  std::string address = Ascii(ip ? peer.substr(colon + 1) : peer);
  return absl::StrReplaceAll(address, {{"%5B", "["}, {"%5D", "]"}}).substr(0, kMaxWireAddress);
}

void ToProto(const DeviceHealth& health, v1::HealthReply& message) {
  message.set_name(health.name);
  message.set_protocol(health.protocol);
  message.set_epoch(health.epoch);
  message.set_last_epoch(health.last_epoch);
  message.set_memory_bytes(health.memory);
  message.set_runtime_bytes(health.runtime);
  message.set_model(Ascii(health.model));
  if (health.used_by) UserToProto(*health.used_by, *message.mutable_used_by());
  if (health.settings) SettingsToProto(*health.settings, *message.mutable_settings());
  message.set_release(Ascii(health.release));
  message.set_clock(health.clock);
}

absl::StatusOr<DeviceHealth> FromProto(const v1::HealthReply& message) {
  LIME_RETURN_IF_ERROR(Printable("name", message.name(), kMaxName));
  LIME_RETURN_IF_ERROR(Within("epoch", message.epoch(), -1, kMaxCount));
  LIME_RETURN_IF_ERROR(Within("last_epoch", message.last_epoch(), 0, kMaxCount));
  LIME_RETURN_IF_ERROR(Within("memory_bytes", message.memory_bytes(), 0, kMaxCount));
  LIME_RETURN_IF_ERROR(Within("runtime_bytes", message.runtime_bytes(), 0, kMaxCount));
  LIME_RETURN_IF_ERROR(Printable("model", message.model(), kMaxName));
  LIME_RETURN_IF_ERROR(Printable("release", message.release(), kMaxName));
  LIME_RETURN_IF_ERROR(Within("clock", message.clock(), 0, kMaxCount));
  DeviceHealth health{.name = message.name(),
                      .protocol = message.protocol(),
                      .epoch = message.epoch(),
                      .last_epoch = message.last_epoch(),
                      .memory = message.memory_bytes(),
                      .runtime = message.runtime_bytes(),
                      .model = message.model(),
                      .release = message.release(),
                      .clock = message.clock()};
  if (message.has_used_by()) {
    LIME_ASSIGN_OR_RETURN(health.used_by, UserFromProto(message.used_by()));
  }
  if (message.has_settings()) {
    LIME_ASSIGN_OR_RETURN(health.settings, SettingsFromProto(message.settings()));
  }
  return health;
}

void ToProto(const ReleaseCall& call, v1::ReleaseRequest& message) {
  message.set_force(call.force);
  CoordinatorToProto(call.by, *message.mutable_by());
}

absl::StatusOr<ReleaseCall> FromProto(const v1::ReleaseRequest& message) {
  ReleaseCall call{.force = message.force()};
  LIME_ASSIGN_OR_RETURN(call.by, CoordinatorFromProto(message.by()));
  return call;
}

void ToProto(const ReleasedPlan& released, v1::ReleaseReply& message) {
  message.set_epoch(released.epoch);
  message.set_model(Ascii(released.model));
  if (released.used_by) UserToProto(*released.used_by, *message.mutable_used_by());
}

absl::StatusOr<ReleasedPlan> FromProto(const v1::ReleaseReply& message) {
  LIME_RETURN_IF_ERROR(Within("epoch", message.epoch(), -1, kMaxCount));
  LIME_RETURN_IF_ERROR(Printable("model", message.model(), kMaxName));
  ReleasedPlan released{.epoch = message.epoch(), .model = message.model()};
  if (message.has_used_by()) {
    LIME_ASSIGN_OR_RETURN(released.used_by, UserFromProto(message.used_by()));
  }
  return released;
}

void ToProto(const InstallCall& call, v1::InstallRequest& message) {
  message.set_plan(ToJsonText(call.plan));
  message.set_device(call.device);
  for (const std::string& address : call.addresses) message.add_addresses(address);
  message.set_weights(call.weights);
  message.set_model(call.model);
  message.set_trace_spans(call.trace_spans);
  if (call.kv) ToProto(*call.kv, *message.mutable_kv());
  CoordinatorToProto(call.coordinator, *message.mutable_coordinator());
  if (call.digest) ToProto(*call.digest, *message.mutable_weights_digest());
}

absl::StatusOr<InstallCall> FromProto(const v1::InstallRequest& message) {
  LIME_RETURN_IF_ERROR(Within("plan", static_cast<int64_t>(message.plan().size()), 1, kMaxPlanBytes));
  LIME_RETURN_IF_ERROR(Printable("weights", message.weights(), kMaxWirePath));
  LIME_RETURN_IF_ERROR(Within("trace_spans", message.trace_spans(), 0, kMaxTraceSpans));
  InstallCall call{
      .device = message.device(), .weights = message.weights(), .model = message.model(), .trace_spans = message.trace_spans()};
  LIME_ASSIGN_OR_RETURN(call.coordinator, CoordinatorFromProto(message.coordinator()));
  LIME_ASSIGN_OR_RETURN(call.plan, ParsePlan(message.plan(), "the plan to install"));
  LIME_RETURN_IF_ERROR(Within("device", message.device(), 0, call.plan.NumDevices() - 1));
  LIME_RETURN_IF_ERROR(Within("addresses", message.addresses_size(), call.plan.NumDevices(), call.plan.NumDevices()));
  for (const std::string& address : message.addresses()) {
    LIME_RETURN_IF_ERROR(Printable("addresses", address, kMaxWireAddress));
    call.addresses.push_back(address);
  }
  if (message.has_kv()) {
    LIME_ASSIGN_OR_RETURN(call.kv, KvTakeFromProto(message.kv(), call.plan));
  }
  if (message.has_weights_digest()) {
    LIME_ASSIGN_OR_RETURN(call.digest, FromProto(message.weights_digest()));
  }
  return call;
}

void ToProto(const InstallNews& news, v1::InstallEvent& message) {
  if (const auto* progress = std::get_if<LoadedBytes>(&news)) {
    message.mutable_progress()->set_done_bytes(progress->done);
    message.mutable_progress()->set_total_bytes(progress->total);
  } else {
    message.mutable_installed()->set_numerics_id(std::get<InstalledPlan>(news).numerics_id);
    message.mutable_installed()->set_resident_bytes(std::get<InstalledPlan>(news).resident);
  }
}

absl::StatusOr<InstallNews> FromProto(const v1::InstallEvent& message) {
  if (message.has_progress()) {
    const v1::LoadProgress& progress = message.progress();
    LIME_RETURN_IF_ERROR(Within("total_bytes", progress.total_bytes(), 0, kMaxCount));
    LIME_RETURN_IF_ERROR(Within("done_bytes", progress.done_bytes(), 0, progress.total_bytes()));
    return LoadedBytes{progress.done_bytes(), progress.total_bytes()};
  }
  if (!message.has_installed()) return Wrong("news of an installation of a kind that is not known; run the same release everywhere");
  LIME_RETURN_IF_ERROR(Printable("numerics_id", message.installed().numerics_id(), kMaxName));
  LIME_RETURN_IF_ERROR(Within("resident_bytes", message.installed().resident_bytes(), 0, kMaxCount));
  return InstalledPlan{message.installed().numerics_id(), message.installed().resident_bytes()};
}

}  // namespace lime
