#include "coordinator/planning/plan_rates.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "planner/plan/plan_blocks.h"

namespace lime {

ClusterRates PlannedRates(const PlanInputs& inputs, const Plan& plan) {
  ClusterRates rates;
  const auto device = [&](int32_t d) { return std::ranges::find(inputs.devices, plan.devices[d].name, &ClusterDevice::name); };
  const auto add_link = [&](int32_t from, int32_t to) {
    const auto a = device(from), b = device(to);
    if (a == inputs.devices.end() || b == inputs.devices.end()) return;
    rates[DiskKey(a->name)] = rates[ComputeKey(a->name)] = 1;
    if (a != b) rates[LinkKey(a->name, b->name)] = LinkBetween(*a, *b, inputs.request.default_link).bytes_per_second;
  };
  for (size_t j = 0; j < plan.stages.size(); ++j) add_link(plan.stages[j].device, plan.stages[(j + 1) % plan.stages.size()].device);
  for (int32_t host = 0; host < plan.NumDevices(); ++host) {
    for (int32_t owner = 0; owner < plan.NumDevices(); ++owner) {
      if (HostsUnitsOf(plan, host, owner)) add_link(owner, host), add_link(host, owner);
    }
  }
  return rates;
}

namespace {

// Makes its computing `times` as fast.
void ScaleCompute(double times, DeviceProfile& profile) {
  profile.read_bytes_per_second *= times, profile.flops *= times, profile.block_overhead_ms /= times;
  for (ModelCompute& model : profile.models) {
    model.step_overhead_ms /= times;
    for (ComputePoint& point : model.points) point.ms /= times;
  }
}

// What each of the devices has of every layer's experts; nullopt if layers are divided differently, or
// if a device is not among them.
std::optional<std::vector<UnitShare>> SharesOf(const Plan& plan, std::span<const ClusterDevice> devices) {
  std::optional<std::vector<UnitShare>> shares, of_block;
  for (int p = 0; p < plan.NumParts(); ++p) {
    const PlanPart& part = plan.parts[p];
    if (!part.on_demand()) continue;
    if (!part.hosted()) of_block.emplace(devices.size());
    const auto device = std::ranges::find(devices, plan.devices[DeviceOf(plan, p)].name, &ClusterDevice::name);
    if (device == devices.end()) return std::nullopt;
    (*of_block)[static_cast<size_t>(device - devices.begin())] = {.units = std::ssize(UnitsIn(part.rows)), .places = part.places};
    if (p + 1 < plan.NumParts() && plan.parts[p + 1].hosted()) continue;
    if (shares && shares != of_block) return std::nullopt;
    shares = of_block;
  }
  return shares;
}

// Predicts the parts with a host again. False if they cannot be predicted.
bool PredictHosted(const PlanInputs& inputs, Plan& plan) {
  const auto shares = SharesOf(plan, inputs.devices);
  if (!shares) return false;
  PlanRequest request = inputs.request;
  request.unit_shares = *shares, request.unit_places = 1, request.ahead_places = 0;
  request.kv_tokens = request.retained_positions = 0;
  request.context = plan.context, request.sequences = plan.sequences, request.batches = {plan.batch};
  request.expected_positions = std::min(request.expected_positions, plan.context);
  request.prompt_tokens = plan.prompt_tokens, request.chunks = {std::max<int64_t>(1, plan.prefill_chunk)};
  for (const PlanPart& part : plan.parts) request.ahead_places = std::max(request.ahead_places, part.ahead_places);
  const auto problem = MakePlanProblem(inputs.spec, inputs.devices, request);
  if (!problem.ok()) return false;
  for (int p = 0; p < plan.NumParts(); ++p) {
    PlanPart& part = plan.parts[p];
    if (!part.hosted()) continue;
    const std::string& owner = plan.devices[plan.stages[StageOf(plan, p)].device].name;
    const auto d = std::ranges::find(inputs.devices, owner, &ClusterDevice::name) - inputs.devices.begin();
    const auto ms = [&](const std::vector<PartDemand>& demands) {
      const auto of =
          std::ranges::find(demands, part.block, [&](const PartDemand& demand) { return problem->head.parts[demand.part].block; });
      return of->all_ms;
    };
    const DeviceDemand& demand = problem->demand[static_cast<size_t>(d)];
    part.decode_ms = ms(demand.decode.at(plan.batch));
    if (plan.prefill_chunk > 0) part.prefill_ms = ms(demand.prefill.at(static_cast<int32_t>(plan.prefill_chunk)));
  }
  return true;
}

}  // namespace

void ApplyRates(const ClusterRates& rates, PlanInputs& inputs) {
  for (const auto& [key, rate] : rates) {
    const auto device = std::ranges::find(inputs.devices, key.device, &ClusterDevice::name);
    if (device == inputs.devices.end()) continue;
    if (key.kind == RateKey::Kind::kDisk) device->profile.ScaleDisk(rate);
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
  const bool predicted = !HasHostedUnits(plan) || PredictHosted(inputs, plan);
  for (PlanPart& part : plan.parts) {
    if (!part.hosted() || predicted) continue;
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
