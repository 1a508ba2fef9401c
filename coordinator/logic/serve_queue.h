// Who may come in, who has waited for too long, and when it is over: the decisions of a server's queue.
//
//   kOpen ── Drain ──► kDraining ── Close ──► kClosed
//     └────────────────── Close ────────────────▲
//
// The order in which requests get slots is the OrderWriter's: first come, first served.
//
// Pure.   Thread: the owner's.
// Bounds: as many requests as have slots, and as many as may wait.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/logic/order_writer.h"
#include "planner/base/status.h"

namespace lime {

class ServeQueue {
 public:
  struct Options {
    int64_t most_waiting = 64;                            // requests without a slot, beside those that slots are free for
    absl::Duration most_wait = absl::InfiniteDuration();  // for a slot
  };
  ServeQueue(const Options& options, int64_t slots) : options_(options), slots_(slots) {}

  void set_slots(int64_t slots) { slots_ = slots; }  // of another plan; those that are here stay

  // So many requests come together, numbered from `first` on; all are taken or none. ResourceExhausted where more would wait than may;
  // Unavailable while it drains; what Close was told after that.
  absl::Status Arrive(RequestId first, absl::Time now, int64_t count = 1);
  void Start(RequestId request);  // it has a slot, for good: a request that is computed again does not wait again
  void Leave(RequestId request);  // whoever sent it wants no more of it. Nothing where it has ended
  void End(RequestId request);
  // No request comes any more, and those that wait are to be ended.
  void Drain();
  void Close(absl::Status why);

  struct Ending {
    RequestId request = 0;
    absl::Status why;
  };
  // Who is to be ended now, each once: Cancelled where it left, DeadlineExceeded where it has waited for too long, Unavailable where it
  // waits and this drains.
  std::vector<Ending> Due(absl::Time now);
  // When somebody will have waited for too long.
  absl::Time NextDue() const;

  int64_t waiting() const;
  int64_t running() const { return std::ssize(requests_) - waiting(); }
  bool drained() const { return state_ != State::kOpen && requests_.empty(); }

 private:
  enum class State {
    kOpen,
    kDraining,  // those that run go on
    kClosed,    // nobody does
  };
  struct Waiter {
    absl::Time until;
    bool started = false;
    bool left = false;
    bool told = false;  // by Due
  };
  absl::Status WhyEnd(const Waiter& waiter, absl::Time now) const;

  const Options options_;
  int64_t slots_;
  State state_ = State::kOpen;
  absl::Status why_;                      // of kClosed
  std::map<RequestId, Waiter> requests_;  // that have not ended
};

}  // namespace lime
