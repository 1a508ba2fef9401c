#include "planner/problem/part_times.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "planner/plan/model/unit_choice.h"
#include "planner/problem/neuron_demand.h"
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
  if (!part.has_experts_on_demand()) return bytes;
  const ExpertsConfig& experts = *spec.config.experts;
  return bytes * DistinctUnits(experts.count, experts.per_token, RowsOf(rows)) / static_cast<double>(experts.count);
}

UnitCounts CountsOf(const ModelSpec& spec, const PlanPart& part) {
  const ExpertsConfig& experts = *spec.config.experts;
  return {.units = experts.count, .per_row = experts.per_token, .places = std::min(part.places, experts.count)};
}

double ReadUnitMs(const DeviceProfile& profile, Bytes bytes, int64_t depth = kDiskDepth) {
  const double rate = profile.DiskRate(kDiskRead, depth);
  if (rate <= 0) return kNoDiskMs;
  return static_cast<double>(bytes) / rate * 1000 + std::max(kPartLatencyMs, profile.DiskLatencyMs(4 * kKiB, 1));
}

// Of the neurons of a sparse part, for a micro-batch of a decode step.
//
// Reading: without a calibration, nothing is known of zeros. So every neuron counts as active, and those
// in memory as any. That is the most that a step reads, in one burst.
UnitDemand DemandOfNeurons(const Plan& head, int p) {
  const auto neurons = static_cast<double>(NeuronsOf(head, p));
  return {.chosen = neurons, .hit_share = static_cast<double>(head.parts[p].places) / neurons};
}

// A neuron of a burst.
double ReadNeuronMs(const DeviceProfile& profile, Bytes bytes) {
  const double rate = profile.DiskRate(bytes, kDiskDepth);
  return rate <= 0 ? kNoDiskMs : static_cast<double>(bytes) / rate * 1000;
}

// Of the last chunk of a prompt, unless it is computed like decode steps.
int64_t CopiedTokens(const PlanRequest& request) {
  if (request.prompt_tokens <= request.sequences || request.chunks.empty()) return 0;
  const int64_t chunk = request.chunks.back(), last = (request.prompt_tokens - 1) % chunk + 1;
  return last > request.sequences ? last : 0;
}

// What a predictor computes, of what the whole block does.
double PredictorWork(const ModelSpec& spec, const PlanPart& part) {
  const auto hidden = static_cast<double>(spec.config.hidden_size),
             neurons = static_cast<double>(spec.config.layer(part.block.layer).intermediate_size);
  return part.predictor_rank * (hidden + neurons) / (LayoutOf(spec.block(part.block)).parts * hidden * neurons);
}

// What the calibration says of the copy that a certified part needs; null: nothing.
const CopiedLayer* CopyOf(const PlanRequest& request, const PlanPart& part) {
  const CopiedLayer* const copy = CopyOfLayer(*request.calibration, part.block.layer);
  const bool same = copy != nullptr && copy->bits == part.decider_bits && copy->directions == part.decider_directions;
  return same ? copy : nullptr;
}

// The same from a calibration.
PartDemand CalibratedDemand(const ModelSpec& spec, const DeviceProfile& profile, const PlanRequest& request, const PlanPart& part, int p,
                            int64_t rows, double comp_ms) {
  const LayerCalibration& layer = *OfLayer(*request.calibration, part.block.layer);
  const NeuronPlace place{.calibration = part.certified() ? &CopyOf(request, part)->unproven : &layer,
                          .certified = part.has_own_decider(),
                          .on_path = request.bundles_on_path,
                          .rows = part.places,
                          .masks = part.window_masks,
                          .steps = request.new_tokens,
                          .copied_tokens = CopiedTokens(request)};
  const std::optional<BurstCost> burst = BurstCostOf(profile);
  // Reading: a proof takes as long as the decider.
  const NeuronTimes times{.decide_ms = part.certified()   ? comp_ms / LayoutOf(spec.block(part.block)).parts
                                       : part.predicted() ? comp_ms * PredictorWork(spec, part)
                                                          : 0,
                          .dense_ms = comp_ms,
                          .call_ms = profile.block_overhead_ms,
                          .burst = burst.value_or(BurstCost{.bytes_per_ms = 1}),
                          .sequential_bytes_per_ms = burst ? profile.DiskRate(kDiskRead, kNeuronReadDepth) / 1000 : 1};
  const NeuronDemand demand = DemandOfNeurons(spec.block(part.block), place, rows, times);
  return {.part = p,
          .compute_ms = demand.compute_ms,
          .read_ms = burst ? demand.wait_ms : kNoDiskMs,
          .chosen_units = demand.active,
          .active_units = ActiveShare(layer, rows) * layer.neurons,
          .hit_share = demand.active > 0 ? std::clamp(1 - demand.loads / demand.active, 0.0, 1.0) : 1,
          .reads = demand.reads,
          .read_bytes = demand.bytes,
          .io_ms = demand.io_ms};
}

// The reads of a sparse part that no computation hides: of neurons for a step of `rows` rows.
PartDemand SparseStepDemand(const ModelSpec& spec, const DeviceProfile& profile, const PlanRequest& request, const Plan& head, int p,
                            int64_t rows, double comp_ms) {
  const PlanPart& part = head.parts[p];
  const bool known = request.calibration != nullptr && (!part.certified() || CopyOf(request, part) != nullptr);
  if (known) return CalibratedDemand(spec, profile, request, part, p, rows, comp_ms);
  const UnitDemand demand = DemandOfNeurons(head, p);
  const double neuron_ms = ReadNeuronMs(profile, part.unit_bytes);
  const double read_ms = neuron_ms < kNoDiskMs ? UncoveredReadMs(demand, neuron_ms, comp_ms) : kNoDiskMs;
  return {.part = p, .compute_ms = comp_ms, .read_ms = read_ms, .chosen_units = demand.chosen, .hit_share = demand.hit_share};
}

// The same of all rows, for a chunk of a prompt.
PartDemand SparseChunkDemand(const DeviceProfile& profile, const Plan& head, int p, double comp_ms) {
  const PlanPart& part = head.parts[p];
  const auto pieces = static_cast<double>((part.bytes + kSparsePieceBytes - 1) / kSparsePieceBytes);
  const double all_ms = ReadUnitMs(profile, part.bytes, kStreamsBesideNeurons);
  // The first piece is read before anything is computed.
  const double read_ms = all_ms < kNoDiskMs ? std::max(all_ms / pieces, all_ms - comp_ms * (1 - 1 / pieces)) : kNoDiskMs;
  return {.part = p, .compute_ms = comp_ms, .read_ms = read_ms};
}

// Of all parts on demand. Adds their reads to the times of the device.
template <typename DemandOf, typename SparseDemandOf>
std::vector<PartDemand> AddDemand(const DeviceProfile& profile, const Plan& head, const DemandOf& demand_of,
                                  const SparseDemandOf& sparse_demand_of, std::vector<double>& comp_ms) {
  std::vector<PartDemand> demands;
  for (int p = 0; p < head.NumParts(); ++p) {
    const PlanPart& part = head.parts[p];
    if (!part.on_demand()) continue;
    if (part.sparse()) {
      demands.push_back(sparse_demand_of(p, comp_ms[p]));
      comp_ms[p] = demands.back().compute_ms + demands.back().read_ms;
      continue;
    }
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
  const auto sparse = [&](int p, double ms) { return SparseStepDemand(spec, profile, request, head, p, rows, ms); };
  return AddDemand(profile, head, demand_of, sparse, comp_ms);
}

std::vector<PartDemand> AddChunkDemand(const ModelSpec& spec, const DeviceProfile& profile, const Plan& head, int64_t rows,
                                       std::vector<double>& comp_ms) {
  const auto demand_of = [&](const PlanPart& part) { return DemandOfChunk(CountsOf(spec, part), rows); };
  const auto sparse = [&](int p, double ms) { return SparseChunkDemand(profile, head, p, ms); };
  return AddDemand(profile, head, demand_of, sparse, comp_ms);
}

namespace {

// The devices that divide the units of a layer.
class UnitDividers {
 public:
  UnitDividers(const ModelSpec& spec, std::span<const ClusterDevice> devices, const PlanRequest& request, const DividedVisit& visit)
      : spec_(spec), experts_(*spec.config.experts), devices_(devices), request_(request), visit_(visit) {
    ahead_places_ = visit.is_step && visit.rows <= kMostGuessedRows ? request.ahead_places : 0;
  }

  // Of a part on demand, by device. `comp_ms`: by device, of all units that the rows choose; `rest_ms`:
  // by device, of the parts since the part on demand before; nullopt for the first one.
  std::vector<PartDemand> Demands(const PlanPart& part, std::span<const double> comp_ms,
                                  const std::optional<std::vector<double>>& rest_ms) {
    std::vector<PartDemand> demands(devices_.size());
    std::vector<UnitTime> times(devices_.size());
    for (size_t d = 0; d < devices_.size(); ++d) {
      if (request_.unit_shares[d].units > 0) std::tie(demands[d], times[d]) = OwnTime(d, part.unit_bytes, comp_ms[d]);
    }
    for (size_t owner = 0; owner < devices_.size(); ++owner) {
      PartDemand& demand = demands[owner];
      demand.all_ms = kNoDiskMs;
      if (request_.unit_shares[owner].units == 0) continue;
      UnitsAhead ahead;
      if (rest_ms) ahead = {.places = ahead_places_, .rest_ms = (*rest_ms)[owner]};
      demand.all_ms = std::max(LongestMs(TimesFor(owner, times), ahead), demand.compute_ms + demand.read_ms);
    }
    return demands;
  }

 private:
  double ShareOf(size_t d) const { return static_cast<double>(request_.unit_shares[d].units) / static_cast<double>(experts_.count); }

  // Without messages.
  std::pair<PartDemand, UnitTime> OwnTime(size_t d, Bytes unit_bytes, double comp_ms) {
    const UnitShare& share = request_.unit_shares[d];
    const UnitCounts counts{.units = experts_.count, .per_row = experts_.per_token, .places = WholePlaces(experts_.count, share)};
    const UnitDemand whole = visit_.is_step ? DemandOfStep(counts, request_.unit_hits, visit_.rows) : DemandOfChunk(counts, visit_.rows);
    const UnitDemand own{.chosen = whole.chosen * ShareOf(d), .hit_share = whole.hit_share};
    chosen_ = whole.chosen;
    const double unit_ms = ReadUnitMs(devices_[d].profile, unit_bytes), compute_ms = comp_ms * ShareOf(d);
    const PartDemand demand{.compute_ms = compute_ms,
                            .read_ms = unit_ms < kNoDiskMs ? UncoveredReadMs(own, unit_ms, compute_ms) : kNoDiskMs,
                            .chosen_units = own.chosen,
                            .hit_share = own.hit_share};
    const UnitTime time{.compute_ms = compute_ms,
                        .late_ms = compute_ms * (1 - own.hit_share),
                        .unit_ms = unit_ms,
                        .miss_share = ShareOf(d) * (1 - own.hit_share),
                        .absent_share = ShareOf(d) * (1 - static_cast<double>(share.places) / static_cast<double>(share.units))};
    return {demand, time};
  }

  // Of all devices with units, with the messages to `owner`; in an order that does not depend on it.
  std::vector<UnitTime> TimesFor(size_t owner, std::span<const UnitTime> times) const {
    const Bytes input = spec_.config.hidden_size * ElementBytes(spec_.working_dtype), result = spec_.config.hidden_size * 4;
    const double question = static_cast<double>(visit_.rows * (input + experts_.per_token * 4));
    std::vector<UnitTime> all;
    for (size_t d = 0; d < devices_.size(); ++d) {
      if (request_.unit_shares[d].units == 0) continue;
      UnitTime& time = all.emplace_back(times[d]);
      if (d == owner) continue;
      const LinkPoint there = LinkBetween(devices_[owner], devices_[d], request_.default_link);
      const LinkPoint back = LinkBetween(devices_[d], devices_[owner], request_.default_link);
      const double results = static_cast<double>(visit_.rows * experts_.per_token * result) * ShareOf(d);
      const double last = results / std::max(1.0, chosen_ * ShareOf(d));
      time.fixed_ms = there.latency_ms + question / there.bytes_per_second * 1000 + back.latency_ms + last / back.bytes_per_second * 1000;
      time.compute_ms += (results - last) / back.bytes_per_second * 1000;
    }
    std::ranges::sort(all);
    return all;
  }

  // Many owners and layers have the same times.
  double LongestMs(std::vector<UnitTime> all, const UnitsAhead& ahead) {
    const auto [known, is_new] = known_.try_emplace({std::move(all), ahead.places > 0 ? ahead.rest_ms : -1}, 0);
    const std::vector<UnitTime>& times = known->first.first;
    if (is_new) known->second = ahead.places > 0 ? ExpectedLongestMs(times, chosen_, ahead) : ExpectedLongestMs(times, chosen_);
    return known->second;
  }

  const ModelSpec& spec_;
  const ExpertsConfig& experts_;
  const std::span<const ClusterDevice> devices_;
  const PlanRequest& request_;
  const DividedVisit visit_;
  int32_t ahead_places_ = 0;
  double chosen_ = 0;  // of a layer; the same in all
  std::map<std::pair<std::vector<UnitTime>, double>, double> known_;
};

}  // namespace

std::vector<std::vector<PartDemand>> AddDividedDemand(const ModelSpec& spec, std::span<const ClusterDevice> devices,
                                                      const PlanRequest& request, const Plan& head, const DividedVisit& visit,
                                                      std::span<std::vector<double>* const> comp_ms) {
  UnitDividers dividers(spec, devices, request, visit);
  std::vector<std::vector<PartDemand>> demands(devices.size());
  int before = -1;  // the last part on demand
  for (int p = 0; p < head.NumParts(); ++p) {
    if (!head.parts[p].on_demand()) continue;
    std::vector<double> all_ms, rest_ms;
    for (const std::vector<double>* const of : comp_ms) {
      all_ms.push_back((*of)[p]);
      rest_ms.push_back(std::accumulate(of->begin() + before + 1, of->begin() + p, 0.0));
    }
    const std::vector<PartDemand> of_part = dividers.Demands(head.parts[p], all_ms, before < 0 ? std::nullopt : std::optional(rest_ms));
    for (size_t d = 0; d < devices.size(); ++d) {
      demands[d].push_back(of_part[d]);
      demands[d].back().part = p;
      (*comp_ms[d])[p] = of_part[d].all_ms;
    }
    before = p;
  }
  return demands;
}

}  // namespace lime
