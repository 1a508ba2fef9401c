#include "coordinator/cluster_view/token_meter.h"

#include <algorithm>

namespace lime {

void TokenMeter::OnToken(absl::Time now, std::optional<absl::Duration> since_last) {
  const int64_t second = absl::ToUnixSeconds(now);
  const absl::MutexLock lock(&mutex_);
  Second& counts = seconds_[static_cast<size_t>(second % kSeconds)];
  if (counts.second != second) counts = {.second = second};
  ++counts.tokens;
  if (!since_last) return;
  ++counts.gaps;
  counts.gaps_ms += absl::ToDoubleMilliseconds(*since_last);
}

// Of a time that begins with the first token: the seconds before say nothing about the rate.
double TokenMeter::TokensPerSecond(absl::Time now) const {
  const int64_t second = absl::ToUnixSeconds(now);
  const absl::MutexLock lock(&mutex_);
  int64_t tokens = 0, first = second;
  for (const Second& counts : seconds_) {
    if (counts.second <= second - kSeconds || counts.second > second) continue;
    tokens += counts.tokens;
    first = std::min(first, counts.second);
  }
  return static_cast<double>(tokens) / std::max(1.0, absl::ToDoubleSeconds(now - absl::FromUnixSeconds(first)));
}

std::optional<double> TokenMeter::MsPerToken() const {
  const absl::MutexLock lock(&mutex_);
  int64_t newest = -1, gaps = 0;
  for (const Second& counts : seconds_) newest = std::max(newest, counts.gaps > 0 ? counts.second : -1);
  double gaps_ms = 0;
  for (const Second& counts : seconds_) {
    if (counts.second > newest - kSeconds && counts.second <= newest) gaps += counts.gaps, gaps_ms += counts.gaps_ms;
  }
  return gaps > 0 ? std::optional<double>(gaps_ms / static_cast<double>(gaps)) : std::nullopt;
}

}  // namespace lime
