// How fast the link from this device to one other is now.
//
//   kIdle ── due, and nothing told ──► kProbing ── the train tells the rate, or reached a bound ──► kIdle
//
// Only trains tell it (train_fit.h): messages each of which was sent while the one before was still queueing on its way, or as soon as the
// connection had taken that one. Chunks of a prompt or of bulk data are trains of themselves; the token that passes now and then is none.
// So where nothing told the rate for a while, probes are sent, as many at a time as keep the link busy for a few milliseconds, until what
// has arrived of them says it: small ones, and large ones once the train itself has shown that the link is fast, whatever the estimate.
//
// A rate that agrees with the estimate refines it: the median of the last three. One that does not is a change once another one says the
// same, or when it was measured for long; a lower one, for others' trains may have been on the same way, when that one was measured
// behind those, for longer than they last, or is less than they would leave. Of three lower ones that scatter it is the one in the middle.
//
// Times: microseconds; sent and `now` of our clock, arrived of the receiver's, whose zero nobody knows. Clocks drift by 100 ppm at most.
// Bounds: a train of probes has 3 MiB and takes 40 ms, or on a slow link until 128 KiB have arrived, 150 ms at most, or two round trips
// more, and what is under way when they have passed; probes take 1/23 of the time.
//
// Pure.   Thread: the owner's, under its lock.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "daemon/logic/train_fit.h"
#include "planner/base/bytes.h"

namespace lime {

struct LinkEstimate {
  double bytes_per_second = 0;
  int64_t at_us = 0;  // when it was last confirmed
};

class LinkEstimator {
 public:
  // `seed`: another one for every link of a device and of its peers, so that their trains do not meet on a way that they share, again and
  // again at the same time.
  explicit LinkEstimator(uint64_t seed = 1) : random_(seed) {}

  // A message that is answered goes out.
  struct Outgoing {
    Bytes bytes = 0;
    Bytes between = 0;  // went out between this one and the last that is answered, and are not answered
    bool probe = false;
    bool back_to_back = false;  // all of these were written as soon as the connection had taken the one before
  };
  void OnSent(const Outgoing& message, int64_t now_us);

  // The oldest message that was not acknowledged yet has arrived. False, and nothing has changed, where there is none or where the
  // receiver's clock would go backwards.
  bool OnArrived(int64_t arrived_us, int64_t now_us);

  // Bytes of the probe that may be sent now, or 0; ask again after each message that is sent and each that has arrived, and every
  // kAskAgainUs at least.
  // REQUIRES: no activation waits.
  Bytes WantsProbe(int64_t now_us);

  // Whether a message that may wait for all others can go now: one that comes behind it waits kMostDelayUs at most, or for this one alone.
  bool IsFreeFor(Bytes bytes) const;

  std::optional<LinkEstimate> estimate() const { return estimate_; }
  size_t under_way() const { return under_way_.size(); }  // messages, not acknowledged yet
  Bytes bytes_under_way() const { return probes_under_way_ + others_under_way_; }

  static constexpr int64_t kAskAgainUs = 100'000;
  static constexpr int64_t kMostDelayUs = 1'000;
  static constexpr Bytes kMostTrainBytes = 3 * kMiB;
  static constexpr int64_t kMostTrainUs = 40'000;
  static constexpr Bytes kLeastWindow = 16 * kKiB, kMostWindow = 352 * kKiB;  // under way at a time
  static constexpr Bytes kMostFarWindow = 1 * kMiB;                           // where answers take milliseconds

 private:
  enum class Behind {
    kUnknown,   // not directly behind another one
    kArrived,   // directly behind one that was known to have arrived
    kUnderWay,  // directly behind one that was not
  };
  struct Sent {
    Outgoing message;
    int64_t sent_us = 0;
    Behind behind = Behind::kUnknown;
  };
  // Messages behind each other, the last of them not older than the window that is measured.
  struct Train {
    std::vector<TrainPoint> points;  // of the window
    Bytes bytes = 0;                 // since the train began
    bool drained = false;            // when the window began
    int64_t heard_us = 0;            // our clock, of its last message
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
  void EndProbing(bool told, int64_t now_us);
  bool ProbingIsOver(int64_t now_us) const;
  bool WillTell() const;
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
  int64_t least_delay_us_ = 0;  // arrived - sent, at least; mostly the difference of the clocks
  int64_t least_delay_at_us_ = 0;
  Train train_;

  bool begun_ = false, probing_ = false;
  bool unpaid_ = false;        // the next train comes early, to confirm the last
  int64_t next_probe_us_ = 0;  // not before
  int64_t paid_until_us_ = 0;  // the time that the probes took, 23 times
  int64_t probing_since_us_ = 0, first_arrived_us_ = 0;
  int64_t round_trip_us_ = 0;  // until a probe of the train was answered, at least
  Bytes probed_ = 0;           // by the train
  Bytes arrived_probing_ = 0;  // meanwhile, with what else was on the way
  int failures_ = 0;           // trains of probes, one after another, that did not tell

  std::optional<LinkEstimate> estimate_;
  std::vector<double> recent_;       // that agree, newest last
  std::optional<double> candidate_;  // the last that did not
  int64_t candidate_at_us_ = 0;      // the first that agreed with it
  int64_t candidate_tail_us_ = 0;    // of all of those
  std::vector<double> slower_;       // the last ones, well apart, where all were slower, whether or not they agree
  int64_t slower_at_us_ = 0;
  uint64_t random_;
  bool at_least_ = false;  // no train has told the estimate, only that the link is not slower
};

}  // namespace lime
