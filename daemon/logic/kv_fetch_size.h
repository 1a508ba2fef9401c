// In how many layers KV that a host keeps is fetched back for each use, by how fast it comes now (Eq. 8; algorithms.md, section 6): as many
// as the link carries beside activations between two uses. The host is asked about the others.
//
// Fewer at once when pieces come slower, or a layer was not there in time; more only once there has been time for it in kSteadySteps steps.
// Those that have room together stay, whatever the link. Beyond them all are fetched or none, where answers are short: pieces that come on
// and on would hold each of them up. There is no least change (the paper's n_ts): nothing is sent for one, and fewer at once keeps layers
// in time (algorithms.md, section 6, has figures).
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
  // Of `layers` layers, a piece of one with piece_bytes.  REQUIRES: both are positive.
  KvFetchSize(int64_t layers, Bytes piece_bytes);

  // A layer's piece is to be fetched, and none is under way.
  void Begun(double now_ms) { since_ms_ = now_ms; }
  // One is there; the next one, if any, has been under way.
  void Arrived(double now_ms);
  // A layer that was to be there when it was used was not.
  void Late();
  struct Step {
    int64_t pieces = 0;    // that each layer has with the host
    int64_t stay = 0;      // layers that have room together
    double answer_ms = 0;  // of the host; a message that waits a millisecond is nothing to a long one (kLongAnswerMs)
  };
  // A step has ended. Layers to fetch from now on.
  int64_t StepEnded(double now_ms, const Step& step);

  // Bytes a millisecond, beside all else on the link; nothing before anything has come.
  std::optional<double> rate() const;

  static constexpr int kSteadySteps = 8;

 private:
  // The newest few of many.
  class Recent {
   public:
    void Add(double value) { values_[static_cast<size_t>(count_++) % kKept] = value; }
    bool empty() const { return count_ == 0; }
    // Of the newest `most`, or of all that there are.  REQUIRES: !empty()
    double Median(int64_t most = kKept) const;

   private:
    static constexpr int64_t kKept = 9;
    std::array<double, kKept> values_ = {};
    int64_t count_ = 0;
  };
  int64_t MostLayers(int64_t pieces) const;

  const int64_t layers_;
  const Bytes piece_bytes_;
  double since_ms_ = 0;
  Recent took_ms_;  // pieces
  Recent steps_ms_;
  std::optional<double> step_ended_ms_;
  int64_t now_ = 0, stay_ = 0;
  bool partly_ = false;  // beyond those that stay: answers are long, and so they are taken for until they are clearly short
  bool late_ = false;    // in the step under way
  int steady_ = 0;       // steps in which there was time for more
};

}  // namespace lime
