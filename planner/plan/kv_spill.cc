#include "planner/plan/kv_spill.h"

#include <algorithm>
#include <limits>

#include "planner/plan/plan_blocks.h"
#include "planner/plan/plan_residency.h"
#include "planner/plan/plan_rows.h"

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

// The layers with a block of such a kind on the device.
std::vector<int32_t> LayersWith(const Plan& plan, int device, bool (*is_such)(BlockKind)) {
  std::vector<int32_t> layers;
  for (const int part : PartsOn(plan, device)) {
    const BlockId id = plan.parts[part].block;
    if (is_such(id.kind) && (layers.empty() || layers.back() != id.layer)) layers.push_back(id.layer);
  }
  return layers;
}

}  // namespace

bool SpillsKv(const Plan& plan) {
  return std::ranges::any_of(plan.devices, [](const PlanDevice& device) { return device.max_layer_pages > 0; });
}

int64_t SharedKvUnit(const Plan& plan) {
  const auto lends = [](const PlanDevice& device) { return device.max_layer_pages > 0 && !HasKvOnDisk(device); };
  const bool states_stay = HasState(plan) && plan.state_snapshots == 0;
  if (!RetainsAllKv(plan) || states_stay || std::ranges::any_of(plan.devices, lends)) return 0;
  return SpillsKv(plan) ? kKvPiece : kPageTokens;
}

bool CopiesKv(const Plan& plan) {
  return SharedKvUnit(plan) == kPageTokens;
}

bool HasKvAway(const Plan& plan, int device) {
  return PositionsAway(plan, plan.devices[device], ResidencyOf(plan).layer_pages) > 0;
}

bool HasPart(const Plan& plan, int device) {
  bool used = std::ranges::find(plan.stages, device, &Stage::device) != plan.stages.end();
  for (int owner = 0; owner < plan.NumDevices(); ++owner) used = used || HoldsKvOf(plan, device, owner);
  return used || HostsUnits(plan, device);
}

bool ShareHosting(const Plan& plan, int one, int other) {
  return HoldsKvOf(plan, one, other) || HoldsKvOf(plan, other, one) || HostsUnitsOf(plan, one, other) || HostsUnitsOf(plan, other, one);
}

std::vector<int32_t> LayersOn(const Plan& plan, int device) {
  return LayersWith(plan, device, [](BlockKind kind) { return HasKv(kind); });
}

std::vector<int32_t> StateLayersOn(const Plan& plan, int device) {
  return LayersWith(plan, device, [](BlockKind kind) { return HasState(kind); });
}

int64_t StatePages(Bytes state_bytes, Bytes page_bytes) {
  return (state_bytes + page_bytes - 1) / page_bytes;
}

int64_t PagesInMemory(const PlanDevice& device, int64_t layer_pages) {
  return device.max_layer_pages > 0 ? std::min(device.max_layer_pages, layer_pages) : layer_pages;
}

KvWindow WindowOf(const Plan& plan) {
  const auto part = std::ranges::find_if(plan.parts, [](const PlanPart& each) { return each.window.positions > 0; });
  return part == plan.parts.end() ? KvWindow{} : part->window;
}

bool MayKeepSnapshots(const Plan& plan) {
  return HasState(plan) || WindowOf(plan).positions > 0;
}

int64_t SnapshotPages(const KvWindow& window) {
  return window.positions > 0 ? KvPagesFor(window.positions - 1) : 0;
}

Bytes SnapshotBytes(const Plan& plan, const KvWindow& window) {
  return int64_t{plan.sequences} * plan.state_snapshots * SnapshotPages(window) * plan.page_bytes;
}

int64_t PagesOfLayer(const Plan& plan, const PlanPart& part, int64_t layer_pages) {
  return part.window.positions > 0 ? std::min(layer_pages, plan.sequences * part.window.pages) : layer_pages;
}

int64_t PagesOn(const Plan& plan, int device, int64_t layer_pages) {
  int64_t pages = 0;
  for (const int part : PartsOn(plan, device)) {
    if (HasKv(plan.parts[part].block.kind) && BeginsBlock(plan, part))
      pages += PagesInMemory(plan.devices[device], PagesOfLayer(plan, plan.parts[part], layer_pages));
  }
  return pages;
}

std::vector<int64_t> MostPagesOn(const Plan& plan, int device) {
  std::vector<int64_t> most;
  for (const int32_t layer : LayersOn(plan, device)) {
    const KvWindow& window = plan.parts[PartsOf(plan, {BlockKind::kAttention, layer}).first].window;
    most.push_back(window.positions > 0 ? window.pages : std::numeric_limits<int64_t>::max());
  }
  return most;
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
