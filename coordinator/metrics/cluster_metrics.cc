#include "coordinator/metrics/cluster_metrics.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "planner/base/release.h"

namespace lime {
namespace {

using Samples = std::vector<MetricSample>;

Samples One(double value) {
  return {{.value = value}};
}

Samples One(int64_t value) {
  return One(static_cast<double>(value));
}

Samples BuildInfo(const ClusterFacts& facts) {
  std::set<std::string> numerics;
  for (const DeviceFacts& device : facts.devices) {
    if (!device.numerics_id.empty()) numerics.insert(device.numerics_id);
  }
  if (numerics.empty()) numerics.insert("");
  Samples samples;
  for (const std::string& id : numerics)
    samples.push_back({.labels = {{"version", std::string(Release())}, {"numerics_id", id}}, .value = 1});
  return samples;
}

template <typename Value>
Samples ByDevice(const ClusterFacts& facts, const Value& value) {
  Samples samples;
  for (const DeviceFacts& device : facts.devices)
    samples.push_back({.labels = {{"device", device.name}}, .value = static_cast<double>(value(device))});
  return samples;
}

Samples MemoryByKind(const ClusterFacts& facts) {
  Samples samples;
  for (const DeviceFacts& device : facts.devices) {
    for (const auto& [kind, bytes] :
         {std::pair("weights", device.memory.weights), std::pair("kv", device.memory.kv), std::pair("ring", device.memory.ring),
          std::pair("activations", device.memory.activations), std::pair("runtime", device.memory.runtime)})
      samples.push_back({.labels = {{"device", device.name}, {"kind", kind}}, .value = static_cast<double>(bytes)});
  }
  return samples;
}

Samples HitShares(const ClusterFacts& facts) {
  Samples samples;
  for (const DeviceFacts& device : facts.devices) {
    const ExpertsFacts experts = device.experts.value_or(ExpertsFacts{});
    for (const auto& [kind, share] :
         {std::pair("expected", experts.expected_hit_share), std::pair("measured", experts.measured_hit_share.value_or(0))})
      samples.push_back({.labels = {{"device", device.name}, {"kind", kind}}, .value = share});
  }
  return samples;
}

// What is kept for later requests is not in use.
Samples KvPages(const ClusterFacts& facts) {
  int64_t pages = 0, free = 0;
  for (const DeviceFacts& device : facts.devices) pages += device.kv_pages, free += device.kv_pages_free;
  const int64_t cached = std::min(facts.kv_pages_cached, pages - free);
  return {{.labels = {{"state", "used"}}, .value = static_cast<double>(pages - free - cached)},
          {.labels = {{"state", "cached"}}, .value = static_cast<double>(cached)},
          {.labels = {{"state", "free"}}, .value = static_cast<double>(free)}};
}

// A device alone has no links. One to itself says so, because every family has a sample.
std::vector<LinkFacts> ShownLinks(const ClusterFacts& facts) {
  if (!facts.links.empty() || facts.devices.empty()) return facts.links;
  return {{.from = facts.devices.front().name, .to = facts.devices.front().name}};
}

Samples SentByLink(const ClusterFacts& facts) {
  Samples samples;
  for (const LinkFacts& link : ShownLinks(facts))
    samples.push_back({.labels = {{"from", link.from}, {"to", link.to}}, .value = static_cast<double>(link.sent)});
  return samples;
}

Samples RatesOfLinks(const ClusterFacts& facts) {
  Samples samples;
  for (const LinkFacts& link : ShownLinks(facts)) {
    for (const auto& [kind, rate] :
         {std::pair("planned", link.planned_bytes_per_second), std::pair("measured", link.measured_bytes_per_second)})
      samples.push_back({.labels = {{"from", link.from}, {"to", link.to}, {"kind", kind}}, .value = rate.value_or(0)});
  }
  return samples;
}

// Before the model is loaded no device is known. One without a name stands for all.
ClusterFacts WithADevice(ClusterFacts facts) {
  if (facts.devices.empty()) facts.devices.push_back({.name = "", .state = DeviceFacts::State::kLost});
  return facts;
}

}  // namespace

MetricFamilies ClusterMetrics(ClusterFacts known) {
  using State = DeviceFacts::State;
  const ClusterFacts facts = WithADevice(std::move(known));
  return {
      GaugeFamily("lime_build_info", "The release, and the orders of sums of the devices' kernels; always 1.", BuildInfo(facts)),
      GaugeFamily("lime_model_info", "The model; always 1.", {{.labels = {{"model", facts.model}}, .value = 1}}),
      GaugeFamily("lime_plan_epoch", "Version of the plan in use; 0 before the first one.", One(facts.plan ? facts.plan->epoch : 0)),
      GaugeFamily("lime_requests_running", "Requests that have a slot.", One(facts.running)),
      GaugeFamily("lime_requests_waiting", "Requests in the queue.", One(facts.waiting)),
      GaugeFamily("lime_predicted_seconds_per_token", "What the plan predicts for a token of one request, in seconds.",
                  One(facts.plan ? facts.plan->ms_per_token / 1000 : 0)),
      GaugeFamily("lime_measured_seconds_per_token",
                  "Mean time of a token of one request in the last seconds in which tokens came, in seconds.",
                  One(facts.measured_ms_per_token.value_or(0) / 1000)),
      GaugeFamily("lime_kv_pages", "KV pages in the memory of all devices, by state.", KvPages(facts)),
      GaugeFamily("lime_memory_bytes", "Memory of a device as the plan divides it, by kind, in bytes.", MemoryByKind(facts)),
      GaugeFamily("lime_memory_budget_bytes", "Memory that the plan may use on a device, in bytes.",
                  ByDevice(facts, [](const DeviceFacts& device) { return device.budget; })),
      GaugeFamily("lime_device_up", "1 if the device answered when it was last asked.",
                  ByDevice(facts, [](const DeviceFacts& device) { return device.state != State::kLost; })),
      CounterFamily("lime_disk_read_bytes_total", "Bytes that a device has read from its disk for plans of this server.",
                    ByDevice(facts, [](const DeviceFacts& device) { return device.totals.disk_read; })),
      CounterFamily("lime_weights_wait_seconds_total", "Time in which a device waited for weights, in seconds.",
                    ByDevice(facts, [](const DeviceFacts& device) { return device.totals.wait_weights_seconds; })),
      CounterFamily("lime_compute_seconds_total", "Time in which a device computed, in seconds.",
                    ByDevice(facts, [](const DeviceFacts& device) { return device.totals.compute_seconds; })),
      CounterFamily("lime_expert_hits_total", "Experts on demand that layers of a device have chosen and found in memory.",
                    ByDevice(facts, [](const DeviceFacts& device) { return device.totals.unit_hits; })),
      CounterFamily("lime_expert_misses_total", "Experts on demand that layers of a device have chosen and had to wait for.",
                    ByDevice(facts, [](const DeviceFacts& device) { return device.totals.unit_misses; })),
      CounterFamily("lime_expert_read_bytes_total", "Bytes of experts that a device has read on demand.",
                    ByDevice(facts, [](const DeviceFacts& device) { return device.totals.unit_bytes; })),
      GaugeFamily("lime_expert_hit_share",
                  "Share of the experts that decode steps choose and find in memory, as expected and as measured under the plan in use; 0 "
                  "if unknown.",
                  HitShares(facts)),
      CounterFamily("lime_link_sent_bytes_total", "Bytes of hidden states and tokens that were sent over a link.", SentByLink(facts)),
      GaugeFamily("lime_link_bandwidth_bytes_per_second", "Rate of a link, as planned and as measured; 0 if unknown.", RatesOfLinks(facts)),
      CounterFamily("lime_recoveries_total", "Recoveries from lost devices.", One(facts.recoveries)),
      CounterFamily("lime_plan_changes_total", "Changes to a better plan while all devices worked.", One(facts.plan_changes)),
  };
}

}  // namespace lime
