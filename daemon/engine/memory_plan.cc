#include "daemon/engine/memory_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/call_limits.h"
#include "daemon/engine/piece_loader.h"
#include "daemon/engine/process_memory.h"
#include "daemon/logic/kv_pages.h"
#include "daemon/weights/kept_tensors.h"
#include "daemon/weights/row_reader.h"
#include "daemon/weights/system_memory.h"
#include "kernels/registry/registry.h"

namespace lime {
namespace {

// Assumed where nothing was measured: a small machine with a plain SSD.
constexpr double kMemoryBytesPerMs = 10e6;
constexpr double kDiskBytesPerMs = 1e6;
// Likewise, of what computes a prompt: of a large one.
constexpr double kFlops = 1e12;

constexpr double kPieceLatencyMs = 0.02;  // the next piece is queued while one is read
constexpr double kRowsMs = 0.5;           // a direct read of one row of the embedding
constexpr Bytes kBlockSlack = 64 * kKiB;  // tensors of a block that lie apart are read with what is between them
constexpr Bytes kLeastMargin = 16 * kMiB;
constexpr Bytes kMarginShare = 256;  // of the budget, beside that

double DiskBytesPerMs(const DeviceProfile* profile) {
  const double measured = profile == nullptr ? 0 : profile->DiskRate(kStreamedRead, kStreamedReads) / 1000;
  return measured > 0 ? measured : kDiskBytesPerMs;
}

constexpr Bytes kRuntimeGrowth = 8 * kMiB;  // that libraries and threads take for themselves while the model is set up

// A budget that suffices for a model that streams all it can.
Bytes Enough(const EngineMemory& need) {
  const double share = 1.0 - 1.0 / static_cast<double>(kMarginShare);
  return static_cast<Bytes>(static_cast<double>(need.total() + kRuntimeGrowth) / share);
}

std::string ButAllows(const MemoryRequest& request, Bytes budget, Bytes enough) {
  const std::string least = BudgetAtLeast(enough);
  if (request.budget > 0)
    return absl::StrCat(" and --memory allows ", FormatBytes(budget), "; give --memory ", least,
                        " or more, or a smaller --context or --chunk");
  return absl::StrCat(" and ", FormatBytes(budget), " are free here; end other programs, raise the limit of the control group to ", least,
                      ", or give a smaller --context or --chunk");
}

absl::Status TooSmall(const MemoryRequest& request, Bytes budget, const EngineMemory& need) {
  const Bytes enough = Enough(need);
  return absl::ResourceExhaustedError(absl::StrCat(
      request.model, " needs ", BudgetAtLeast(enough), " (two pieces of streamed weights ", FormatBytes(need.weights + need.ring), ", KV ",
      FormatBytes(need.kv), ", activations ", FormatBytes(need.activations), ", runtime ", FormatBytes(need.runtime), ", margin ",
      FormatBytes(enough - need.total() + need.margin), ")", ButAllows(request, budget, enough)));
}

ResidencyProblem::Kind KindOf(BlockKind kind) {
  switch (kind) {
    case BlockKind::kEmbedding:
      return ResidencyProblem::Kind::kRows;
    case BlockKind::kAttention:
      return ResidencyProblem::Kind::kAttention;
    case BlockKind::kMlp:
      return ResidencyProblem::Kind::kMlp;
    case BlockKind::kHead:
      return ResidencyProblem::Kind::kHead;
  }
  return ResidencyProblem::Kind::kMlp;
}

ResidencyProblem ToProblem(const ModelSpec& spec, const BackendOptions& backend, const PieceReader& reader, const MemoryRequest& request) {
  const DeviceProfile* profile = request.profile;
  ResidencyProblem problem{
      .blocks = {}, .tied = spec.config.tie_embeddings, .placement = request.placement, .share = request.resident_share};
  Bytes largest = 0;
  for (size_t i = 0; i < spec.blocks.size(); ++i) {
    const BlockSpec& block = spec.blocks[i];
    ResidencyProblem::Block& entry = problem.blocks.emplace_back();
    entry.kind = KindOf(block.id.kind);
    const bool shared = block.id.kind == BlockKind::kEmbedding && spec.config.tie_embeddings;
    entry.resident = shared ? 0 : block.bytes - KeptBytes(block) + kBlockSlack;
    entry.comp_ms =
        profile != nullptr && profile->read_bytes_per_second > 0
            ? profile->ComputeMs(spec, block.id.kind, backend.max_sequences, request.positions > 0 ? request.positions : backend.context)
            : static_cast<double>(block.bytes) / kMemoryBytesPerMs;
    if (block.id.kind == BlockKind::kEmbedding) continue;
    for (int piece = 0; piece < reader.NumPieces(static_cast<int>(i)); ++piece) {
      entry.pieces.push_back(reader.PlaceBytes(static_cast<int>(i), piece));
      largest = std::max(largest, entry.pieces.back());
    }
  }
  problem.disk_bytes_per_ms = DiskBytesPerMs(profile);
  problem.disk_latency_ms = kPieceLatencyMs;
  problem.row_ms = kRowsMs;
  problem.ring = request.ring;
  if (request.ring_pieces) problem.ring = *request.ring_pieces * largest;
  return problem;
}

constexpr std::array<int64_t, 9> kChunks = {16, 64, 128, 256, 512, 1024, 2048, 4096, 8192};

// Milliseconds of computing a chunk. A machine that is slower than what is assumed gets longer chunks than it needs, which costs memory of
// activations; with too slow an assumption a fast one would read its weights from the disk for every few rows.
double ChunkMs(const ModelSpec& spec, const MemoryRequest& request, const Workload& work, int64_t chunk) {
  DeviceProfile profile = request.profile != nullptr ? *request.profile : DeviceProfile{};
  if (profile.read_bytes_per_second <= 0) profile.read_bytes_per_second = kMemoryBytesPerMs * 1000;
  if (profile.flops <= 0) profile.flops = kFlops;
  return profile.StepMs(spec, {.rows = chunk, .context = work.prompt_tokens, .logit_rows = 1});
}

// Milliseconds until all of it is computed: a sweep over the disk for every chunk, which its computation covers or not.
double WorkMs(const ModelSpec& spec, const MemoryPlan& plan, const MemoryRequest& request, const Workload& work, int64_t chunk) {
  const double sweeps = std::ceil(static_cast<double>(work.prompt_tokens) / static_cast<double>(chunk));
  const double load_ms = static_cast<double>(plan.residency.streamed_bytes) / DiskBytesPerMs(request.profile);
  return sweeps * std::max(ChunkMs(spec, request, work, chunk), load_ms) +
         static_cast<double>(work.new_tokens) * plan.residency.ms_per_step;
}

}  // namespace

Bytes KvPageBytes(const ModelSpec& spec) {
  return spec.KvBytesPerToken() / spec.config.num_layers * kPositionsPerPage;
}

absl::StatusOr<MemoryPlan> PlanEngineMemory(const ModelSpec& spec, const BackendOptions& backend, const PieceReader& reader,
                                            const MemoryRequest& request) {
  MemoryPlan plan;
  EngineMemory& memory = plan.memory;
  memory.kv = backend.num_kv_pages * KvPageBytes(spec);
  plan.budget = request.budget;
  const Bytes least_ring = PieceLoader::LeastRing(reader, static_cast<int>(spec.blocks.size()));
  Bytes kept = 0;
  for (const BlockSpec& block : spec.blocks) kept += KeptMemory(block);
  LIME_ASSIGN_OR_RETURN(memory.activations, PlanActivationBytes(request.backend, spec, backend));
  memory.runtime = ProcessResidentBytes();  // with what the backend loads
  // What a model takes at least that streams as much as it can.
  EngineMemory least = memory;
  least.margin = kLeastMargin;
  least.activations += RowReader::BytesFor(spec, backend.max_rows);
  least.weights = kept;
  if (request.budget == 0) {
    DerivedBudget derived = DeriveBudget({.available = AvailableMemory(),
                                          .machine = MachineMemory(),
                                          .process = memory.runtime,
                                          .fixed = least.total() - least.kv - least.runtime + least_ring,
                                          .planned_kv = memory.kv,
                                          .kv_bytes_per_token = spec.KvBytesPerToken(),
                                          .context = spec.config.max_positions,
                                          .priority = request.priority});
    plan.budget = derived.budget;
    plan.budget_text = std::move(derived.text);
  }
  memory.weights = spec.WeightBytes();
  memory.margin = kLeastMargin;
  const bool all_resident = !request.resident_share && !request.ring && !request.ring_pieces;
  if (all_resident && memory.total() <= plan.budget) {
    plan.residency = {.resident = std::vector<bool>(spec.blocks.size(), true), .resident_bytes = memory.weights};
    return plan;
  }
  // Something streams.
  memory = least;
  memory.margin += plan.budget / kMarginShare;
  ResidencyProblem problem = ToProblem(spec, backend, reader, request);
  problem.memory = plan.budget - memory.total();
  absl::StatusOr<ResidencyPlan> residency = PlanResidency(problem);
  if (!residency.ok()) {
    if (problem.ring.value_or(0) > least_ring) {
      return absl::ResourceExhaustedError(absl::StrCat(request.model, ": ", residency.status().message(), "; lower --pool"));
    }
    memory.ring = std::max(problem.ring.value_or(0), least_ring);
    memory.margin = kLeastMargin;
    return TooSmall(request, plan.budget, memory);
  }
  plan.residency = *std::move(residency);
  plan.problem = std::move(problem);
  memory.ring = plan.residency.ring;
  memory.weights += plan.residency.resident_bytes;
  return plan;
}

absl::StatusOr<MemoryPlan> PlanMemoryAndChunk(const ModelSpec& spec, const PieceReader& reader, const MemoryRequest& request,
                                              const Workload& work, int64_t usual, BackendOptions& backend) {
  const auto plan_for = [&](int64_t chunk) {
    backend.max_rows = chunk + backend.max_sequences;
    return PlanEngineMemory(spec, backend, reader, request);
  };
  int64_t chunk = std::min(usual, work.prompt_tokens);
  absl::StatusOr<MemoryPlan> best = plan_for(chunk);
  if (best.ok() && !best->residency.streams()) return best;
  double best_ms = best.ok() ? WorkMs(spec, *best, request, work, chunk) : 0;
  for (const int64_t other : kChunks) {
    if (other == chunk || other >= 2 * work.prompt_tokens) continue;
    absl::StatusOr<MemoryPlan> plan = plan_for(std::min(other, work.prompt_tokens));
    if (!plan.ok()) continue;
    const double ms = WorkMs(spec, *plan, request, work, other);
    if (best.ok() && ms >= best_ms) continue;
    best = std::move(plan), best_ms = ms, chunk = std::min(other, work.prompt_tokens);
  }
  // The refusal names what the shortest chunk would need: all of them were tried.
  if (!best.ok()) return plan_for(std::min(kChunks.front(), work.prompt_tokens));
  backend.max_rows = chunk + backend.max_sequences;
  return best;
}

}  // namespace lime
