// Estimates how fast the link from this device to one other device is now.
//
//   idle ── no rate for a while ──► probing ── a train gives a rate, or a bound is met ──► idle
//
// Only trains give a rate (train_fit.h): messages, each sent while the one before was still
// queueing, or as soon as the connection had taken it. Chunks of a prompt and bulk data are trains
// by themselves; a token now and then is none. If nothing has given a rate for a while, probes are
// sent, as many at a time as keep the link busy for a few milliseconds, until the probes that have
// arrived give a rate. Probes are small at first, and large once the train itself has shown that
// the link is fast.
//
// A rate that agrees with the estimate refines it: the estimate is the median of the last three. A
// rate that does not agree is a change once another one agrees with it, or if it was measured for
// long. A lower rate may come from other devices' trains on the same path. It is a change if it was
// measured again after those trains, or for longer than they last, or if it is less than they would
// leave. If three lower rates differ, the middle one counts.
//
// Times: microseconds; `sent` and `now` of our clock, `arrived` of the receiver's, whose zero is
// unknown. Clocks drift by 100 ppm at most.
// Bounds: a train of probes has 3 MiB at most. It ends after 40 ms and two round trips, but on a
// slow link not before 128 KiB have arrived, and after 150 ms in any case; probes that are under
// way then still go through. Probes take 1/23 of the time.
//
// Pure.   Thread: the owner's, under its lock.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "daemon/logic/rates/train_fit.h"
#include "planner/base/bytes.h"

namespace lime {

struct LinkEstimate {
  double bytes_per_second = 0;
  int64_t at_us = 0;  // when it was last confirmed
};

class LinkEstimator {
 public:
  // `seed`: another one for every link of a device and of its peers. Otherwise their trains would
  // meet again and again on a path that they share.
  explicit LinkEstimator(uint64_t seed = 1) : random_(seed) {}

  // A message goes out that will be acknowledged.
  struct Outgoing {
    Bytes bytes = 0;
    Bytes between = 0;  // sent since the last such message, and not acknowledged
    bool probe = false;
    // All of these were written as soon as the connection had taken the message before.
    bool back_to_back = false;
  };
  void OnSent(const Outgoing& message, int64_t now_us);

  // The oldest unacknowledged message has arrived. False if there is none, or if the receiver's
  // clock would go backwards; nothing has changed then.
  bool OnArrived(int64_t arrived_us, int64_t now_us);

  // Bytes of the probe that may be sent now, or 0. Ask again after each message that is sent or has
  // arrived, and every kAskAgainUs at least.
  // REQUIRES: no activation waits.
  Bytes WantsProbe(int64_t now_us);

  // True if a message that may wait for all others can go now. Then a message behind it waits
  // kMostDelayUs at most, or for this one alone.
  bool IsFreeFor(Bytes bytes) const;

  std::optional<LinkEstimate> estimate() const { return estimate_; }
  size_t under_way() const { return under_way_.size(); }  // messages that are not acknowledged yet
  Bytes bytes_under_way() const { return probes_under_way_ + others_under_way_; }

  static constexpr int64_t kAskAgainUs = 100'000;
  static constexpr int64_t kMostDelayUs = 1'000;
  static constexpr Bytes kMostTrainBytes = 3 * kMiB;
  static constexpr int64_t kMostTrainUs = 40'000;
  static constexpr Bytes kLeastWindow = 16 * kKiB, kMostWindow = 352 * kKiB;  // under way at a time
  // The same if answers take milliseconds.
  static constexpr Bytes kMostFarWindow = 1 * kMiB;

 private:
  enum class Behind {
    kUnknown,   // not directly after another message
    kArrived,   // directly after one that was known to have arrived
    kUnderWay,  // directly after one that was not known to have arrived
  };
  struct Sent {
    Outgoing message;
    int64_t sent_us = 0;
    Behind behind = Behind::kUnknown;
  };
  // Messages without a break between them. Only those of the window that is measured have points.
  struct Train {
    std::vector<TrainPoint> points;  // of the window
    Bytes bytes = 0;                 // since the train began
    bool drained = false;            // no bucket was full when the window began
    int64_t heard_us = 0;            // our clock, at its last message
  };

  void Follow(const Outgoing& message, int64_t arrived_us);
  void Break(const Outgoing& message, int64_t arrived_us);
  void Measure(int64_t now_us);
  void BeginWindow(int64_t arrived_us);
  int64_t WindowUs() const { return train_.points.back().arrived_us - train_.points.front().arrived_us; }
  bool OnRate(const TrainFit& fit, int64_t now_us);
  bool IsChange(const TrainFit& fit, int64_t now_us) const;
  void NoteSlower(double rate, int64_t now_us);
  void BeginProbing(int64_t now_us);
  void EndProbing(bool measured, int64_t now_us);
  bool ProbingIsOver(int64_t now_us) const;
  bool HasEnoughProbes() const;
  Bytes MostBytes() const;
  double LatelyPerUs() const;
  int64_t AirUs(int64_t now_us) const;
  void NoteAtLeast(int64_t now_us);
  Bytes Window() const;
  int64_t Spread(int64_t us);
  int64_t Random(int64_t most);

  std::deque<Sent> under_way_;
  Bytes probes_under_way_ = 0, others_under_way_ = 0;
  int64_t last_arrived_us_ = 0;
  bool any_arrived_ = false;
  int64_t least_delay_us_ = 0;  // the smallest arrived - sent; mostly the difference of the clocks
  int64_t least_delay_at_us_ = 0;
  Train train_;

  bool begun_ = false, probing_ = false;
  bool unpaid_ = false;        // the next train comes early, to confirm the last
  int64_t next_probe_us_ = 0;  // no probe before
  int64_t paid_until_us_ = 0;  // until 23 times the time of the probes has passed
  int64_t probing_since_us_ = 0, first_arrived_us_ = 0;
  int64_t round_trip_us_ = 0;  // the shortest of the train's probes
  Bytes probed_ = 0;           // bytes, by the train
  Bytes arrived_probing_ = 0;  // bytes, other messages included
  int failures_ = 0;           // trains of probes without a rate, in a row

  std::optional<LinkEstimate> estimate_;
  std::vector<double> recent_;       // rates that agree, newest last
  std::optional<double> candidate_;  // the last rate that did not agree
  int64_t candidate_at_us_ = 0;      // when the first rate came that agrees with it
  int64_t candidate_tail_us_ = 0;    // measured time of all of these
  // The last rates, well apart, if all were lower than the estimate, whether or not they agree.
  std::vector<double> slower_;
  int64_t slower_at_us_ = 0;
  uint64_t random_;
  bool at_least_ = false;  // the estimate is only a lower bound
};

}  // namespace lime
