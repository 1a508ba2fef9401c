// Chooses in how many layers KV from a host is fetched back for each use (Eq. 8; algorithms.md,
// section 6): as many as the link, at its current rate, carries beside activations between two
// uses. The host is asked about the other layers.
//
// The number falls at once if pieces come slower, or if a layer was not there in time. It rises
// only after kSteadySteps steps with time for more. Fetched layers stay in memory while they fit,
// however slow the link is. If they do not all fit and the host answers quickly, the other layers
// are fetched all or not at all: a constant stream of pieces would delay each answer. There is no
// smallest change (n_ts in the paper): a change sends nothing, and layers are in time because the
// number falls at once (algorithms.md, section 6, has figures).
//
// Pure.   Times: milliseconds of one clock.   Thread: the owner's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "planner/base/bytes.h"

namespace lime {

class KvFetchSize {
 public:
  // A piece of one of `layers` layers has `piece_bytes`.  REQUIRES: both are positive.
  KvFetchSize(int64_t layers, Bytes piece_bytes);

  // One layer of a piece is fetched, and no other fetch is under way.
  void Begun(double now_ms) { since_ms_ = now_ms; }
  // A fetch has arrived. The next one, if any, is under way since then.
  void Arrived(double now_ms);
  // A layer was not there when it was used.
  void Late();
  struct Step {
    int64_t pieces = 0;  // of each layer, with the host
    int64_t stay = 0;    // layers that fit in memory together
    // How long the host's answer takes. A long one (kLongAnswerMs) may be delayed by a message.
    double answer_ms = 0;
  };
  // A step has ended. Returns how many layers to fetch from now on.
  int64_t StepEnded(double now_ms, const Step& step);

  // Bytes per millisecond, beside all other messages of the link. Nothing until a piece has come.
  std::optional<double> rate() const;

  static constexpr int kSteadySteps = 8;

 private:
  // The newest few of many values.
  class Recent {
   public:
    void Add(double value) { values_[static_cast<size_t>(count_++) % kSamples] = value; }
    bool empty() const { return count_ == 0; }
    // The median of the newest `most` values, or of all if there are fewer.  REQUIRES: !empty()
    double Median(int64_t most = kSamples) const;

   private:
    static constexpr int64_t kSamples = 9;
    std::array<double, kSamples> values_ = {};
    int64_t count_ = 0;
  };
  int64_t MostLayers(int64_t pieces) const;

  const int64_t layers_;
  const Bytes piece_bytes_;
  double since_ms_ = 0;
  Recent pieces_ms_;  // of pieces
  Recent steps_ms_;
  std::optional<double> step_ended_ms_;
  int64_t now_ = 0, stay_ = 0;
  // Answers are long: some layers beyond stay_ may be fetched. Ends when answers are clearly short.
  bool partly_ = false;
  bool late_ = false;  // in the current step
  int steady_ = 0;     // steps in which there was time for more
};

}  // namespace lime
