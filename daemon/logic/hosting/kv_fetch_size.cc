#include "daemon/logic/hosting/kv_fetch_size.h"

#include <algorithm>

#include "planner/base/check.h"
#include "planner/kv/hosting/kv_transfer.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/plan.h"

namespace lime {
namespace {

// Pieces; the slower of their median and the median of all counts.
constexpr int64_t kNewest = 3;
constexpr double kStillLong = 0.75;  // times kLongAnswerMs
constexpr double kShare = 0.9;       // of the time between two uses: pieces come unevenly

}  // namespace

double KvFetchSize::Recent::Median(int64_t most) const {
  std::array<double, kSamples> sorted;
  const int64_t count = std::min({most, count_, kSamples});
  for (int64_t i = 0; i < count; ++i) sorted[static_cast<size_t>(i)] = values_[static_cast<size_t>((count_ - 1 - i) % kSamples)];
  std::sort(sorted.begin(), sorted.begin() + count);
  return sorted[static_cast<size_t>(count / 2)];
}

KvFetchSize::KvFetchSize(int64_t layers, Bytes piece_bytes) : layers_(layers), piece_bytes_(piece_bytes) {
  LIME_CHECK(layers > 0 && piece_bytes > 0);
}

void KvFetchSize::Arrived(double now_ms) {
  pieces_ms_.Add(std::max(1e-3, now_ms - since_ms_));
  since_ms_ = now_ms;
}

// Counts once a step: a late layer makes the layers after it late, too.
void KvFetchSize::Late() {
  if (!late_ && now_ > stay_) now_ = partly_ ? now_ - 1 : stay_;
  late_ = true;
}

std::optional<double> KvFetchSize::rate() const {
  if (pieces_ms_.empty()) return std::nullopt;
  return static_cast<double>(piece_bytes_) / std::max(pieces_ms_.Median(kNewest), pieces_ms_.Median());
}

// Eq. 8 for the tokens of all layers in turn, between a layer's use and the next; in whole layers.
int64_t KvFetchSize::MostLayers(int64_t pieces) const {
  const std::optional<double> per_ms = rate();
  if (!per_ms || steps_ms_.empty()) return 0;
  const double token_mb = static_cast<double>(piece_bytes_) / static_cast<double>(kKvPiece) / 1e6;
  const int64_t tokens = pieces * kKvPiece;
  const int64_t comes_back = TokensToLend({.period_ms = kShare * steps_ms_.Median(),
                                           // The rate already leaves them out.
                                           .activation_busy_ms = 0,
                                           .bw_mb_per_ms = *per_ms / 1e6,
                                           .kv_visit_mb = token_mb,
                                           .target_free_mb = static_cast<double>(tokens * layers_) * token_mb,
                                           .kv_tok_mb = token_mb,
                                           .n = tokens * layers_});
  return std::min(comes_back / tokens, layers_);
}

int64_t KvFetchSize::StepEnded(double now_ms, const Step& step) {
  if (step_ended_ms_) steps_ms_.Add(now_ms - *step_ended_ms_);
  step_ended_ms_ = now_ms;
  if (step.pieces == 0) return 0;
  stay_ = std::min(step.stay, layers_);
  partly_ = step.answer_ms >= (partly_ ? kStillLong : 1) * kLongAnswerMs;
  const int64_t in_time = MostLayers(step.pieces), most = std::max(stay_, partly_ || in_time == layers_ ? in_time : 0);
  now_ = std::clamp(now_, stay_, most);
  steady_ = most > now_ && !late_ ? steady_ + 1 : 0;
  late_ = false;
  if (steady_ >= kSteadySteps) now_ = partly_ ? std::min(most, std::max(now_ + 1, now_ * 2)) : most, steady_ = 0;
  return now_;
}

}  // namespace lime
