#include "planner/kv/hosting/kv_hosting.h"

#include <algorithm>

#include "planner/base/check.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"
#include "planner/plan/plan_rows.h"

namespace lime {
namespace {

constexpr Bytes kFloat = 4;

Bytes QueryBytes(const ModelConfig& config) {
  return config.num_heads * config.MostHeadDim() * kFloat;
}

Bytes RecordBytes(const ModelConfig& config) {
  return config.num_heads * (config.MostHeadDim() + 2) * kFloat;
}

double WayMs(Bytes bytes, const LinkPoint& link) {
  return static_cast<double>(bytes) / link.bytes_per_second * 1000 + link.latency_ms;
}

// A host keeps as much in flight as the link carries in a millisecond, and waits one round trip for
// the confirmation.
double FetchMbPerMs(const LinkPoint& link, const LinkPoint& back) {
  constexpr double kOnItsWayMs = 1;
  return link.bytes_per_second / 1e9 * kOnItsWayMs / (kOnItsWayMs + link.latency_ms + back.latency_ms);
}

// Attention time per position, of the first layer with KV.
double PositionMs(const ModelSpec& spec, const DeviceProfile& profile, int64_t rows, int64_t context) {
  const auto block = std::ranges::find_if(spec.blocks, [](const BlockSpec& each) { return HasKv(each.id.kind); });
  LIME_CHECK(block != spec.blocks.end());
  const auto ms = [&](int64_t positions) { return profile.ComputeMs(spec, block->id, rows, positions); };
  return context > 1 ? (ms(context) - ms(1)) / static_cast<double>(context - 1) : 0;
}

// The mean number of positions away when the plan has all its KV.
double MostAway(const Plan& plan, const PlanDevice& device) {
  return MeanPositionsAway(plan, device, FullLayerPages(plan));
}

// Sets the time until the answer arrives. The first KV part of a layer has it for all of them.
void SetAskTimes(Plan& plan, int owner, const KvHosting::Pair* pair) {
  PlanDevice& device = plan.devices[owner];
  const double away = pair != nullptr ? MostAway(plan, device) : 0;
  const auto ask_ms = [&](const KvAskTimes& times) { return std::max(0.0, times.way_ms + times.position_ms * away); };
  device.ask_kv_ms = pair != nullptr ? pair->decode.way_ms : 0;
  device.kv_fetch_mb_per_ms = pair != nullptr && device.kv_fetch_pieces > 0 ? pair->fetch_mb_per_ms : 0;
  for (const Stage& stage : plan.stages) {
    if (stage.device != owner) continue;
    for (int p = stage.lo; p < stage.hi; ++p) {
      PlanPart& part = plan.parts[p];
      if (!part.is_kv() || part.kv_begin > 0) continue;
      part.decode_ms = pair != nullptr ? ask_ms(pair->decode) : 0;
      part.prefill_ms = pair != nullptr && plan.prefill_chunk > 0 ? ask_ms(pair->prefill) : 0;
    }
  }
}

bool Hosts(const Plan& plan, int device) {
  return std::ranges::any_of(plan.devices, [&](const PlanDevice& other) { return HasKvOnHost(other) && other.kv_host == device; });
}

bool HasStage(const Plan& plan, int device) {
  return std::ranges::find(plan.stages, device, &Stage::device) != plan.stages.end();
}

// Adds (`sign` +1) or removes the memory that an owner needs in addition.
void AddOwner(Plan& plan, const KvHosting& hosting, int owner, int sign) {
  plan.devices[owner].memory.activations += sign * (hosting.asking + hosting.lending);
}

// Adds or removes the memory of a host. A host without a stage is used only for that.
void AddHost(Plan& plan, const KvHosting& hosting, int host, bool sends, int sign) {
  PlanMemory& memory = plan.devices[host].memory;
  const bool others = Hosts(plan, host);  // besides this owner
  const KvHosting::Device& device = hosting.devices[host];
  memory.activations += sign * (hosting.asking + (others ? 0 : hosting.attending) + (sends ? hosting.sending : 0));
  if (others || HasStage(plan, host)) return;
  memory.activations += sign * device.activations;
  memory.runtime = sign > 0 ? device.runtime : std::min(device.runtime, plan.devices[host].budget);
  plan.devices[host].least_margin = sign > 0 ? device.margin : 0;
  if (sign < 0) memory.hosted = 0, memory.margin = plan.devices[host].budget - memory.runtime;
}

}  // namespace

KvHosting MakeKvHosting(const ModelSpec& spec, std::span<const ClusterDevice> devices, const LinkPoint& default_link, const Plan& plan) {
  LIME_CHECK_EQ(devices.size(), plan.devices.size());
  const ModelConfig& config = spec.config;
  const int64_t rows = OwnRows(plan), pieces = (plan.context + kKvPiece - 1) / kKvPiece;
  // Bytes of a record, as attention stores it.
  const Bytes record = config.num_heads * (16 + RoundUp(config.MostHeadDim(), 16)) * kFloat;
  KvHosting hosting{.asking = 2 * rows * (QueryBytes(config) + RecordBytes(config)),
                    // Messages of one piece; CutForKv counts the piece itself.
                    .lending = KvPieceBytes(plan),
                    .attending = (rows + pieces) * record,
                    .sending = kKvFetchesUnderWay * KvPieceBytes(plan)};
  const auto times = [&](const ClusterDevice& owner, const ClusterDevice& host, int64_t so_many) {
    const LinkPoint there = LinkBetween(owner, host, default_link), back = LinkBetween(host, owner, default_link);
    return KvAskTimes{
        .way_ms = WayMs(so_many * QueryBytes(config), there) + WayMs(so_many * RecordBytes(config), back),
        .position_ms = PositionMs(spec, host.profile, so_many, plan.context) - PositionMs(spec, owner.profile, so_many, plan.context)};
  };
  for (const ClusterDevice& owner : devices) {
    hosting.devices.push_back({.runtime = owner.runtime, .activations = owner.activations, .margin = owner.margin});
    auto& row = hosting.pairs.emplace_back();
    for (const ClusterDevice& host : devices) {
      auto& pair = row.emplace_back();
      if (owner.name == host.name || owner.numerics_id != host.numerics_id || !config.HasAlikeKv()) continue;
      pair =
          KvHosting::Pair{.decode = times(owner, host, plan.batch),
                          .prefill = times(owner, host, std::max<int64_t>(1, plan.prefill_chunk)),
                          .fetch_mb_per_ms = FetchMbPerMs(LinkBetween(host, owner, default_link), LinkBetween(owner, host, default_link))};
    }
  }
  return hosting;
}

KvPlace KvPlaceOf(const Plan& plan, int d) {
  const PlanDevice& device = plan.devices[d];
  KvPlace place{.layer_pages = device.max_layer_pages, .host = HasKvOnHost(device) ? device.kv_host : -1};
  if (device.kv_fetch_pieces > 0)
    place.back = (device.kv_fetch_pieces - kKvFetchesUnderWay) / std::max<int64_t>(1, HostedPieces(plan, device));
  return place;
}

Plan WithKvAway(const Plan& plan, const KvHosting& hosting, int owner, const KvPlace& place) {
  Plan changed = plan;
  PlanDevice& device = changed.devices[owner];
  const int32_t before = HasKvOnHost(device) ? device.kv_host : -1;
  const bool sent = device.kv_fetch_pieces > 0;
  device.max_layer_pages = place.layer_pages, device.kv_host = -1, device.kv_fetch_pieces = 0, device.asks_kv = true;
  device.memory.fetched = 0;
  if (before >= 0) AddOwner(changed, hosting, owner, -1), AddHost(changed, hosting, before, sent, -1);
  const bool hosted = place.host >= 0 && place.layer_pages > 0;
  if (hosted) {
    AddOwner(changed, hosting, owner, +1), AddHost(changed, hosting, place.host, place.back > 0, +1);
    device.kv_host = place.host, device.asks_kv = hosting.asks;
    if (place.back > 0) device.kv_fetch_pieces = place.back * HostedPieces(changed, device) + kKvFetchesUnderWay;
  }
  SetAskTimes(changed, owner, hosted ? &*hosting.pairs[owner][place.host] : nullptr);
  return changed;
}

}  // namespace lime
