#include "coordinator/cli/score.h"

#include <utility>

namespace lime::cli {
namespace {

// Appends a position for each id of `window`.
absl::Status ScoreWindow(ClusterRun& run, const std::vector<int32_t>& window, const ScoreOptions& options, Scores& scores) {
  size_t at = scores.positions.size();  // whose row comes next
  for (const int32_t id : window) scores.positions.push_back({.id = id, .logprob = std::nullopt, .top = {}});
  LIME_ASSIGN_OR_RETURN(const RequestId scored,
                        run.Add({.prompt = window, .max_new_tokens = 0}, {.score_top = static_cast<int32_t>(options.top)}));
  for (const std::vector<int32_t>& companion : options.companions)
    LIME_RETURN_IF_ERROR(run.Add({.prompt = companion, .max_new_tokens = 1}, {}).status());
  LIME_RETURN_IF_ERROR(run.Run(
      [&](const ClusterRun::Token& token) {
        if (token.request != scored || token.score == nullptr || at == scores.positions.size()) return true;
        scores.positions[at++].top = token.score->top;
        if (at < scores.positions.size()) scores.positions[at].logprob = token.score->logprob;
        scores.logits_hash = token.logits_hash;
        return true;
      },
      options.cancel));
  if (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed)) return absl::CancelledError("interrupted");
  return at == scores.positions.size() ? absl::OkStatus() : absl::InternalError("the devices left out logits that were asked for");
}

}  // namespace

absl::StatusOr<Scores> ScoreWindows(ClusterRun& run, const std::vector<std::vector<int32_t>>& windows, const ScoreOptions& options) {
  Scores scores;
  for (const std::vector<int32_t>& window : windows) LIME_RETURN_IF_ERROR(ScoreWindow(run, window, options, scores));
  return scores;
}

}  // namespace lime::cli
