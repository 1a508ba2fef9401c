#include "coordinator/sessions/score.h"

#include <cmath>
#include <memory>
#include <string>

namespace lime::cli {
namespace {

// Stores the results of a sequence's logits in its positions.
class ScoredSequence final : public RequestSink {
 public:
  // `at`: the position whose row comes next
  ScoredSequence(Scores& scores, size_t at, RequestEnds& ends) : scores_(scores), at_(at), ends_(ends) {}

  void OnToken(const ServedToken& token) override {
    if (token.score == nullptr || at_ == scores_.positions.size()) return;
    scores_.positions[at_++].top.assign(token.score->top.begin(), token.score->top.end());
    if (at_ < scores_.positions.size()) scores_.positions[at_].logprob = token.score->logprob;
    scores_.logits_hash = token.logits_hash;
  }
  void OnEnd(const RequestEnd& end) override {
    end_ = end.status;
    hash_state_ = end.hash_state;
    ends_.Count();
  }
  // Behind the sequence; empty: no device has sent it.
  const std::string& hash_state() const { return hash_state_; }
  absl::Status status() const {
    if (!end_.ok()) return end_;
    return at_ == scores_.positions.size() ? absl::OkStatus() : absl::InternalError("the devices left out logits that were asked for");
  }

 private:
  Scores& scores_;
  size_t at_;
  RequestEnds& ends_;
  absl::Status end_;
  std::string hash_state_;
};

class Companion final : public RequestSink {
 public:
  explicit Companion(RequestEnds& ends) : ends_(ends) {}
  void OnToken(const ServedToken&) override {}
  void OnEnd(const RequestEnd&) override { ends_.Count(); }

 private:
  RequestEnds& ends_;
};

// Appends a position for each id of `window`. `hash_state`: with which the hash begins, then the one
// behind the window.
absl::Status ScoreWindow(Serving& serving, const std::vector<int32_t>& window, const ScoreOptions& options, std::string& hash_state,
                         Scores& scores) {
  RequestEnds ends(1 + std::ssize(options.companions));
  const auto scored = std::make_shared<ScoredSequence>(scores, scores.positions.size(), ends);
  for (const int32_t id : window) scores.positions.push_back({.id = id, .logprob = std::nullopt, .top = {}});
  std::vector<Submission> together;
  together.push_back(
      {{.prompt = window,
        .sampling = {.hash_logits = true, .hash_state = std::move(hash_state), .score_top = static_cast<int32_t>(options.top)}},
       scored});
  for (const std::vector<int32_t>& companion : options.companions)
    together.push_back({{.prompt = companion, .max_new_tokens = 1}, std::make_shared<Companion>(ends)});
  LIME_RETURN_IF_ERROR(serving.SubmitTogether(std::move(together)).status());
  if (ends.Wait(options.cancel)) {
    hash_state = scored->hash_state();
    return scored->status();
  }
  (void)serving.Drain(absl::InfinitePast());
  return absl::CancelledError("interrupted");
}

}  // namespace

std::optional<double> PerplexityOf(const std::vector<ScoredPosition>& positions) {
  double sum = 0;
  int64_t count = 0;
  for (const ScoredPosition& position : positions) {
    if (!position.logprob) continue;
    sum -= *position.logprob;
    ++count;
  }
  if (count == 0) return std::nullopt;
  return std::exp(sum / static_cast<double>(count));
}

absl::StatusOr<Scores> ScoreWindows(Serving& serving, const std::vector<std::vector<int32_t>>& windows, const ScoreOptions& options) {
  Scores scores;
  std::string hash_state;
  bool continues = true;  // the hash of the newest window, from those before it
  for (size_t i = 0; i < windows.size(); ++i) {
    if (i > 0 && hash_state.empty()) continues = false;
    LIME_RETURN_IF_ERROR(ScoreWindow(serving, windows[i], options, hash_state, scores));
  }
  if (!continues) scores.logits_hash.reset();
  return scores;
}

}  // namespace lime::cli
