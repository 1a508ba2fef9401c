#include "daemon/limed/limed_metrics.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "common/exposition/exposition.h"
#include "common/exposition/process_metrics.h"

namespace lime {
namespace {

using Samples = std::vector<MetricSample>;

Samples One(int64_t value) {
  return {{.value = static_cast<double>(value)}};
}

// By the value of one label.
Samples By(const char* label, const std::vector<std::pair<std::string, double>>& values) {
  Samples samples;
  for (const auto& [name, value] : values) samples.push_back({.labels = {{label, name}}, .value = value});
  return samples;
}

// Every family has a sample: while there are no peers, of one without a name.
Samples ByPeer(const DeviceStatistics& statistics, Bytes PeerTraffic::*bytes) {
  std::vector<std::pair<std::string, double>> values;
  if (statistics.traffic.empty()) values.emplace_back("", 0);
  for (const PeerTraffic& traffic : statistics.traffic) values.emplace_back(traffic.peer, traffic.*bytes);
  return By("peer", values);
}

}  // namespace

std::string LimedMetricsText(const DeviceStatistics& statistics, const PlanMemory& memory) {
  const auto bytes = [](Bytes value) { return static_cast<double>(value); };
  MetricFamilies families = {
      GaugeFamily("limed_plan_epoch", "Version of the installed plan; -1: none is installed.", One(statistics.epoch)),
      CounterFamily("limed_steps_total", "Steps computed since the plan was installed.", One(statistics.steps)),
      CounterFamily("limed_wait_seconds_total", "Time in which computing waited since the plan was installed, in seconds.",
                    By("for", {{"weights", statistics.wait_weights_ms / 1000},
                               {"input", (statistics.wait_input_ms - statistics.wait_kv_ms) / 1000},
                               {"kv", statistics.wait_kv_ms / 1000}})),
      CounterFamily("limed_disk_read_bytes_total", "Bytes read from the disk since the plan was installed.", One(statistics.bytes_read)),
      CounterFamily("limed_expert_hits_total", "Experts on demand that were chosen and in memory since the plan was installed.",
                    One(statistics.unit_hits)),
      CounterFamily("limed_expert_misses_total", "Experts on demand that were chosen and had to be read since the plan was installed.",
                    One(statistics.unit_misses)),
      CounterFamily("limed_expert_read_bytes_total", "Bytes of experts read on demand since the plan was installed.",
                    One(statistics.unit_bytes)),
      GaugeFamily("limed_memory_bytes", "Memory as the plan divides it, by kind, in bytes.",
                  By("kind", {{"weights", bytes(memory.weights + memory.embedding)},
                              {"kv", bytes(memory.kv + memory.state + memory.hosted + memory.fetched)},
                              {"ring", bytes(memory.ring)},
                              {"activations", bytes(memory.activations)},
                              {"runtime", bytes(memory.runtime)}})),
      GaugeFamily(
          "limed_kv_pages", "KV pages in memory, by state; the coordinator knows which of the used ones are kept for later prompts.",
          By("state", {{"used", bytes(statistics.kv_pages - statistics.kv_pages_free)}, {"free", bytes(statistics.kv_pages_free)}})),
      CounterFamily("limed_sent_bytes_total", "Bytes of hidden states and tokens sent to another device since the plan was installed.",
                    ByPeer(statistics, &PeerTraffic::sent)),
      CounterFamily("limed_received_bytes_total",
                    "Bytes of hidden states and tokens received from another device since the plan was installed.",
                    ByPeer(statistics, &PeerTraffic::received)),
      CounterFamily("limed_pressure_events_total", "How often other programs' need of memory lowered the bytes that may be resident.",
                    One(statistics.pressure_events)),
  };
  std::ranges::move(ProcessMetrics(), std::back_inserter(families));
  return ExpositionText(std::move(families));
}

}  // namespace lime
