// Links in simulated time: a token bucket of any size whose rate changes, receivers that look late,
// senders that are busy. Two seconds after each change the estimate is right, whatever flows; and
// what the probes take of the link and of a token's time is bounded.
#include "daemon/logic/rates/link_estimator.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <queue>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

constexpr double kLineBytesPerUs = 1250;  // 10 Gbit/s
constexpr double kLatencyUs = 100;
constexpr Bytes kPacket = 16 * kKiB;
constexpr double kMostWaitUs = 60'000;  // of an activation for probes, whatever has changed under them

// What is sent goes behind what was sent before, at the line's speed while there are tokens. A
// change of the rate fills the bucket.
class BucketLink {
 public:
  struct Change {
    double at_us = 0, bytes_per_us = 0;
  };
  BucketLink(Bytes bucket, std::vector<Change> changes, double latency_us = kLatencyUs)
      : bucket_(static_cast<double>(bucket)), latency_us_(latency_us), changes_(std::move(changes)), tokens_(bucket_) {}

  // When the last byte is at the other end.
  double Carry(double now_us, Bytes bytes) {
    Advance(std::max(now_us, free_us_));
    for (Bytes remaining = bytes; remaining > 0; remaining -= kPacket) CarryPacket(static_cast<double>(std::min(remaining, kPacket)));
    return free_us_ + latency_us_;
  }
  double free_us() const { return free_us_; }
  // When no more than `bytes` of all that was given were not at the other end yet, and the sender
  // knew.
  double CarriedAllBut(Bytes bytes) {
    while (carried_.size() > 1 && carried_[1].bytes <= carried_.back().bytes - bytes) carried_.pop_front();
    return carried_.empty() || carried_.front().bytes > carried_.back().bytes - bytes ? 0 : carried_.front().at_us + 2 * latency_us_;
  }
  double RateAt(double now_us) const {
    double rate = changes_.front().bytes_per_us;
    for (const Change& change : changes_) rate = change.at_us <= now_us ? change.bytes_per_us : rate;
    return rate;
  }

 private:
  void Advance(double to_us) {
    tokens_ = std::min(bucket_, tokens_ + changes_[next_ - 1].bytes_per_us * (to_us - free_us_));
    free_us_ = to_us;
    while (next_ < changes_.size() && changes_[next_].at_us <= free_us_) tokens_ = bucket_, ++next_;
  }
  void CarryPacket(double bytes) {
    const double needed_us = std::max(bytes / kLineBytesPerUs, (bytes - tokens_) / changes_[next_ - 1].bytes_per_us);
    tokens_ -= bytes;
    tokens_ = std::min(bucket_, tokens_ + changes_[next_ - 1].bytes_per_us * needed_us);
    free_us_ += needed_us;
    while (next_ < changes_.size() && changes_[next_].at_us <= free_us_) tokens_ = bucket_, ++next_;
    carried_.push_back({(carried_.empty() ? 0 : carried_.back().bytes) + static_cast<Bytes>(bytes), free_us_});
  }

  struct Carried {
    Bytes bytes = 0;  // in all
    double at_us = 0;
  };
  const double bucket_, latency_us_;
  const std::vector<Change> changes_;
  size_t next_ = 1;
  double tokens_, free_us_ = 0;
  std::deque<Carried> carried_;
};

// When somebody looks: a little late each time, and now and then not for milliseconds.
class Observer {
 public:
  Observer(uint64_t seed, double jitter_us, double stalls_per_s) : random_(seed), jitter_us_(jitter_us), stalls_per_s_(stalls_per_s) {}

  double See(double at_us) {
    while (next_stall_us_ < at_us) {
      stalled_until_us_ = next_stall_us_ + Draw(1'000, 6'000);
      next_stall_us_ += std::exponential_distribution<double>(stalls_per_s_ / 1e6)(random_);
    }
    const double seen_us = at_us + std::exponential_distribution<double>(1 / jitter_us_)(random_);
    last_us_ = std::max({last_us_, seen_us, at_us < stalled_until_us_ ? stalled_until_us_ : 0});
    return last_us_;
  }
  double Draw(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_); }

 private:
  std::mt19937_64 random_;
  const double jitter_us_, stalls_per_s_;
  double next_stall_us_ = 0, stalled_until_us_ = 0, last_us_ = 0;
};

enum class Pattern { kNothing, kDecode, kPrefill, kBulk, kAny };

struct Outcome {
  std::string wrong;  // the first estimate that was
  int64_t looks = 0, misses = 0;
  double probe_share = 0;      // of the link's time
  double longest_wait_us = 0;  // of an activation for probes
};

// One sender, its link and its receiver.
class World {
 public:
  struct Setting {
    Pattern pattern = Pattern::kNothing;
    Bytes bucket = 0;
    std::vector<double> mbit = {50, 100, 200, 1000};
    double settled_us = 2e6;                     // after a change
    double latency_us = kLatencyUs;              // one way
    double shortest_us = 4e6, longest_us = 8e6;  // between changes
  };
  World(uint64_t seed, const Setting& setting, double seconds)
      : random_(seed * 977 + static_cast<uint64_t>(setting.pattern) * 31 + static_cast<uint64_t>(setting.bucket)),
        setting_(setting),
        end_us_(seconds * 1e6),
        changes_(Changes()),
        link_(setting.bucket, changes_, setting.latency_us),
        receiver_(random_(), Draw(50, 300), Draw(0.2, 6)),
        back_(random_(), Draw(50, 300), Draw(0.2, 3)),
        sender_(random_(), Draw(5, 40), Draw(0.2, 3)),
        clock_us_(Draw(0, 1e12)),
        send_buffer_(static_cast<Bytes>(48 << (random_() % 4)) * kKiB + static_cast<Bytes>((setting.latency_us - kLatencyUs) * 2 * 25)),
        estimator_(seed) {}

  Outcome Run() {
    Schedule(0, Kind::kMessages), Schedule(0, Kind::kAsk), Schedule(0, Kind::kLook);
    while (!events_.empty() && events_.top().at_us < end_us_) {
      const Event event = events_.top();
      events_.pop();
      now_us_ = event.at_us;
      On(event.kind);
    }
    outcome_.probe_share = probe_us_ / end_us_;
    return outcome_;
  }

 private:
  enum class Kind {
    kMessages,  // the pattern's next come
    kWritten,   // the sender may write again
    kArrived,   // the oldest acknowledgement has come back
    kAsk,       // the alarm
    kLook,      // is the estimate right?
  };
  struct Event {
    double at_us = 0;
    int64_t number = 0;
    Kind kind = Kind::kLook;
    bool operator<(const Event& other) const { return std::pair(at_us, number) > std::pair(other.at_us, other.number); }
  };

  double Draw(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_); }
  std::vector<BucketLink::Change> Changes() {
    std::vector<BucketLink::Change> changes;
    double at_us = 0;
    const size_t count = setting_.mbit.size();
    size_t last = count;
    while (at_us < end_us_) {
      size_t next = random_() % count;
      if (next == last) next = (next + 1) % count;
      changes.push_back({at_us, setting_.mbit[next] / 8});
      last = next;
      at_us += Draw(setting_.shortest_us, setting_.longest_us);
    }
    return changes;
  }
  void Schedule(double at_us, Kind kind) { events_.push({at_us, number_++, kind}); }

  void On(Kind kind) {
    switch (kind) {
      case Kind::kMessages:
        AddMessages();
        break;
      case Kind::kWritten:
        writing_ = false;
        break;
      case Kind::kArrived:
        ASSERT_TRUE(estimator_.OnArrived(static_cast<int64_t>(clock_us_ + acks_.front()), Now()));
        acks_.pop_front();
        if (IsBulk() && waiting_.size() < 2 && acks_.size() < 4) waiting_.push_back(64 * kKiB);
        break;
      case Kind::kAsk:
        Schedule(now_us_ + LinkEstimator::kAskAgainUs, Kind::kAsk);
        break;
      case Kind::kLook:
        Look();
        Schedule(now_us_ + 10'000, Kind::kLook);
        return;
    }
    MayWrite(/*back_to_back=*/kind == Kind::kWritten);
  }

  Pattern Traffic() const { return setting_.pattern != Pattern::kAny ? setting_.pattern : mixed_; }
  bool IsBulk() const { return Traffic() == Pattern::kBulk && now_us_ < bulk_until_us_; }

  void AddMessages() {
    if (setting_.pattern == Pattern::kAny) mixed_ = static_cast<Pattern>(random_() % 4);
    switch (Traffic()) {
      case Pattern::kNothing:
        return Schedule(now_us_ + Draw(1e4, 2e6), Kind::kMessages);
      case Pattern::kDecode:
        Wait(16 * kKiB);
        if (gap_us_ == 0 || random_() % 100 == 0) gap_us_ = std::exp(Draw(std::log(3e4), std::log(1.5e6)));
        return Schedule(now_us_ + gap_us_ * Draw(0.9, 1.1), Kind::kMessages);
      case Pattern::kPrefill:
        for (uint64_t chunks = 1 + random_() % 3; chunks > 0; --chunks) Wait(static_cast<Bytes>(Draw(512, 4096)) * kKiB);
        return Schedule(now_us_ + Draw(1e5, 2e6), Kind::kMessages);
      case Pattern::kBulk:
        bulk_until_us_ = now_us_ + Draw(1e4, 3e6);
        for (int i = 0; i < 4; ++i) waiting_.push_back(64 * kKiB);
        return Schedule(bulk_until_us_ + Draw(0, 1e6), Kind::kMessages);
      case Pattern::kAny:
        return;
    }
  }
  // What the device cannot compute before the last has gone is not there.
  void Wait(Bytes bytes) {
    if (waiting_.size() >= 3) return;
    waiting_.push_back(bytes);
    outcome_.longest_wait_us = std::max(outcome_.longest_wait_us, last_probe_us_ - std::max(now_us_, last_activation_us_));
  }

  void MayWrite(bool back_to_back) {
    if (writing_) return;
    const bool probe = waiting_.empty();
    const Bytes bytes = probe ? estimator_.WantsProbe(Now()) : waiting_.front();
    if (bytes == 0) return;
    if (!probe) waiting_.pop_front();
    next_.back_to_back = next_.back_to_back && back_to_back;
    const bool answered = probe || bytes >= 64 * kKiB || random_() % 2 == 0;
    const double begin_us = std::max(now_us_, link_.free_us()), there_us = link_.Carry(now_us_, bytes);
    (probe ? last_probe_us_ : last_activation_us_) = link_.free_us();
    if (probe) probe_us_ += link_.free_us() - begin_us;
    if (answered) {
      next_.bytes = bytes, next_.probe = probe;
      estimator_.OnSent(std::exchange(next_, {.back_to_back = true}), Now());
      acks_.push_back(receiver_.See(there_us));
      Schedule(back_.See(acks_.back() + setting_.latency_us), Kind::kArrived);
    } else {
      next_.between += bytes;
    }
    writing_ = true;
    const double carried_us = link_.CarriedAllBut(send_buffer_);
    Schedule(sender_.See(std::max(now_us_ + static_cast<double>(bytes) / 4000, carried_us)), Kind::kWritten);
  }

  void Look() {
    double since_us = 0;
    for (const BucketLink::Change& change : changes_) since_us = change.at_us <= now_us_ ? change.at_us : since_us;
    if (now_us_ - since_us < setting_.settled_us) return;
    ++outcome_.looks;
    const double rate = link_.RateAt(now_us_) * 1e6;
    const auto estimate = estimator_.estimate();
    if (estimate && std::abs(estimate->bytes_per_second / rate - 1) <= 0.1) return;
    if (outcome_.misses++ > 0) return;
    outcome_.wrong = absl::StrCat("at ", now_us_ / 1e6, " s, ", (now_us_ - since_us) / 1e6, " s after the change to ", rate * 8 / 1e6,
                                  " Mbit/s: ", estimate ? estimate->bytes_per_second * 8 / 1e6 : 0);
  }
  int64_t Now() const { return static_cast<int64_t>(now_us_); }

  std::mt19937_64 random_;
  const Setting setting_;
  const double end_us_;
  const std::vector<BucketLink::Change> changes_;
  BucketLink link_;
  Observer receiver_, back_, sender_;
  const double clock_us_;
  const Bytes send_buffer_;  // the connection has taken a message once no more than that of it has not arrived
  LinkEstimator estimator_;
  LinkEstimator::Outgoing next_;  // the next message that is answered

  std::priority_queue<Event> events_;
  int64_t number_ = 0;
  double now_us_ = 0;
  std::deque<Bytes> waiting_;
  std::deque<double> acks_;  // arrivals
  bool writing_ = false;
  Pattern mixed_ = Pattern::kNothing;
  double gap_us_ = 0, bulk_until_us_ = 0;
  double last_probe_us_ = 0, last_activation_us_ = 0, probe_us_ = 0;
  Outcome outcome_;
};

class LinkTrafficTest : public ::testing::TestWithParam<Pattern> {};

TEST_P(LinkTrafficTest, IsRightTwoSecondsAfterEveryChangeAndItsProbesAreFew) {
  for (uint64_t seed = 0; seed < 240; ++seed) {
    const Bytes bucket = (seed % 3 == 0 ? 0 : seed % 3 == 1 ? 32 : 256) * kKiB;
    const Outcome outcome = World(seed, {.pattern = GetParam(), .bucket = bucket}, 40).Run();
    EXPECT_GT(outcome.looks, 1000);
    EXPECT_EQ(outcome.misses, 0) << "seed " << seed << ", bucket " << bucket << ": " << outcome.wrong;
    EXPECT_LT(outcome.probe_share, 0.05) << "seed " << seed;
    EXPECT_LT(outcome.longest_wait_us, kMostWaitUs) << "seed " << seed;
  }
}

TEST(LinkEstimatorTest, OfASlowLinkItUsesLittleTooAndIsRightLater) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const World::Setting setting{.pattern = seed % 2 == 0 ? Pattern::kNothing : Pattern::kDecode,
                                 .bucket = seed % 3 == 0 ? 32 * kKiB : 0,
                                 .mbit = {6, 12.5, 25},
                                 .settled_us = 6e6,
                                 .shortest_us = 8e6,
                                 .longest_us = 16e6};
    const Outcome outcome = World(seed, setting, 60).Run();
    EXPECT_GT(outcome.looks, 1000);
    EXPECT_EQ(outcome.misses, 0) << "seed " << seed << ": " << outcome.wrong;
    EXPECT_LT(outcome.probe_share, 0.06) << "seed " << seed;
    EXPECT_LT(outcome.longest_wait_us, 2 * kMostWaitUs) << "seed " << seed;
  }
}

// As over Wi-Fi.
TEST(LinkEstimatorTest, WithAnswersAfterMillisecondsItIsRight) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const World::Setting setting{.pattern = seed % 2 == 0 ? Pattern::kNothing : Pattern::kDecode,
                                 .bucket = seed % 3 == 0 ? 32 * kKiB : 0,
                                 .mbit = {50, 100, 200},
                                 .settled_us = 3e6,
                                 .latency_us = seed % 5 < 3 ? 2e3 : 5e3};
    const Outcome outcome = World(seed, setting, 40).Run();
    EXPECT_GT(outcome.looks, 1000);
    EXPECT_EQ(outcome.misses, 0) << "seed " << seed << ", " << setting.latency_us << " us: " << outcome.wrong;
    EXPECT_LT(outcome.probe_share, 0.06) << "seed " << seed;
  }
}

// Chunks go whenever they may: what an activation waits for them.
TEST(LinkEstimatorTest, WhatMayWaitDelaysAnActivationByAMillisecondOrByItself) {
  constexpr Bytes kBytes = 16 * kKiB;
  constexpr int64_t kTickUs = 50, kKnownUs = 2'000'000, kEndUs = 20'000'000;
  for (const double mbit : {5.0, 50.0, 200.0, 1000.0}) {
    for (const Bytes bucket : {Bytes{0}, 256 * kKiB}) {
      SCOPED_TRACE(absl::StrCat(mbit, " Mbit/s, a bucket of ", bucket));
      const double per_us = mbit / 8, alone_us = static_cast<double>(kBytes) / per_us;
      BucketLink link(bucket, {{0, per_us}});
      LinkEstimator estimator;
      std::deque<double> arrived_us;
      double next_us = 0, longest_us = 0;
      Bytes beside = 0;
      for (int64_t now_us = 0; now_us < kEndUs; now_us += kTickUs) {
        for (; !arrived_us.empty() && arrived_us.front() + kLatencyUs <= static_cast<double>(now_us); arrived_us.pop_front())
          ASSERT_TRUE(estimator.OnArrived(static_cast<int64_t>(arrived_us.front()), now_us));
        const bool activation = static_cast<double>(now_us) >= next_us;
        if (!activation && !estimator.IsFreeFor(kBytes)) continue;
        if (activation) {
          if (now_us > kKnownUs) longest_us = std::max(longest_us, link.free_us() - static_cast<double>(now_us));
          next_us = static_cast<double>(now_us) + 5 * alone_us + 3'000;
        } else {
          beside += kBytes;
        }
        estimator.OnSent({.bytes = kBytes}, now_us);
        arrived_us.push_back(link.Carry(static_cast<double>(now_us), kBytes));
      }
      EXPECT_LT(longest_us, 1.1 * std::max<double>(LinkEstimator::kMostDelayUs, alone_us));
      EXPECT_GT(static_cast<double>(beside), 0.2 * per_us * static_cast<double>(kEndUs)) << "or nothing was in the way";
    }
  }
}

TEST(LinkEstimatorTest, ALinkThatHasFallenToARateThatScattersIsSlower) {
  constexpr int64_t kTickUs = 100, kFallUs = 5'000'000, kEndUs = 20'000'000;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<BucketLink::Change> changes = {{0, 25}};
    for (int64_t at_us = kFallUs; at_us < kEndUs; at_us += 150'000)
      changes.push_back({static_cast<double>(at_us), std::uniform_real_distribution<double>(0.8, 1.2)(random) * 5});
    BucketLink link(0, changes);
    LinkEstimator estimator(seed);
    std::deque<double> arrived_us;
    for (int64_t now_us = 0; now_us < kEndUs; now_us += kTickUs) {
      for (; !arrived_us.empty() && arrived_us.front() + kLatencyUs <= static_cast<double>(now_us); arrived_us.pop_front())
        ASSERT_TRUE(estimator.OnArrived(static_cast<int64_t>(arrived_us.front()), now_us));
      const Bytes bytes = estimator.WantsProbe(now_us);
      if (bytes > 0) {
        estimator.OnSent({.bytes = bytes, .probe = true}, now_us);
        arrived_us.push_back(link.Carry(static_cast<double>(now_us), bytes));
      }
      const auto estimate = estimator.estimate();
      if (now_us > 2'000'000 && now_us < kFallUs) {
        ASSERT_NEAR(estimate->bytes_per_second, 25e6, 2.5e6);
      }
      if (now_us > kFallUs + 5'000'000) {
        ASSERT_LT(estimate->bytes_per_second, 7e6) << "seed " << seed << ", at " << now_us / 1'000'000 << " s";
      }
    }
  }
}

// Senders that begin at the same time and share the way to one receiver: their trains meet, and
// each then sees a part of the rate.
class SharedWay {
 public:
  SharedWay(uint64_t seed, size_t senders, double mbit) : random_(seed), per_us_(mbit / 8), way_(0, {{0, per_us_}}) {
    for (size_t s = 0; s < senders; ++s) senders_.emplace_back(random_());
  }

  // Of the looks at all of them from 6 s on the share that were right.
  double RightShare(int64_t end_us) {
    int64_t looks = 0, right = 0;
    for (int64_t now_us = 0; now_us < end_us; now_us += kTickUs) {
      for (Sender& sender : senders_) Turn(sender, now_us);
      Carry(now_us);
      if (now_us < 6'000'000 || now_us % 10'000 >= kTickUs) continue;
      for (const Sender& sender : senders_) {
        const auto estimate = sender.estimator.estimate();
        ++looks, right += estimate && std::abs(estimate->bytes_per_second / 1e6 / per_us_ - 1) <= 0.1;
      }
    }
    return static_cast<double>(right) / static_cast<double>(looks);
  }

 private:
  static constexpr int64_t kTickUs = 100;
  static constexpr Bytes kFrame = 1500;
  struct Sender {
    explicit Sender(uint64_t seed) : estimator(seed) {}
    LinkEstimator estimator;
    std::deque<Bytes> messages;  // not carried yet, what is left of each
    std::deque<double> arrived_us;
  };

  void Turn(Sender& sender, double now_us) {
    for (; !sender.arrived_us.empty() && sender.arrived_us.front() + kLatencyUs <= now_us; sender.arrived_us.pop_front())
      ASSERT_TRUE(sender.estimator.OnArrived(static_cast<int64_t>(sender.arrived_us.front()), static_cast<int64_t>(now_us)));
    while (const Bytes bytes = sender.estimator.WantsProbe(static_cast<int64_t>(now_us))) {
      sender.estimator.OnSent({.bytes = bytes, .probe = true}, static_cast<int64_t>(now_us));
      sender.messages.push_back(bytes);
    }
  }
  // Frames of all senders in turn, as fast as the way takes them.
  void Carry(double now_us) {
    for (size_t idle = 0; way_.free_us() <= now_us + kTickUs && idle < senders_.size(); next_ = (next_ + 1) % senders_.size()) {
      Sender& sender = senders_[next_];
      if (sender.messages.empty()) {
        ++idle;
        continue;
      }
      idle = 0;
      Bytes& remaining = sender.messages.front();
      const Bytes frame = std::min(remaining, kFrame);
      const double there_us = way_.Carry(now_us, frame);
      remaining -= frame;
      if (remaining > 0) continue;
      sender.arrived_us.push_back(there_us);
      sender.messages.pop_front();
    }
  }

  std::mt19937_64 random_;
  const double per_us_;
  BucketLink way_;
  std::deque<Sender> senders_;
  size_t next_ = 0;
};

TEST(LinkEstimatorTest, LinksThatShareAWayDoNotStandInEachOthersWayForLong) {
  for (const double mbit : {25.0, 100.0}) {
    for (const size_t senders : {2, 3}) {
      double share = 0;
      for (uint64_t seed = 0; seed < 10; ++seed) share += SharedWay(seed, senders, mbit).RightShare(30'000'000) / 10;
      EXPECT_GT(share, 0.95) << senders << " senders, " << mbit << " Mbit/s";
    }
  }
}

// A link of which only what is sent is slow: probes find no queue.
TEST(LinkEstimatorTest, OfALinkThatIsFasterThanItsSenderItSaysAtLeastAndAsksLess) {
  constexpr Bytes kSenderPerUs = 200;
  LinkEstimator estimator;
  Bytes sent = 0, early = 0;
  for (int64_t now_us = 0; now_us < 60'000'000; now_us += 10) {
    if (now_us < 10'000'000) early = sent;
    const Bytes bytes = estimator.WantsProbe(now_us);
    if (bytes == 0) continue;
    estimator.OnSent({.bytes = bytes, .probe = true}, now_us);
    now_us += bytes / kSenderPerUs;
    ASSERT_TRUE(estimator.OnArrived(now_us + 777, now_us));
    sent += bytes;
  }
  ASSERT_TRUE(estimator.estimate());
  EXPECT_GT(estimator.estimate()->bytes_per_second, 0.7e6 * kSenderPerUs);
  EXPECT_LT(estimator.estimate()->bytes_per_second, 1.01e6 * kSenderPerUs);
  EXPECT_GT(early, 2 * LinkEstimator::kMostTrainBytes);
  EXPECT_LT(sent - early, 50 * LinkEstimator::kMostTrainBytes / 2) << "in 50 s";
}

// Bytes per second that are measured where each message, of which the link takes 10 a microsecond,
// is written so much later than the one before is known to have arrived.
std::optional<double> RateOfHandOvers(LinkEstimator::Outgoing each, int64_t late_us) {
  constexpr int64_t kClockUs = 1000, kPerUs = 10;
  LinkEstimator estimator;
  estimator.OnSent({.bytes = 100}, 0);
  EXPECT_TRUE(estimator.OnArrived(kClockUs, 0));
  for (int64_t now_us = 0; now_us < 100'000;) {
    now_us += late_us;
    estimator.OnSent(each, now_us);
    now_us += (each.between + each.bytes) / kPerUs;
    EXPECT_TRUE(estimator.OnArrived(now_us + kClockUs, now_us));
  }
  const auto estimate = estimator.estimate();
  return estimate ? std::optional(estimate->bytes_per_second) : std::nullopt;
}

TEST(LinkEstimatorTest, WhatIsWrittenAtOnceBehindTheLastBelongsToItsTrain) {
  constexpr Bytes kEach = 8000;  // 800 us
  EXPECT_FALSE(RateOfHandOvers({.bytes = kEach}, 100)) << "it may have been another's turn between";
  EXPECT_FALSE(RateOfHandOvers({.bytes = kEach, .back_to_back = true}, 600)) << "so long the link lay idle";
  const auto rate = RateOfHandOvers({.bytes = kEach, .back_to_back = true}, 400);
  ASSERT_TRUE(rate);
  EXPECT_NEAR(*rate, 1e6 * kEach / 1200, 1e4) << "what the connection gets";
}

TEST(LinkEstimatorTest, WhatIsNotAnsweredCountsBetweenWhatIs) {
  const auto rate = RateOfHandOvers({.bytes = 4000, .between = 4000, .back_to_back = true}, 0);
  ASSERT_TRUE(rate);
  EXPECT_NEAR(*rate, 10e6, 1e4);
}

TEST(LinkEstimatorTest, AnswersThatCannotBeChangeNothing) {
  LinkEstimator estimator;
  EXPECT_FALSE(estimator.OnArrived(5, 5)) << "nothing was sent";
  estimator.OnSent({.bytes = 100}, 0);
  estimator.OnSent({.bytes = 100}, 1);
  EXPECT_TRUE(estimator.OnArrived(50, 10));
  EXPECT_FALSE(estimator.OnArrived(49, 11)) << "its clock goes back";
  EXPECT_EQ(estimator.under_way(), 1u);
  EXPECT_EQ(estimator.bytes_under_way(), 100);
  EXPECT_TRUE(estimator.OnArrived(50, 12));
  EXPECT_FALSE(estimator.OnArrived(51, 13));
  EXPECT_FALSE(estimator.estimate());
}

// ---- One train

std::vector<TrainPoint> Points(int count, Bytes bytes, int64_t us_each) {
  std::vector<TrainPoint> points(count);
  for (int i = 0; i < count; ++i) points[i] = {i * bytes, 1000 + i * us_each};
  return points;
}

TEST(TrainFitTest, WhatABucketLetsThroughAndWhatIsLateDoesNotCount) {
  std::vector<TrainPoint> points = Points(20, 8192, 10);
  for (int i = 0; i < 20; ++i) points.push_back({points.back().bytes + 8192, points.back().arrived_us + 1000});
  const auto fit = FitTrain(points, /*drained=*/false);
  ASSERT_TRUE(fit);
  EXPECT_NEAR(fit->bytes_per_second, 8.192e6, 8.192e4);
  for (size_t i = 24; i < 30; ++i) points[i].arrived_us = points[30].arrived_us;  // nobody looked
  const auto late = FitTrain(points, /*drained=*/false);
  ASSERT_TRUE(late);
  EXPECT_NEAR(late->bytes_per_second, 8.192e6, 8.192e4);
}

// Two at once and one, again and again, as a network card or a bucket that takes several messages
// for one.
TEST(TrainFitTest, OfHandfulsATailOfEightIsGood) {
  for (const int rounds : {3, 5, 6, 9}) {
    std::vector<TrainPoint> points = {{0, 0}};
    for (int i = 0; i < rounds; ++i) {
      for (const int64_t pause_us : {2800, 0, 1400}) points.push_back({points.back().bytes + 8192, points.back().arrived_us + pause_us});
    }
    const auto fit = FitTrain(points, /*drained=*/true);
    ASSERT_TRUE(fit);
    EXPECT_TRUE(fit->Good());
    EXPECT_EQ(fit->pause_us, 2800);
    EXPECT_EQ(fit->GoodOfSmall(), rounds >= 6) << rounds;
  }
}

TEST(TrainFitTest, ATrainWhoseLastMessageAloneIsLateMeasuresNothing) {
  EXPECT_FALSE(FitTrain({{{0, 0}, {90, 0}, {100, 20'000}}}, /*drained=*/true));
  EXPECT_FALSE(FitTrain({{{0, 0}, {900'000, 10}, {1'000'000, 20'000}}}, /*drained=*/true));
}

TEST(TrainFitTest, TooShortTooFewOrUnsteadyTrainsMeasureNothing) {
  EXPECT_FALSE(FitTrain({}, true));
  EXPECT_FALSE(FitTrain(Points(1, 8192, 1000), true));
  EXPECT_FALSE(FitTrain(Points(6, 8192, 1000), true)) << "5 ms";
  EXPECT_TRUE(FitTrain(Points(2, 1 << 20, 50'000), true));
  EXPECT_FALSE(FitTrain(Points(2, 1 << 20, 50'000), false)) << "how much of it a bucket let through is not known";
  std::vector<TrainPoint> slower = Points(20, 8192, 1000), faster = slower;
  for (int i = 0; i < 20; ++i) {
    slower.push_back({slower.back().bytes + 8192, slower.back().arrived_us + 2000});
    faster.push_back({faster.back().bytes + 8192, faster.back().arrived_us + 200});
  }
  EXPECT_FALSE(FitTrain(slower, true));
  EXPECT_FALSE(FitTrain(faster, true));
}

std::string Name(const ::testing::TestParamInfo<Pattern>& pattern) {
  static constexpr const char* kNames[] = {"Nothing", "Decode", "Prefill", "Bulk", "Any"};
  return kNames[static_cast<size_t>(pattern.param)];
}
INSTANTIATE_TEST_SUITE_P(Traffic, LinkTrafficTest,
                         ::testing::Values(Pattern::kNothing, Pattern::kDecode, Pattern::kPrefill, Pattern::kBulk, Pattern::kAny), Name);

}  // namespace
}  // namespace lime
