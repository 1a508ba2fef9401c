#include "daemon/engine/stage_compute.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/plan/plan_blocks.h"

namespace lime {
namespace {

template <typename... What>
absl::Status Wrong(const What&... what) {
  return absl::InvalidArgumentError(absl::StrCat(what...));
}

}  // namespace

StageCompute::StageCompute(const Plan& plan, const ModelSpec& spec, Options options)
    : plan_(plan), spec_(spec), options_(std::move(options)) {}

absl::Status StageCompute::Run(const ProgramRunner::StartCompute& start, const MicroBatch& batch, std::span<const std::byte> input) {
  const Stage& stage = plan_.stages[start.what.stage];
  const int part = start.what.part;
  if (batch.rows.empty()) return input.empty() ? absl::OkStatus() : Wrong("hidden states have come for a micro-batch without rows");
  if (part == kEmbeddingPart) return Embed(batch);
  if (start.what.stage > 0 && part == stage.lo) LIME_RETURN_IF_ERROR(TakeHidden(start, batch, input));
  LIME_RETURN_IF_ERROR(ComputePart(part, start.step));
  const bool last = part + 1 == plan_.NumParts();
  return last ? Sample(batch) : absl::OkStatus();
}

absl::Status StageCompute::Embed(const MicroBatch& batch) {
  LIME_RETURN_IF_ERROR(Begin(batch));
  if (options_.rows == nullptr) return options_.backend->Embed();
  tokens_.clear();
  for (const BatchRow& row : batch.rows) tokens_.push_back(row.token);
  LIME_RETURN_IF_ERROR(options_.rows->Read(tokens_));
  return options_.backend->EmbedRows(options_.rows->rows());
}

// Devices behind the first know what was sampled as hidden states only, and those without the head ask for no logits.
absl::Status StageCompute::Begin(const MicroBatch& batch) {
  begun_ = batch;
  for (BatchRow& row : begun_.rows) row.token = std::max(row.token, 0), row.wants_logits = row.wants_logits && IsHead();
  return options_.backend->Begin(begun_);
}

absl::Status StageCompute::TakeHidden(const ProgramRunner::StartCompute& start, const MicroBatch& batch, std::span<const std::byte> input) {
  LIME_RETURN_IF_ERROR(Begin(batch));
  const std::span<std::byte> hidden = options_.backend->Hidden();
  if (input.size() != hidden.size()) {
    return Wrong("step ", start.step, ", stage ", start.what.stage, ": ", input.size(), " bytes of hidden states have come for ",
                 batch.rows.size(), " rows, which have ", hidden.size());
  }
  std::memcpy(hidden.data(), input.data(), input.size());
  return absl::OkStatus();
}

absl::Status StageCompute::ComputePart(int part, int64_t step) {
  const BlockId id = plan_.parts[part].block;
  if (options_.weights->IsWhole(part)) {
    if (part != PartsOf(plan_, id).first) return absl::OkStatus();  // all of it was computed with its first part
    return id.kind == BlockKind::kAttention ? options_.backend->Attention(id.layer)
           : id.kind == BlockKind::kMlp     ? options_.backend->Mlp(id.layer)
                                            : options_.backend->Head();
  }
  for (int i = 0; i < options_.weights->NumRows(part); ++i) {
    LIME_RETURN_IF_ERROR(options_.backend->ComputeRows(id, options_.rows_of(part, i, step)));
  }
  return absl::OkStatus();
}

absl::Status StageCompute::Sample(const MicroBatch& batch) {
  const std::span<const float> logits = options_.backend->Logits();
  const size_t vocab = static_cast<size_t>(spec_.config.vocab_size);
  sampled_.clear();
  size_t at = 0;
  for (const BatchRow& row : batch.rows) {
    if (!row.wants_logits) continue;
    if (options_.sampler == nullptr) return Wrong("the plan puts the head here, and nobody samples");
    LIME_ASSIGN_OR_RETURN(const int32_t token, options_.sampler->Sample(row, logits.subspan(at++ * vocab, vocab)));
    sampled_.push_back({.sequence = row.sequence, .position = row.position + 1, .token = token});
  }
  return absl::OkStatus();
}

}  // namespace lime
