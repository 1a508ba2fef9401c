// The cost of a change to another plan during a run: whether KV can be taken over, and the time to
// move it and to read weights. Pure.
//
// `before` is the plan in use, with its residency at the time of the change. `inputs` has the
// devices and links as they are then.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "coordinator/logic/replanner.h"
#include "coordinator/planning/plan_inputs.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/plan.h"

namespace lime {

// Free disk bytes by device name, after all KV that the plan in use may still write there.
// Negative: that KV may not fit. A device that is missing here has enough room.
using KvRoom = std::map<std::string, Bytes>;

// Whether disks have room for the KV of `after` once the KV of `before` is gone. ResourceExhausted
// if not.
absl::Status CheckKvRoom(const Plan& before, const Plan& after, const KvRoom& room);

// Whether `after` can take over KV of `pages` pages per layer. Memory and disks need room for it
// beside the KV and the states that `before` holds. Both plans must keep all KV (RetainsAllKv), and
// both must compute every layer with the same order of sums. If the model has a state, neither may
// lend KV.
bool TakesOver(const Plan& before, const Plan& after, int64_t pages, const KvRoom& room = {});
// The most pages for which TakesOver is true.  REQUIRES: TakesOver with 0 pages
int64_t MostPages(const Plan& before, const Plan& after, const KvRoom& room = {});

// Time of the slowest disk to read the weights that `after` keeps in memory. Weights resident under
// `before` are not read again if they fit beside the KV that is taken over, `pages` pages per
// layer. Null: all weights are read.
double ReadWeightsMs(const ModelSpec& spec, const Plan& after, const Plan* before = nullptr, int64_t pages = 0);

// Time of the slowest device to move KV and states with their layers: out of devices and into them,
// over links, from disks and to disks.
Pause MoveKv(const PlanInputs& inputs, const Plan& before, const Plan& after);

// Time to compute `positions` positions of a sequence again as a prompt, from an idle start, in
// chunks of the plan. All chunks count with the rate of the last one, which has the most to attend
// to. `again`: the number of these positions whose logits are computed again. A step computes as
// many of them as it has decode rows.
// REQUIRES: positions > 0, and the plan keeps all KV
double ComputeAgainMs(const PlanInputs& inputs, const Plan& plan, int64_t positions, int64_t again = 0);

}  // namespace lime
