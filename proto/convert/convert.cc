#include "proto/convert/convert.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "lime/v1/control.pb.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/instance/instance.h"
#include "proto/convert/message_fields.h"

namespace lime {
namespace {

constexpr double kMaxUseSeconds = 1e9;  // thirty years
constexpr int32_t kMaxWireThreads = 1 << 20;

using fields::Ascii;
using fields::kMaxCount;
using fields::kMaxName;
using fields::Sentence;

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

static void List(MessageFields& f, Coordinator& coordinator, v1::Coordinator& m) {
  f.Text(LIME_FIELD(m, user), coordinator.user, kMaxName, Ascii);
  f.Text(LIME_FIELD(m, host), coordinator.host, kMaxName, Ascii);
  f.Any(LIME_FIELD(m, id), coordinator.id);
}

static void List(MessageFields& f, PlanUser& user, v1::PlanUser& m) {
  f.Part(LIME_PART(m, coordinator), user.coordinator);
  f.Text(LIME_FIELD(m, address), user.address, kMaxWireAddress, Ascii);
  f.Number(LIME_FIELD(m, seconds), user.seconds, 0, kMaxUseSeconds);
}

static void List(MessageFields& f, DaemonSettings& settings, v1::DaemonSettings& m) {
  f.Text(LIME_FIELD(m, listen), settings.listen, kMaxWirePath, Sentence);
  f.Text(LIME_FIELD(m, weights), settings.weights, kMaxWirePath, Sentence);
  f.Text(LIME_FIELD(m, store), settings.store, kMaxWirePath, Sentence);
  f.Text(LIME_FIELD(m, kv_dir), settings.kv_dir, kMaxWirePath, Sentence);
  f.Text(LIME_FIELD(m, tls), settings.tls, kMaxWirePath, Sentence);
  f.Number(LIME_FIELD(m, threads), settings.threads, 0, kMaxWireThreads);
  f.Text(LIME_FIELD(m, backend), settings.backend, kMaxName, Ascii);
  f.Text(LIME_FIELD(m, loader), settings.loader, kMaxName, Ascii);
  f.Any(LIME_FIELD(m, follow_memory), settings.follow_memory);
  f.Text(LIME_FIELD(m, memory_mode), settings.memory_mode, kMaxName, Ascii);
  f.Text(LIME_FIELD(m, cluster), settings.cluster, kMaxName, Ascii);
  f.Text(LIME_FIELD(m, user), settings.user, kMaxName, Ascii);
  f.Number(LIME_FIELD(m, process), settings.process, 0, kMaxCount);
  if (f.reads() && settings.backend.empty()) settings.backend = kCpuBackend;
  if (f.reads() && settings.loader.empty()) settings.loader = kDaemonLoader;
}

static void List(MessageFields& f, DeviceHealth& health, v1::HealthReply& m) {
  f.Text(LIME_FIELD(m, name), health.name, kMaxName);
  f.Any(LIME_FIELD(m, protocol), health.protocol);
  f.Number(LIME_FIELD(m, epoch), health.epoch, -1, kMaxCount);
  f.Number(LIME_FIELD(m, last_epoch), health.last_epoch, 0, kMaxCount);
  f.Number(LIME_FIELD(m, memory_bytes), health.memory, 0, kMaxCount);
  f.Number(LIME_FIELD(m, runtime_bytes), health.runtime, 0, kMaxCount);
  f.Text(LIME_FIELD(m, model), health.model, kMaxName, Ascii);
  f.Maybe(LIME_PART(m, used_by), health.used_by);
  f.Maybe(LIME_PART(m, settings), health.settings);
  f.Text(LIME_FIELD(m, release), health.release, kMaxName, Ascii);
  f.Number(LIME_FIELD(m, clock), health.clock, 0, kMaxCount);
}
LIME_CONVERT(DeviceHealth, v1::HealthReply)

static void List(MessageFields& f, ReleaseCall& call, v1::ReleaseRequest& m) {
  f.Any(LIME_FIELD(m, force), call.force);
  f.Part(LIME_PART(m, by), call.by);
}
LIME_CONVERT(ReleaseCall, v1::ReleaseRequest)

static void List(MessageFields& f, ReleasedPlan& released, v1::ReleaseReply& m) {
  f.Number(LIME_FIELD(m, epoch), released.epoch, -1, kMaxCount);
  f.Text(LIME_FIELD(m, model), released.model, kMaxName, Ascii);
  f.Maybe(LIME_PART(m, used_by), released.used_by);
}
LIME_CONVERT(ReleasedPlan, v1::ReleaseReply)

static void List(MessageFields& f, BlockDigest& digest, v1::BlockDigest& m) {
  f.Block(LIME_FIELD(m, kind), LIME_FIELD(m, layer), digest.block);
  f.Any(LIME_FIELD(m, sample), digest.sample);
  f.Any(LIME_FIELD(m, xxh3), digest.xxh3);
  f.Number(LIME_FIELD(m, bytes), digest.bytes, 0, kMaxCount);
}

static void List(MessageFields& f, WeightsDigest& digest, v1::WeightsDigest& m) {
  f.Text(LIME_FIELD(m, model), digest.model, kMaxName, fields::PlainName);
  f.Any(LIME_FIELD(m, config), digest.config);
  f.Each("blocks", digest.blocks, m.mutable_blocks(), 0, kMaxPlanBlocks);
}
LIME_CONVERT(WeightsDigest, v1::WeightsDigest)

static void List(MessageFields& f, InstallCall& call, v1::InstallRequest& m) {
  f.Json(LIME_FIELD(m, plan), call.plan, 1, kMaxPlanBytes, [](const std::string& text) { return ParsePlan(text, "the plan to install"); });
  const int devices = call.plan.NumDevices();
  f.Number(LIME_FIELD(m, device), call.device, 0, devices - 1);
  f.EachBy("addresses", call.addresses, m.mutable_addresses(), devices, devices, [&](std::string& address, std::string& sent) {
    if (!f.reads()) sent = address;
    f.Check(fields::Printable("addresses", address = sent, kMaxWireAddress));
  });
  f.Text(LIME_FIELD(m, weights), call.weights, kMaxWirePath);
  f.Any(LIME_FIELD(m, model), call.model);
  f.Number(LIME_FIELD(m, trace_spans), call.trace_spans, 0, kMaxTraceSpans);
  f.Any(LIME_FIELD(m, trace_when_asked), call.trace_when_asked);
  f.Maybe(LIME_PART(m, kv), call.kv, call.plan);
  f.Part(LIME_PART(m, coordinator), call.coordinator);
  f.Maybe(LIME_PART(m, weights_digest), call.digest);
}
LIME_CONVERT(InstallCall, v1::InstallRequest)

static void List(MessageFields& f, LoadedBytes& loaded, v1::LoadProgress& m) {
  f.Number(LIME_FIELD(m, total_bytes), loaded.total, 0, kMaxCount);
  f.Number(LIME_FIELD(m, done_bytes), loaded.done, 0, loaded.total);
}

static void List(MessageFields& f, InstalledPlan& installed, v1::Installed& m) {
  f.Text(LIME_FIELD(m, numerics_id), installed.numerics_id, kMaxName);
  f.Number(LIME_FIELD(m, resident_bytes), installed.resident, 0, kMaxCount);
}

static void List(MessageFields& f, InstallNews& news, v1::InstallEvent& m) {
  f.Case<LoadedBytes>(LIME_PART(m, progress), news);
  f.Case<InstalledPlan>(LIME_PART(m, installed), news);
  f.NoOther("a report on an installation is of an unknown kind; run the same release everywhere");
}
LIME_CONVERT(InstallNews, v1::InstallEvent)

}  // namespace lime
