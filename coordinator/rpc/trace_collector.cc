#include "coordinator/rpc/trace_collector.h"

#include <algorithm>
#include <utility>

#include "common/steady_clock.h"

namespace lime {
namespace {

constexpr int kComparisons = 16;        // clock samples in a row, with empty messages
constexpr int64_t kLastMessages = 256;  // limit for the remaining spans at the end

}  // namespace

TraceCollector::TraceCollector(std::vector<Device> devices, const Options& options) : options_(options) {
  for (Device& device : devices) {
    auto collecting = std::make_unique<Collecting>();
    collecting->trace.device = device.name;
    collecting->device = std::move(device);
    devices_.push_back(std::move(collecting));
  }
  for (auto& collecting : devices_) collecting->thread = std::thread([this, c = collecting.get()] { Collect(*c); });
}

TraceCollector::~TraceCollector() {
  (void)Finish();
}

std::vector<DeviceTrace> TraceCollector::Finish() {
  if (!finishing_.HasBeenNotified()) finishing_.Notify();
  std::vector<DeviceTrace> traces;
  for (auto& collecting : devices_) {
    collecting->thread.join();
    traces.push_back(std::move(collecting->trace));
  }
  devices_.clear();
  return traces;
}

// Compares clocks at the start and at the end, when the devices have little other work.
void TraceCollector::Collect(Collecting& collecting) const {
  CompareClocks(collecting);
  bool full = false;  // more spans may be waiting
  while (!finishing_.WaitForNotificationWithTimeout(full ? absl::ZeroDuration() : options_.every))
    full = Ask(collecting, kMaxWireTraceSpans) == kMaxWireTraceSpans;
  CompareClocks(collecting);
  for (int64_t i = 0; i < kLastMessages && Ask(collecting, kMaxWireTraceSpans) > 0; ++i) {
  }
}

void TraceCollector::CompareClocks(Collecting& collecting) const {
  for (int i = 0; i < kComparisons && Ask(collecting, 0) >= 0; ++i) {
  }
}

// Returns the number of spans; -1: no answer.
int64_t TraceCollector::Ask(Collecting& collecting, int64_t most) const {
  const double sent_ms = SteadyMs();
  const absl::StatusOr<TraceChunk> chunk = collecting.device.source({.most = most});
  const double came_ms = SteadyMs();
  DeviceTrace& trace = collecting.trace;
  trace.status = chunk.status();
  if (!chunk.ok()) return -1;
  trace.clock.Add({.sent_ms = sent_ms, .received_ms = chunk->received_ms, .answered_ms = chunk->answered_ms, .came_ms = came_ms});
  Add(collecting, *chunk);
  return static_cast<int64_t>(chunk->spans.size());
}

// Stages and parts belong to one plan. When a new plan replaces it, the spans of the old one are
// dropped.
void TraceCollector::Add(Collecting& collecting, const TraceChunk& chunk) const {
  DeviceTrace& trace = collecting.trace;
  if (chunk.epoch < trace.epoch) return;
  if (chunk.epoch > trace.epoch) trace.spans.clear(), collecting.dropped = 0;
  trace.epoch = chunk.epoch;
  const size_t room = options_.most_spans - std::min(options_.most_spans, trace.spans.size());
  const size_t added = std::min(room, chunk.spans.size());
  trace.spans.insert(trace.spans.end(), chunk.spans.begin(), chunk.spans.begin() + static_cast<std::ptrdiff_t>(added));
  collecting.dropped += static_cast<int64_t>(chunk.spans.size() - added);
  trace.lost = chunk.lost + collecting.dropped;
}

}  // namespace lime
