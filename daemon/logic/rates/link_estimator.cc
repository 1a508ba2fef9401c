#include "daemon/logic/rates/link_estimator.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/activation.h"

namespace lime {
namespace {

// A message that waited less than this for the one before may have found the link idle.
constexpr int64_t kQueueUs = 300;
// The link may be idle for this time until the sender knows that it can send the next message.
constexpr int64_t kHandOverUs = 500;
constexpr int64_t kDriftPerUs = 10'000;        // 100 ppm
constexpr int64_t kWindowUs = 20'000;          // for traffic other than probes
constexpr int64_t kLongestWindowUs = 100'000;  // then a window ends without a rate
constexpr size_t kMostPoints = 512;            // of a window
constexpr size_t kRecent = 3;
constexpr double kAgree = 0.08;
// Tails that are believed at once: for any change, for a clear one.
constexpr int64_t kLongUs = 40'000, kClearUs = 20'000;
// Longer than tails of probes; so far apart, two rates do not meet the same train of others.
constexpr int64_t kLongerThanTrainsUs = 200'000, kApartUs = 100'000;
// Trains of others divide the rate of a path by more than this seldom, or never.
constexpr double kMostShares = 3.5, kFarMoreShares = 7;
// Factors of a change.
constexpr double kSeen = 1.2, kClear = 1.5;
// Pauses between trains of probes.
constexpr int64_t kSettledUs = 700'000, kUnsettledUs = 250'000, kInterruptedUs = 50'000;
// The least pause, as a multiple of the time of the train before.
constexpr int64_t kTimesItsAir = 23;
constexpr int64_t kSavedUs = 2'000'000;
constexpr int64_t kMostSpreadUs = 150'000, kMostFirstUs = 300'000, kLeastConfirmUs = 100'000, kMostConfirmUs = 350'000;
constexpr double kMostAirUs = 400'000, kLeastRate = 1e6;  // bounds of what counts
// For traffic under way, which may give a rate.
constexpr int64_t kGraceUs = 200'000;
constexpr int64_t kProbingPatienceUs = 150'000;
// Probes under way, as time at the current rate.
constexpr int64_t kWindowAheadUs = 10'000, kFirstAheadUs = 1'500, kSlowAheadUs = 10'000;
// How long a train takes until it gives a rate; how much of that is under way at its end.
constexpr int64_t kTypicalUs = 14'000, kLastAheadUs = 3'000;
constexpr int64_t kLatelyUs = 3'000;
constexpr double kFastPerUs = 40;  // bytes; faster links get large probes
constexpr int kMostFailures = 6;   // in a row, before smaller trains are tried
constexpr Bytes kSmallTrainBytes = 512 * kKiB;
constexpr double kAtLeast = 1.15;  // times the estimate
constexpr Bytes kUnknownWindow = 32 * kKiB, kSlowWindow = 128 * kKiB, kMostFirstWindow = 192 * kKiB;

bool Agree(double a, double b) {
  return std::abs(a - b) <= kAgree * b;
}

double Middle(std::vector<double> rates) {
  std::ranges::sort(rates);
  return (rates[(rates.size() - 1) / 2] + rates[rates.size() / 2]) / 2;
}

}  // namespace

void LinkEstimator::OnSent(const Outgoing& message, int64_t now_us) {
  const Behind behind = !message.back_to_back ? Behind::kUnknown : under_way_.empty() ? Behind::kArrived : Behind::kUnderWay;
  under_way_.push_back({message, now_us, behind});
  (message.probe ? probes_under_way_ : others_under_way_) += message.bytes;
  if (message.probe) probed_ += message.bytes;
}

bool LinkEstimator::OnArrived(int64_t arrived_us, int64_t now_us) {
  if (under_way_.empty() || (any_arrived_ && arrived_us < last_arrived_us_)) return false;
  const auto [message, sent_us, behind] = under_way_.front();
  under_way_.pop_front();
  (message.probe ? probes_under_way_ : others_under_way_) -= message.bytes;

  const int64_t drift_us = any_arrived_ ? (arrived_us - least_delay_at_us_) / kDriftPerUs : 0;
  const int64_t delay_us = arrived_us - sent_us;
  const int64_t least_us = least_delay_us_ + drift_us;
  const int64_t waited_us = last_arrived_us_ - (sent_us + least_us);  // for the message before
  const bool follows = any_arrived_ && (behind == Behind::kUnderWay || waited_us >= (behind == Behind::kArrived ? -kHandOverUs : kQueueUs));
  if (!any_arrived_ || delay_us < least_us) least_delay_us_ = delay_us, least_delay_at_us_ = arrived_us;
  last_arrived_us_ = arrived_us, any_arrived_ = true;

  if (follows)
    Follow(message, arrived_us);
  else
    Break(message, arrived_us);
  train_.heard_us = now_us;
  if (probing_) {
    if (arrived_probing_ == 0) first_arrived_us_ = arrived_us;
    if (message.probe) round_trip_us_ = std::min(now_us - sent_us, arrived_probing_ == 0 ? kProbingPatienceUs : round_trip_us_);
    arrived_probing_ += message.bytes;
  }
  Measure(now_us);
  return true;
}

void LinkEstimator::Follow(const Outgoing& message, int64_t arrived_us) {
  train_.bytes += message.between + message.bytes;
  train_.points.push_back({train_.bytes, arrived_us});
}

// The message begins a new train. The last window of the old train may still give a rate.
void LinkEstimator::Break(const Outgoing& message, int64_t arrived_us) {
  if (!probing_) {
    if (const auto fit = FitTrain(train_.points, train_.drained)) OnRate(*fit, train_.heard_us);
  }
  train_ = {.bytes = message.bytes, .drained = message.bytes >= kMostBucketBytes};
  train_.points.push_back({train_.bytes, arrived_us});
}

void LinkEstimator::BeginWindow(int64_t arrived_us) {
  train_.drained = train_.drained || train_.bytes >= kMostBucketBytes || WindowUs() >= kLongestWindowUs;
  train_.points.clear();
  train_.points.push_back({train_.bytes, arrived_us});
}

void LinkEstimator::Measure(int64_t now_us) {
  const bool over = probing_ && ProbingIsOver(now_us);
  const int64_t arrived_us = train_.points.back().arrived_us;
  if (!over && WindowUs() < (probing_ ? kLeastTailUs : kWindowUs) && train_.points.size() < kMostPoints) return;
  const std::optional<TrainFit> fit = FitTrain(train_.points, train_.drained);
  const bool measured = fit && ((probing_ ? fit->GoodOfSmall() : fit->Good()) || over);
  if (measured) OnRate(*fit, now_us);
  if (probing_ && (measured || over)) EndProbing(measured, now_us);
  const bool long_enough = WindowUs() >= kLongestWindowUs && !probing_;
  if (measured || long_enough || train_.points.size() >= kMostPoints) BeginWindow(arrived_us);
}

// A lower rate may be what other devices' trains on the same path leave. It is a change if it is
// measured again after those, or if it is less than they would leave.
bool LinkEstimator::IsChange(const TrainFit& fit, int64_t now_us) const {
  const double rate = fit.bytes_per_second, now = estimate_->bytes_per_second;
  const int64_t tail_us = fit.tail_us + (candidate_ && Agree(rate, *candidate_) ? candidate_tail_us_ : 0);
  const double times = rate / now;
  const bool again = tail_us > fit.tail_us, sharing_explains = times * kMostShares > 1;
  if (again && (rate > now || now_us - candidate_at_us_ >= kApartUs || !sharing_explains)) return true;
  if (at_least_ && rate > now) return true;
  if (tail_us >= (sharing_explains ? kLongerThanTrainsUs : kLongUs) && times * kSeen <= 1) return true;
  if (times * kFarMoreShares <= 1) return true;
  return (fit.tail_us >= kLongUs && times >= kSeen) || (fit.tail_us >= kClearUs && times >= kClear);
}

// Whether the rate is now the estimate, or part of it.
bool LinkEstimator::OnRate(const TrainFit& fit, int64_t now_us) {
  double rate = fit.bytes_per_second;
  NoteSlower(rate, now_us);
  if (!estimate_ || !Agree(rate, estimate_->bytes_per_second)) {
    const bool scatters = slower_.size() >= kRecent;
    if (estimate_ && !scatters && !IsChange(fit, now_us)) {
      const bool remains = candidate_ && now_us - candidate_at_us_ < kApartUs && fit.tail_us < candidate_tail_us_;
      if (remains && !Agree(rate, *candidate_)) return false;  // of the same train, but shorter
      if (!candidate_ || !Agree(rate, *candidate_)) candidate_at_us_ = now_us, candidate_tail_us_ = 0;
      candidate_ = rate, candidate_tail_us_ += fit.tail_us;
      next_probe_us_ = std::max(paid_until_us_, std::min(next_probe_us_, now_us + Spread(kUnsettledUs)));
      return false;
    }
    recent_.clear();
    if (candidate_ && Agree(rate, *candidate_)) recent_.push_back(*candidate_);
    if (scatters) rate = Middle(slower_);
  }
  candidate_.reset();
  slower_.clear();
  at_least_ = false;
  recent_.push_back(rate);
  if (recent_.size() > kRecent) recent_.erase(recent_.begin());
  estimate_ = {.bytes_per_second = Middle(recent_), .at_us = now_us};
  failures_ = 0;
  if (!probing_) next_probe_us_ = std::max(next_probe_us_, now_us + Spread(recent_.size() > 1 ? kSettledUs : kUnsettledUs));
  return true;
}

void LinkEstimator::NoteSlower(double rate, int64_t now_us) {
  if (!estimate_ || rate * kSeen > estimate_->bytes_per_second) {
    slower_.clear();
  } else if (slower_.empty() || now_us - slower_at_us_ >= kApartUs) {
    slower_.push_back(rate);
    slower_at_us_ = now_us;
  }
}

bool LinkEstimator::IsFreeFor(Bytes bytes) const {
  if (under_way_.empty()) return true;
  return estimate_ && static_cast<double>(bytes_under_way() + bytes) * 1e6 <= estimate_->bytes_per_second * kMostDelayUs;
}

// ---- Probes

// Bytes of probes under way at a time. Grows with the bytes that have arrived, so that neither a
// bucket nor a fast link ends the train. At most a few milliseconds at the rate of the arrivals.
Bytes LinkEstimator::Window() const {
  const int64_t elapsed_us = last_arrived_us_ - first_arrived_us_;
  Bytes first = kUnknownWindow;
  if (estimate_) {
    const double per_us = estimate_->bytes_per_second / 1e6;
    const double few = std::min<double>(per_us * kSlowAheadUs, kSlowWindow);
    first = std::clamp(static_cast<Bytes>(std::max(per_us * kFirstAheadUs, few)), kLeastWindow, kMostFirstWindow);
  }
  first = std::min(first << std::min(failures_, 1), kMostWindow);
  const bool far = 2 * round_trip_us_ > kWindowAheadUs;
  const double ahead_us = static_cast<double>(far ? 2 * round_trip_us_ : kWindowAheadUs);
  Bytes window = first + (far ? 2 * arrived_probing_ : arrived_probing_ / 2);
  if (arrived_probing_ >= kUnknownWindow && elapsed_us > 0)
    window = std::min(window, static_cast<Bytes>(static_cast<double>(arrived_probing_) * ahead_us / static_cast<double>(elapsed_us)));
  if (const double per_us = LatelyPerUs(); per_us > 0) window = std::min(window, static_cast<Bytes>(per_us * ahead_us));
  return std::clamp(window, first, far ? kMostFarWindow : kMostWindow);
}

bool LinkEstimator::ProbingIsOver(int64_t now_us) const {
  if (now_us - probing_since_us_ >= kProbingPatienceUs) return true;
  if (arrived_probing_ >= kSlowWindow && last_arrived_us_ - first_arrived_us_ >= kMostTrainUs + 2 * round_trip_us_) return true;
  return probed_ + kProbeBytes > MostBytes() && probes_under_way_ == 0;
}

// A link that is faster than this device can keep busy gets smaller trains.
Bytes LinkEstimator::MostBytes() const {
  return failures_ < kMostFailures || failures_ % kMostFailures == 0 ? kMostTrainBytes : kSmallTrainBytes;
}

// A train that never queued for long still went through. Without the bytes that a bucket may have
// let through, it gives a lower bound. By our clock: a receiver that looks late sees all at once.
void LinkEstimator::NoteAtLeast(int64_t now_us) {
  const int64_t elapsed_us = now_us - probing_since_us_;
  const Bytes behind = arrived_probing_ - kMostBucketBytes;
  if (elapsed_us <= 0 || behind <= 0) return;
  const double rate = static_cast<double>(behind) / static_cast<double>(elapsed_us) * 1e6;
  if (estimate_ && rate < kAtLeast * estimate_->bytes_per_second) return;
  if (candidate_ && rate < *candidate_) return;  // a better rate is known, and soon certain
  const int failures = failures_;
  at_least_ = OnRate({.bytes_per_second = rate, .tail_us = kLongUs}, now_us) || at_least_;
  failures_ = failures;
}

Bytes LinkEstimator::WantsProbe(int64_t now_us) {
  if (!std::exchange(begun_, true)) next_probe_us_ = std::max(next_probe_us_, now_us + Random(kMostFirstUs));
  if (!probing_) {
    if (now_us < next_probe_us_ + (under_way_.empty() ? 0 : kGraceUs)) return 0;
    if (others_under_way_ > kMostWindow) return 0;
    BeginProbing(now_us);
  } else if (ProbingIsOver(now_us)) {
    EndProbing(false, now_us);
    return 0;
  }
  if (others_under_way_ > kMostWindow) return 0;
  if (HasEnoughProbes()) return 0;
  const Bytes room = std::min(Window() - probes_under_way_, MostBytes() - probed_);
  const double elapsed_us = static_cast<double>(last_arrived_us_ - first_arrived_us_);
  const bool fast = arrived_probing_ >= kMostBucketBytes && static_cast<double>(arrived_probing_) >= kFastPerUs * elapsed_us;
  return fast && room >= 2 * kLargeProbeBytes ? kLargeProbeBytes : room >= kProbeBytes ? kProbeBytes : 0;
}

void LinkEstimator::BeginProbing(int64_t now_us) {
  probing_ = true;
  probing_since_us_ = now_us;
  probed_ = arrived_probing_ = 0;
}

// Bytes per microsecond of the train's last arrivals; 0 if these are too few.
double LinkEstimator::LatelyPerUs() const {
  if (train_.points.empty()) return 0;
  const TrainPoint& last = train_.points.back();
  for (auto point = train_.points.rbegin(); point != train_.points.rend(); ++point) {
    const int64_t us = last.arrived_us - point->arrived_us;
    if (us >= kLatelyUs) return static_cast<double>(last.bytes - point->bytes) / static_cast<double>(us);
  }
  return 0;
}

// Whether the probes under way are likely to be enough. More would only keep the link busy.
bool LinkEstimator::HasEnoughProbes() const {
  const int64_t elapsed_us = last_arrived_us_ - first_arrived_us_;
  if (arrived_probing_ == 0 || elapsed_us >= kTypicalUs) return false;
  const double per_us = LatelyPerUs(), ahead_us = per_us > 0 ? static_cast<double>(probes_under_way_) / per_us : 0;
  return ahead_us > kLastAheadUs && static_cast<double>(elapsed_us) + ahead_us >= kTypicalUs;
}

// How long the train keeps the link busy, including its part still under way. By the receiver's
// clock, within bounds from our clock and the estimate: a receiver that did not look for a while is
// no sign of a busy link.
int64_t LinkEstimator::AirUs(int64_t now_us) const {
  const int64_t elapsed_us = arrived_probing_ > 0 ? last_arrived_us_ - first_arrived_us_ : now_us - probing_since_us_;
  const double share = static_cast<double>(probed_) / static_cast<double>(std::max<Bytes>(arrived_probing_, 1));
  const double known = 2e6 * static_cast<double>(probed_) / (estimate_ ? estimate_->bytes_per_second : kLeastRate);
  const double least = static_cast<double>(now_us - probing_since_us_) / 4;
  return static_cast<int64_t>(std::min(std::max(share * static_cast<double>(elapsed_us), least), std::min(known, kMostAirUs)));
}

void LinkEstimator::EndProbing(bool measured, int64_t now_us) {
  probing_ = false;
  if (!measured) NoteAtLeast(now_us);
  if (measured) failures_ = 0;
  const bool settled = measured && recent_.size() > 1 && !candidate_;
  const int64_t air_us = AirUs(now_us);
  const bool interrupted = !measured && others_under_way_ > kMostWindow;
  const int64_t pause_us = interrupted ? kInterruptedUs : settled ? kSettledUs : failures_ < kMostFailures ? kUnsettledUs : kSettledUs;
  if (!measured && !interrupted) ++failures_;
  paid_until_us_ = std::max(paid_until_us_, now_us - kSavedUs) + kTimesItsAir * air_us;
  const bool confirms = measured && (recent_.size() == 1 || candidate_) && !unpaid_;
  unpaid_ = confirms;
  next_probe_us_ = now_us + (confirms ? kLeastConfirmUs + Random(kMostConfirmUs - kLeastConfirmUs)
                                      : Spread(std::max(pause_us, paid_until_us_ - now_us)));
}

// Longer or shorter at random: by a third, or by kMostSpreadUs, more than a train takes.
int64_t LinkEstimator::Spread(int64_t us) {
  const int64_t most_us = std::min(us / 3, kMostSpreadUs);
  return us - most_us + Random(2 * most_us);
}

int64_t LinkEstimator::Random(int64_t most) {
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;  // Knuth's
  return static_cast<int64_t>((random_ >> 33) % static_cast<uint64_t>(most + 1));
}

}  // namespace lime
