#include "coordinator/cluster_view/plan_view.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/reports/trace_timeline.h"
#include "planner/plan/plan_blocks.h"
#include "planner/sim/simulator.h"
#include "planner/unit_places.h"

namespace lime {
namespace {

using Kind = TimelineSpan::Kind;

constexpr int kSimulatedSteps = 8;  // by then the rings are as full as they become

const char* ShownKind(Kind kind) {
  switch (kind) {
    case Kind::kCompute:
    case Kind::kAttendFor:
    case Kind::kComputeFor:
      return "compute";
    case Kind::kLoad:
      return "load";
    case Kind::kSend:
      return "send";
    case Kind::kWaitWeights:
    case Kind::kWaitInput:
    case Kind::kWaitKv:
    case Kind::kWaitHost:
      return "wait";
    case Kind::kReceive:
      break;
  }
  return nullptr;  // a message that waits keeps nobody busy
}

std::string WhatOf(const Timeline& timeline, const TimelineSpan& span) {
  const auto peer = [&] { return span.peer >= 0 ? timeline.devices[static_cast<size_t>(span.peer)] : std::string("another device"); };
  switch (span.kind) {
    case Kind::kWaitWeights:
      return "weights";
    case Kind::kWaitInput:
      return "input";
    case Kind::kWaitKv:
      return "KV";
    case Kind::kWaitHost:
      return absl::StrCat("experts of ", peer());
    case Kind::kSend:
      return absl::StrCat("to ", peer());
    case Kind::kAttendFor:
      return absl::StrCat("attention for ", peer());
    case Kind::kComputeFor:
      return absl::StrCat("experts for ", peer());
    default:
      return span.part >= 0 ? timeline.parts[static_cast<size_t>(span.part)] : "embedding";
  }
}

// Neighbours of one device and kind become one span, the smallest number of them with which it keeps
// to the bound.
std::vector<SpanFacts> Joined(std::vector<SpanFacts> spans) {
  if (spans.size() <= kMostSpans) return spans;
  const size_t together = (spans.size() + kMostSpans - 1) / kMostSpans;
  std::vector<SpanFacts> joined;
  for (size_t i = 0; i < spans.size(); i += together) {
    const SpanFacts& last = spans[std::min(i + together, spans.size()) - 1];
    SpanFacts span = std::move(spans[i]);
    if (last.what != span.what) absl::StrAppend(&span.what, " to ", last.what);
    span.end_ms = last.end_ms;
    joined.push_back(std::move(span));
  }
  return joined;
}

}  // namespace

void DescribeByPlan(const Plan& plan, DeviceFacts& device) {
  const int32_t index = DeviceNamed(plan, device.name);
  if (index < 0) return;
  const PlanDevice& by_plan = plan.devices[static_cast<size_t>(index)];
  const PlanMemory& memory = by_plan.memory;
  device.numerics_id = by_plan.numerics_id;
  device.budget = by_plan.budget;
  device.memory = {.weights = memory.weights + memory.embedding,
                   .kv = memory.kv + memory.state + memory.hosted + memory.fetched,
                   .ring = memory.ring,
                   .activations = memory.activations,
                   .runtime = memory.runtime};
  device.blocks = std::ssize(BlocksOn(plan, index));
  double read = 0;
  std::optional<BlockId> block;
  int first = 0;
  for (const int part : PartsOn(plan, index)) {
    const PlanPart& what = plan.parts[static_cast<size_t>(part)];
    read += what.streamed ? static_cast<double>(what.bytes) : DemandBytes(what) * plan.microbatches;
    if (!what.streamed) continue;
    if (!block || !(*block == what.block)) {
      device.streamed.push_back({});
      block = what.block, first = part;
    }
    device.streamed.back().name = PartsName(plan, first, part + 1);
    device.streamed.back().bytes += what.bytes;
  }
  if (const UnitUse units = UnitUseOf(plan, index); units.units > 0)
    device.experts = {.kept = units.places, .of = units.units, .expected_hit_share = units.hit_share};
  const double step_ms = plan.predicted.ms_per_step;
  if (read > 0 && step_ms > 0) device.planned_disk_bytes_per_second = read / step_ms * 1000;
}

std::vector<LinkFacts> LinksOf(const Plan& plan) {
  std::vector<LinkFacts> links;
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const int32_t from = plan.stages[stage].device, to = plan.stages[(stage + 1) % plan.stages.size()].device;
    LinkFacts link{.from = plan.devices[static_cast<size_t>(from)].name, .to = plan.devices[static_cast<size_t>(to)].name};
    if (from != to && std::ranges::find(links, link) == links.end()) links.push_back(std::move(link));
  }
  return links;
}

std::vector<SpanFacts> PredictedStep(const Plan& plan) {
  const absl::StatusOr<SimulationResult> simulated = SimulateDecode(plan, {.steps = kSimulatedSteps});
  return simulated.ok() ? SpansOfStep(simulated->timeline, kSimulatedSteps - 2) : std::vector<SpanFacts>{};
}

// A step begins with the end of the one before, so that its length is the time of a token. If the
// devices had nothing to do in between, it begins with its own work.
std::vector<SpanFacts> SpansOfStep(const Timeline& timeline, int32_t step) {
  const std::vector<cli::StepTime> steps = cli::StepsOf(timeline);
  const auto found = std::ranges::find(steps, step, &cli::StepTime::step);
  if (found == steps.end()) return {};
  double begin_ms = found->begin_ms;
  const double end_ms = found->end_ms;
  if (found != steps.begin() && begin_ms - std::prev(found)->end_ms <= end_ms - begin_ms) begin_ms = std::prev(found)->end_ms;
  std::map<std::pair<int32_t, std::string>, std::vector<SpanFacts>> lanes;  // by device and kind
  for (const TimelineSpan& span : timeline.spans) {
    const char* const kind = ShownKind(span.kind);
    const double from_ms = std::max(span.begin_ms, begin_ms), to_ms = std::min(span.end_ms, end_ms);
    if (kind == nullptr || to_ms <= from_ms) continue;
    lanes[{span.device, kind}].push_back({.device = timeline.devices[static_cast<size_t>(span.device)],
                                          .kind = kind,
                                          .what = WhatOf(timeline, span),
                                          .begin_ms = from_ms - begin_ms,
                                          .end_ms = to_ms - begin_ms});
  }
  std::vector<SpanFacts> spans;
  for (auto& [lane, of] : lanes) {
    std::ranges::stable_sort(of, {}, &SpanFacts::begin_ms);
    for (SpanFacts& span : Joined(std::move(of))) spans.push_back(std::move(span));
  }
  return spans;
}

}  // namespace lime
