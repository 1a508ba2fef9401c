// How the compute thread waits for work: asleep, but for the moments in which what it waits for is likely to come
// (daemon/logic/arrival_forecast.h). Says so while the disk is waited for and delivers nothing.
//
// Thread: any, under the owner's lock.   Owner: StageEngine.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/synchronization/mutex.h"
#include "daemon/logic/arrival_forecast.h"
#include "daemon/weights/stall_watch.h"
#include "planner/base/bytes.h"
#include "planner/plan/plan.h"
#include "planner/plan/program.h"

namespace lime {

// Waits that are alike from step to step, by place from 0: for a micro-batch in each visit, for answers of the host whatever the layer, and
// at the last place for questions of those whose host this is.
std::optional<int64_t> WaitPlace(const Plan& plan, const Instruction& waited);
int64_t QuestionPlace(const Plan& plan);

class ComputeWait {
 public:
  // What is waited for; since when.
  struct Awaited {
    int64_t place = 0;
    double since_ms = 0;
  };
  struct Options {
    absl::Mutex* mutex = nullptr;  // the owner's
    int64_t places = 0;            // where there are waits, from 0
    // Under the lock.
    std::function<bool()> has_work;
    std::function<std::optional<Awaited>()> awaited;  // nothing: nobody knows
    std::function<bool()> for_disk;                   // it is the disk that is waited for
    std::function<std::string()> part;                // that is, for people.  REQUIRES: for_disk
    std::function<Bytes()> bytes_read;                // by the disk so far
    StallReport report;                               // may be empty
  };
  explicit ComputeWait(Options options) : options_(std::move(options)), forecast_(options_.places) {}

  // There may be work.
  void Give();
  // A wait at `place` took so long.
  void Waited(int64_t place, double ms) { forecast_.Waited(place, ms); }

  // Until there is work.  Thread: the compute thread, which gives the lock away meanwhile
  void Await();

 private:
  void Sleep(std::optional<StallWatch>& disk);
  // Gives the lock away meanwhile, which is one of the owner's for the analysis.
  void StayAwake(double until_ms) ABSL_NO_THREAD_SAFETY_ANALYSIS;

  const Options options_;
  absl::CondVar work_;
  std::atomic<bool> given_work_ = false;  // since the compute thread began to stay awake
  ArrivalForecast forecast_;
};

}  // namespace lime
