#include "planner/problem/part_times.h"

#include <algorithm>
#include <utility>

#include "planner/plan/model/unit_choice.h"
#include "planner/problem/unit_demand.h"
#include "planner/problem/unit_shares.h"

namespace lime {
namespace {

// Rows of one visit that pass all blocks but the head.
int64_t RowsOf(const VisitShape& rows) {
  return rows.sequences * rows.own;
}

// The bytes of a part that the rows need: of a part on demand, those of the units that they choose.
double BytesInUse(const ModelSpec& spec, const PlanPart& part, const VisitShape& rows) {
  const auto bytes = static_cast<double>(part.bytes);
  if (!part.on_demand()) return bytes;
  const ExpertsConfig& experts = *spec.config.experts;
  return bytes * DistinctUnits(experts.count, experts.per_token, RowsOf(rows)) / static_cast<double>(experts.count);
}

UnitCounts CountsOf(const ModelSpec& spec, const PlanPart& part) {
  const ExpertsConfig& experts = *spec.config.experts;
  return {.units = experts.count, .per_row = experts.per_token, .places = std::min(part.places, experts.count)};
}

double ReadUnitMs(const DeviceProfile& profile, Bytes bytes) {
  const double rate = profile.DiskRate(kDiskRead, kDiskDepth);
  if (rate <= 0) return kNoDiskMs;
  return static_cast<double>(bytes) / rate * 1000 + std::max(kPartLatencyMs, profile.DiskLatencyMs(4 * kKiB, 1));
}

// Of all parts on demand. Adds their reads to the times of the device.
template <typename DemandOf>
std::vector<PartDemand> AddDemand(const DeviceProfile& profile, const Plan& head, const DemandOf& demand_of, std::vector<double>& comp_ms) {
  std::vector<PartDemand> demands;
  for (int p = 0; p < head.NumParts(); ++p) {
    const PlanPart& part = head.parts[p];
    if (!part.on_demand()) continue;
    const UnitDemand demand = demand_of(part);
    const double unit_ms = ReadUnitMs(profile, part.unit_bytes);
    const double read_ms = unit_ms < kNoDiskMs ? UncoveredReadMs(demand, unit_ms, comp_ms[p]) : kNoDiskMs;
    demands.push_back(
        {.part = p, .compute_ms = comp_ms[p], .read_ms = read_ms, .chosen_units = demand.chosen, .hit_share = demand.hit_share});
    comp_ms[p] += read_ms;
  }
  return demands;
}

}  // namespace

std::vector<double> ComputeTimes(const ModelSpec& spec, const DeviceProfile& profile, const Plan& plan, const VisitShape& rows) {
  const auto own_ms = [&](BlockId block) {
    return profile.ComputeMs(spec, block, block.kind == BlockKind::kHead ? rows.logits : RowsOf(rows), rows.context);
  };
  std::vector<std::pair<BlockId, double>> known;  // of blocks that take different times
  const auto all_ms = [&](BlockId block) {
    const auto same = std::ranges::find_if(known, [&](const auto& other) { return TakeSameTime(spec, other.first, block); });
    if (same != known.end()) return same->second;
    const double ms =
        rows.evicted == 0 || block.kind == BlockKind::kHead
            ? own_ms(block)
            : SlicedMs(rows, [&](int64_t some, int64_t positions) { return profile.ComputeMs(spec, block, some, positions); });
    return known.emplace_back(block, ms).second;
  };
  const BlockId last = MlpBlockOf(spec.config, static_cast<int32_t>(spec.config.num_layers() - 1));
  std::vector<double> times;
  for (int begin = 0, end = 0; begin < plan.NumParts(); begin = end) {
    double bytes = 0;
    for (end = begin; end < plan.NumParts() && plan.parts[end].block == plan.parts[begin].block; ++end)
      bytes += BytesInUse(spec, plan.parts[end], rows);
    const BlockId block = plan.parts[begin].block;
    const double block_ms = block == last ? own_ms(block) : all_ms(block);
    for (int p = begin; p < end; ++p) times.push_back(block_ms * BytesInUse(spec, plan.parts[p], rows) / bytes);
  }
  const ModelCompute* const model = profile.FindModel(ModelKey(spec));
  times.front() += all_ms({BlockKind::kEmbedding, 0});
  times.back() += model != nullptr ? model->step_overhead_ms : 0;
  return times;
}

std::vector<PartDemand> AddStepDemand(const ModelSpec& spec, const DeviceProfile& profile, const PlanRequest& request, const Plan& head,
                                      int64_t rows, std::vector<double>& comp_ms) {
  const auto demand_of = [&](const PlanPart& part) { return DemandOfStep(CountsOf(spec, part), request.unit_hits, rows); };
  return AddDemand(profile, head, demand_of, comp_ms);
}

std::vector<PartDemand> AddChunkDemand(const ModelSpec& spec, const DeviceProfile& profile, const Plan& head, int64_t rows,
                                       std::vector<double>& comp_ms) {
  const auto demand_of = [&](const PlanPart& part) { return DemandOfChunk(CountsOf(spec, part), rows); };
  return AddDemand(profile, head, demand_of, comp_ms);
}

std::vector<std::vector<PartDemand>> AddDividedDemand(const ModelSpec& spec, std::span<const ClusterDevice> devices,
                                                      const PlanRequest& request, const Plan& head, const DividedVisit& visit,
                                                      std::span<std::vector<double>* const> comp_ms) {
  const ExpertsConfig& experts = *spec.config.experts;
  const Bytes input = spec.config.hidden_size * ElementBytes(spec.working_dtype), result = spec.config.hidden_size * 4;
  std::vector<std::vector<PartDemand>> demands(devices.size());
  for (int p = 0; p < head.NumParts(); ++p) {
    if (!head.parts[p].on_demand()) continue;
    std::vector<UnitTime> times(devices.size());
    double chosen = 0;
    for (size_t d = 0; d < devices.size(); ++d) {
      const UnitShare& share = request.unit_shares[d];
      PartDemand& demand = demands[d].emplace_back(PartDemand{.part = p});
      if (share.units == 0) continue;
      const UnitCounts counts{.units = experts.count, .per_row = experts.per_token, .places = WholePlaces(experts.count, share)};
      const UnitDemand whole = visit.is_step ? DemandOfStep(counts, request.unit_hits, visit.rows) : DemandOfChunk(counts, visit.rows);
      const double part_of = static_cast<double>(share.units) / static_cast<double>(experts.count);
      const UnitDemand own{.chosen = whole.chosen * part_of, .hit_share = whole.hit_share};
      chosen = whole.chosen;
      const double unit_ms = ReadUnitMs(devices[d].profile, head.parts[p].unit_bytes);
      demand.compute_ms = (*comp_ms[d])[p] * part_of;
      demand.read_ms = unit_ms < kNoDiskMs ? UncoveredReadMs(own, unit_ms, demand.compute_ms) : kNoDiskMs;
      demand.chosen_units = own.chosen, demand.hit_share = own.hit_share;
      times[d] = {.compute_ms = demand.compute_ms,
                  .late_ms = demand.compute_ms * (1 - own.hit_share),
                  .unit_ms = unit_ms,
                  .miss_share = part_of * (1 - own.hit_share)};
    }
    for (size_t owner = 0; owner < devices.size(); ++owner) {
      std::vector<UnitTime> all;
      PartDemand& demand = demands[owner].back();
      for (size_t d = 0; d < devices.size(); ++d) {
        if (request.unit_shares[d].units == 0) continue;
        all.push_back(times[d]);
        if (d == owner) continue;
        const LinkPoint link = LinkBetween(devices[owner], devices[d], request.default_link);
        const double part_of = static_cast<double>(request.unit_shares[d].units) / static_cast<double>(experts.count);
        const double results = static_cast<double>(visit.rows * experts.per_token) * part_of * static_cast<double>(result);
        const double bytes = static_cast<double>(visit.rows * (input + experts.per_token * 4)) + results;
        all.back().fixed_ms = 2 * link.latency_ms + bytes / link.bytes_per_second * 1000;
      }
      const bool has_units = request.unit_shares[owner].units > 0;
      demand.all_ms = has_units ? std::max(ExpectedLongestMs(all, chosen), demand.compute_ms + demand.read_ms) : kNoDiskMs;
      (*comp_ms[owner])[p] = demand.all_ms;
    }
  }
  return demands;
}

}  // namespace lime
