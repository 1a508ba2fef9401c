// The world of a simulated cluster: time, random numbers, injected faults and their counts, and the
// errors found.
//
// One thread. The same seed makes the same run on every machine.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "planner/base/random.h"

namespace lime {

// Faults and other events that a run may meet.
enum class SimFault : uint8_t {
  kLinkStall,   // a message takes long
  kLinkLost,    // a connection between two devices ends, with all its messages in flight
  kNewsLost,    // the connection between the coordinator and a device ends
  kSlowDisk,    // a disk is slow for a while
  kDiskStall,   // a read takes long
  kDiskError,   // a read fails
  kDiskFull,    // a disk is full for a while
  kCrash,       // a device is lost, and comes back
  kGone,        // a device is lost for good
  kJoin,        // a new device joins
  kRefusal,     // a device refuses to install
  kPressure,    // other programs of a machine need memory for a while
  kRateChange,  // a link, a disk or computing becomes faster or slower; another plan may be better
  kStop,        // a request is ended
  kCount,
};
const char* SimFaultName(SimFault fault);
inline constexpr int kNumSimFaults = static_cast<int>(SimFault::kCount);
using SimFaultCounts = std::array<int64_t, kNumSimFaults>;

// A bug that is planted in the simulated drivers, to test that the checks find it.
enum class PlantedBug : uint8_t {
  kNone,
  kLostMessage,        // a link swallows an activation
  kDoubleHolder,       // a page is shown to the backend for two sequences
  kOverBudget,         // the memory of a load is not freed
  kForgottenWait,      // the end of a load is not reported
  kEndsEarly,          // a request is asked for one token less
  kEndsLate,           // a request's end token is forgotten
  kForgottenEnd,       // a host gets no report that a sequence has ended
  kForgottenCopy,      // pages that a sequence begins with are not copied
  kForgottenState,     // a device forgets the states of its layers
  kForgottenRestore,   // a snapshot that a sequence begins with is not copied
  kForgottenTakeover,  // a state that a sequence goes on with is not taken over
  kRepeatedRow,        // a device computes a block twice
  kForgottenUnit,      // the end of a unit's read is not reported
  kForgottenNeuron,    // the end of a read of neurons is not reported
  kStaleNeuron,        // a read leaves a row of memory as it was
  kWrongNeuron,        // a read brings another neuron
  kWrongPiece,         // a read brings another piece of a sparse part
};

class SimClock {
 public:
  double now_ms() const { return now_ms_; }
  absl::Time now() const { return absl::UnixEpoch() + absl::Milliseconds(now_ms_); }
  // Events of the same time happen in the order of these calls.
  void After(double ms, std::function<void()> what) { events_.push({now_ms_ + ms, next_++, std::move(what)}); }
  // Runs the next event. False if there is none.
  bool Step();

 private:
  struct Event {
    double at_ms = 0;
    int64_t number = 0;
    std::function<void()> what;
    friend bool operator<(const Event& one, const Event& other) {
      return std::pair(one.at_ms, one.number) > std::pair(other.at_ms, other.number);
    }
  };
  std::priority_queue<Event> events_;
  double now_ms_ = 0;
  int64_t next_ = 0;
};

// Units that were read ahead: chosen then, by the device or by one whose host it is; replaced before
// that; and reads that were cancelled.
struct SimReadAhead {
  int64_t used = 0, used_for_others = 0, wasted = 0, cancelled = 0;
};

// Places of parts on demand that were freed under pressure; of them, those that were in use then; and
// places that came back.
struct SimPlaces {
  int64_t freed = 0, freed_later = 0, made = 0;
};

// Of sparse parts: neurons that were computed, and of them those that were read; reads that were
// repeated; pieces that were read, and neurons that were copied from them.
struct SimNeurons {
  int64_t computed = 0, read = 0, repeated = 0, pieces = 0, copied = 0;
};

struct SimWorld {
  SimWorld(uint64_t seed, PlantedBug planted, bool traces) : random(seed), bug(planted), tracing(traces) {}

  double Between(double low, double high) { return low + (high - low) * random.Uniform(); }
  void Note(SimFault fault) { ++faults[static_cast<size_t>(fault)]; }
  // A line of the transcript.
  template <typename... What>
  void Say(const What&... what) {
    if (tracing) absl::StrAppend(&transcript, Time(), " ", what..., "\n");
  }
  // Records an error; only the first one counts.
  template <typename... What>
  void Violation(const What&... what) {
    if (!violation.empty()) return;
    violation = absl::StrCat("at ", Time(), " ms: ", what...);
    Say("VIOLATION: ", what...);
  }
  // Whether the planted bug happens now. It happens once in a run, at a random occasion.
  bool Plants(PlantedBug which, int percent) {
    if (bug != which || planted_done || !random.Chance(percent)) return false;
    planted_done = true;
    Say("the planted bug");
    return true;
  }
  std::string Time() const;

  SimClock clock;
  Random random;
  const PlantedBug bug;
  bool planted_done = false;
  const bool tracing;
  std::string transcript, violation;
  SimFaultCounts faults{};
  SimReadAhead ahead;
  SimPlaces places;
  SimNeurons neurons;
  int64_t hosted_units = 0;  // that devices have computed for others
};

// Carries messages from one end to another, in order.
class SimChannel {
 public:
  SimChannel(SimWorld& world, double latency_ms, double bytes_per_ms)
      : world_(world), latency_ms_(latency_ms), bytes_per_ms_(bytes_per_ms) {}

  void Send(int64_t bytes, std::function<void()> arrives);
  void Stall(double ms) { free_at_ms_ = std::max(free_at_ms_, world_.clock.now_ms()) + ms; }

 private:
  SimWorld& world_;
  const double latency_ms_, bytes_per_ms_;
  double free_at_ms_ = 0, last_ms_ = 0;
};

// A disk. Transfers run one after another, but their ends may be reported in another order.
class SimDisk {
 public:
  explicit SimDisk(SimWorld& world) : world_(world), bytes_per_ms_(world.Between(2e3, 2e5)) {}

  // `done` receives whether the transfer succeeded.
  void Transfer(int64_t bytes, std::function<void(bool)> done);
  void Slow(double until_ms) { slow_until_ms_ = until_ms; }
  void Stall(double ms) { stall_ms_ = ms; }
  void FailNext() { fails_ = true; }
  void Full(double until_ms) { full_until_ms_ = until_ms; }
  bool full() const { return world_.clock.now_ms() < full_until_ms_; }

 private:
  SimWorld& world_;
  const double bytes_per_ms_;
  double free_at_ms_ = 0, slow_until_ms_ = 0, stall_ms_ = 0, full_until_ms_ = 0;
  bool fails_ = false;
};

}  // namespace lime
