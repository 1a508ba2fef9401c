// What it takes to go on with another plan in the middle of a run: whether KV can be taken over, and what that and reading weights take.
// Pure.
//
// `before` is the plan in use with the residency that it has when the change comes, `inputs` the devices and links as they are by then.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "coordinator/cli/plan_inputs.h"
#include "coordinator/logic/replanner.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/plan.h"

namespace lime::cli {

// Free on the disks of devices, by name, beside all that KV of the plan in use may still take there; less than 0 where that may not be had.
// Those not named have room.
using KvRoom = std::map<std::string, Bytes>;

// Whether disks have room for the KV of a plan once that of the plan before is gone. ResourceExhausted.
absl::Status CheckKvRoom(const Plan& before, const Plan& after, const KvRoom& room);

// Whether devices can go on from one plan to the other with KV of so many pages of each layer: there is room for it and, beside it in
// memory and on disks, for what the plan before has there, neither plan evicts any, and the kernels that go on have the order of those
// before.
bool TakesOver(const Plan& before, const Plan& after, int64_t pages, const KvRoom& room = {});
// The most pages for which it is so.  REQUIRES: TakesOver with 0 pages
int64_t MostPages(const Plan& before, const Plan& after, const KvRoom& room = {});

// Of the slowest disk: reading the weights that are in memory under `after`. Those stay that are there under `before`, where there is room
// for them beside KV of so many pages of each layer that is taken over; null: none do.
double ReadWeightsMs(const ModelSpec& spec, const Plan& after, const Plan* before = nullptr, int64_t pages = 0);

// Of the slowest device: what KV that follows its layers takes on its way, out of devices and into them, over links, from disks and to
// them.
Pause MoveKv(const PlanInputs& inputs, const Plan& before, const Plan& after);

// What so many positions of a sequence take that are computed again, as a prompt, from an idle start: in the plan's chunks, all of them at
// the rate of the last, which has the most to attend to. `again`: of them, those whose logits are made again, as many in a step as decode.
// REQUIRES: positions > 0, and the plan evicts no KV
double ComputeAgainMs(const PlanInputs& inputs, const Plan& plan, int64_t positions, int64_t again = 0);

}  // namespace lime::cli
