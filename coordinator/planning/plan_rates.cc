#include "coordinator/planning/plan_rates.h"

#include <algorithm>
#include <utility>

#include "planner/plan/plan_blocks.h"

namespace lime {

ClusterRates PlannedRates(const PlanInputs& inputs, const Plan& plan) {
  ClusterRates rates;
  const auto device = [&](const Stage& stage) {
    return std::ranges::find(inputs.devices, plan.devices[stage.device].name, &ClusterDevice::name);
  };
  for (size_t j = 0; j < plan.stages.size(); ++j) {
    const auto from = device(plan.stages[j]), to = device(plan.stages[(j + 1) % plan.stages.size()]);
    if (from == inputs.devices.end() || to == inputs.devices.end()) continue;
    rates[DiskKey(from->name)] = rates[ComputeKey(from->name)] = 1;
    if (from != to) rates[LinkKey(from->name, to->name)] = LinkBetween(*from, *to, inputs.request.default_link).bytes_per_second;
  }
  for (int32_t d = 0; d < plan.NumDevices(); ++d) {
    if (HostsUnits(plan, d)) rates[DiskKey(plan.devices[d].name)] = rates[ComputeKey(plan.devices[d].name)] = 1;
  }
  return rates;
}

namespace {

// Makes it `times` as fast.
void ScaleDisk(double times, DeviceProfile& profile) {
  for (DiskPoint& point : profile.disk) point.bytes_per_second *= times, point.latency_ms /= times;
}
void ScaleCompute(double times, DeviceProfile& profile) {
  profile.read_bytes_per_second *= times, profile.flops *= times, profile.block_overhead_ms /= times;
  for (ModelCompute& model : profile.models) {
    model.step_overhead_ms /= times;
    for (ComputePoint& point : model.points) point.ms /= times;
  }
}

}  // namespace

void ApplyRates(const ClusterRates& rates, PlanInputs& inputs) {
  for (const auto& [key, rate] : rates) {
    const auto device = std::ranges::find(inputs.devices, key.device, &ClusterDevice::name);
    if (device == inputs.devices.end()) continue;
    if (key.kind == RateKey::Kind::kDisk) ScaleDisk(rate, device->profile);
    if (key.kind == RateKey::Kind::kCompute) ScaleCompute(rate, device->profile);
    const auto peer = std::ranges::find(inputs.devices, key.peer, &ClusterDevice::name);
    if (key.kind != RateKey::Kind::kLink || peer == inputs.devices.end()) continue;
    LinkPoint link = LinkBetween(*device, *peer, inputs.request.default_link);
    link.peer = peer->name, link.bytes_per_second = rate;
    std::erase_if(device->profile.links, [&](const LinkPoint& other) { return other.peer == peer->name; });
    device->profile.links.push_back(std::move(link));
  }
}

Plan AsItIsNow(const PlanInputs& inputs, const Plan& current, const ClusterRates& made_with, const ClusterRates& now) {
  Plan plan = current;
  SetLinks(inputs.devices, inputs.spec, inputs.request, plan);
  const auto faster = [&](const RateKey& key) {
    const auto measured = now.find(key), before = made_with.find(key);
    return measured == now.end() ? 1.0 : measured->second / (before == made_with.end() ? 1.0 : before->second);
  };
  for (PlanDevice& device : plan.devices) {
    const double times = faster(DiskKey(device.name));
    device.disk_mb_per_ms *= times, device.disk_lat_ms /= times;
  }
  for (const Stage& stage : plan.stages) {
    const double times = faster(DiskKey(plan.devices[stage.device].name));
    for (int p = stage.lo; p < stage.hi; ++p) plan.parts[p].demand_ms /= times, plan.parts[p].prefill_demand_ms /= times;
  }
  // A host reads for most of the time in which it is awaited.
  for (PlanPart& part : plan.parts) {
    if (!part.hosted()) continue;
    const double times = faster(DiskKey(plan.devices[part.host].name));
    part.decode_ms /= times, part.prefill_ms /= times;
  }
  for (const Stage& stage : plan.stages) {
    const double times = faster(ComputeKey(plan.devices[stage.device].name));
    for (int p = stage.lo; p < stage.hi; ++p) {
      if (plan.parts[p].hosted()) continue;
      plan.parts[p].decode_ms /= times, plan.parts[p].evicted_ms /= times, plan.parts[p].prefill_ms /= times;
    }
  }
  return plan;
}

}  // namespace lime
