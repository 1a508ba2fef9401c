// Lets the compute thread wait for work. The thread sleeps, except in the short windows in which
// its input usually arrives (daemon/logic/rates/arrival_forecast.h). If it waits for the disk and
// the disk delivers nothing, it reports that.
//
// Thread: any, under the owner's lock.   Owner: StageEngine.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/synchronization/mutex.h"
#include "daemon/logic/rates/arrival_forecast.h"
#include "daemon/machine/stall_watch.h"
#include "planner/base/bytes.h"
#include "planner/plan/plan.h"
#include "planner/plan/program.h"

namespace lime {

// The index of a wait in the forecast, from 0. A Recv has one index for each stage and micro-batch.
// All waits for an answer of a host share one. The last one, QuestionPlace, is for questions of the
// devices whose host this device is. Other waits are not forecast, and have no index.
std::optional<int64_t> WaitPlace(const Plan& plan, const Instruction& waited);
int64_t QuestionPlace(const Plan& plan);

class ComputeWait {
 public:
  // The awaited index, and when the wait began.
  struct Awaited {
    int64_t place = 0;
    double since_ms = 0;
  };
  struct Options {
    absl::Mutex* mutex = nullptr;  // the owner's
    int64_t places = 0;            // number of forecast indices
    // Called under the lock.
    std::function<bool()> has_work;
    std::function<std::optional<Awaited>()> awaited;  // nothing: not known
    std::function<bool()> for_disk;                   // true if the disk is awaited
    std::function<std::string()> part;                // its name, for messages.  REQUIRES: for_disk
    std::function<Bytes()> bytes_read;                // from the disk so far
    StallReport report;                               // may be empty
  };
  explicit ComputeWait(Options options) : options_(std::move(options)), forecast_(options_.places) {}

  // Wakes the compute thread: there may be work.
  void Wake();
  // A wait at `place` has lasted `ms`.
  void Waited(int64_t place, double ms) { options_.mutex->AssertHeld(), forecast_.Waited(place, ms); }

  // Returns when there is work. Releases the lock while it waits.  Thread: the compute thread
  void Await();

 private:
  void Sleep(std::optional<StallWatch>& disk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(options_.mutex);
  // Releases the lock while it waits. The analysis cannot see that the owner holds it.
  void StayAwake(double until_ms) ABSL_NO_THREAD_SAFETY_ANALYSIS;

  const Options options_;
  absl::CondVar work_;
  std::atomic<bool> woken_ = false;  // since StayAwake began
  ArrivalForecast forecast_ ABSL_GUARDED_BY(options_.mutex);
};

}  // namespace lime
