// Makes the first plans of a search: uniform plans with fluid shares. Bisection finds the least
// time T in which the devices, fastest first, can hold all blocks, in memory or by disk reads
// within T, and compute them. Each device gets its share of the blocks, divided evenly over S
// rounds in some device order. It then streams small or large blocks, spread or first in a visit,
// until it fits.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/base/random.h"
#include "planner/evaluation/assignment.h"

namespace lime {

// Each device's share of all blocks; the sum is 1. 0 for a device that would only add time. Empty
// if no T gives enough memory, without KV.
std::vector<double> FluidShares(const Instance& instance);

// How a device chooses the blocks that stream if not all fit.
struct StreamingStyle {
  double largest_mb = 0;  // largest block that may stream
  double pool_mb = 0;     // at least the largest block
  bool spread = true;     // over its blocks; false: the first ones of every visit
};

// S rounds over `order`, with each share divided evenly.  REQUIRES: some device of `order` has a
// share
Assignment UniformRounds(const Instance& instance, const std::vector<int32_t>& unit_begins, const std::vector<double>& shares,
                         const std::vector<int32_t>& order, int rounds);

// On each device, makes blocks stream in its style until the others fit. A device on which all
// blocks fit streams nothing.
void StreamInStyle(const Instance& instance, const std::vector<StreamingStyle>& styles, Assignment& plan);

// Styles to try: one for each size of block (at most four), pool size and placement.
std::vector<StreamingStyle> StreamingStyles(const Instance& instance);

// Orders of the devices that have a share: all of up to five devices; else by speed, memory, disk,
// as given, and some random ones.
std::vector<std::vector<int32_t>> DeviceOrders(const Instance& instance, const std::vector<double>& shares, Random& random);

}  // namespace lime
