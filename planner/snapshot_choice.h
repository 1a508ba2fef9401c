// Whether a plan has snapshots of its slots (Plan::state_snapshots). Their memory is reserved from the
// start, so weights may have to stream for it, or another device be used. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "planner/base/status.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/model/model_config.h"
#include "planner/plan/plan.h"

namespace lime {

// Snapshots for later prompts save a chat the computation of all turns before the last one. Failures
// are rare, so for them alone a step may not be longer by more than predictions can tell.
inline constexpr double kWorthPrompts = 1.1, kWorthFailures = 1.01;

// The snapshots of each slot that are worth having, if a step with them takes no more than
// `most_longer` times as long as a step without their memory.
struct SnapshotWish {
  int32_t count = 0;
  double most_longer = kWorthPrompts;
};

// What snapshots are for: later prompts begin at them (a server), and requests go on from them after
// a failure (a cluster). Of the states of each slot there is one near the end of its prompt, and two
// that take turns in its answer, so the next turn of a chat begins near the end of this one in any
// case, and a failure costs few tokens. Of the pages of windows there is the one of the prompt, and
// one where it parts from another prompt; behind its answer and after a failure a sequence has them.
struct SnapshotUses {
  bool prompts = false, failures = false;
};
inline SnapshotWish SnapshotsFor(const ModelConfig& config, const SnapshotUses& uses) {
  constexpr int32_t kOfStates = 3, kOfWindows = 2;
  const double most_longer = uses.prompts ? kWorthPrompts : kWorthFailures;
  if (!std::ranges::all_of(config.layers, &LayerConfig::has_kv))
    return {.count = uses.prompts || uses.failures ? kOfStates : 0, .most_longer = most_longer};
  const auto has_window = [](const LayerConfig& layer) { return layer.window > 0; };
  return {.count = uses.prompts && std::ranges::any_of(config.layers, has_window) ? kOfWindows : 0, .most_longer = most_longer};
}

// Returns make(wish.count), or make(0) if that has a clearly shorter step, or if only that has a plan
// (ResourceExhausted; on a cluster FailedPrecondition, if devices lack weights of all plans with room).
// A plan on one device that keeps everything in memory cannot become faster. `make` returns an
// absl::StatusOr of a struct with a Plan `plan`.
template <typename Make>
auto ChooseSnapshots(const SnapshotWish& wish, const Make& make) -> decltype(make(wish.count)) {
  auto with = make(wish.count);
  const bool has_no_plan = absl::IsResourceExhausted(with.status()) || absl::IsFailedPrecondition(with.status());
  if (wish.count == 0 || !(with.ok() || has_no_plan)) return with;
  const auto reads = [](const PlanPart& part) { return part.streamed || part.on_demand(); };
  if (with.ok() && with->plan.stages.size() == 1 && std::ranges::none_of(with->plan.parts, reads) && !SpillsKv(with->plan)) return with;
  auto without = make(0);
  const bool better =
      without.ok() && (!with.ok() || with->plan.predicted.ms_per_step > wish.most_longer * without->plan.predicted.ms_per_step);
  return better ? std::move(without) : std::move(with);
}

}  // namespace lime
