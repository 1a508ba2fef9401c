#include "daemon/engine/compute_wait.h"

#include <thread>

#include "absl/time/time.h"
#include "common/steady_clock.h"
#include "planner/plan/plan_rows.h"

namespace lime {

std::optional<int64_t> WaitPlace(const Plan& plan, const Instruction& waited) {
  if (const auto* recv = std::get_if<Recv>(&waited)) return int64_t{recv->stage} * MostMicrobatches(plan) + recv->microbatch;
  const bool for_disk = std::holds_alternative<AwaitWeights>(waited) || std::holds_alternative<ComputeUnits>(waited);
  return for_disk ? std::nullopt : std::optional(QuestionPlace(plan) - 1);
}

int64_t QuestionPlace(const Plan& plan) {
  return std::ssize(plan.stages) * MostMicrobatches(plan) + 1;
}

void ComputeWait::Wake() {
  woken_.store(true, std::memory_order_release);
  work_.SignalAll();
}

void ComputeWait::Await() {
  options_.mutex->AssertHeld();
  std::optional<StallWatch> disk;
  while (!options_.has_work()) {
    const std::optional<Awaited> awaited = options_.awaited();
    const auto window = awaited ? forecast_.Expect(awaited->place) : std::nullopt;
    const double waited_ms = awaited ? SteadyMs() - awaited->since_ms : 0;
    if (!window || waited_ms >= window->to_ms) {
      Sleep(disk);
    } else if (waited_ms < window->from_ms) {
      work_.WaitWithTimeout(options_.mutex, absl::Milliseconds(window->from_ms - waited_ms));
    } else {
      StayAwake(SteadyMs() + window->to_ms - waited_ms);
    }
  }
  // If the disk is still awaited, the wait was given up.
  if (disk && !options_.for_disk()) disk->End();
}

// Reports if the disk is awaited and delivers nothing.
void ComputeWait::Sleep(std::optional<StallWatch>& disk) {
  if (!options_.for_disk()) return work_.Wait(options_.mutex);
  if (!disk) disk.emplace(options_.report, options_.part, options_.bytes_read());
  work_.WaitWithTimeout(options_.mutex, StallWatch::kPoll);
  disk->Poll(options_.bytes_read());
}

// Until there is work. Yields the core, because the thread that brings the work may need it.
void ComputeWait::StayAwake(double until_ms) {
  woken_.store(false, std::memory_order_relaxed);
  options_.mutex->Unlock();
  while (!woken_.load(std::memory_order_acquire) && SteadyMs() < until_ms) std::this_thread::yield();
  options_.mutex->Lock();
}

}  // namespace lime
