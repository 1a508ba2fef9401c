// Decides which requests a server accepts, which have waited too long, and when it is done.
//
//   kOpen ── Drain ──► kDraining ── Close ──► kClosed
//     └────────────────── Close ────────────────▲
//
// OrderWriter decides the order in which requests get slots: first come, first served.
//
// Pure.   Thread: the owner's.
// Bounds: one request per slot, and `most_waiting` more.
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
    int64_t most_waiting = 64;                            // requests beyond the number of slots
    absl::Duration most_wait = absl::InfiniteDuration();  // for a slot
  };
  ServeQueue(const Options& options, int64_t slots) : options_(options), slots_(slots) {}

  void set_slots(int64_t slots) { slots_ = slots; }  // of another plan; existing requests stay

  // `count` requests arrive together, with ids from `first` on. Accepts all or none.
  // Errors: ResourceExhausted if too many would wait; Unavailable while draining; after Close, its
  // status.
  absl::Status Arrive(RequestId first, absl::Time now, int64_t count = 1);
  void Start(RequestId request);   // has a slot, for good: never waits again
  void Cancel(RequestId request);  // its sender cancels it; nothing if it has ended
  void End(RequestId request);
  // Accepts no more requests. Due returns the waiting ones.
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

  int64_t waiting() const;
  int64_t running() const { return std::ssize(requests_) - waiting(); }
  bool drained() const { return state_ != State::kOpen && requests_.empty(); }

 private:
  enum class State {
    kOpen,
    kDraining,  // running requests continue
    kClosed,    // no request continues
  };
  struct Waiter {
    absl::Time until;
    bool started = false;
    bool cancelled = false;
    bool returned = false;  // returned by Due
  };
  absl::Status WhyEnd(const Waiter& waiter, absl::Time now) const;

  const Options options_;
  int64_t slots_;
  State state_ = State::kOpen;
  absl::Status why_;                      // of kClosed
  std::map<RequestId, Waiter> requests_;  // requests that have not ended
};

}  // namespace lime
