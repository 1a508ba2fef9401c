#include "coordinator/cli/plan_rates.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "planner/plan/kv_eviction.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"

namespace lime::cli {
namespace {

constexpr double kCopyBytesPerSecond = 1e9;  // in memory, twice

}  // namespace

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
  return rates;
}

namespace {

// So many times as fast, or as slow.
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

void TakeRates(const ClusterRates& rates, PlanInputs& inputs) {
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
    const double times = faster(ComputeKey(plan.devices[stage.device].name));
    for (int p = stage.lo; p < stage.hi; ++p) plan.parts[p].decode_ms /= times, plan.parts[p].evicted_ms /= times;
  }
  return plan;
}

namespace {

// Of each device's parts in memory, by name.
using PartsInMemory = std::map<std::string, std::vector<const PlanPart*>>;

PartsInMemory PartsInMemoryOf(const Plan& plan) {
  PartsInMemory parts;
  for (const Stage& stage : plan.stages) {
    for (int p = stage.lo; p < stage.hi; ++p) {
      if (!plan.parts[p].streamed && !plan.parts[p].is_kv()) parts[plan.devices[stage.device].name].push_back(&plan.parts[p]);
    }
  }
  return parts;
}

double SlowestReadMs(const Plan& plan, const PartsInMemory& there) {
  double slowest_ms = 0;
  const PartsInMemory all = PartsInMemoryOf(plan);
  for (const PlanDevice& device : plan.devices) {
    const auto parts = all.find(device.name), stay = there.find(device.name);
    if (parts == all.end() || device.disk_mb_per_ms <= 0) continue;
    double mb = 0;
    for (const PlanPart* part : parts->second) {
      const auto is_it = [&](const PlanPart* other) { return other->block == part->block && other->rows == part->rows; };
      if (stay == there.end() || std::ranges::none_of(stay->second, is_it)) mb += static_cast<double>(part->bytes) / 1e6;
    }
    slowest_ms = std::max(slowest_ms, mb / device.disk_mb_per_ms);
  }
  return slowest_ms;
}

}  // namespace

namespace {

// What a device holds of the KV of a plan in which a layer has so many pages by now.
Bytes LeftBytes(const Plan& plan, const std::string& name, int64_t pages) {
  for (int32_t d = 0; d < plan.NumDevices(); ++d) {
    const PlanDevice& device = plan.devices[d];
    if (device.name != name) continue;
    const bool hosts = std::ranges::any_of(plan.devices, [&](const PlanDevice& owner) {
      return HasKvOnHost(owner) && owner.kv_host == d && PositionsAway(plan, owner, pages) > 0;
    });
    const int64_t grown = PagesInMemory(device, pages) * std::ssize(LayersOn(plan, d));
    return std::max(device.kv_pages, grown) * plan.page_bytes + (hosts ? device.memory.hosted : 0);
  }
  return 0;
}

}  // namespace

bool TakesOver(const Plan& before, const Plan& after, int64_t pages) {
  if (EvictsKv(before) || EvictsKv(after)) return false;
  if (SpillsKv(after) && ResidencyOf(after).layer_pages < pages) return false;
  std::map<int32_t, std::string> numerics;  // by layer
  for (int32_t d = 0; d < before.NumDevices(); ++d) {
    for (const int32_t layer : LayersOn(before, d)) numerics[layer] = before.devices[d].numerics_id;
  }
  for (int32_t d = 0; d < after.NumDevices(); ++d) {
    const PlanDevice& device = after.devices[d];
    const std::vector<int32_t> layers = LayersOn(after, d);
    if (device.kv_pages < PagesInMemory(device, pages) * std::ssize(layers)) return false;
    if (std::ranges::any_of(layers, [&](int32_t layer) { return numerics[layer] != device.numerics_id; })) return false;
    const PlanMemory& memory = device.memory;
    const Bytes left = LeftBytes(before, device.name, pages), kv = memory.kv + memory.hosted + memory.fetched;
    if (left > 0 && left + TakeoverBytes(after) + memory.runtime + memory.activations + kv > device.budget) return false;
  }
  return true;
}

int64_t MostPages(const Plan& before, const Plan& after) {
  int64_t low = 0, high = std::max(FullLayerPages(before), FullLayerPages(after)) + 1;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (TakesOver(before, after, middle) ? low : high) = middle;
  }
  return low;
}

double ReadShare(const Plan& before, const Plan& after, bool parts_stay) {
  const double before_ms = SlowestReadMs(before, {});
  return before_ms > 0 ? SlowestReadMs(after, parts_stay ? PartsInMemoryOf(before) : PartsInMemory()) / before_ms : 1;
}

namespace {

// Names of the devices that have KV of each layer: its owner, and its owner's host. `on_disk`: of those, owners whose disk has some of it.
std::map<int32_t, std::vector<std::string>> KvHoldersOf(const Plan& plan, std::set<std::string>& on_disk) {
  std::map<int32_t, std::vector<std::string>> holders;
  for (int32_t d = 0; d < plan.NumDevices(); ++d) {
    const PlanDevice& device = plan.devices[d];
    for (const int32_t layer : LayersOn(plan, d)) {
      holders[layer].push_back(device.name);
      if (HasKvOnHost(device)) holders[layer].push_back(plan.devices[device.kv_host].name);
    }
    if (HasKvOnDisk(device) && HasKvAway(plan, d)) on_disk.insert(device.name);
  }
  return holders;
}

double DiskBytesPerMs(const Plan& plan, const std::string& name) {
  const auto device = std::ranges::find(plan.devices, name, &PlanDevice::name);
  return device->disk_mb_per_ms * 1e6;
}

}  // namespace

double MoveKvMs(const PlanInputs& inputs, const Plan& before, const Plan& after) {
  std::set<std::string> from_disk, to_disk;
  std::map<int32_t, std::vector<std::string>> had = KvHoldersOf(before, from_disk);
  const std::map<int32_t, std::vector<std::string>> has = KvHoldersOf(after, to_disk);
  const double bytes = static_cast<double>(after.page_bytes) / kPageTokens * static_cast<double>(after.sequences);
  const auto device = [&](const std::string& name) { return std::ranges::find(inputs.devices, name, &ClusterDevice::name); };
  const auto way_ms = [&](const std::string& from, const std::string& to) {
    double ms = bytes / kCopyBytesPerSecond * 1000;
    if (from_disk.contains(from)) ms += bytes / DiskBytesPerMs(before, from);
    if (to_disk.contains(to)) ms += bytes / DiskBytesPerMs(after, to);
    const auto a = device(from), b = device(to);
    if (from == to || a == inputs.devices.end() || b == inputs.devices.end()) return ms;
    return std::max(ms, bytes / LinkBetween(*a, *b, inputs.request.default_link).bytes_per_second * 1000);
  };
  std::map<std::string, double> by_device;  // that reads
  for (const auto& [layer, readers] : has) {
    for (const std::string& to : readers) {
      double slowest_ms = 0;
      for (const std::string& from : had[layer]) slowest_ms = std::max(slowest_ms, way_ms(from, to));
      by_device[to] += slowest_ms;
    }
  }
  double most_ms = 0;
  for (const auto& [name, ms] : by_device) most_ms = std::max(most_ms, ms);
  return most_ms;
}

}  // namespace lime::cli
