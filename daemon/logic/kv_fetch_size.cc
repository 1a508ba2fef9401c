#include "daemon/logic/kv_fetch_size.h"

#include <algorithm>
#include <vector>

#include "planner/base/check.h"
#include "planner/kv_transfer.h"
#include "planner/plan/plan.h"

namespace lime {
namespace {

constexpr size_t kNewest = 3, kKept = 9;  // pieces, steps: what is slower among the newest, or among all, counts
constexpr double kShare = 0.9;            // of the time between two uses: pieces do not come evenly

void Keep(double value, std::deque<double>& values) {
  values.push_back(value);
  if (values.size() > kKept) values.pop_front();
}

double Median(std::deque<double>::const_iterator begin, std::deque<double>::const_iterator end) {
  std::vector<double> sorted(begin, end);
  std::ranges::nth_element(sorted, sorted.begin() + std::ssize(sorted) / 2);
  return sorted[sorted.size() / 2];
}

}  // namespace

KvFetchSize::KvFetchSize(int64_t layers, Bytes piece_bytes) : layers_(layers), piece_bytes_(piece_bytes) {
  LIME_CHECK(layers > 0 && piece_bytes > 0);
}

void KvFetchSize::Arrived(double now_ms) {
  Keep(std::max(1e-3, now_ms - since_ms_), took_ms_);
  since_ms_ = now_ms;
}

// Once a step: one layer makes those behind it late, too.
void KvFetchSize::Late() {
  if (!late_ && now_ > stay_) now_ = partly_ ? now_ - 1 : stay_;
  late_ = true;
}

std::optional<double> KvFetchSize::rate() const {
  if (took_ms_.empty()) return std::nullopt;
  const auto newest = took_ms_.end() - static_cast<std::ptrdiff_t>(std::min(kNewest, took_ms_.size()));
  return static_cast<double>(piece_bytes_) / std::max(Median(newest, took_ms_.end()), Median(took_ms_.begin(), took_ms_.end()));
}

// Eq. 8 for the tokens of all layers one after another, between a use of each and the next; as whole layers.
int64_t KvFetchSize::MostLayers(int64_t pieces) const {
  const std::optional<double> per_ms = rate();
  if (!per_ms || steps_ms_.empty()) return 0;
  const double token_mb = static_cast<double>(piece_bytes_) / static_cast<double>(kKvPiece) / 1e6;
  const int64_t tokens = pieces * kKvPiece;
  const int64_t comes_back = TokensToLend({.period_ms = kShare * Median(steps_ms_.begin(), steps_ms_.end()),
                                           .activation_busy_ms = 0,  // the rate is what they leave
                                           .bw_mb_per_ms = *per_ms / 1e6,
                                           .kv_visit_mb = token_mb,
                                           .target_free_mb = static_cast<double>(tokens * layers_) * token_mb,
                                           .kv_tok_mb = token_mb,
                                           .n = tokens * layers_});
  return std::min(comes_back / tokens, layers_);
}

int64_t KvFetchSize::StepEnded(double now_ms, const Step& step) {
  if (step_ended_ms_) Keep(now_ms - *step_ended_ms_, steps_ms_);
  step_ended_ms_ = now_ms;
  if (step.pieces == 0) return 0;
  stay_ = std::min(step.stay, layers_), partly_ = step.long_answers;
  const int64_t in_time = MostLayers(step.pieces), most = std::max(stay_, partly_ || in_time == layers_ ? in_time : 0);
  now_ = std::clamp(now_, stay_, most);
  steady_ = most > now_ && !late_ ? steady_ + 1 : 0;
  late_ = false;
  if (steady_ >= kSteadySteps) now_ = partly_ ? std::min(most, std::max(now_ + 1, now_ * 2)) : most, steady_ = 0;
  return now_;
}

}  // namespace lime
