#include "daemon/engine/stage_compute.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "planner/plan/plan_blocks.h"
#include "planner/plan/sparse_parts.h"
#include "planner/problem/unit_demand.h"

namespace lime {
namespace {

// Of a certified part, the last masks of a prompt: each is a proof of its own, which takes as long as a step's.
constexpr int32_t kMostProvenMasks = 16;

static_assert(Backend::kMostGuessRows == kMostGuessedRows);

absl::Status CopyInput(const ProgramRunner::StartCompute& start, std::span<const std::byte> input, std::span<std::byte> hidden) {
  if (input.size() != hidden.size())
    return Invalid("step ", start.step, ", stage ", start.what.stage, ": ", input.size(),
                   " bytes of hidden states arrived, but its rows have ", hidden.size());
  std::memcpy(hidden.data(), input.data(), input.size());
  return absl::OkStatus();
}

}  // namespace

StageCompute::StageCompute(const StageParts& parts, Owner owner)
    : parts_(parts), plan_(parts.stage.plan), sampler_(parts.stage.sampler), owner_(std::move(owner)), rows_(parts.rows.get()) {
  FindNextParts();
}

absl::Status StageCompute::Run(const ProgramRunner::StartCompute& start, const MicroBatch& batch, std::span<const std::byte> input) {
  const Stage& stage = plan_.stages[start.what.stage];
  const int part = start.what.part;
  sampled_.clear();  // a micro-batch without rows samples nothing
  if (batch.rows.empty()) return input.empty() ? absl::OkStatus() : Invalid("hidden states arrived for a micro-batch without rows");
  if (parts_.visit != nullptr) return RunSliced(start, batch, input);
  if (part == kEmbeddingPart) return Embed(batch);
  if (start.what.stage > 0 && part == stage.lo) LIME_RETURN_IF_ERROR(ReadInput(start, batch, input));
  LIME_RETURN_IF_ERROR(ComputePart(part, start.step, batch));
  const BlockId block = plan_.parts[part].block;
  if (HasKv(block.kind) && part + 1 == PartsOf(plan_, block).second) parts_.kv->TakeSnapshots(block.layer, batch);
  if (part + 1 == plan_.NumParts()) return Sample(batch);
  const int64_t ids = part + 1 == stage.hi ? IdsBefore(plan_, stage.hi) : 0;
  return ids > 0 ? EncodeLogits(ids, batch) : absl::OkStatus();
}

absl::Status StageCompute::RunSliced(const ProgramRunner::StartCompute& start, const MicroBatch& batch, std::span<const std::byte> input) {
  const auto rows = [&] {
    std::pair<MicroBatch, MicroBatch> both = {batch, owner_.whole_batch(start.what.microbatch)};
    ForBackend(both.first), ForBackend(both.second);
    return both;
  };
  LIME_RETURN_IF_ERROR(
      parts_.visit->Run(start.what, {.rows = rows,
                                     .embed = [this](const MicroBatch& slice) { return EmbedBegun(slice); },
                                     .copy_input = [&](std::span<std::byte> hidden) { return CopyInput(start, input, hidden); }}));
  return start.what.part + 1 == plan_.NumParts() ? Sample(batch) : absl::OkStatus();
}

absl::Status StageCompute::Embed(const MicroBatch& batch) {
  LIME_RETURN_IF_ERROR(Begin(batch));
  return EmbedBegun(batch);
}

absl::Status StageCompute::EmbedBegun(const MicroBatch& batch) {
  if (rows_ == nullptr) return parts_.backend->Compute({BlockKind::kEmbedding, 0});
  tokens_.clear();
  for (const BatchRow& row : batch.rows) tokens_.push_back(row.token);
  LIME_RETURN_IF_ERROR(rows_->Read(tokens_));
  return parts_.backend->EmbedRows(rows_->rows());
}

// Devices after the first do not know sampled ids. Devices without the head need no logits.
void StageCompute::ForBackend(MicroBatch& batch) const {
  const bool has_head = HasHead(plan_, parts_.stage.device);
  for (BatchRow& row : batch.rows) row.token = std::max(row.token, 0), row.wants_logits = row.wants_logits && has_head;
}

absl::Status StageCompute::Begin(const MicroBatch& batch) {
  begun_ = batch;  // reuses the memory of the last batch
  ForBackend(begun_);
  return parts_.backend->Begin(begun_);
}

absl::Status StageCompute::ReadInput(const ProgramRunner::StartCompute& start, const MicroBatch& batch, std::span<const std::byte> input) {
  LIME_RETURN_IF_ERROR(Begin(batch));
  if (const int64_t ids = IdsBefore(plan_, start.what.part); ids > 0) {
    LIME_ASSIGN_OR_RETURN(input, ReadLogits(ids, batch, input));
  }
  return CopyInput(start, input, parts_.backend->Hidden());
}

// Copies the logits of the first `ids` ids, which the stage before has sent, into the rows. Returns
// the hidden states that follow them.
absl::StatusOr<std::span<const std::byte>> StageCompute::ReadLogits(int64_t ids, const MicroBatch& batch,
                                                                    std::span<const std::byte> input) {
  LIME_ASSIGN_OR_RETURN(partial_, ParseHeadPartial(input, ids, plan_.batch, std::move(partial_)));
  LIME_RETURN_IF_ERROR(FindLogitsUsed(batch));
  const std::vector<LogitsSoFar>& rows = partial_.rows;
  if (rows.size() != used_.size()) return Invalid("logits of ", rows.size(), " rows arrived, but ", used_.size(), " rows need logits");
  for (size_t row = 0; row < used_.size(); ++row) {
    if (rows[row].count() < std::min(used_[row], ids)) {
      return Invalid("logits of ", rows[row].count(), " ids arrived, but sampling needs ", std::min(used_[row], ids), " of ", ids);
    }
    rows[row].CopyTo(parts_.backend->Logits().subspan(row * vocab(), static_cast<size_t>(ids)));
  }
  return partial_.hidden;
}

absl::Status StageCompute::EncodeLogits(int64_t ids, const MicroBatch& batch) {
  LIME_RETURN_IF_ERROR(FindLogitsUsed(batch));
  head_partial_ = head_encoder_.Encode(parts_.backend->Logits(), parts_.spec.config.vocab_size, ids, used_, parts_.backend->Hidden(),
                                       std::move(head_partial_));
  return absl::OkStatus();
}

absl::Status StageCompute::FindLogitsUsed(const MicroBatch& batch) {
  used_.clear();
  for (const BatchRow& row : batch.rows) {
    if (!row.wants_logits) continue;
    if (sampler_ == nullptr) return Invalid("the plan puts a part of the head on this device, but the device has no sampler");
    LIME_ASSIGN_OR_RETURN(used_.emplace_back(), sampler_->LogitsUsed(row.sequence));
  }
  return absl::OkStatus();
}

absl::Status StageCompute::ComputePart(int part, int64_t step, const MicroBatch& batch) {
  const BlockId id = plan_.parts[part].block;
  if (plan_.parts[part].has_own_decider()) return Prove(part, batch);
  if (plan_.parts[part].hosted()) return owner_.use_results(part);
  if (parts_.weights->IsWhole(part)) {
    // The first part computes the whole block.
    return part == PartsOf(plan_, id).first ? parts_.backend->Compute(id) : absl::OkStatus();
  }
  if (plan_.parts[part].is_kv()) return owner_.attend(part, step, begun_);
  for (int i = 0; i < parts_.weights->NumRows(part); ++i) {
    LIME_RETURN_IF_ERROR(parts_.backend->ComputeRows(id, owner_.rows_of(part, i, step)));
  }
  return absl::OkStatus();
}

absl::Status StageCompute::RunUnits(int part, int64_t step, std::span<const UnitInPlace> units, const MicroBatch& batch) {
  if (batch.rows.empty()) return absl::OkStatus();
  if (plan_.parts[part].sparse()) return RunSparse(part, units, batch);
  if (std::exchange(may_guess_, false)) GuessUnits(part, step, batch);
  const StageWeights& weights = *parts_.weights;
  for (const auto& [unit, place] : units) {
    for (int i = 0; i < weights.NumUnitRows(part, unit); ++i)
      LIME_RETURN_IF_ERROR(parts_.backend->ComputeRows(plan_.parts[part].block, weights.UnitRows(part, unit, i, place)));
  }
  return absl::OkStatus();
}

absl::Status StageCompute::RunSparse(int part, std::span<const UnitInPlace> units, const MicroBatch& batch) {
  const BlockId id = plan_.parts[part].block;
  StageWeights& weights = *parts_.weights;
  if (ComputesNeurons(plan_, std::ssize(batch.rows))) {
    neurons_.clear();
    for (const auto& [neuron, row] : units) neurons_.push_back(weights.Neuron(part, neuron, row));
    return parts_.backend->ComputeNeurons(id, neurons_);
  }
  for (const auto& [piece, place] : units) {
    for (int i = 0; i < weights.NumUnitRows(part, piece); ++i) {
      const RowsInMemory rows = weights.PieceRows(part, piece, i, place);
      LIME_RETURN_IF_ERROR(parts_.backend->ComputeRows(id, rows));
      weights.CopyNeurons(part, rows, copies_);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::span<const int32_t>> StageCompute::DecideNeurons(int part, const MicroBatch& batch) {
  if (batch.rows.empty()) return std::span<const int32_t>();
  const BlockId id = plan_.parts[part].block;
  std::span<const int32_t> neurons = unproven_;
  if (!plan_.parts[part].has_own_decider()) {
    LIME_ASSIGN_OR_RETURN(neurons, parts_.backend->DecideNeurons(id));
  }
  if (neurons.empty()) LIME_RETURN_IF_ERROR(parts_.backend->ComputeNeurons(id, {}));
  return neurons;
}

// The copy of the decider decides, before a stage asks for neurons or pieces.
absl::Status StageCompute::Prove(int part, const MicroBatch& batch) {
  const PlanPart& what = plan_.parts[part];
  if (!ComputesNeurons(plan_, std::ssize(batch.rows))) return FindLastMasks(part, batch, kMostProvenMasks, what.places);
  LIME_ASSIGN_OR_RETURN(unproven_, parts_.backend->DecideNeurons(what.block));
  return absl::OkStatus();
}

absl::StatusOr<SparseVisits::LastMasks> StageCompute::LastMasks(int part, const MicroBatch& batch, int64_t rows) {
  const PlanPart& what = plan_.parts[part];
  if (!what.has_own_decider()) LIME_RETURN_IF_ERROR(FindLastMasks(part, batch, what.window_masks, rows));
  const auto fit = std::ranges::find_if(held_, [rows](int64_t held) { return held > rows; });
  const auto masks = static_cast<int32_t>(fit - held_.begin());
  for (int32_t& age : ages_) age = age < masks ? age : MaskWindow::kNever;
  return SparseVisits::LastMasks{.ages = ages_, .masks = masks};
}

// At most so many masks, and none after those that have more than `rows` neurons together -> ages_, held_.
// Only sequences whose last row wants logits decode next. Mask j is the union of the rows that have j rows
// of their sequence behind them.
absl::Status StageCompute::FindLastMasks(int part, const MicroBatch& batch, int32_t most, int64_t rows) {
  last_rows_.clear(), held_.clear();
  most = std::min(most, plan_.parts[part].window_masks);
  bool decodes = false;
  int32_t behind = 0;
  for (int32_t row = static_cast<int32_t>(batch.rows.size()) - 1; row >= 0; --row, ++behind) {
    const auto at = batch.rows.begin() + row;
    const bool is_last = at + 1 == batch.rows.end() || (at + 1)->sequence != at->sequence;
    if (is_last) decodes = at->wants_logits, behind = 0;
    if (decodes && behind < most) last_rows_.emplace_back(behind, row);
  }
  std::ranges::sort(last_rows_);
  ages_.assign(static_cast<size_t>(NeuronsOf(plan_, part)), MaskWindow::kNever);
  int64_t held = 0;
  for (auto next = last_rows_.begin(); next != last_rows_.end() && held <= rows; held_.push_back(held)) {
    const auto mask = static_cast<int32_t>(held_.size());
    for (; next != last_rows_.end() && next->first == mask; ++next) {
      LIME_ASSIGN_OR_RETURN(const std::span<const int32_t> neurons, parts_.backend->ActiveNeurons(plan_.parts[part].block, next->second));
      for (const int32_t neuron : neurons) {
        int32_t& age = ages_[static_cast<size_t>(neuron)];
        if (age == MaskWindow::kNever) age = mask, ++held;
      }
    }
  }
  return absl::OkStatus();
}

// The backend counts all experts of the block, the part only its own.
std::span<const int32_t> StageCompute::ChosenUnits(int part, const MicroBatch& batch) {
  chosen_.clear();
  if (batch.rows.empty()) return chosen_;
  may_guess_ = true;
  const std::span<const int32_t> of_block = parts_.backend->ChosenUnits(plan_.parts[part].block);
  int32_t unit = -1, expert = -1;
  auto next = of_block.begin();
  for (const MatrixRows& rows : plan_.parts[part].rows) {
    if (rows.expert == expert) continue;
    expert = rows.expert, ++unit;
    while (next != of_block.end() && *next < expert) ++next;
    if (next != of_block.end() && *next == expert) chosen_.push_back(unit);
  }
  return chosen_;
}

// ---- The guess

void StageCompute::FindNextParts() {
  next_part_.assign(plan_.parts.size(), -1);
  guessed_units_.reserve(guessed_.size());
  size_t most = 0;
  for (const Stage& stage : plan_.stages) {
    int next = -1;
    bool ahead = false;  // of a block's parts on demand, which are its last ones
    for (int part = stage.hi - 1; stage.device == parts_.stage.device && part >= stage.lo; --part) {
      if (!plan_.parts[part].has_experts_on_demand()) continue;
      ahead = ahead || plan_.parts[part].ahead_places > 0;
      if (plan_.parts[part].hosted()) continue;
      next_part_[part] = next;
      next = std::exchange(ahead, false) ? part : -1;
    }
  }
  for (const PlanPart& part : plan_.parts) most = std::max(most, part.rows.size());
  router_.reserve(most);
  most = 0;
  size_t neurons = 0;
  for (const int part : PartsOn(plan_, parts_.stage.device)) {
    if (!plan_.parts[part].sparse()) continue;
    most = std::max(most, static_cast<size_t>(plan_.parts[part].places));
    neurons = std::max(neurons, static_cast<size_t>(NeuronsOf(plan_, part)));
  }
  neurons_.reserve(most), ages_.reserve(neurons);
  if (neurons > 0) held_.reserve(static_cast<size_t>(MaxRows(plan_)));
  if (neurons > 0) last_rows_.reserve(static_cast<size_t>(MaxRows(plan_)));
}

void StageCompute::GuessUnits(int part, int64_t step, const MicroBatch& batch) {
  const int next = next_part_[part];
  if (next < 0 || std::ssize(batch.rows) > Backend::kMostGuessRows || !FindRouter(next, step)) return;
  const size_t experts = parts_.backend->GuessUnits(plan_.parts[part].block, plan_.parts[next].block, router_, guessed_);
  for (int p = next; p < plan_.NumParts() && plan_.parts[p].block == plan_.parts[next].block; ++p) {
    if (plan_.parts[p].ahead_places == 0) continue;
    guessed_units_.clear();
    for (size_t i = 0; i < experts; ++i) {
      if (const int32_t unit = UnitOf(p, guessed_[i]); unit >= 0) guessed_units_.push_back(unit);
    }
    if (!guessed_units_.empty()) owner_.guessed(p, guessed_units_);
  }
}

// The rows of the router that chooses the units of a part. False if some are not in memory.
bool StageCompute::FindRouter(int part, int64_t step) {
  router_.clear();
  for (int p = PartsOf(plan_, plan_.parts[part].block).first; p < part; ++p) {
    const std::vector<MatrixRows>& rows = plan_.parts[p].rows;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].role != TensorRole::kRouter) continue;
      const std::optional<RowsInMemory> here = owner_.resident_rows_of(p, static_cast<int>(i), step);
      if (!here) return false;
      router_.push_back(*here);
    }
  }
  return !router_.empty();
}

// The unit of the part that is this expert; -1 if the part does not have it.
int32_t StageCompute::UnitOf(int part, int32_t expert) const {
  int32_t unit = -1, before = -1;
  for (const MatrixRows& rows : plan_.parts[part].rows) {
    if (rows.expert != before) before = rows.expert, ++unit;
    if (rows.expert == expert) return unit;
  }
  return -1;
}

absl::Status StageCompute::Sample(const MicroBatch& batch) {
  const std::span<const float> logits = parts_.backend->Logits();
  size_t at = 0;
  for (const BatchRow& row : batch.rows) {
    if (!row.wants_logits) continue;
    if (sampler_ == nullptr) return Invalid("the plan puts the head on this device, but the device has no sampler");
    LIME_ASSIGN_OR_RETURN(const int32_t token, sampler_->Sample(row, logits.subspan(at++ * vocab(), vocab())));
    sampled_.push_back({.sequence = row.sequence, .position = row.position + 1, .token = token});
  }
  return absl::OkStatus();
}

}  // namespace lime
