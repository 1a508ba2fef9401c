#include "coordinator/planning/change_costs.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/plan_residency.h"
#include "planner/plan/plan_rows.h"
#include "planner/sim/simulator.h"

namespace lime {
namespace {

constexpr double kCopyBytesPerMs = 1e6;  // a copy in memory, twice
constexpr double kWriteShare = 0.5;      // writes reach this share of the read rate (assumed)
constexpr double kKeepsWithin = 0.98;    // of the budget, for which weights surely stay
constexpr double kCallMs = 1;            // to ask one device for the KV of one layer
constexpr double kTripsToMeet = 8;       // round trips until two devices have a connection
constexpr double kTripsOfCall = 4;

// KV and states that the plan before leaves on a device.
Bytes LeftBytes(const Plan& before, const std::string& name, int64_t pages) {
  const int32_t there = DeviceNamed(before, name);
  return there < 0 ? 0 : HeldKvBytes(before, there, pages) + before.devices[there].memory.state;
}

// Memory of a device of `after` during a takeover of KV, without weights.
Bytes TakingOverBytes(const Plan& before, const Plan& after, int32_t device, int64_t pages) {
  const PlanMemory& memory = after.devices[device].memory;
  return LeftBytes(before, after.devices[device].name, pages) + TakeoverBytes(after) + memory.total() - memory.ring - memory.weights -
         memory.embedding - memory.margin;
}

bool LendsKv(const Plan& plan) {
  return std::ranges::any_of(plan.devices, [](const PlanDevice& device) { return device.max_layer_pages > 0 && !HasKvOnDisk(device); });
}

}  // namespace

absl::Status CheckKvRoom(const Plan& before, const Plan& after, const KvRoom& room) {
  for (int32_t d = 0; d < after.NumDevices(); ++d) {
    const std::string& name = after.devices[d].name;
    const int32_t there = DeviceNamed(before, name);
    const auto free = room.find(name);
    const Bytes needed = KvOnDiskBytes(after, d);
    if (needed == 0 || free == room.end()) continue;
    const Bytes then = free->second + (there < 0 ? 0 : KvOnDiskBytes(before, there));
    if (needed <= then) continue;
    return absl::ResourceExhaustedError(absl::StrCat("KV that does not fit in the memory of device \"", name, "\" may need ", needed,
                                                     " bytes of its disk, which has room for ", std::max<Bytes>(0, then)));
  }
  return absl::OkStatus();
}

bool TakesOver(const Plan& before, const Plan& after, int64_t pages, const KvRoom& room) {
  if (!RetainsAllKv(before) || !RetainsAllKv(after)) return false;
  if (HasState(before) && (LendsKv(before) || LendsKv(after))) return false;
  if (SpillsKv(after) && ResidencyOf(after).layer_pages < pages) return false;
  if (WindowOf(before).positions != WindowOf(after).positions) return false;
  std::map<int32_t, std::string> numerics;  // by layer
  for (int32_t d = 0; d < before.NumDevices(); ++d) {
    for (const int32_t layer : LayersOn(before, d)) numerics[layer] = before.devices[d].numerics_id;
    for (const int32_t layer : StateLayersOn(before, d)) numerics[layer] = before.devices[d].numerics_id;
  }
  for (int32_t d = 0; d < after.NumDevices(); ++d) {
    const PlanDevice& device = after.devices[d];
    const std::vector<int32_t> layers = LayersOn(after, d);
    if (device.kv_pages < PagesOn(after, d, pages)) return false;
    const auto is_other = [&](int32_t layer) { return numerics[layer] != device.numerics_id; };
    if (std::ranges::any_of(layers, is_other) || std::ranges::any_of(StateLayersOn(after, d), is_other)) return false;
    const bool has_left = LeftBytes(before, device.name, pages) > 0;
    if (has_left && TakingOverBytes(before, after, d, pages) > device.budget) return false;
    const auto free = room.find(device.name);
    if (const Bytes on_disk = KvOnDiskBytes(after, d); on_disk > 0 && free != room.end() && on_disk > free->second) return false;
  }
  return true;
}

int64_t MostPages(const Plan& before, const Plan& after, const KvRoom& room) {
  int64_t low = 0, high = std::max(FullLayerPages(before), FullLayerPages(after)) + 1;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (TakesOver(before, after, middle, room) ? low : high) = middle;
  }
  return low;
}

// ---- Weights

namespace {

Bytes BlockBytes(const Plan& plan, BlockId id, bool with_parts) {
  if (id.kind == BlockKind::kEmbedding) return plan.embedding_pinned_bytes + (with_parts ? plan.embedding_bytes : 0);
  Bytes bytes = 0;
  const auto [begin, end] = PartsOf(plan, id);
  for (int p = begin; p < end; ++p)
    bytes += plan.parts[p].pinned_bytes + (with_parts && !plan.parts[p].is_kv() ? MovableBytes(plan.parts[p]) : 0);
  return bytes;
}

Bytes BytesOf(const Plan& plan, const ResidentWeights& weights) {
  Bytes bytes = 0;
  for (const BlockId id : weights.whole) bytes += BlockBytes(plan, id, /*with_parts=*/true);
  for (const BlockId id : weights.pinned) bytes += BlockBytes(plan, id, /*with_parts=*/false);
  for (const int part : weights.parts) bytes += plan.parts[part].bytes;
  return bytes;
}

// Weights of a device that are already in its memory under the plan before.
Bytes FoundBytes(const ModelSpec& spec, const Plan& after, int32_t device, const Plan& before) {
  const int32_t then = DeviceNamed(before, after.devices[device].name);
  if (then < 0) return 0;
  const bool tied = spec.config.tie_embeddings;
  const ResidentWeights there = WeightsThatMayStay(ResidentWeightsOn(before, then), tied);
  ResidentWeights found = WeightsThatMayStay(ResidentWeightsOn(after, device), tied);
  std::erase_if(found.whole, [&](BlockId id) { return std::ranges::find(there.whole, id) == there.whole.end(); });
  std::erase_if(found.parts, [&](int part) {
    const PlanPart& what = after.parts[part];
    return std::ranges::none_of(there.parts,
                                [&](int p) { return before.parts[p].block == what.block && before.parts[p].rows == what.rows; });
  });
  return BytesOf(after, found);
}

}  // namespace

double ReadWeightsMs(const ModelSpec& spec, const Plan& after, const Plan* before, int64_t pages) {
  double slowest_ms = 0;
  for (int32_t d = 0; d < after.NumDevices(); ++d) {
    const PlanDevice& device = after.devices[d];
    if (device.disk_mb_per_ms <= 0 || std::ranges::find(after.stages, d, &Stage::device) == after.stages.end()) continue;
    Bytes bytes = BytesOf(after, ResidentWeightsOn(after, d));
    if (before != nullptr) {
      const Bytes found = FoundBytes(spec, after, d, *before), beside = TakingOverBytes(*before, after, d, pages);
      if (static_cast<double>(beside + found) <= kKeepsWithin * static_cast<double>(device.budget)) bytes -= found;
    }
    slowest_ms = std::max(slowest_ms, static_cast<double>(bytes) / 1e6 / device.disk_mb_per_ms);
  }
  return slowest_ms;
}

// ---- KV

namespace {

// Names of the devices with KV of each layer: its owner, and the owner's host. `on_disk`: the
// owners with some of it on their disk.
std::map<int32_t, std::vector<std::string>> KvHoldersOf(const Plan& plan, std::set<std::string>& on_disk) {
  std::map<int32_t, std::vector<std::string>> holders;
  for (int32_t d = 0; d < plan.NumDevices(); ++d) {
    const PlanDevice& device = plan.devices[d];
    for (const int32_t layer : LayersOn(plan, d)) {
      holders[layer].push_back(device.name);
      for (int32_t holder = 0; holder < plan.NumDevices(); ++holder) {
        if (HoldsKvOf(plan, holder, d)) holders[layer].push_back(plan.devices[holder].name);
      }
    }
    if (HasKvOnDisk(device) && HasKvAway(plan, d)) on_disk.insert(device.name);
  }
  return holders;
}

// The device of each layer with states, and the bytes of all of them.
std::map<int32_t, std::pair<std::string, Bytes>> StatesIn(const Plan& plan) {
  std::map<int32_t, std::pair<std::string, Bytes>> states;
  for (int p = 0; p < plan.NumParts(); ++p) {
    const PlanPart& part = plan.parts[p];
    if (HasState(part.block.kind)) states[part.block.layer] = {plan.devices[plan.stages[StageOf(plan, p)].device].name, part.state_bytes};
  }
  return states;
}

const ClusterDevice* Find(const PlanInputs& inputs, const std::string& name) {
  const auto found = std::ranges::find(inputs.devices, name, &ClusterDevice::name);
  return found == inputs.devices.end() ? nullptr : &*found;
}

// The rate of reading one piece of KV after another.
double DiskBytesPerMs(const PlanInputs& inputs, const Plan& plan, const std::string& name) {
  const double planned = plan.devices[DeviceNamed(plan, name)].disk_mb_per_ms * 1e6;
  const ClusterDevice* const device = Find(inputs, name);
  const double measured = device == nullptr ? 0 : device->profile.DiskRate(KvPieceBytes(plan), 1) / 1000;
  return measured > 0 ? std::min(planned, measured) : planned;
}

}  // namespace

Pause MoveKv(const PlanInputs& inputs, const Plan& before, const Plan& after) {
  std::set<std::string> from_disk, to_disk;
  std::map<int32_t, std::vector<std::string>> had = KvHoldersOf(before, from_disk);
  const std::map<int32_t, std::vector<std::string>> has = KvHoldersOf(after, to_disk);
  const double bytes = static_cast<double>(after.page_bytes) / kPageTokens * static_cast<double>(after.sequences);
  const auto link = [&](const std::string& from, const std::string& to) {
    const ClusterDevice *const a = Find(inputs, from), *const b = Find(inputs, to);
    return a == nullptr || b == nullptr ? inputs.request.default_link : LinkBetween(*a, *b, inputs.request.default_link);
  };
  const auto link_ms = [&](const std::string& from, const std::string& to) {
    return from == to ? 0 : bytes / link(from, to).bytes_per_second * 1000;
  };
  const auto read_ms = [&](const std::string& from) { return from_disk.contains(from) ? bytes / DiskBytesPerMs(inputs, before, from) : 0; };
  const auto write_ms = [&](const std::string& to) {
    return to_disk.contains(to) ? bytes / (kWriteShare * DiskBytesPerMs(inputs, after, to)) : 0;
  };
  std::map<std::string, double> receiving, sending, calling;  // by device
  std::set<std::pair<std::string, std::string>> met;
  for (const auto& [layer, readers] : has) {
    for (const std::string& to : readers) {
      double slowest_ms = 0;
      for (const std::string& from : had[layer]) {
        const double ms = bytes / kCopyBytesPerMs + read_ms(from), over_link_ms = link_ms(from, to);
        slowest_ms = std::max(slowest_ms, std::max(ms, over_link_ms) + write_ms(to));
        sending[from] += std::max(ms, over_link_ms);
        if (from == to) continue;
        const double trips = kTripsOfCall + (met.emplace(from, to).second ? kTripsToMeet : 0);
        calling[to] += kCallMs + trips * link(from, to).latency_ms;
      }
      receiving[to] += slowest_ms;
    }
  }
  // States do not grow with positions. All slots count, with all of their snapshots.
  std::map<std::string, double> states;
  const auto states_before = StatesIn(before);
  for (const auto& [layer, there] : StatesIn(after)) {
    const auto& [to, of_layer] = there;
    const auto found = states_before.find(layer);
    if (found == states_before.end()) continue;
    const std::string& from = found->second.first;
    const double copy_ms = static_cast<double>(of_layer) / kCopyBytesPerMs;
    const double over_link_ms = from == to ? 0 : static_cast<double>(of_layer) / link(from, to).bytes_per_second * 1000;
    states[to] += std::max(copy_ms, over_link_ms);
    if (from == to) continue;
    states[from] += std::max(copy_ms, over_link_ms);
    calling[to] += kCallMs + (kTripsOfCall + (met.emplace(from, to).second ? kTripsToMeet : 0)) * link(from, to).latency_ms;
  }
  const auto most = [](const std::map<std::string, double>& of) {
    return of.empty() ? 0 : std::ranges::max_element(of, {}, [](const auto& each) { return each.second; })->second;
  };
  return {.fixed_ms = most(calling) + most(states), .position_ms = std::max(most(receiving), most(sending))};
}

double ComputeAgainMs(const PlanInputs& inputs, const Plan& plan, int64_t positions, int64_t again) {
  const double logits_ms = static_cast<double>(again) / plan.batch * plan.predicted.ms_per_step;
  if (plan.prompt_tokens == 0) return static_cast<double>(positions) * plan.predicted.ms_per_step;
  Plan longer = plan;
  longer.prompt_tokens = std::clamp(positions, plan.prompt_tokens, std::max(plan.prompt_tokens, plan.context));
  double slowest = 1;
  const auto attention = std::ranges::find_if(inputs.spec.blocks, [](const BlockSpec& block) { return HasKv(block.id.kind); });
  for (const Stage& stage : plan.stages) {
    const ClusterDevice* const device = Find(inputs, plan.devices[stage.device].name);
    if (device == nullptr) continue;
    const auto ms_at = [&](int64_t context) { return device->profile.ComputeMs(inputs.spec, attention->id, plan.prefill_chunk, context); };
    const double slower = std::max(1.0, ms_at(positions) / ms_at((plan.prompt_tokens + plan.prefill_chunk) / 2));
    slowest = std::max(slowest, slower);
    for (int p = stage.lo; p < stage.hi; ++p) {
      if (HasKv(plan.parts[p].block.kind)) longer.parts[p].prefill_ms *= slower;
    }
  }
  if (longer.Validate().ok()) {
    const absl::StatusOr<SimulationResult> simulated = SimulatePrefill(longer, {.timeline = false});
    if (simulated.ok()) return simulated->step_ends_ms.back() + logits_ms;
  }
  return slowest * plan.predicted.ttft_ms * static_cast<double>(longer.prompt_tokens) / static_cast<double>(plan.prompt_tokens) + logits_ms;
}

}  // namespace lime
