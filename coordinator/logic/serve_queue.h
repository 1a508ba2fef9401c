// Decides which requests a server accepts, which have waited too long, and when it is done.
//
//   kOpen ── Drain ──► kDraining ── Close ──► kClosed
//     └────────────────── Close ────────────────▲
//
// OrderWriter decides the order in which requests get slots: first come, first served.
//
// Pure.   Thread: the owner's.
// Bounds: one request per slot, and `most_waiting` more; or the requests of one group, see
// `most_together`.
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
    int64_t most_waiting = 64;  // requests beyond the number of slots
    // A group that could never fit may have so many requests. It is accepted if no other request
    // waits: a long list has the queue alone.
    int64_t most_together = 0;
    absl::Duration most_wait = absl::InfiniteDuration();  // for a slot
  };
  ServeQueue(const Options& options, int64_t slots) : options_(options), slots_(slots) {}

  void set_slots(int64_t slots) { slots_ = slots; }  // of another plan; existing requests stay

  // A group of `count` requests arrives, with ids from `first` on. Accepts all or none. Once one of
  // them has a slot, the others wait for it alone: as long as it takes, also while draining.
  // Errors: ResourceExhausted if too many would wait; Unavailable while draining; after Close, its
  // status.
  absl::Status Arrive(RequestId first, absl::Time now, int64_t count = 1);
  void Start(RequestId request);   // has a slot, for good: never waits again
  void Cancel(RequestId request);  // its sender cancels it; nothing if it has ended
  void End(RequestId request);
  // Accepts no more requests. Due returns the waiting ones, except those of a group that has begun.
  void Drain();
  void Close(absl::Status why);

  struct Ending {
    RequestId request = 0;
    absl::Status why;
  };
  // The requests to end now, each once. Cancelled: by Cancel. DeadlineExceeded: it has waited too
  // long. Unavailable: it waits and the queue drains.
  std::vector<Ending> Due(absl::Time now);
  // The time when the next request will have waited too long.
  absl::Time NextDue() const;

  int64_t waiting() const { return std::ssize(requests_) - running_; }
  int64_t running() const { return running_; }
  bool drained() const { return state_ != State::kOpen && requests_.empty(); }

 private:
  enum class State {
    kOpen,
    kDraining,  // running requests continue
    kClosed,    // no request continues
  };
  struct Waiter {
    absl::Time until;
    RequestId group = 0;  // the first one of it
    bool started = false;
    bool has_begun = false;  // one of its group has started
    bool cancelled = false;
    bool returned = false;  // returned by Due
  };
  absl::Status WhyEnd(const Waiter& waiter, absl::Time now) const;

  const Options options_;
  int64_t slots_;
  State state_ = State::kOpen;
  absl::Status why_;                      // of kClosed
  std::map<RequestId, Waiter> requests_;  // requests that have not ended
  int64_t running_ = 0;                   // of them: that have started
};

}  // namespace lime
