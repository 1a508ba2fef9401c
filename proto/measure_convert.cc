// Of convert.h: statistics, traces and measurements.
#include <limits>
#include <utility>
#include <vector>

#include "planner/plan/instance.h"
#include "planner/plan/limits.h"
#include "proto/convert.h"
#include "proto/fields.h"

namespace lime {
namespace {

constexpr size_t kMaxDiskProblem = 8192;
constexpr double kLeastSeconds = 0.01, kMaxProbeSeconds = 60;

using fields::Ascii;
using fields::Between;
using fields::kMaxCount;
using fields::kMaxName;
using fields::Milliseconds;
using fields::Printable;
using fields::Within;
using fields::Wrong;

void SpanToProto(const TimelineSpan& span, v1::Span& message) {
  message.set_kind(static_cast<uint32_t>(span.kind));
  message.set_begin_ms(span.begin_ms);
  message.set_end_ms(span.end_ms);
  message.set_step(span.step);
  message.set_stage_plus_1(span.stage + 1);
  message.set_microbatch_plus_1(span.microbatch + 1);
  message.set_part_plus_1(span.part + 1);
  message.set_peer_plus_1(span.peer + 1);
}

absl::StatusOr<TimelineSpan> SpanFromProto(const v1::Span& message) {
  LIME_RETURN_IF_ERROR(Within("kind", message.kind(), 0, TimelineSpan::kKinds - 1));
  LIME_RETURN_IF_ERROR(Between("begin_ms", message.begin_ms(), 0, kMaxWireClockMs));
  LIME_RETURN_IF_ERROR(Between("end_ms", message.end_ms(), message.begin_ms(), kMaxWireClockMs));
  LIME_RETURN_IF_ERROR(Within("step", message.step(), 0, std::numeric_limits<int32_t>::max()));
  LIME_RETURN_IF_ERROR(Within("stage_plus_1", message.stage_plus_1(), 0, kMaxPlanBlocks));
  LIME_RETURN_IF_ERROR(Within("microbatch_plus_1", message.microbatch_plus_1(), 0, kMaxMicrobatches));
  LIME_RETURN_IF_ERROR(Within("part_plus_1", message.part_plus_1(), 0, kMaxPlanBlocks));
  LIME_RETURN_IF_ERROR(Within("peer_plus_1", message.peer_plus_1(), 0, kMaxPlanDevices));
  return TimelineSpan{.kind = static_cast<TimelineSpan::Kind>(message.kind()),
                      .begin_ms = message.begin_ms(),
                      .end_ms = message.end_ms(),
                      .step = message.step(),
                      .stage = message.stage_plus_1() - 1,
                      .microbatch = message.microbatch_plus_1() - 1,
                      .part = message.part_plus_1() - 1,
                      .peer = message.peer_plus_1() - 1};
}

}  // namespace

void ToProto(const DeviceStatistics& statistics, v1::StatisticsReply& message) {
  message.set_epoch(statistics.epoch);
  message.set_steps(statistics.steps);
  message.set_bytes_read(statistics.bytes_read);
  message.set_compute_ms(statistics.compute_ms);
  message.set_wait_weights_ms(statistics.wait_weights_ms);
  message.set_wait_input_ms(statistics.wait_input_ms);
  message.set_decode_ms(statistics.decode_ms);
  message.set_planned_decode_ms(statistics.planned_decode_ms);
  message.set_disk_ms(statistics.disk_ms);
  message.set_disk_bytes(statistics.disk_bytes);
  if (statistics.kv_room) message.set_kv_room(*statistics.kv_room);
  message.set_kv_written(statistics.kv_written);
  message.set_kv_read(statistics.kv_read);
  message.set_kv_fetched(statistics.kv_fetched);
  message.set_residency_changes(statistics.residency_changes);
  message.set_given_bytes(statistics.given);
  message.set_sent_messages(statistics.sent_messages);
  message.set_sent_bytes(statistics.sent_bytes);
  message.set_received_messages(statistics.received_messages);
  message.set_received_bytes(statistics.received_bytes);
  message.set_peak_resident_bytes(statistics.peak_resident);
  for (const LinkRate& link : statistics.links) {
    v1::LinkRate& into = *message.add_links();
    into.set_peer(Ascii(link.peer));
    into.set_bytes_per_second(link.bytes_per_second);
    into.set_age_ms(link.age_ms);
  }
}

absl::StatusOr<DeviceStatistics> FromProto(const v1::StatisticsReply& message) {
  LIME_RETURN_IF_ERROR(Within("epoch", message.epoch(), -1, kMaxCount));
  for (const auto& [field, value] :
       {std::pair("steps", message.steps()), std::pair("bytes_read", message.bytes_read()),
        std::pair("sent_messages", message.sent_messages()), std::pair("sent_bytes", message.sent_bytes()),
        std::pair("received_messages", message.received_messages()), std::pair("received_bytes", message.received_bytes()),
        std::pair("peak_resident_bytes", message.peak_resident_bytes()), std::pair("residency_changes", message.residency_changes()),
        std::pair("kv_written", message.kv_written()), std::pair("kv_read", message.kv_read()),
        std::pair("kv_fetched", message.kv_fetched()), std::pair("disk_bytes", message.disk_bytes()),
        std::pair("given_bytes", message.given_bytes())}) {
    LIME_RETURN_IF_ERROR(Within(field, value, 0, kMaxCount));
  }
  LIME_RETURN_IF_ERROR(Within("kv_room", message.kv_room(), -kMaxCount, kMaxCount));
  LIME_RETURN_IF_ERROR(Milliseconds("compute_ms", message.compute_ms()));
  LIME_RETURN_IF_ERROR(Milliseconds("wait_weights_ms", message.wait_weights_ms()));
  LIME_RETURN_IF_ERROR(Milliseconds("wait_input_ms", message.wait_input_ms()));
  LIME_RETURN_IF_ERROR(Milliseconds("decode_ms", message.decode_ms()));
  LIME_RETURN_IF_ERROR(Milliseconds("planned_decode_ms", message.planned_decode_ms()));
  LIME_RETURN_IF_ERROR(Milliseconds("disk_ms", message.disk_ms()));
  LIME_RETURN_IF_ERROR(Within("links", message.links_size(), 0, kMaxPlanDevices));
  std::vector<LinkRate> links;
  for (const v1::LinkRate& link : message.links()) {
    LIME_RETURN_IF_ERROR(Printable("peer", link.peer(), kMaxName));
    LIME_RETURN_IF_ERROR(Between("bytes_per_second", link.bytes_per_second(), 0, kMaxBytesPerSecond));
    LIME_RETURN_IF_ERROR(Milliseconds("age_ms", link.age_ms()));
    links.push_back({.peer = link.peer(), .bytes_per_second = link.bytes_per_second(), .age_ms = link.age_ms()});
  }
  return DeviceStatistics{.epoch = message.epoch(),
                          .steps = message.steps(),
                          .bytes_read = message.bytes_read(),
                          .kv_written = message.kv_written(),
                          .kv_read = message.kv_read(),
                          .kv_fetched = message.kv_fetched(),
                          .compute_ms = message.compute_ms(),
                          .wait_weights_ms = message.wait_weights_ms(),
                          .wait_input_ms = message.wait_input_ms(),
                          .decode_ms = message.decode_ms(),
                          .planned_decode_ms = message.planned_decode_ms(),
                          .disk_ms = message.disk_ms(),
                          .disk_bytes = message.disk_bytes(),
                          .kv_room = message.has_kv_room() ? std::optional(message.kv_room()) : std::nullopt,
                          .sent_messages = message.sent_messages(),
                          .sent_bytes = message.sent_bytes(),
                          .received_messages = message.received_messages(),
                          .received_bytes = message.received_bytes(),
                          .peak_resident = message.peak_resident_bytes(),
                          .residency_changes = message.residency_changes(),
                          .given = message.given_bytes(),
                          .links = std::move(links)};
}

void ToProto(const TraceCall& call, v1::TraceRequest& message) {
  message.set_most(call.most);
}

absl::StatusOr<TraceCall> FromProto(const v1::TraceRequest& message) {
  LIME_RETURN_IF_ERROR(Within("most", message.most(), 0, kMaxWireTraceSpans));
  return TraceCall{.most = message.most()};
}

void ToProto(const TraceChunk& chunk, v1::TraceReply& message) {
  message.set_epoch(chunk.epoch);
  message.set_received_ms(chunk.received_ms);
  message.set_answered_ms(chunk.answered_ms);
  message.set_lost(chunk.lost);
  for (const TimelineSpan& span : chunk.spans) SpanToProto(span, *message.add_spans());
}

absl::StatusOr<TraceChunk> FromProto(const v1::TraceReply& message) {
  LIME_RETURN_IF_ERROR(Within("epoch", message.epoch(), -1, kMaxCount));
  LIME_RETURN_IF_ERROR(Between("received_ms", message.received_ms(), 0, kMaxWireClockMs));
  LIME_RETURN_IF_ERROR(Between("answered_ms", message.answered_ms(), message.received_ms(), kMaxWireClockMs));
  LIME_RETURN_IF_ERROR(Within("lost", message.lost(), 0, kMaxCount));
  LIME_RETURN_IF_ERROR(Within("spans", message.spans_size(), 0, kMaxWireTraceSpans));
  TraceChunk chunk{
      .epoch = message.epoch(), .received_ms = message.received_ms(), .answered_ms = message.answered_ms(), .lost = message.lost()};
  chunk.spans.reserve(static_cast<size_t>(message.spans_size()));
  for (const v1::Span& span : message.spans()) {
    LIME_ASSIGN_OR_RETURN(const TimelineSpan read, SpanFromProto(span));
    chunk.spans.push_back(read);
  }
  return chunk;
}

void ToProto(const ProfileCall& call, v1::ProfileRequest& message) {
  message.set_weights(call.weights);
  message.set_config(call.config);
  message.set_seconds(call.seconds);
}

absl::StatusOr<ProfileCall> FromProto(const v1::ProfileRequest& message) {
  LIME_RETURN_IF_ERROR(Printable("weights", message.weights(), kMaxWirePath));
  LIME_RETURN_IF_ERROR(Within("config", static_cast<int64_t>(message.config().size()), 0, kMaxWireConfigBytes));
  LIME_RETURN_IF_ERROR(Between("seconds", message.seconds(), kLeastSeconds, kMaxProfileSeconds));
  return ProfileCall{.weights = message.weights(), .config = message.config(), .seconds = message.seconds()};
}

void ToProto(const ProfileNews& news, v1::ProfileEvent& message) {
  if (const auto* progress = std::get_if<ProfileProgress>(&news)) {
    message.mutable_progress()->set_what(progress->what);
    message.mutable_progress()->set_share(progress->share);
    return;
  }
  const auto& measured = std::get<MeasuredDevice>(news);
  v1::Profiled& into = *message.mutable_profiled();
  into.set_profile(ToJsonText(measured.profile));
  into.set_runtime_bytes(measured.runtime);
  into.set_memory_bytes(measured.memory);
  into.set_numerics_id(measured.numerics_id);
  into.set_disk_problem(measured.disk_problem.substr(0, kMaxDiskProblem));
}

absl::StatusOr<ProfileNews> FromProto(const v1::ProfileEvent& message) {
  if (message.what_case() == v1::ProfileEvent::kProgress) {
    LIME_RETURN_IF_ERROR(Printable("what", message.progress().what(), kMaxName));
    LIME_RETURN_IF_ERROR(Between("share", message.progress().share(), 0, 1));
    return ProfileProgress{.what = message.progress().what(), .share = message.progress().share()};
  }
  if (message.what_case() != v1::ProfileEvent::kProfiled)
    return Wrong("news of a measurement that is not known here; run the same release everywhere");
  const v1::Profiled& profiled = message.profiled();
  LIME_RETURN_IF_ERROR(Within("profile", static_cast<int64_t>(profiled.profile().size()), 0, kMaxProfileBytes));
  LIME_RETURN_IF_ERROR(Within("runtime_bytes", profiled.runtime_bytes(), 0, kMaxDeviceMemory));
  LIME_RETURN_IF_ERROR(Within("memory_bytes", profiled.memory_bytes(), 1, kMaxDeviceMemory));
  LIME_RETURN_IF_ERROR(Printable("numerics_id", profiled.numerics_id(), kMaxName));
  LIME_RETURN_IF_ERROR(Printable("disk_problem", profiled.disk_problem(), kMaxDiskProblem));
  MeasuredDevice measured{.runtime = profiled.runtime_bytes(),
                          .memory = profiled.memory_bytes(),
                          .numerics_id = profiled.numerics_id(),
                          .disk_problem = profiled.disk_problem()};
  LIME_ASSIGN_OR_RETURN(measured.profile, ParseDeviceProfile(profiled.profile(), "message: the profile"));
  return measured;
}

void ToProto(const LinkProbe& probe, v1::ProbeLinkRequest& message) {
  message.set_peer(probe.peer);
  message.set_address(probe.address);
  message.set_seconds(probe.seconds);
  message.set_most_bytes(probe.most);
}

absl::StatusOr<LinkProbe> FromProto(const v1::ProbeLinkRequest& message) {
  LIME_RETURN_IF_ERROR(Printable("peer", message.peer(), kMaxName));
  LIME_RETURN_IF_ERROR(Printable("address", message.address(), kMaxWireAddress));
  LIME_RETURN_IF_ERROR(Between("seconds", message.seconds(), kLeastSeconds, kMaxProbeSeconds));
  LIME_RETURN_IF_ERROR(Within("most_bytes", message.most_bytes(), 1, kMaxProbeBytes / 2));
  return LinkProbe{.peer = message.peer(), .address = message.address(), .seconds = message.seconds(), .most = message.most_bytes()};
}

void ToProto(const MeasuredLink& link, v1::ProbeLinkReply& message) {
  message.set_bytes_per_second(link.bytes_per_second);
  message.set_latency_ms(link.latency_ms);
}

absl::StatusOr<MeasuredLink> FromProto(const v1::ProbeLinkReply& message) {
  LIME_RETURN_IF_ERROR(Between("bytes_per_second", message.bytes_per_second(), 1, kMaxBytesPerSecond));
  LIME_RETURN_IF_ERROR(Between("latency_ms", message.latency_ms(), 0, kMaxLatencyMs));
  return MeasuredLink{.bytes_per_second = message.bytes_per_second(), .latency_ms = message.latency_ms()};
}

}  // namespace lime
