#include "planner/problem/plan_parts.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "planner/plan/kv_spill.h"
#include "planner/plan/predictor_parts.h"

namespace lime {
namespace {

// Cuts the head into ranges of about equal length, at most `part_bytes` but at least kVocabRange
// ids.
std::vector<std::vector<MatrixRows>> CutHead(const BlockSpec& head, int64_t vocab, Bytes part_bytes) {
  const Bytes id_bytes = std::max<Bytes>(1, (head.bytes - PinnedBytes(head)) / vocab);
  const int64_t most = part_bytes > 0 ? std::max(kVocabRange, part_bytes / id_bytes / kVocabRange * kVocabRange) : vocab;
  const int64_t count = (vocab + most - 1) / most;
  const int64_t ids = std::min(RoundUp((vocab + count - 1) / count, kVocabRange), vocab);
  std::vector<std::vector<MatrixRows>> cut;
  for (int64_t begin = 0; begin < vocab; begin += ids) cut.push_back({{TensorRole::kOutput, begin, std::min(begin + ids, vocab)}});
  return cut;
}

std::vector<std::vector<MatrixRows>> CutIntoRows(const BlockSpec& block, const PlanRequest& request, int64_t vocab) {
  if (block.id.kind == BlockKind::kHead) return CutHead(block, vocab, request.part_bytes);
  // CutBlock makes parts of at least 64 rows, which may be far more than a small matrix has. For a
  // whole block, ask for far more than its bytes, and join its experts with its other rows.
  const Bytes longest = request.part_bytes > 0 ? request.part_bytes : 66 * block.bytes + kMiB;
  std::vector<std::vector<MatrixRows>> cut;
  for (BlockPart& part : CutBlock(block, longest)) {
    if (request.part_bytes > 0 || cut.empty()) cut.emplace_back();
    cut.back().insert(cut.back().end(), part.rows.begin(), part.rows.end());
  }
  return cut;
}

// The block with some of its tensors.
template <typename Has>
BlockSpec Only(const BlockSpec& block, const Has& has) {
  BlockSpec some{.id = block.id};
  for (const TensorSpec& tensor : block.tensors) {
    if (has(tensor)) some.tensors.push_back(tensor), some.bytes += tensor.info.bytes;
  }
  return some;
}

// All rows of the experts' matrices, expert by expert in order of use.
std::vector<MatrixRows> RowsOfExperts(const BlockSpec& block) {
  std::vector<MatrixRows> rows;
  for (const TensorSpec& tensor : block.tensors) {
    if (tensor.expert < 0 || tensor.part != TensorPart::kWeight || IsPinned(tensor)) continue;
    rows.push_back({tensor.role, 0, tensor.info.shape[0], tensor.expert});
  }
  return rows;
}

// Of the layer, if it gives pages back. The window is the largest of the model, so that all layers
// are alike; the rows are those of the longest micro-batch that may be chosen.
KvWindow WindowFor(const ModelSpec& spec, const PlanRequest& request, int64_t layer) {
  if (spec.config.layer(layer).window == 0 || request.retained_positions > 0 || request.keeps_all_pages) return {};
  int64_t window = 0, rows = request.sequences;
  for (const LayerConfig& each : spec.config.layers) window = std::max(window, each.window);
  for (const int64_t chunk : request.chunks) rows = std::max(rows, std::min(chunk, request.prompt_tokens));
  return {.positions = window, .pages = WindowPages(window, rows)};
}

// Pages of each layer with KV that keeps all of them, for all sequences.
int64_t LayerPages(const PlanRequest& request) {
  const int64_t tokens = request.kv_tokens > 0            ? request.kv_tokens
                         : request.retained_positions > 0 ? request.retained_positions
                                                          : request.context;
  return request.sequences * ((tokens + kPageTokens - 1) / kPageTokens);
}

// All rows of the matrices of a sparse MLP, with the decider or behind it, in order of use.
std::vector<MatrixRows> RowsOfNeurons(const BlockSpec& mlp, bool with_decider) {
  std::vector<MatrixRows> rows;
  for (const TensorSpec& tensor : mlp.tensors) {
    if ((!with_decider && tensor.role == DeciderRole(mlp)) || tensor.part != TensorPart::kWeight || IsPinned(tensor)) continue;
    rows.push_back({tensor.role, 0, tensor.info.shape[0]});
  }
  return rows;
}

int64_t NeuronRows(const PlanRequest& request, const BlockSpec& block) {
  const auto layer = static_cast<size_t>(block.id.layer);
  return block.id.kind == BlockKind::kMlp && layer < request.neuron_rows.size() ? request.neuron_rows[layer] : 0;
}

int32_t PredictorRank(const PlanRequest& request, const BlockSpec& block) {
  const auto layer = static_cast<size_t>(block.id.layer);
  return block.id.kind == BlockKind::kMlp && layer < request.predictor_ranks.size() ? request.predictor_ranks[layer] : 0;
}

// The neurons of a sparse MLP are decided without rows of the decider, and bring them.
bool HasOwnDecider(const PlanRequest& request, const BlockSpec& mlp) {
  return FormOf(request, mlp.id.layer).bits > 0 || PredictorRank(request, mlp) > 0;
}

PlanPart Sparse(const PlanRequest& request, const BlockSpec& mlp) {
  const DeciderForm form = FormOf(request, mlp.id.layer);
  const bool certified = HasOwnDecider(request, mlp);
  PlanPart part{.block = mlp.id,
                .rows = RowsOfNeurons(mlp, certified),
                .unit_bytes = NeuronBytes(mlp, certified),
                .window_masks = request.window_masks,
                .decider_bits = form.bits,
                .decider_directions = form.directions};
  part.bytes = PartBytes(mlp, part.rows);
  part.places = std::min(NeuronRows(request, mlp), mlp.tensors[*mlp.Find(DeciderRole(mlp), TensorPart::kWeight)].info.shape[0]);
  return part;
}

PlanPart OnDemand(const PlanRequest& request, const BlockSpec& block, std::vector<MatrixRows> rows) {
  const auto units = static_cast<int64_t>(UnitsIn(rows).size());
  PlanPart part{.block = block.id, .bytes = PartBytes(block, rows), .unit_bytes = UnitBytes(block, rows)};
  part.rows = std::move(rows);
  part.places = std::min(request.unit_places, units);
  part.ahead_places = static_cast<int32_t>(std::min<int64_t>(request.ahead_places, part.places - 1));
  const auto& policies = request.unit_policies;
  if (!policies.empty()) part.policy = policies[static_cast<size_t>(std::min(part.places, std::ssize(policies)) - 1)];
  return part;
}

void AddBlock(const ModelSpec& spec, const PlanRequest& request, const BlockSpec& block, std::vector<PlanPart>& parts) {
  const size_t first = parts.size();
  std::vector<MatrixRows> experts;
  if (request.unit_places > 0 && block.id.kind == BlockKind::kExperts) experts = RowsOfExperts(block);
  const bool sparse = NeuronRows(request, block) > 0;
  const bool certified = sparse && HasOwnDecider(request, block);
  // What is not on demand.
  const BlockSpec rest = Only(block, [&](const TensorSpec& tensor) {
    if (sparse) return !certified && tensor.role == DeciderRole(block);
    return experts.empty() || tensor.expert < 0;
  });
  for (std::vector<MatrixRows>& rows : CutIntoRows(rest, request, spec.config.vocab_size)) {
    const Bytes bytes = PartBytes(block, rows);
    parts.push_back({.block = block.id,
                     .rows = std::move(rows),
                     .bytes = bytes,
                     .pinned_bytes = block.id.kind == BlockKind::kHead ? PinnedBytes(block) : 0});
  }
  if (!experts.empty()) parts.push_back(OnDemand(request, block, std::move(experts)));
  if (sparse) parts.push_back(Sparse(request, block));
  if (parts.size() == first) return;
  parts[first].pinned_bytes = PinnedBytes(block);
  parts[first].predictor_rank = PredictorRank(request, block);
  if (HasKv(block.id.kind)) {
    PlanPart& part = parts[first];
    part.window = WindowFor(spec, request, block.id.layer);
    part.kv_pages = LayerPages(request);
    if (part.window.positions > 0) {
      part.kv_pages = std::min(part.kv_pages, request.sequences * part.window.pages);
      part.state_bytes = int64_t{request.sequences} * request.state_snapshots * SnapshotPages(part.window) * spec.KvPageBytes();
    }
  }
  if (HasState(block.id.kind))
    parts[first].state_bytes = request.sequences * (1 + request.state_snapshots) * spec.StateBytes(block.id.layer);
}

}  // namespace

DeciderForm FormOf(const PlanRequest& request, int32_t layer) {
  const auto at = static_cast<size_t>(layer);
  return at < request.deciders.size() ? request.deciders[at] : DeciderForm();
}

int64_t CopiedDirections(const PlanRequest& request) {
  int64_t most = -1;
  for (size_t layer = 0; layer < request.neuron_rows.size(); ++layer) {
    const DeciderForm form = FormOf(request, static_cast<int32_t>(layer));
    if (request.neuron_rows[layer] > 0 && form.bits > 0) most = std::max<int64_t>(most, form.directions);
  }
  return most;
}

std::vector<PlanPart> MakeParts(const ModelSpec& spec, const PlanRequest& request) {
  std::vector<PlanPart> parts;
  for (const BlockSpec& block : spec.blocks) {
    if (block.id.kind != BlockKind::kEmbedding) AddBlock(spec, request, block, parts);
  }
  return parts;
}

Bytes SparseMemory(const ModelSpec& spec, const PlanRequest& request) {
  if (request.neuron_rows.empty() && request.predictor.empty()) return 0;
  const Plan plan{.parts = MakeParts(spec, request)};
  std::vector<int> all(plan.parts.size());
  std::iota(all.begin(), all.end(), 0);
  return SparseMemory(spec, plan, all) + PredictorMemory(spec, plan, all);
}

Bytes SharedSparseMemory(const ModelSpec& spec, const PlanRequest& request) {
  const Plan plan{.parts = MakeParts(spec, request)};
  Bytes largest = 0;
  for (const PlanPart& part : plan.parts) {
    if (part.sparse()) largest = std::max(largest, LargestPiece(spec.block(part.block), part));
  }
  return kSparsePieces * largest;
}

}  // namespace lime
