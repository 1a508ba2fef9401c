#include "daemon/engine/memory_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/engine/piece_loader.h"
#include "daemon/engine/process_memory.h"
#include "daemon/logic/kv_pages.h"
#include "daemon/weights/kept_tensors.h"
#include "daemon/weights/row_reader.h"
#include "kernels/module.h"

namespace lime {
namespace {

// Assumed where nothing was measured: a small machine with a plain SSD.
constexpr double kMemoryBytesPerMs = 10e6;
constexpr double kDiskBytesPerMs = 1e6;

constexpr Bytes kDiskRead = 1 * kMiB;
constexpr int64_t kDiskDepth = 8;
constexpr double kPieceLatencyMs = 0.02;  // the next piece is queued while one is read
constexpr double kRowsMs = 0.5;           // a direct read of one row of the embedding
constexpr Bytes kBlockSlack = 64 * kKiB;  // tensors of a block that lie apart are read with what is between them
constexpr Bytes kLeastMargin = 16 * kMiB;

absl::Status TooSmall(const MemoryRequest& request, const EngineMemory& need, const std::string& what) {
  return absl::ResourceExhaustedError(
      absl::StrCat(request.model, " needs ", FormatBytes(need.total()), " at least (", what, " ", FormatBytes(need.weights + need.ring),
                   ", KV ", FormatBytes(need.kv), ", activations ", FormatBytes(need.activations), ", runtime ", FormatBytes(need.runtime),
                   ", margin ", FormatBytes(need.margin), ") and ", request.asked ? "--memory allows " : "this machine has ",
                   FormatBytes(request.budget), "; give a smaller --context or --chunk, or more memory"));
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
    entry.comp_ms = profile != nullptr && profile->read_bytes_per_second > 0
                        ? profile->ComputeMs(spec, block.id.kind, backend.max_sequences, backend.context)
                        : static_cast<double>(block.bytes) / kMemoryBytesPerMs;
    if (block.id.kind == BlockKind::kEmbedding) continue;
    for (int piece = 0; piece < reader.NumPieces(static_cast<int>(i)); ++piece) {
      entry.pieces.push_back(reader.PlaceBytes(static_cast<int>(i), piece));
      largest = std::max(largest, entry.pieces.back());
    }
  }
  const double disk = profile == nullptr ? 0 : profile->DiskRate(kDiskRead, kDiskDepth) / 1000;
  problem.disk_bytes_per_ms = disk > 0 ? disk : kDiskBytesPerMs;
  problem.disk_latency_ms = kPieceLatencyMs;
  problem.row_ms = kRowsMs;
  problem.ring = request.ring;
  if (request.ring_pieces) problem.ring = *request.ring_pieces * largest;
  return problem;
}

}  // namespace

Bytes KvPageBytes(const ModelSpec& spec) {
  return spec.KvBytesPerToken() / spec.config.num_layers * kPositionsPerPage;
}

absl::StatusOr<MemoryPlan> PlanMemory(const ModelSpec& spec, const BackendOptions& backend, const PieceReader& reader,
                                      const MemoryRequest& request) {
  MemoryPlan plan;
  EngineMemory& memory = plan.memory;
  memory.kv = backend.num_kv_pages * KvPageBytes(spec);
  memory.runtime = ProcessResidentBytes();
  if (memory.total() > request.budget) return TooSmall(request, memory, "weights");  // before the kernels are opened
  LIME_ASSIGN_OR_RETURN(memory.activations, PlanActivationBytes(spec, backend));
  memory.runtime = ProcessResidentBytes();
  const bool may_stream = request.resident_share || request.ring || request.ring_pieces;
  memory.weights = spec.WeightBytes();
  if (memory.total() <= request.budget && !may_stream) {
    plan.residency = {.resident = std::vector<bool>(spec.blocks.size(), true), .resident_bytes = memory.weights};
    return plan;
  }
  // Something streams.
  memory.margin = kLeastMargin + request.budget / 256;
  memory.activations += RowReader::BytesFor(spec, backend.max_rows);
  memory.weights = 0;
  for (const BlockSpec& block : spec.blocks) memory.weights += KeptMemory(block);
  ResidencyProblem problem = ToProblem(spec, backend, reader, request);
  problem.memory = request.budget - memory.total();
  absl::StatusOr<ResidencyPlan> residency = PlanResidency(problem);
  if (!residency.ok()) {
    memory.ring = std::max(problem.ring.value_or(0), PieceLoader::LeastRing(reader, static_cast<int>(spec.blocks.size())));
    return TooSmall(request, memory, "two pieces of streamed weights");
  }
  plan.residency = *std::move(residency);
  memory.ring = plan.residency.ring;
  memory.weights += plan.residency.resident_bytes;
  return plan;
}

}  // namespace lime
