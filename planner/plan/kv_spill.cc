#include "planner/plan/kv_spill.h"

#include <algorithm>

#include "planner/plan/kv_fetching.h"
#include "planner/plan/plan_residency.h"

namespace lime {
namespace {

int64_t ContextPages(const Plan& plan) {
  return (plan.context + kPageTokens - 1) / kPageTokens;
}

// The most pages beyond the first `away` pages of each sequence, if all sequences have
// `layer_pages` together. Few long sequences have more such pages than many short ones.
int64_t MostBehind(const Plan& plan, int64_t layer_pages, int64_t away) {
  const int64_t longest = ContextPages(plan), whole = std::min<int64_t>(plan.sequences, layer_pages / longest);
  const int64_t rest = whole < plan.sequences ? layer_pages - whole * longest : 0;
  return whole * std::max<int64_t>(0, longest - away) + std::max<int64_t>(0, rest - away);
}

}  // namespace

bool SpillsKv(const Plan& plan) {
  return std::ranges::any_of(plan.devices, [](const PlanDevice& device) { return device.max_layer_pages > 0; });
}

bool HasKvOnDisk(const PlanDevice& device) {
  return device.max_layer_pages > 0 && device.kv_host < 0;
}

bool HasKvOnHost(const PlanDevice& device) {
  return device.max_layer_pages > 0 && device.kv_host >= 0;
}

int64_t HostedPieces(const Plan& plan, const PlanDevice& device) {
  if (!HasKvOnHost(device)) return 0;
  const int64_t pages = FullLayerPages(plan), away = PositionsAway(plan, device, pages) / kKvPiece;
  return std::min(plan.sequences * away, pages / (kKvPiece / kPageTokens));
}

Bytes HostedBytes(const Plan& plan, int device) {
  return HostedPieces(plan, plan.devices[device]) * std::ssize(LayersOn(plan, device)) * KvPieceBytes(plan);
}

Bytes FetchedBytes(const Plan& plan, const PlanDevice& device) {
  return HasKvOnHost(device) ? device.kv_fetch_pieces * KvPieceBytes(plan) : 0;
}

bool HasKvAway(const Plan& plan, int device) {
  return PositionsAway(plan, plan.devices[device], ResidencyOf(plan).layer_pages) > 0;
}

bool AsksForKv(const Plan& plan, int part) {
  const PlanPart& what = plan.parts[part];
  return what.is_kv() && what.kv_begin == 0 && HasKvOnHost(plan.devices[plan.stages[StageOf(plan, part)].device]);
}

double AskKvMs(const Plan& plan, int part, int64_t layer_pages) {
  return AskKvMs(plan, part, layer_pages, LayersInTime(plan, plan.stages[StageOf(plan, part)].device, layer_pages));
}

double AskKvMs(const Plan& plan, int part, int64_t layer_pages, int64_t layers_in_time) {
  const PlanDevice& device = plan.devices[plan.stages[StageOf(plan, part)].device];
  if (PositionsAway(plan, device, layer_pages) == 0) return 0;
  const int d = static_cast<int>(&device - plan.devices.data());
  if (device.kv_fetch_pieces > 0) {
    const std::vector<int32_t> layers = LayersOn(plan, d);
    const int64_t layer = std::ranges::lower_bound(layers, plan.parts[part].block.layer) - layers.begin();
    if (IsAmong(layer, layers_in_time, std::ssize(layers))) return 0;
  }
  return device.asks_kv ? AnswerMs(plan, part, layer_pages) : FetchLayerMs(plan, d, layer_pages);
}

double AnswerMs(const Plan& plan, int part, int64_t layer_pages) {
  const PlanDevice& device = plan.devices[plan.stages[StageOf(plan, part)].device];
  const double share = MeanPositionsAway(plan, device, layer_pages) / MeanPositionsAway(plan, device, FullLayerPages(plan));
  return std::max(0.0, device.ask_kv_ms + share * (plan.parts[part].decode_ms - device.ask_kv_ms));
}

bool HasPart(const Plan& plan, int device) {
  const auto lends_to_it = [&](const PlanDevice& other) { return HasKvOnHost(other) && other.kv_host == device; };
  return std::ranges::find(plan.stages, device, &Stage::device) != plan.stages.end() || std::ranges::any_of(plan.devices, lends_to_it);
}

std::vector<int32_t> LayersOn(const Plan& plan, int device) {
  std::vector<int32_t> layers;
  for (const Stage& stage : plan.stages) {
    for (int p = stage.lo; stage.device == device && p < stage.hi; ++p) {
      const BlockId id = plan.parts[p].block;
      if (id.kind == BlockKind::kAttention && (layers.empty() || layers.back() != id.layer)) layers.push_back(id.layer);
    }
  }
  return layers;
}

int64_t PagesInMemory(const PlanDevice& device, int64_t layer_pages) {
  return device.max_layer_pages > 0 ? std::min(device.max_layer_pages, layer_pages) : layer_pages;
}

int64_t WorkingPages(const Plan& plan) {
  const int64_t rows = plan.prefill_chunk * plan.chunks_per_sweep + int64_t{plan.microbatches} * plan.batch;
  // Rows of one sequence are consecutive. Rows of each sequence may begin a new page.
  return plan.sequences * (kKvPiece / kPageTokens) + 2 * ((rows + kPageTokens - 1) / kPageTokens) + 2 * plan.sequences;
}

int64_t PositionsAway(const Plan& plan, const PlanDevice& device, int64_t layer_pages) {
  if (device.max_layer_pages == 0 || layer_pages <= device.max_layer_pages) return 0;
  const int64_t room = device.max_layer_pages - WorkingPages(plan);
  const int64_t pieces = (plan.context + kKvPiece - 1) / kKvPiece;
  int64_t low = 0, high = pieces;  // each further piece away leaves fewer pages in memory
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (MostBehind(plan, layer_pages, middle * (kKvPiece / kPageTokens)) <= room) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high * kKvPiece;
}

double MeanPositionsAway(const Plan& plan, const PlanDevice& device, int64_t layer_pages) {
  const int64_t pages = layer_pages - PagesInMemory(device, layer_pages);
  return static_cast<double>(pages * kPageTokens) / static_cast<double>(plan.sequences);
}

Bytes KvPieceBytes(const Plan& plan) {
  return RoundUp(kKvPiece / kPageTokens * plan.page_bytes, 4 * kKiB);
}

Bytes KvOnDiskBytes(const Plan& plan, int device) {
  if (!HasKvOnDisk(plan.devices[device])) return 0;
  return std::ssize(LayersOn(plan, device)) * plan.sequences * ((plan.context + kKvPiece - 1) / kKvPiece) * KvPieceBytes(plan);
}

Bytes TakeoverBytes(const Plan& plan) {
  constexpr Bytes kMessages = 4 * kMiB;
  int64_t readers = 0;
  for (int32_t d = 0; d < plan.NumDevices(); ++d) readers += HasPart(plan, d) ? 1 : 0;
  return std::max<int64_t>(2, readers) * (2 * KvPieceBytes(plan) + kMessages / 2);
}

Bytes KvPartBytes(const Plan& plan, const PlanPart& part) {
  return plan.sequences * ((part.kv_end - part.kv_begin) / kKvPiece) * KvPieceBytes(plan);
}

}  // namespace lime
