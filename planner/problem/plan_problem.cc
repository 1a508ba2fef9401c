#include "planner/problem/plan_problem.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"
#include "planner/evaluation/evaluator.h"
#include "planner/plan/baselines/eviction.h"
#include "planner/plan/device/limits.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/plan_residency.h"
#include "planner/plan/plan_rows.h"
#include "planner/plan/predictor_parts.h"
#include "planner/problem/part_times.h"
#include "planner/problem/plan_parts.h"
#include "planner/problem/unit_demand.h"
#include "planner/problem/unit_shares.h"

namespace lime {
namespace {

constexpr int64_t kRowReads = 32;  // of the embedding, in flight at a time

constexpr int64_t kMaxContext = int64_t{1} << 32;

absl::Status CheckInt(const std::string& what, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Invalid("planning: ", what, " = ", value, " is outside ", low, " to ", high);
}

absl::Status CheckDevices(std::span<const ClusterDevice> devices) {
  LIME_RETURN_IF_ERROR(CheckInt("the number of devices", static_cast<int64_t>(devices.size()), 1, kMaxPlanDevices));
  std::set<std::string> names;
  for (const ClusterDevice& device : devices) {
    const std::string where = absl::StrCat("device \"", device.name.substr(0, 80), "\": ");
    if (device.name.empty() || device.name.size() > kMaxPlanName)
      return Invalid("planning: ", where, "give a name of 1 to ", kMaxPlanName, " bytes");
    if (!names.insert(device.name).second) return Invalid("planning: ", where, "is listed twice");
    LIME_RETURN_IF_ERROR(CheckInt(where + "budget", device.budget, 0, kMaxDeviceMemory));
    LIME_RETURN_IF_ERROR(CheckInt(where + "runtime", device.runtime, 0, kMaxDeviceMemory));
    LIME_RETURN_IF_ERROR(CheckInt(where + "activations", device.activations, 0, kMaxDeviceMemory));
    LIME_RETURN_IF_ERROR(CheckInt(where + "margin", device.margin, 0, kMaxDeviceMemory));
  }
  return absl::OkStatus();
}

absl::Status CheckRequest(const PlanRequest& request) {
  LIME_RETURN_IF_ERROR(CheckInt("context", request.context, 1, kMaxContext));
  LIME_RETURN_IF_ERROR(CheckInt("kv_tokens", request.kv_tokens, 0, request.context));
  LIME_RETURN_IF_ERROR(CheckInt("kept_positions", request.retained_positions, 0, request.context));
  LIME_RETURN_IF_ERROR(CheckInt("expected_positions", request.expected_positions, 0, request.context));
  LIME_RETURN_IF_ERROR(CheckInt("sequences", request.sequences, 1, kMaxMicrobatches));
  LIME_RETURN_IF_ERROR(CheckInt("state_snapshots", request.state_snapshots, 0, kMaxStateSnapshots));
  LIME_RETURN_IF_ERROR(CheckInt("part_bytes", request.part_bytes, 0, kMaxDeviceMemory));
  LIME_RETURN_IF_ERROR(CheckInt("prompt_tokens", request.prompt_tokens, 0, std::min<int64_t>(request.context, INT32_MAX)));
  for (const int32_t batch : request.batches) LIME_RETURN_IF_ERROR(CheckInt("a batch", batch, 1, request.sequences));
  for (const int64_t chunk : request.chunks) LIME_RETURN_IF_ERROR(CheckInt("a chunk", chunk, 1, kMaxContext));
  if (request.prompt_tokens > 0 && request.chunks.empty()) return Invalid("planning: a prompt needs at least one chunk length");
  LIME_RETURN_IF_ERROR(CheckInt("unit_places", request.unit_places, 0, kMaxUnits));
  LIME_RETURN_IF_ERROR(CheckInt("ahead_places", request.ahead_places, 0, kMaxAheadPlaces));
  LIME_RETURN_IF_ERROR(CheckHits(request.unit_hits));
  if (!request.unit_shares.empty() && request.unit_places == 0) return Invalid("planning: unit_shares are given, but unit_places are not");
  for (const UnitShare& share : request.unit_shares) {
    LIME_RETURN_IF_ERROR(CheckInt("units of a share", share.units, 0, kMaxUnits));
    LIME_RETURN_IF_ERROR(CheckInt("places of a share", share.places, share.units > 0 ? 1 : 0, share.units));
  }
  LIME_RETURN_IF_ERROR(CheckInt("new_tokens", request.new_tokens, 0, std::numeric_limits<int64_t>::max()));
  LIME_RETURN_IF_ERROR(CheckInt("window_masks", request.window_masks, 1, kMaxWindowMasks));
  for (const int64_t rows : request.neuron_rows) LIME_RETURN_IF_ERROR(CheckInt("neuron_rows", rows, 0, kMaxNeurons));
  const bool sparse = std::ranges::any_of(request.neuron_rows, [](int64_t rows) { return rows > 0; });
  if (request.unit_places > 0 && sparse)
    return Invalid("planning: experts on demand beside sparse MLPs are not supported; choose one of them");
  if ((request.unit_places > 0 || sparse) && (request.kv_tokens > 0 || request.retained_positions > 0))
    return Invalid("planning: ", sparse ? "sparse MLPs" : "experts on demand",
                   " beside KV that grows or is evicted are not supported; reserve all KV");
  const LinkPoint& link = request.default_link;
  if (link.bytes_per_second > 0 && link.latency_ms >= 0 && std::isfinite(link.latency_ms)) return absl::OkStatus();
  return Invalid("planning: a default link cannot have ", link.bytes_per_second, " bytes per second and ", link.latency_ms, " ms");
}

absl::Status CheckShares(const ModelSpec& spec, std::span<const ClusterDevice> devices, const PlanRequest& request) {
  if (request.unit_shares.empty()) return absl::OkStatus();
  if (request.unit_shares.size() != devices.size())
    return Invalid("planning: there are ", request.unit_shares.size(), " shares of the experts of ", devices.size(), " devices");
  int64_t units = 0;
  for (const UnitShare& share : request.unit_shares) units += share.units;
  const int64_t all = spec.config.experts ? spec.config.experts->count : 0;
  return units == all ? absl::OkStatus() : Invalid("planning: the shares have ", units, " experts, but a layer has ", all);
}

absl::Status CheckCalibrated(const ModelSpec& spec, const PlanRequest& request, int32_t layer) {
  if (request.calibration == nullptr) return absl::OkStatus();
  const LayerCalibration* const known = OfLayer(*request.calibration, layer);
  if (known == nullptr || known->batches.empty())
    return Invalid("planning: the calibration says nothing of layer ", layer, ", whose MLP is to be sparse; run `lime calibrate` again");
  const int64_t neurons = spec.config.layer(layer).intermediate_size;
  if (known->neurons == neurons) return absl::OkStatus();
  return Invalid("planning: layer ", layer, " has ", neurons, " neurons, but ", known->neurons,
                 " in the calibration, which is of another model; run `lime calibrate` again");
}

absl::Status CheckNeuronRows(const ModelSpec& spec, const PlanRequest& request) {
  for (int64_t layer = 0; layer < std::ssize(request.neuron_rows); ++layer) {
    if (request.neuron_rows[static_cast<size_t>(layer)] == 0) continue;
    if (layer >= spec.config.num_layers()) return Invalid("planning: neuron_rows name layer ", layer, ", which the model does not have");
    if (!MakesZeros(spec.config.activation)) return Invalid("planning: the MLPs of the model have no ReLU, so none can be sparse");
    if (spec.config.layer_inputs > 0)
      return Invalid("planning: the layers of the model have inputs of their own, with which no MLP can be sparse");
    if (MlpBlockOf(spec.config, static_cast<int32_t>(layer)).kind != BlockKind::kMlp)
      return Invalid("planning: layer ", layer, " has experts, so its MLP cannot be sparse");
    LIME_RETURN_IF_ERROR(CheckCalibrated(spec, request, static_cast<int32_t>(layer)));
    if (FormOf(request, static_cast<int32_t>(layer)).bits > 0 && !MayHaveCopy(spec.block({BlockKind::kMlp, static_cast<int32_t>(layer)})))
      return Invalid("planning: the weights of layer ", layer, " are packed, and deciders of packed weights have no copy");
  }
  return absl::OkStatus();
}

// ---- Times

// Time to read embedding rows. Each row is one read; kRowReads are in flight.
std::optional<double> EmbedRowsMs(const ModelSpec& spec, const ClusterDevice& device, const PlanRequest& request, int64_t rows) {
  const BlockSpec& table = spec.block({BlockKind::kEmbedding, 0});
  const Bytes row_bytes = RoundUp((table.bytes - PinnedBytes(table)) / spec.config.vocab_size + 1, 4 * kKiB);
  const double ms = device.profile.DiskLatencyMs(row_bytes, std::min(rows, kRowReads));
  if (!request.embedding_by_rows || device.profile.DiskRate(kDiskRead, kDiskDepth) <= 0) return std::nullopt;
  const int64_t rounds = (rows + kRowReads - 1) / kRowReads;
  return ms * static_cast<double>(rounds);
}

// ---- Links

// The lowest rate and the highest latency of the links of all pairs; the fallback without a pair.
LinkPoint WorstLink(std::span<const ClusterDevice> devices, std::span<const std::pair<int, int>> pairs, const LinkPoint& fallback) {
  if (pairs.empty()) return fallback;
  LinkPoint worst = {.bytes_per_second = HUGE_VAL, .latency_ms = 0};
  for (const auto& [from, to] : pairs) {
    const LinkPoint link = LinkBetween(devices[from], devices[to], fallback);
    worst.bytes_per_second = std::min(worst.bytes_per_second, link.bytes_per_second);
    worst.latency_ms = std::max(worst.latency_ms, link.latency_ms);
  }
  return worst;
}

double TxMs(const ModelSpec& spec, const LinkPoint& link, int64_t rows) {
  const Bytes bytes = rows * spec.config.stream_cols() * ElementBytes(spec.working_dtype);
  return static_cast<double>(bytes) / link.bytes_per_second * 1000;
}

void SetNet(const ModelSpec& spec, const LinkPoint& link, PlanProblem& problem) {
  Instance::Net& net = problem.instance.net;
  net.lat_ms = link.latency_ms;
  for (auto& [batch, tx_ms] : net.tx_ms_by_batch) tx_ms = TxMs(spec, link, batch * (1 + MostEvicted(problem.head)));
  net.tx_ms = net.tx_ms_by_batch.rbegin()->second;
  if (!problem.first_token) return;
  for (PrefillChunk& chunk : problem.first_token->chunks) {
    chunk.instance.net = {.tx_ms = TxMs(spec, link, chunk.rows + MeanEvicted(problem.head, chunk.rows)), .lat_ms = link.latency_ms};
  }
}

// ---- The problem

std::vector<int32_t> Batches(const PlanRequest& request) {
  std::vector<int32_t> batches = request.batches;
  if (batches.empty()) {
    for (int32_t batch = 1; batch < request.sequences; batch *= 2) batches.push_back(batch);
    batches.push_back(request.sequences);
  }
  std::ranges::sort(batches);
  batches.erase(std::unique(batches.begin(), batches.end()), batches.end());
  return batches;
}

// `beside`: of a sparse part.
Instance::Block ToBlock(const PlanPart& part, Bytes page_bytes, Bytes beside, bool divided) {
  // Consecutive blocks of one kind and layer are parts of one block. The head has no neighbour of
  // its kind.
  const Bytes places = beside + (part.on_demand() && !divided ? MemoryOf(part) : 0);  // else a device has its own of all layers
  return {.kind = InstanceKind(part.block.kind),
          .layer = part.block.layer,
          .mb = Mb(MovableBytes(part)),
          .kv_mb = Mb(part.pinned_bytes + places + part.kv_pages * page_bytes + part.state_bytes),
          .state_mb = Mb(places + part.state_bytes)};
}

// Whether a plan has sparse parts decides how much streaming may have under way.
int64_t StreamingDepth(const Plan& head) {
  return HasSparseParts(head) ? kStreamsBesideNeurons : kDiskDepth;
}

// Subtracts the pages that layers share in turn, even if the device gets no layer, and `units`: for
// its share of the experts of all layers.
Instance::Device ToDevice(const ClusterDevice& device, const Plan& head, Bytes units) {
  const Bytes mem = device.budget - device.runtime - device.activations - device.margin - PagesInTurn(head) * head.page_bytes - units;
  return {.name = device.name,
          .mem_mb = mem > 0 ? (static_cast<double>(mem) - 0.5) / 1e6 : 0,
          .disk_mb_per_ms = device.profile.DiskRate(kDiskRead, StreamingDepth(head)) / 1e9,
          .disk_lat_ms = kPartLatencyMs};
}

Plan MakeHead(const ModelSpec& spec, std::span<const ClusterDevice> devices, const PlanRequest& request) {
  const BlockSpec& table = spec.block({BlockKind::kEmbedding, 0});
  Plan head = {.model_key = ModelKey(spec),
               .model_name = request.model_name.substr(0, kMaxPlanName),
               .vocab_size = spec.config.vocab_size,
               .context = request.context,
               .retained_positions = request.retained_positions,
               .sequences = request.sequences,
               .embedding_bytes = table.bytes - PinnedBytes(table),
               .embedding_pinned_bytes = PinnedBytes(table),
               .page_bytes = spec.KvPageBytes(),
               .prompt_tokens = request.prompt_tokens};
  for (const ClusterDevice& device : devices) {
    head.devices.push_back({.name = device.name,
                            .numerics_id = device.numerics_id,
                            .budget = device.budget,
                            .least_margin = device.margin,
                            .memory = {.runtime = device.runtime, .activations = device.activations, .margin = device.margin}});
  }
  head.parts = MakeParts(spec, request);
  head.predictor = request.predictor;
  if (MayKeepSnapshots(head)) head.state_snapshots = request.state_snapshots;
  return head;
}

// By part: what it needs besides neurons.
std::vector<Bytes> BesideParts(const ModelSpec& spec, const Plan& head) {
  std::vector<Bytes> beside;
  for (int p = 0; p < head.NumParts(); ++p) beside.push_back(BesideNeurons(spec, head, p) + PredictorMemory(spec, head, {&p, 1}));
  return beside;
}

FirstTokenProblem MakeFirstToken(const ModelSpec& spec, std::span<const ClusterDevice> devices, const PlanRequest& request,
                                 PlanProblem& problem) {
  FirstTokenProblem first = {.prompt_tokens = static_cast<int32_t>(request.prompt_tokens)};
  first.max_chunks_per_sweep =
      EvictsKv(problem.head) ? 1 : static_cast<int32_t>(std::min<int64_t>(kMaxMicrobatches, kMaxPlanRuns / problem.head.NumParts()));
  std::set<int64_t> sizes;
  for (const int64_t chunk : request.chunks) sizes.insert(std::min(chunk, request.prompt_tokens));
  while (sizes.size() > 1 && (request.prompt_tokens - 1) / *sizes.begin() >= kMaxPrefillChunks) sizes.erase(sizes.begin());
  for (const int64_t rows : sizes) {
    PrefillChunk chunk = {.rows = static_cast<int32_t>(rows), .instance = problem.instance};
    chunk.instance.sequences = 0;
    const int64_t middle = (request.prompt_tokens + rows) / 2;
    for (size_t d = 0; d < devices.size(); ++d) {
      Instance::Device& device = chunk.instance.devices[d];
      device.comp_ms_by_batch.clear();
      device.comp_ms = ComputeTimes(spec, devices[d].profile, problem.head,
                                    {.own = rows, .context = middle, .evicted = MeanEvicted(problem.head, rows)});
      device.embed_rows_ms = EmbedRowsMs(spec, devices[d], request, rows + MeanEvicted(problem.head, rows));
      if (!problem.demand.empty() && request.unit_shares.empty())
        problem.demand[d].prefill[chunk.rows] = AddChunkDemand(spec, devices[d].profile, problem.head, rows, device.comp_ms);
    }
    if (!request.unit_shares.empty()) {
      std::vector<std::vector<double>*> comp_ms;
      for (Instance::Device& device : chunk.instance.devices) comp_ms.push_back(&device.comp_ms);
      auto demands = AddDividedDemand(spec, devices, request, problem.head, {.rows = rows, .is_step = false}, comp_ms);
      for (size_t d = 0; d < devices.size(); ++d) problem.demand[d].prefill[chunk.rows] = std::move(demands[d]);
    }
    first.chunks.push_back(std::move(chunk));
  }
  return first;
}

// ---- Experts that devices divide

// Memory of a device for its share of all layers, with the small tensors of their blocks.
Bytes ShareBytes(const ModelSpec& spec, const Plan& head, const UnitShare& share) {
  Bytes bytes = 0;
  for (const PlanPart& part : head.parts) {
    if (part.on_demand() && share.units > 0) bytes += share.places * part.unit_bytes + PinnedBytes(spec.block(part.block));
  }
  return bytes;
}

// Sets the times of the parts on demand, and what they become.
void DivideUnits(const ModelSpec& spec, std::span<const ClusterDevice> devices, const PlanRequest& request,
                 std::span<const int32_t> batches, PlanProblem& problem) {
  for (const int32_t batch : batches) {
    std::vector<std::vector<double>*> comp_ms;
    for (Instance::Device& device : problem.instance.devices) comp_ms.push_back(&device.comp_ms_by_batch.at(batch));
    auto demands = AddDividedDemand(spec, devices, request, problem.head, {.rows = batch}, comp_ms);
    for (size_t d = 0; d < devices.size(); ++d) problem.demand[d].decode[batch] = std::move(demands[d]);
  }
  for (int32_t p = 0; p < problem.head.NumParts(); ++p) {
    const PlanPart& part = problem.head.parts[static_cast<size_t>(p)];
    if (!part.on_demand()) continue;
    std::vector<std::vector<PlanPart>>& divided = problem.divided[p];
    divided.resize(devices.size());
    for (int32_t d = 0; d < std::ssize(devices); ++d) {
      if (request.unit_shares[static_cast<size_t>(d)].units > 0)
        divided[static_cast<size_t>(d)] = DividedParts(spec.block(part.block), request.unit_shares, d, part);
    }
  }
}

// Replaces the parts on demand of a plan by those of all devices, with their times.
absl::Status AddHosts(const PlanProblem& problem, Plan& plan) {
  for (const Stage& stage : plan.stages) {
    for (int p = stage.lo; p < stage.hi; ++p) {
      if (!plan.parts[p].on_demand() || !problem.divided.at(p)[static_cast<size_t>(stage.device)].empty()) continue;
      return absl::ResourceExhaustedError(
          absl::StrCat("planning: device \"", plan.devices[stage.device].name, "\" has a layer, but no share of its experts"));
    }
  }
  const auto demand_of = [](const std::vector<PartDemand>& demands, int p) { return *std::ranges::find(demands, p, &PartDemand::part); };
  const auto parts_of = [&](int p, int32_t owner) {
    const PlanPart& whole = plan.parts[p];
    const DeviceDemand& of_owner = problem.demand[static_cast<size_t>(owner)];
    std::vector<PlanPart> parts = problem.divided.at(p)[static_cast<size_t>(owner)];
    parts.front().decode_ms = whole.decode_ms, parts.front().demand_ms = whole.demand_ms;
    parts.front().prefill_ms = whole.prefill_ms, parts.front().prefill_demand_ms = whole.prefill_demand_ms;
    parts.front().chosen_units = whole.chosen_units, parts.front().hit_share = whole.hit_share;
    for (PlanPart& part : parts) {
      if (!part.hosted()) continue;
      const PartDemand of_host = demand_of(problem.demand[static_cast<size_t>(part.host)].decode.at(plan.batch), p);
      part.decode_ms = demand_of(of_owner.decode.at(plan.batch), p).all_ms;
      part.chosen_units = of_host.chosen_units, part.hit_share = of_host.hit_share;
      if (plan.prefill_chunk > 0) part.prefill_ms = demand_of(of_owner.prefill.at(static_cast<int32_t>(plan.prefill_chunk)), p).all_ms;
    }
    return parts;
  };
  ReplaceUnits(parts_of, plan);
  return absl::OkStatus();
}

// ---- The plan

// The problem with the chosen micro-batches.
absl::StatusOr<Instance> Chosen(const PlanProblem& problem, int32_t batch) {
  Instance instance = problem.instance;
  const auto tx = instance.net.tx_ms_by_batch.find(batch);
  if (tx == instance.net.tx_ms_by_batch.end()) return Invalid("planning: micro-batches of ", batch, " were not among the choices");
  instance.net.tx_ms = tx->second;
  instance.microbatches = (problem.head.sequences + batch - 1) / batch;
  for (Instance::Device& device : instance.devices) device.comp_ms = device.comp_ms_by_batch.at(batch);
  LIME_RETURN_IF_ERROR(instance.Validate());
  return instance;
}

// `stages`: those of the choice; with kWithHead, without embedding_by_rows.
absl::Status AddPrompt(const PlanProblem& problem, const PlanChoice& choice, const StagePlan& stages, Plan& plan) {
  if (!problem.first_token) return absl::OkStatus();
  const FirstToken& first = choice.first_token;
  const auto chunk = std::ranges::find(problem.first_token->chunks, first.chunk_rows, &PrefillChunk::rows);
  if (!first.feasible) return absl::ResourceExhaustedError("planning: the prompt does not fit beside this plan, with any chunk length");
  if (chunk == problem.first_token->chunks.end())
    return Invalid("planning: chunks of ", first.chunk_rows, " tokens were not among the choices");
  plan.prefill_chunk = first.chunk_rows;
  plan.chunks_per_sweep = std::min(first.chunks_per_sweep, first.chunks);
  plan.predicted.ttft_ms = first.ms;
  const bool alone = !choice.reads_once && plan.chunks_per_sweep > 1;
  if (alone) plan.chunks_per_sweep = 1;
  if (alone || plan.embedding == EmbeddingPlacement::kWithHead) {
    Instance held = chunk->instance;
    if (plan.embedding == EmbeddingPlacement::kWithHead) held.embed_mb = 0;
    plan.predicted.ttft_ms = Evaluator(held).PromptMs(stages, first.chunks, plan.chunks_per_sweep);
  }
  const Instance& instance = chunk->instance;
  plan.prefill = {.tx_ms = instance.net.tx_ms, .lat_ms = instance.net.lat_ms};
  plan.prefill.embed_rows_ms = instance.devices[plan.stages.front().device].embed_rows_ms.value_or(0);
  for (const Stage& stage : plan.stages) {
    for (int p = stage.lo; p < stage.hi; ++p) plan.parts[p].prefill_ms = instance.devices[stage.device].comp_ms[p];
    if (problem.demand.empty()) continue;
    for (const PartDemand& demand : problem.demand[static_cast<size_t>(stage.device)].prefill.at(chunk->rows)) {
      if (demand.part < stage.lo || demand.part >= stage.hi) continue;
      plan.parts[demand.part].prefill_ms = demand.compute_ms;
      plan.parts[demand.part].prefill_demand_ms = demand.read_ms;
    }
  }
  return absl::OkStatus();
}

// Times of the parts on demand of the stage, computation and reads apart.
absl::Status AddDecodeDemand(const PlanProblem& problem, const Stage& stage, Plan& plan) {
  if (problem.demand.empty()) return absl::OkStatus();
  for (const PartDemand& demand : problem.demand[static_cast<size_t>(stage.device)].decode.at(plan.batch)) {
    if (demand.part < stage.lo || demand.part >= stage.hi) continue;
    if (demand.read_ms >= kNoDiskMs) {
      return absl::ResourceExhaustedError(absl::StrCat("planning: device \"", plan.devices[stage.device].name, "\" would load ",
                                                       PartName(plan, demand.part), " on demand, but its disk was not measured"));
    }
    PlanPart& part = plan.parts[demand.part];
    part.decode_ms = demand.compute_ms, part.demand_ms = demand.read_ms;
    part.chosen_units = demand.chosen_units, part.hit_share = demand.hit_share;
    part.active_units = part.certified() ? demand.active_units : 0;
    part.demand_reads = demand.reads, part.demand_bytes = demand.read_bytes, part.demand_io_ms = demand.io_ms;
  }
  return absl::OkStatus();
}

void AddDecode(const PlanProblem& problem, const Instance& instance, const PlanChoice& choice, Plan& plan) {
  plan.stages = choice.stages.stages;
  plan.embedding = choice.stages.embedding_by_rows ? EmbeddingPlacement::kByRows : EmbeddingPlacement::kResident;
  plan.microbatches = instance.microbatches;
  plan.reads_once = choice.reads_once;
  plan.epoch = choice.epoch;
  plan.decode.tx_ms = instance.net.tx_ms;
  plan.decode.lat_ms = instance.net.lat_ms;
  plan.decode.embed_rows_ms = instance.devices[plan.stages.front().device].embed_rows_ms.value_or(0);
  for (const int32_t p : choice.stages.streamed) plan.parts[p].streamed = true;
  for (const Stage& stage : plan.stages) {
    for (int p = stage.lo; p < stage.hi; ++p) plan.parts[p].decode_ms = instance.devices[stage.device].comp_ms[p];
    if (problem.retained_ms.empty()) continue;
    const std::vector<double>& retained_ms = problem.retained_ms[static_cast<size_t>(stage.device)].at(plan.batch);
    for (int p = stage.lo; p < stage.hi; ++p) plan.parts[p].evicted_ms = std::max(0.0, plan.parts[p].decode_ms - retained_ms[p]);
  }
  for (int d = 0; d < plan.NumDevices(); ++d) {
    plan.devices[d].disk_mb_per_ms = instance.devices[d].disk_mb_per_ms;
    plan.devices[d].disk_lat_ms = instance.devices[d].disk_lat_ms;
  }
}

// Micro-batches may be shorter than the longest one that could have been chosen. In a short context
// no layer has pages to give back, and none needs snapshots of them.
void FitWindows(Plan& plan) {
  for (PlanPart& part : plan.parts) {
    if (part.window.positions == 0) continue;
    part.window.pages = std::min(part.window.pages, WindowPages(part.window.positions, OwnRows(plan)));
    part.kv_pages = std::min(part.kv_pages, plan.sequences * part.window.pages);
    if (part.window.pages >= KvPagesFor(plan.context)) part.window = {}, part.state_bytes = 0;
  }
  if (!MayKeepSnapshots(plan)) plan.state_snapshots = 0;
}

// The ring gets the remaining memory, up to six sweeps of the streamed parts; more would not allow
// earlier reads. The rest is margin. An unused device may be too small for its own runtime; then
// all its memory counts as runtime.
void DivideMemory(std::span<const Bytes> beside, Plan& plan) {
  for (const Stage& stage : plan.stages) {
    for (int p = stage.lo; p < stage.hi && !beside.empty(); ++p)
      plan.devices[stage.device].memory.activations += beside[static_cast<size_t>(p)];
  }
  const std::vector<PlanNeed> needs = NeedsOf(plan);
  std::vector<Bytes> sweep(plan.devices.size(), 0);
  std::vector<bool> used(plan.devices.size(), false);
  for (int32_t d = 0; d < plan.NumDevices(); ++d) used[d] = HostsUnits(plan, d);
  for (const Stage& stage : plan.stages) {
    used[stage.device] = true;
    for (int p = stage.lo; p < stage.hi; ++p) sweep[stage.device] += plan.parts[p].streamed ? plan.parts[p].bytes : 0;
  }
  for (int d = 0; d < plan.NumDevices(); ++d) {
    PlanDevice& device = plan.devices[d];
    if (!used[d]) device.memory = {.runtime = std::min(device.memory.runtime, device.budget)}, device.least_margin = 0;
    device.kv_pages = needs[d].kv_pages;
    device.memory.kv = device.kv_pages * plan.page_bytes;
    device.memory.state = needs[d].state;
    device.memory.weights = needs[d].weights;
    device.memory.embedding = needs[d].embedding;
    const Bytes remaining = device.budget - device.memory.total();
    device.memory.ring = needs[d].streams ? std::min(remaining, 6 * sweep[d]) : 0;
    device.memory.margin += remaining - device.memory.ring;
  }
}

}  // namespace

absl::StatusOr<PlanProblem> MakePlanProblem(const ModelSpec& spec, std::span<const ClusterDevice> devices, const PlanRequest& request) {
  LIME_RETURN_IF_ERROR(CheckDevices(devices));
  LIME_RETURN_IF_ERROR(CheckRequest(request));
  LIME_RETURN_IF_ERROR(CheckShares(spec, devices, request));
  LIME_RETURN_IF_ERROR(CheckNeuronRows(spec, request));
  PlanProblem problem{.head = MakeHead(spec, devices, request)};
  LIME_RETURN_IF_ERROR(CheckInt("parts", problem.head.NumParts(), 1, kMaxPlanBlocks));
  Instance& instance = problem.instance;
  if (request.counts_beside_neurons) problem.beside = BesideParts(spec, problem.head);
  for (size_t p = 0; p < problem.head.parts.size(); ++p) {
    const Bytes beside = problem.beside.empty() ? 0 : problem.beside[p];
    instance.blocks.push_back(ToBlock(problem.head.parts[p], problem.head.page_bytes, beside, !request.unit_shares.empty()));
  }
  instance.blocks.front().kv_mb += Mb(problem.head.embedding_pinned_bytes);
  instance.embed_mb = Mb(problem.head.embedding_bytes);
  problem.tied_embedding = spec.config.tie_embeddings && request.embedding_with_head;
  instance.sequences = request.sequences;
  if (std::ranges::any_of(problem.head.parts, &PlanPart::on_demand)) problem.demand.resize(devices.size());
  const std::vector<int32_t> batches = Batches(request);
  const int64_t read = request.expected_positions > 0 && !EvictsKv(problem.head) ? request.expected_positions : request.context;
  for (const ClusterDevice& device : devices) {
    const auto d = instance.devices.size();
    const Bytes units = request.unit_shares.empty() ? 0 : ShareBytes(spec, problem.head, request.unit_shares[d]);
    Instance::Device& added = instance.devices.emplace_back(ToDevice(device, problem.head, units));
    if (EvictsKv(problem.head)) problem.retained_ms.emplace_back();
    for (const int32_t batch : batches) {
      VisitShape rows = {.sequences = batch, .logits = batch, .context = read, .evicted = MostEvicted(problem.head)};
      std::vector<double>& comp_ms = added.comp_ms_by_batch[batch] = ComputeTimes(spec, device.profile, problem.head, rows);
      if (!problem.demand.empty() && request.unit_shares.empty())
        problem.demand[instance.devices.size() - 1].decode[batch] =
            AddStepDemand(spec, device.profile, request, problem.head, batch, comp_ms);
      if (!EvictsKv(problem.head)) continue;
      rows.evicted = 0;
      problem.retained_ms.back()[batch] = ComputeTimes(spec, device.profile, problem.head, rows);
    }
    added.embed_rows_ms = EmbedRowsMs(spec, device, request, batches.back() * (1 + MostEvicted(problem.head)));
  }
  if (!request.unit_shares.empty()) DivideUnits(spec, devices, request, batches, problem);
  for (Instance::Device& device : instance.devices) device.comp_ms = device.comp_ms_by_batch.rbegin()->second;
  instance.microbatches = (request.sequences + batches.back() - 1) / batches.back();
  for (const int32_t batch : batches) instance.net.tx_ms_by_batch[batch] = 0;
  if (request.prompt_tokens > 0) problem.first_token = MakeFirstToken(spec, devices, request, problem);
  std::vector<std::pair<int, int>> pairs;
  for (int from = 0; from < instance.NumDevices(); ++from) {
    for (int to = 0; to < instance.NumDevices(); ++to) {
      if (from != to) pairs.emplace_back(from, to);
    }
  }
  SetNet(spec, WorstLink(devices, pairs, request.default_link), problem);
  LIME_RETURN_IF_ERROR(instance.Validate());
  if (problem.first_token) LIME_RETURN_IF_ERROR(problem.first_token->Validate(instance));
  return problem;
}

LinkPoint LinkBetween(const ClusterDevice& from, const ClusterDevice& to, const LinkPoint& fallback) {
  const auto find = [](const ClusterDevice& device, const ClusterDevice& peer) -> const LinkPoint* {
    const auto found = std::ranges::find(device.profile.links, peer.name, &LinkPoint::peer);
    return found != device.profile.links.end() && found->bytes_per_second > 0 ? &*found : nullptr;
  };
  if (const LinkPoint* const link = find(from, to)) return *link;
  if (const LinkPoint* const link = find(to, from)) return *link;
  return fallback;
}

void RefineNet(std::span<const ClusterDevice> devices, const ModelSpec& spec, const PlanRequest& request, const StagePlan& stages,
               PlanProblem& problem) {
  std::vector<std::pair<int, int>> pairs;
  for (size_t j = 0; j < stages.stages.size(); ++j) {
    const int from = stages.stages[j].device, to = stages.stages[j + 1 < stages.stages.size() ? j + 1 : 0].device;
    if (from != to) pairs.emplace_back(from, to);
  }
  SetNet(spec, WorstLink(devices, pairs, request.default_link), problem);
}

void SetLinks(std::span<const ClusterDevice> devices, const ModelSpec& spec, const PlanRequest& request, Plan& plan) {
  const auto index = [&](const Stage& stage) {
    const auto found = std::ranges::find(devices, plan.devices[stage.device].name, &ClusterDevice::name);
    LIME_CHECK(found != devices.end());
    return static_cast<int>(found - devices.begin());
  };
  std::vector<std::pair<int, int>> pairs;
  for (size_t j = 0; j < plan.stages.size(); ++j) {
    const int from = index(plan.stages[j]), to = index(plan.stages[(j + 1) % plan.stages.size()]);
    if (from != to) pairs.emplace_back(from, to);
  }
  const LinkPoint link = WorstLink(devices, pairs, request.default_link);
  plan.decode.tx_ms = TxMs(spec, link, plan.batch * (1 + MostEvicted(plan)));
  plan.decode.lat_ms = link.latency_ms;
  plan.prefill.tx_ms = TxMs(spec, link, plan.prefill_chunk * (1 + MostEvicted(plan)));
  plan.prefill.lat_ms = link.latency_ms;
}

bool EmbeddingIsWithHead(const PlanProblem& problem, const StagePlan& stages) {
  if (!problem.tied_embedding || GrowsKv(problem.head)) return false;
  const auto [begin, end] = PartsOf(problem.head, {BlockKind::kHead, 0});
  const Stage& last = stages.stages.back();
  return last.device == stages.stages.front().device && last.lo <= begin && (stages.streamed.empty() || stages.streamed.back() < begin);
}

StagePlan WithoutDemand(const PlanProblem& problem, StagePlan stages) {
  std::erase_if(stages.streamed, [&](int32_t p) { return problem.head.parts[static_cast<size_t>(p)].on_demand(); });
  return stages;
}

absl::StatusOr<Plan> MakePlan(const PlanProblem& problem, const PlanChoice& chosen) {
  PlanChoice choice = chosen;
  Plan plan = problem.head;
  plan.batch = choice.batch > 0 ? choice.batch : problem.head.sequences;
  LIME_ASSIGN_OR_RETURN(Instance instance, Chosen(problem, plan.batch));
  LIME_RETURN_IF_ERROR(choice.stages.Validate(instance));
  choice.stages = WithoutDemand(problem, chosen.stages);
  const bool predicts = problem.first_token && choice.stages.streamed.size() < chosen.stages.streamed.size();
  if (predicts) choice.first_token = FirstTokenPredictor(*problem.first_token).Predict(choice.stages);
  const bool with_head = EmbeddingIsWithHead(problem, choice.stages);
  StagePlan stages = choice.stages;
  if (with_head) stages.embedding_by_rows = false, instance.embed_mb = 0;
  Evaluator evaluator(instance, choice.reads_once);
  const double ms_per_step = evaluator.MsPerStep(stages);
  if (const std::string reason = evaluator.Infeasibility(); !reason.empty()) return absl::ResourceExhaustedError(reason);
  AddDecode(problem, instance, choice, plan);
  for (const Stage& stage : plan.stages) LIME_RETURN_IF_ERROR(AddDecodeDemand(problem, stage, plan));
  if (with_head) plan.embedding = EmbeddingPlacement::kWithHead;
  plan.predicted = {.ms_per_step = ms_per_step,
                    .ms_per_token = ms_per_step / plan.sequences,
                    .lower_bound_ms = std::isfinite(choice.lower_bound_ms) ? choice.lower_bound_ms : 0};
  LIME_RETURN_IF_ERROR(AddPrompt(problem, choice, stages, plan));
  FitWindows(plan);
  if (!problem.divided.empty()) LIME_RETURN_IF_ERROR(AddHosts(problem, plan));
  DivideMemory(problem.beside, plan);
  LIME_RETURN_IF_ERROR(plan.Validate());
  return plan;
}

}  // namespace lime
