// Of convert.h: statistics, traces, measurements and findings.
#include <algorithm>
#include <limits>

#include "lime/v1/control.pb.h"
#include "planner/plan/device/limits.h"
#include "planner/plan/instance/instance.h"
#include "proto/convert/convert.h"
#include "proto/convert/message_fields.h"

namespace lime {
namespace {

constexpr size_t kMaxDiskProblem = 8192;
constexpr size_t kMaxFindings = 64, kMaxFindingText = 1024, kMaxCheckName = 64;
constexpr double kLeastSeconds = 0.01, kMaxProbeSeconds = 60;

using fields::Ascii;
using fields::kMaxCount;
using fields::kMaxName;

// Protobuf's strings are UTF-8, and a finding may quote the name of a file.
std::string Cut(std::string_view text) {
  return fields::Plain(text, kMaxFindingText);
}

std::string CutName(std::string_view text) {
  return fields::Plain(text, kMaxCheckName);
}

std::string DiskProblem(std::string_view text) {
  return std::string(text.substr(0, kMaxDiskProblem));
}

}  // namespace

static void List(MessageFields& f, LinkRate& link, v1::LinkRate& m) {
  f.Text(LIME_FIELD(m, peer), link.peer, kMaxName, Ascii);
  f.Number(LIME_FIELD(m, bytes_per_second), link.bytes_per_second, 0, kMaxBytesPerSecond);
  f.Milliseconds(LIME_FIELD(m, age_ms), link.age_ms);
}

static void List(MessageFields& f, PeerTraffic& traffic, v1::PeerTraffic& m) {
  f.Text(LIME_FIELD(m, peer), traffic.peer, kMaxName, Ascii);
  f.Number(LIME_FIELD(m, sent_bytes), traffic.sent, 0, kMaxCount);
  f.Number(LIME_FIELD(m, received_bytes), traffic.received, 0, kMaxCount);
}

static void List(MessageFields& f, DeviceStatistics& statistics, v1::StatisticsReply& m) {
  f.Number(LIME_FIELD(m, epoch), statistics.epoch, -1, kMaxCount);
  f.Number(LIME_FIELD(m, steps), statistics.steps, 0, kMaxCount);
  f.Number(LIME_FIELD(m, bytes_read), statistics.bytes_read, 0, kMaxCount);
  f.Milliseconds(LIME_FIELD(m, compute_ms), statistics.compute_ms);
  f.Milliseconds(LIME_FIELD(m, wait_weights_ms), statistics.wait_weights_ms);
  f.Milliseconds(LIME_FIELD(m, wait_input_ms), statistics.wait_input_ms);
  f.Milliseconds(LIME_FIELD(m, wait_kv_ms), statistics.wait_kv_ms);
  f.Milliseconds(LIME_FIELD(m, decode_ms), statistics.decode_ms);
  f.Milliseconds(LIME_FIELD(m, planned_decode_ms), statistics.planned_decode_ms);
  f.Milliseconds(LIME_FIELD(m, disk_ms), statistics.disk_ms);
  f.Number(LIME_FIELD(m, disk_bytes), statistics.disk_bytes, 0, kMaxCount);
  if (f.reads() && m.has_kv_room()) statistics.kv_room.emplace();
  if (statistics.kv_room) f.Number(LIME_FIELD(m, kv_room), *statistics.kv_room, -kMaxCount, kMaxCount);
  f.Number(LIME_FIELD(m, kv_written), statistics.kv_written, 0, kMaxCount);
  f.Number(LIME_FIELD(m, kv_read), statistics.kv_read, 0, kMaxCount);
  f.Number(LIME_FIELD(m, kv_fetched), statistics.kv_fetched, 0, kMaxCount);
  f.Number(LIME_FIELD(m, residency_changes), statistics.residency_changes, 0, kMaxCount);
  f.Number(LIME_FIELD(m, given_bytes), statistics.shed, 0, kMaxCount);
  f.Number(LIME_FIELD(m, sent_messages), statistics.sent_messages, 0, kMaxCount);
  f.Number(LIME_FIELD(m, sent_bytes), statistics.sent_bytes, 0, kMaxCount);
  f.Number(LIME_FIELD(m, received_messages), statistics.received_messages, 0, kMaxCount);
  f.Number(LIME_FIELD(m, received_bytes), statistics.received_bytes, 0, kMaxCount);
  f.Number(LIME_FIELD(m, resident_bytes), statistics.resident, 0, kMaxCount);
  f.Number(LIME_FIELD(m, peak_resident_bytes), statistics.peak_resident, 0, kMaxCount);
  f.Number(LIME_FIELD(m, kv_pages), statistics.kv_pages, 0, kMaxCount);
  f.Number(LIME_FIELD(m, kv_pages_free), statistics.kv_pages_free, 0, kMaxCount);
  f.Number(LIME_FIELD(m, pressure_events), statistics.pressure_events, 0, kMaxCount);
  f.Number(LIME_FIELD(m, unit_hits), statistics.unit_hits, 0, kMaxCount);
  f.Number(LIME_FIELD(m, unit_misses), statistics.unit_misses, 0, kMaxCount);
  f.Number(LIME_FIELD(m, decode_unit_hits), statistics.decode_unit_hits, 0, kMaxCount);
  f.Number(LIME_FIELD(m, decode_unit_misses), statistics.decode_unit_misses, 0, kMaxCount);
  f.Number(LIME_FIELD(m, unit_bytes), statistics.unit_bytes, 0, kMaxCount);
  f.Number(LIME_FIELD(m, units_suggested), statistics.units_suggested, 0, kMaxCount);
  f.Number(LIME_FIELD(m, units_read_ahead), statistics.units_read_ahead, 0, kMaxCount);
  f.Number(LIME_FIELD(m, read_ahead_used), statistics.read_ahead_used, 0, kMaxCount);
  f.Number(LIME_FIELD(m, read_ahead_wasted), statistics.read_ahead_wasted, 0, kMaxCount);
  f.Number(LIME_FIELD(m, neurons_computed), statistics.neurons_computed, 0, kMaxCount);
  f.Number(LIME_FIELD(m, neurons_loaded), statistics.neurons_loaded, 0, kMaxCount);
  f.Number(LIME_FIELD(m, neuron_reads), statistics.neuron_reads, 0, kMaxCount);
  f.Number(LIME_FIELD(m, neuron_bytes), statistics.neuron_bytes, 0, kMaxCount);
  f.Milliseconds(LIME_FIELD(m, neuron_io_ms), statistics.neuron_io_ms);
  f.Number(LIME_FIELD(m, neuron_rows), statistics.neuron_rows, 0, kMaxCount);
  f.Number(LIME_FIELD(m, neuron_visits), statistics.neuron_visits, 0, kMaxCount);
  f.Number(LIME_FIELD(m, neurons_copied), statistics.neurons_copied, 0, kMaxCount);
  f.Each("links", statistics.links, m.mutable_links(), 0, kMaxPlanDevices);
  f.Each("traffic", statistics.traffic, m.mutable_traffic(), 0, kMaxPlanDevices);
}
LIME_CONVERT(DeviceStatistics, v1::StatisticsReply)

static void List(MessageFields& f, TraceCall& call, v1::TraceRequest& m) {
  f.Number(LIME_FIELD(m, most), call.most, 0, kMaxWireTraceSpans);
}
LIME_CONVERT(TraceCall, v1::TraceRequest)

static void List(MessageFields& f, TimelineSpan& span, v1::Span& m) {
  f.Enum(LIME_FIELD(m, kind), span.kind, TimelineSpan::Kind{TimelineSpan::kKinds - 1});
  f.Number(LIME_FIELD(m, begin_ms), span.begin_ms, 0, kMaxWireClockMs);
  f.Number(LIME_FIELD(m, end_ms), span.end_ms, span.begin_ms, kMaxWireClockMs);
  f.Number(LIME_FIELD(m, step), span.step, 0, std::numeric_limits<int32_t>::max());
  f.PlusOne(LIME_FIELD(m, stage_plus_1), span.stage, kMaxPlanBlocks);
  f.PlusOne(LIME_FIELD(m, microbatch_plus_1), span.microbatch, kMaxMicrobatches);
  f.PlusOne(LIME_FIELD(m, part_plus_1), span.part, kMaxPlanBlocks);
  f.PlusOne(LIME_FIELD(m, peer_plus_1), span.peer, kMaxPlanDevices);
}

static void List(MessageFields& f, TraceChunk& chunk, v1::TraceReply& m) {
  f.Number(LIME_FIELD(m, epoch), chunk.epoch, -1, kMaxCount);
  f.Number(LIME_FIELD(m, received_ms), chunk.received_ms, 0, kMaxWireClockMs);
  f.Number(LIME_FIELD(m, answered_ms), chunk.answered_ms, chunk.received_ms, kMaxWireClockMs);
  f.Number(LIME_FIELD(m, lost), chunk.lost, 0, kMaxCount);
  f.Each("spans", chunk.spans, m.mutable_spans(), 0, kMaxWireTraceSpans);
}
LIME_CONVERT(TraceChunk, v1::TraceReply)

static void List(MessageFields& f, ProfileCall& call, v1::ProfileRequest& m) {
  f.Text(LIME_FIELD(m, weights), call.weights, kMaxWirePath);
  f.Data(LIME_FIELD(m, config), call.config, 0, kMaxWireConfigBytes);
  f.Number(LIME_FIELD(m, seconds), call.seconds, kLeastSeconds, kMaxProfileSeconds);
}
LIME_CONVERT(ProfileCall, v1::ProfileRequest)

static void List(MessageFields& f, ProfileProgress& progress, v1::ProfileProgress& m) {
  f.Text(LIME_FIELD(m, what), progress.what, kMaxName);
  f.Number(LIME_FIELD(m, share), progress.share, 0, 1);
}

static void List(MessageFields& f, MeasuredDevice& measured, v1::Profiled& m) {
  f.Number(LIME_FIELD(m, runtime_bytes), measured.runtime, 0, kMaxDeviceMemory);
  f.Number(LIME_FIELD(m, memory_bytes), measured.memory, 1, kMaxDeviceMemory);
  f.Text(LIME_FIELD(m, numerics_id), measured.numerics_id, kMaxName);
  f.Text(LIME_FIELD(m, disk_problem), measured.disk_problem, kMaxDiskProblem, DiskProblem);
  f.Json(LIME_FIELD(m, profile), measured.profile, 0, kMaxProfileBytes,
         [](const std::string& text) { return ParseDeviceProfile(text, "message: the profile"); });
}

static void List(MessageFields& f, ProfileNews& news, v1::ProfileEvent& m) {
  f.Case<ProfileProgress>(LIME_PART(m, progress), news);
  f.Case<MeasuredDevice>(LIME_PART(m, profiled), news);
  f.NoOther("a report on a measurement is of an unknown kind; run the same release everywhere");
}
LIME_CONVERT(ProfileNews, v1::ProfileEvent)

static void List(MessageFields& f, LinkProbe& probe, v1::ProbeLinkRequest& m) {
  f.Text(LIME_FIELD(m, peer), probe.peer, kMaxName);
  f.Text(LIME_FIELD(m, address), probe.address, kMaxWireAddress);
  f.Number(LIME_FIELD(m, seconds), probe.seconds, kLeastSeconds, kMaxProbeSeconds);
  f.Number(LIME_FIELD(m, most_bytes), probe.most, 1, kMaxProbeBytes / 2);
}
LIME_CONVERT(LinkProbe, v1::ProbeLinkRequest)

static void List(MessageFields& f, MeasuredLink& link, v1::ProbeLinkReply& m) {
  f.Number(LIME_FIELD(m, bytes_per_second), link.bytes_per_second, 1, kMaxBytesPerSecond);
  f.Number(LIME_FIELD(m, latency_ms), link.latency_ms, 0, kMaxLatencyMs);
}
LIME_CONVERT(MeasuredLink, v1::ProbeLinkReply)

// ---- Inspecting

static void List(MessageFields& f, InspectCall& call, v1::InspectRequest& m) {
  f.Text(LIME_FIELD(m, weights), call.weights, kMaxWirePath);
  f.Number(LIME_FIELD(m, seconds), call.seconds, 0, kMaxInspectSeconds);
}
LIME_CONVERT(InspectCall, v1::InspectRequest)

static void List(MessageFields& f, Finding& finding, v1::Finding& m) {
  f.Text(LIME_FIELD(m, check), finding.check, kMaxCheckName, CutName);
  f.Enum(LIME_FIELD(m, grade), finding.grade, Grade::kFail);
  f.Text(LIME_FIELD(m, what), finding.what, kMaxFindingText, Cut);
  f.Text(LIME_FIELD(m, remedy), finding.remedy, kMaxFindingText, Cut);
}

void ToProto(const std::vector<Finding>& findings, v1::InspectReply& message) {
  for (size_t i = 0; i < std::min(findings.size(), kMaxFindings); ++i) WriteMessage(findings[i], *message.add_findings());
}

absl::StatusOr<std::vector<Finding>> FromProto(const v1::InspectReply& message) {
  LIME_RETURN_IF_ERROR(fields::Within("findings", message.findings_size(), 0, kMaxFindings));
  std::vector<Finding> findings;
  for (const v1::Finding& each : message.findings()) {
    LIME_ASSIGN_OR_RETURN(findings.emplace_back(), ReadMessage<Finding>(each));
  }
  return findings;
}

}  // namespace lime
