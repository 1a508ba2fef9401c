#include "planner/plan/hosting/kv_on_host.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_checks.h"
#include "planner/plan/plan_residency.h"

namespace lime {
namespace {

// Usable share of the link's time, because pieces do not arrive evenly.
constexpr double kShare = 0.9;
// Simulated tokens; enough to use up the layers that are present at the start.
constexpr int kSteps = 3;

double PiecesOfLayer(const Plan& plan, const PlanDevice& device, int64_t layer_pages) {
  return plan.sequences * MeanPositionsAway(plan, device, layer_pages) / static_cast<double>(kKvPiece);
}

// The longest time that one disk reads in a step.
double ReadMs(const Plan& plan) {
  std::vector<double> read_ms(plan.devices.size(), 0);
  for (const Stage& stage : plan.stages) {
    for (int p = stage.lo; p < stage.hi; ++p) {
      const PlanPart& part = plan.parts[p];
      const int32_t d = part.hosted() ? part.host : stage.device;
      const PlanDevice& device = plan.devices[d];
      if (part.streamed && !part.is_kv() && device.disk_mb_per_ms > 0)
        read_ms[d] += static_cast<double>(part.bytes) / 1e6 / device.disk_mb_per_ms;
      if (part.on_demand() && device.disk_mb_per_ms > 0) read_ms[d] += plan.microbatches * DemandBytes(part) / 1e6 / device.disk_mb_per_ms;
    }
  }
  return std::ranges::max(read_ms);
}

// When a token reaches each layer of a device, and the time of a whole step. Both are lower bounds;
// waits for disks are spread evenly over the step.
struct Uses {
  std::vector<double> at_ms;  // by layer
  double step_ms = 0;
  double activations_ms = 0;    // time in which activations use the link from the host
  int64_t layers_of_visit = 0;  // the most of one visit
};

Uses UsesOf(const Plan& plan, int device) {
  Uses uses;
  const int32_t host = plan.devices[device].kv_host;
  for (size_t j = 0; j < plan.stages.size(); ++j) {
    const Stage& stage = plan.stages[j];
    const int64_t before = std::ssize(uses.at_ms);
    for (int p = stage.lo; p < stage.hi; ++p) {
      if (stage.device == device && WaitsForKv(plan, p)) {
        uses.at_ms.push_back(uses.step_ms);
      } else if (!WaitsForKv(plan, p)) {
        uses.step_ms += AddedMs(plan, p);
      }
    }
    uses.layers_of_visit = std::max(uses.layers_of_visit, std::ssize(uses.at_ms) - before);
    const int32_t next = plan.stages[(j + 1) % plan.stages.size()].device;
    if (next == stage.device) continue;
    const double tx_ms = j + 1 < plan.stages.size() ? plan.decode.tx_ms : 0;
    uses.step_ms += tx_ms + plan.decode.lat_ms;
    if (stage.device == host && next == device) uses.activations_ms += tx_ms * plan.microbatches;
  }
  const double longer = uses.step_ms > 0 ? std::max(1.0, ReadMs(plan) / uses.step_ms) : 1;
  for (double& at_ms : uses.at_ms) at_ms *= longer;
  uses.step_ms *= longer;
  return uses;
}

// Time of the host's answer for one layer.
double AnswerOf(const Plan& plan, int device, int64_t layer_pages) {
  for (int p = 0; p < plan.NumParts(); ++p) {
    if (WaitsForKv(plan, p) && plan.stages[StageOf(plan, p)].device == device) return AnswerMs(plan, p, layer_pages);
  }
  return 0;
}

// Whether `count` layers all arrive in time if `depth` fit in memory and each takes `layer_ms` on
// the link.
bool ComeInTime(const Uses& uses, int64_t count, int64_t depth, double layer_ms) {
  const int64_t layers = std::ssize(uses.at_ms);
  std::vector<double> at_ms;
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (IsAmong(layer, count, layers)) at_ms.push_back(uses.at_ms[static_cast<size_t>(layer)]);
  }
  if (count <= depth) return true;  // they stay in memory
  // Eq. 8: the link cannot carry so many layers in every step.
  if (static_cast<double>(count) * layer_ms > uses.step_ms) return false;
  const auto use_ms = [&](int64_t i) {
    const int64_t step = i / count;
    return static_cast<double>(step) * uses.step_ms + at_ms[static_cast<size_t>(i % count)];
  };
  double end_ms = 0;
  for (int64_t i = depth; i < kSteps * count; ++i) {
    end_ms = std::max(end_ms, use_ms(i - depth)) + layer_ms;
    if (end_ms > use_ms(i)) return false;
  }
  return true;
}

// As WaitMs, if `layers_in_time` of the device's layers are fetched in time.
double WaitOf(const Plan& plan, int part, int64_t layer_pages, int64_t layers_in_time) {
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

}  // namespace

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

Bytes FetchedBytes(const Plan& plan, const PlanDevice& device) {
  return HasKvOnHost(device) ? device.kv_fetch_pieces * KvPieceBytes(plan) : 0;
}

bool HoldsKvOf(const Plan& plan, int holder, int owner) {
  return HasKvOnHost(plan.devices[owner]) && plan.devices[owner].kv_host == holder;
}

Bytes HeldKvBytes(const Plan& plan, int d, int64_t layer_pages) {
  if (d < 0) return 0;
  const PlanDevice& device = plan.devices[d];
  const int64_t grown = PagesOn(plan, d, layer_pages);
  bool holds = false;
  for (int owner = 0; owner < plan.NumDevices(); ++owner)
    holds = holds || (HoldsKvOf(plan, d, owner) && PositionsAway(plan, plan.devices[owner], layer_pages) > 0);
  return std::max(device.kv_pages, grown) * plan.page_bytes + (holds ? device.memory.hosted : 0);
}

void CountKvOfOthers(const Plan& plan, std::vector<PlanNeed>& needs) {
  for (int d = 0; d < plan.NumDevices(); ++d) {
    const PlanDevice& device = plan.devices[d];
    if (HasKvOnHost(device))
      needs[device.kv_host].hosted += HostedPieces(plan, device) * std::ssize(LayersOn(plan, d)) * KvPieceBytes(plan);
    needs[d].fetched = FetchedBytes(plan, device);
  }
}

void SetKvOfOthers(const PlanNeed& need, PlanMemory& memory) {
  memory.hosted = need.hosted, memory.fetched = need.fetched;
}

bool WaitsForKv(const Plan& plan, int part) {
  const PlanPart& what = plan.parts[part];
  return what.is_kv() && what.kv_begin == 0 && HasKvOnHost(plan.devices[plan.stages[StageOf(plan, part)].device]);
}

double FetchLayerMs(const Plan& plan, int d, int64_t layer_pages) {
  const PlanDevice& device = plan.devices[d];
  if (!HasKvOnHost(device) || device.kv_fetch_mb_per_ms <= 0) return HUGE_VAL;
  return PiecesOfLayer(plan, device, layer_pages) * static_cast<double>(KvPieceBytes(plan)) / 1e6 / device.kv_fetch_mb_per_ms;
}

double WaitMs(const Plan& plan, int part, int64_t layer_pages) {
  return WaitOf(plan, part, layer_pages, LayersInTime(plan, plan.stages[StageOf(plan, part)].device, layer_pages));
}

std::vector<double> AllWaitsMs(const Plan& plan, int64_t layer_pages, const std::vector<int32_t>& streamed) {
  std::vector<double> wait_ms(plan.parts.size(), 0);
  if (std::ranges::none_of(plan.devices, HasKvOnHost)) return wait_ms;
  Plan streams = plan;
  for (PlanPart& part : streams.parts) part.streamed = false;
  for (const int32_t p : streamed) streams.parts[p].streamed = true;
  std::vector<int64_t> in_time(plan.NumDevices());
  for (int d = 0; d < plan.NumDevices(); ++d) in_time[d] = LayersInTime(streams, d, layer_pages);
  for (int p = 0; p < plan.NumParts(); ++p) {
    if (WaitsForKv(plan, p)) wait_ms[p] = WaitOf(streams, p, layer_pages, in_time[plan.stages[StageOf(plan, p)].device]);
  }
  return wait_ms;
}

double AnswerMs(const Plan& plan, int part, int64_t layer_pages) {
  const PlanDevice& device = plan.devices[plan.stages[StageOf(plan, part)].device];
  const double share = MeanPositionsAway(plan, device, layer_pages) / MeanPositionsAway(plan, device, FullLayerPages(plan));
  return std::max(0.0, device.ask_kv_ms + share * (plan.parts[part].decode_ms - device.ask_kv_ms));
}

int64_t LayersInTime(const Plan& plan, int d, int64_t layer_pages) {
  const PlanDevice& device = plan.devices[d];
  if (!HasKvOnHost(device) || device.kv_fetch_pieces == 0 || device.kv_fetch_mb_per_ms <= 0) return 0;
  const int64_t pieces = static_cast<int64_t>(std::ceil(PiecesOfLayer(plan, device, layer_pages)));
  if (pieces == 0) return 0;
  const Uses uses = UsesOf(plan, d);
  // With several micro-batches, a layer and the other layers of its visit stay until the last one
  // has used them.
  const int64_t held = plan.microbatches > 1 ? uses.layers_of_visit - 1 : 0;
  const int64_t depth = (device.kv_fetch_pieces - kKvFetchesUnderWay) / pieces - held;
  if (depth < 1 || uses.at_ms.empty() || uses.step_ms <= uses.activations_ms) return 0;
  const double layer_ms = FetchLayerMs(plan, d, layer_pages) / kShare * uses.step_ms / (uses.step_ms - uses.activations_ms);
  int64_t low = 0, high = std::ssize(uses.at_ms);
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (ComeInTime(uses, middle, depth, layer_ms)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const bool partly = !device.asks_kv || low == std::ssize(uses.at_ms) || AnswerOf(plan, d, layer_pages) >= kLongAnswerMs;
  return partly ? low : std::min(low, depth);
}

// ---- Checks

absl::Status CheckHost(const Plan& plan, int d) {
  const PlanDevice& device = plan.devices[d];
  const std::string name = absl::StrCat("devices[", d, "].kv_host");
  LIME_RETURN_IF_ERROR(CheckInt({name}, device.kv_host, -1, plan.NumDevices() - 1));
  if (device.kv_host < 0) return absl::OkStatus();
  const PlanDevice& host = plan.devices[device.kv_host];
  if (device.kv_host == d) return Invalid("plan: ", name, " is the device itself");
  if (HasKvOnHost(device) && std::ranges::find(plan.stages, d, &Stage::device) == plan.stages.end())
    return Invalid("plan: ", name, " is given, but the device has no stage");
  if (host.numerics_id != device.numerics_id)
    return Invalid("plan: ", name, " has kernels of order \"", host.numerics_id, "\", but the device has kernels of order \"",
                   device.numerics_id, "\"");
  return absl::OkStatus();
}

absl::Status CheckComingBack(const Plan& plan, int d) {
  const PlanDevice& device = plan.devices[d];
  const std::string name = absl::StrCat("devices[", d, "].kv_fetch_pieces");
  LIME_RETURN_IF_ERROR(CheckInt({name}, device.kv_fetch_pieces, 0, kMaxPartBytes / KvPieceBytes(plan)));
  if (!HasKvOnHost(device))
    return device.kv_fetch_pieces > 0 ? Invalid("plan: ", name, " is given, but no host has KV of the device") : absl::OkStatus();
  if (device.asks_kv || HostedPieces(plan, device) == 0) return absl::OkStatus();
  if (!(device.kv_fetch_mb_per_ms > 0))
    return Invalid("plan: devices[", d, "].kv_fetch_mb_per_ms = ", device.kv_fetch_mb_per_ms,
                   ", but all KV on the host comes back, which needs a rate");
  const int64_t least = HostedPieces(plan, device) + kKvFetchesUnderWay;
  if (device.kv_fetch_pieces < least)
    return Invalid("plan: ", name, " = ", device.kv_fetch_pieces, " has no room for the ", least,
                   " pieces of a layer that its host is not asked about");
  return absl::OkStatus();
}

absl::Status CheckKvOfOthers(const PlanDevice& device, const PlanNeed& need, const std::string& name) {
  const PlanMemory& memory = device.memory;
  LIME_RETURN_IF_ERROR(CheckSum({name, ".memory.hosted"}, memory.hosted, need.hosted, "the bytes of KV that it keeps for others"));
  LIME_RETURN_IF_ERROR(CheckSum({name, ".memory.fetched"}, memory.fetched, need.fetched, "the room for KV that its host sends back"));
  LIME_RETURN_IF_ERROR(CheckNumber({name, ".ask_kv_ms"}, device.ask_kv_ms));
  LIME_RETURN_IF_ERROR(CheckNumber({name, ".kv_fetch_mb_per_ms"}, device.kv_fetch_mb_per_ms));
  if (device.kv_fetch_mb_per_ms > 0 && device.kv_fetch_mb_per_ms < kMinDiskRate)
    return Invalid("plan: ", name, ".kv_fetch_mb_per_ms = ", device.kv_fetch_mb_per_ms, " is below ", kMinDiskRate);
  return absl::OkStatus();
}

}  // namespace lime
