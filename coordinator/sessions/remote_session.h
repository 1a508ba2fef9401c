// lime run --url, lime score --url: the same calls as those of the other sessions, answered by a
// server. Nothing is planned or loaded here.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/client/api_client.h"
#include "coordinator/sessions/generate.h"
#include "coordinator/sessions/score.h"
#include "nlohmann/json.hpp"
#include "planner/base/status.h"

namespace lime::cli {

class RemoteSession {
 public:
  // Asks the server for its models. `model`: the name of one; empty: the first. `cancel` ends this
  // and all later calls.
  static absl::StatusOr<std::unique_ptr<RemoteSession>> Open(std::unique_ptr<ApiClient> client, const std::string& model,
                                                             const std::atomic<bool>* cancel);

  // Continues the prompts in one request, so that prompt i draws as it does in `lime run`. Needs one
  // number in options.max_new_tokens, and does without end_tokens. `ignore_eos`: goes on after them.
  // The callbacks come in the thread of the caller. An answer that was cancelled has no token_ids.
  absl::StatusOr<GenerateSummary> Generate(const std::vector<std::string>& prompts, const GenerateOptions& options, bool ignore_eos);

  // Ids of a text, without BOS; and the BOS that begins each window of a scored text.
  absl::StatusOr<std::vector<int32_t>> Encode(const std::string& text) const;
  absl::StatusOr<std::optional<int32_t>> Bos() const;
  // Scores sequences one after another. The server gives at most kMostTop likeliest ids.
  absl::StatusOr<Scores> Score(const std::vector<std::vector<int32_t>>& windows, const ScoreOptions& options);
  static constexpr int64_t kMostTop = 5;

  int64_t context() const { return model_.context; }  // 0: not known
  double predicted_ms_per_token() const { return report_.predicted_ms_per_token; }
  // Fields common to every JSON answer: url, model, numerics_id, predicted_ms_per_token, recoveries,
  // plan_changes.
  nlohmann::json Describe() const;
  PredictionReport Compare(const GenerateSummary& summary) const;

 private:
  class Answers;

  RemoteSession(std::unique_ptr<ApiClient> client, RemoteModel model, const std::atomic<bool>* cancel)
      : client_(std::move(client)), model_(std::move(model)), cancel_(cancel) {}
  absl::StatusOr<std::vector<int32_t>> Tokenize(const nlohmann::json& body) const;
  absl::StatusOr<bool> EndsAtStop(const Generated& result, const std::vector<std::string>& stops) const;
  // `hash_state`: with which the hash begins, then the one behind the window, which is absent if the
  // server has none; nullopt: nobody asks for it.
  absl::Status ScoreWindow(const std::vector<int32_t>& window, int64_t top, std::optional<std::string>& hash_state, Scores& scores);

  const std::unique_ptr<ApiClient> client_;
  const RemoteModel model_;
  const std::atomic<bool>* const cancel_;
  AnswerReport report_;  // of the last answer
};

}  // namespace lime::cli
