// Joins neighbouring parts of a model block, so that a search can begin with few blocks and cut
// them later.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/evaluation/assignment.h"
#include "planner/plan/instance/instance.h"

namespace lime {

// Divides the parts of every model block into at most `most_groups` groups, with equal numbers of
// parts where possible. Returns the first part of every group, then the number of all parts.
std::vector<int32_t> GroupParts(const Instance& instance, int most_groups);

// The instance with groups as blocks: bytes and compute times are sums, and a group is one disk
// read. It has no times for other batch sizes.
Instance PutTogether(const Instance& instance, const std::vector<int32_t>& begins);

// Converts a plan of the groups to one of the parts (ToParts), and back (ToGroups). A group is on
// the device of its first part, and streams if any of its parts does.
Assignment ToParts(const Assignment& parts, const std::vector<int32_t>& begins);
Assignment ToGroups(const Assignment& parts, const std::vector<int32_t>& begins);

}  // namespace lime
