#include "planner/evaluation/first_token.h"

#include <algorithm>
#include <limits>

namespace lime {
absl::Status FirstTokenProblem::Validate(const Instance& decode) const {
  if (prompt_tokens < 1) return Invalid("first token: the prompt has ", prompt_tokens, " tokens, need at least 1");
  if (max_chunks_per_sweep < 1) return Invalid("first token: a sweep has at most ", max_chunks_per_sweep, " chunks, need at least 1");
  if (chunks.empty()) return Invalid("first token: there is no chunk size to choose from");
  for (const PrefillChunk& chunk : chunks) {
    if (chunk.rows < 1) return Invalid("first token: a chunk has ", chunk.rows, " tokens, need at least 1");
    LIME_RETURN_IF_ERROR(chunk.instance.Validate());
    if (chunk.instance.NumBlocks() != decode.NumBlocks() || chunk.instance.NumDevices() != decode.NumDevices()) {
      return Invalid("first token: chunks of ", chunk.rows, " tokens have ", chunk.instance.NumBlocks(), " blocks on ",
                     chunk.instance.NumDevices(), " devices, but the plan has ", decode.NumBlocks(), " blocks on ", decode.NumDevices());
    }
    for (int d = 0; d < decode.NumDevices(); ++d) {
      if (chunk.instance.devices[d].embed_rows_ms.has_value() == decode.devices[d].embed_rows_ms.has_value()) continue;
      return Invalid("first token: ", DeviceLabel(decode, d), " reads rows of the embedding either only for tokens or only for chunks of ",
                     chunk.rows);
    }
  }
  return absl::OkStatus();
}

FirstTokenPredictor::FirstTokenPredictor(const FirstTokenProblem& problem) : problem_(problem) {
  for (size_t c = 0; c < problem.chunks.size(); ++c) {
    const PrefillChunk& chunk = problem.chunks[c];
    evaluators_.emplace_back(chunk.instance);
    const int32_t chunks = (problem.prompt_tokens - 1) / chunk.rows + 1;
    const int64_t most =
        std::min<int64_t>({chunks, problem.max_chunks_per_sweep, kMaxMicrobatches, kMaxBlockRunsPerStep / chunk.instance.NumBlocks()});
    for (int64_t per_sweep = 1; per_sweep < most; per_sweep *= 2) ways_.push_back({c, chunks, static_cast<int32_t>(per_sweep)});
    ways_.push_back({c, chunks, static_cast<int32_t>(most)});
  }
}

FirstToken FirstTokenPredictor::Predict(const StagePlan& plan, double good_enough_ms) {
  FirstToken best = {.ms = std::numeric_limits<double>::infinity()};
  size_t best_way = 0;
  work_ = 0;
  for (size_t w = 0; w < ways_.size(); ++w) {
    const Way& way = ways_[w];
    const double ms = evaluators_[way.chunk].PromptMs(plan, way.chunks, way.per_sweep);
    const int64_t simulated = std::min<int64_t>(way.chunks, int64_t{Evaluator::kSteps} * way.per_sweep);
    work_ += static_cast<double>(problem_.chunks[way.chunk].instance.NumBlocks()) * static_cast<double>(simulated + 2);
    if (!(ms < best.ms)) continue;
    best = {
        .feasible = true, .ms = ms, .chunk_rows = problem_.chunks[way.chunk].rows, .chunks = way.chunks, .chunks_per_sweep = way.per_sweep};
    best_way = w;
    if (ms <= good_enough_ms) break;
  }
  std::rotate(ways_.begin(), ways_.begin() + static_cast<int64_t>(best_way), ways_.begin() + static_cast<int64_t>(best_way) + 1);
  return best;
}

}  // namespace lime
