// Whether a plan has snapshots of its slots (Plan::state_snapshots). Their memory is reserved from the
// start, so weights may have to stream for it, or another device be used. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "planner/base/status.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan.h"

namespace lime {

// Snapshots may make a step this many times as long as it is without their memory. They save a chat
// the computation of all turns before the last one.
inline constexpr double kWorthSnapshots = 1.1;

// Returns make(snapshots), or make(0) if that has a clearly shorter step, or if only that has a plan
// (ResourceExhausted; on a cluster FailedPrecondition, if devices lack weights of all plans with room).
// A plan on one device that keeps everything in memory cannot become faster. `make` returns an
// absl::StatusOr of a struct with a Plan `plan`.
template <typename Make>
auto ChooseSnapshots(int32_t snapshots, const Make& make) -> decltype(make(snapshots)) {
  auto with = make(snapshots);
  const bool has_no_plan = absl::IsResourceExhausted(with.status()) || absl::IsFailedPrecondition(with.status());
  if (snapshots == 0 || !(with.ok() || has_no_plan)) return with;
  const auto reads = [](const PlanPart& part) { return part.streamed || part.on_demand(); };
  if (with.ok() && with->plan.stages.size() == 1 && std::ranges::none_of(with->plan.parts, reads) && !SpillsKv(with->plan)) return with;
  auto without = make(0);
  const bool better =
      without.ok() && (!with.ok() || with->plan.predicted.ms_per_step > kWorthSnapshots * without->plan.predicted.ms_per_step);
  return better ? std::move(without) : std::move(with);
}

}  // namespace lime
