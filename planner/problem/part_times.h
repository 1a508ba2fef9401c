// The times of a plan's parts on one device.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/plan/baselines/eviction.h"
#include "planner/plan/device/device_profile.h"
#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"
#include "planner/problem/plan_problem.h"

namespace lime {

inline constexpr double kPartLatencyMs = 0.02;  // small, because the next part is queued during a read
// To read on demand without a disk. No plan should do it.
inline constexpr double kNoDiskMs = 1e9;

// Time of each part on one device: a block's time, divided by bytes in use. The first part includes the
// embedding, the last part the step's overhead. After the last attention, no evicted rows are
// computed.
std::vector<double> ComputeTimes(const ModelSpec& spec, const DeviceProfile& profile, const Plan& plan, const VisitShape& rows);

// The parts on demand of `head` in a decode step with `rows` rows, or in a chunk of a prompt. Adds
// their expected reads to `comp_ms`, the result of ComputeTimes.
//
// Reading: the disk reads one unit after the other at its rate, and every unit costs the time of a
// small read. Streamed parts are read as if the disk did nothing else (planner/unit_places.h).
std::vector<PartDemand> AddStepDemand(const ModelSpec& spec, const DeviceProfile& profile, const PlanRequest& request, const Plan& head,
                                      int64_t rows, std::vector<double>& comp_ms);
std::vector<PartDemand> AddChunkDemand(const ModelSpec& spec, const DeviceProfile& profile, const Plan& head, int64_t rows,
                                       std::vector<double>& comp_ms);

// The same for all devices, if they divide the parts on demand. `comp_ms`: by device. `link`(a, b):
// between two devices.
//
// Reading: a question has the input of all rows. Results are sent as units are computed, so only that
// of the last unit is awaited behind its reads. Links do not share what they carry. Chunks use recency
// no more than in DemandOfChunk.
//
// With PlanRequest::ahead_places, steps of at most kMostGuessedRows rows read ahead in all layers but
// the first. A wrong guess is as likely to be chosen later as the coldest unit, whose place it takes.
struct DividedVisit {
  int64_t rows = 0;
  bool is_step = true;  // else a chunk of a prompt
};
std::vector<std::vector<PartDemand>> AddDividedDemand(const ModelSpec& spec, std::span<const ClusterDevice> devices,
                                                      const PlanRequest& request, const Plan& head, const DividedVisit& visit,
                                                      std::span<std::vector<double>* const> comp_ms);

}  // namespace lime
