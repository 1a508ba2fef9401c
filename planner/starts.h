// Where a search begins: uniform plans of fluid shares. The time T is halved down to the least at which the devices, fastest first, can
// hold (memory, and what their disks read in T) and compute all blocks; every device then gets its share of the blocks, cut evenly into S
// rounds over the devices in some order, and streams small or large blocks, spread out or first in a visit, until it fits.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/assignment.h"
#include "planner/random.h"

namespace lime {

// Each device's share of all blocks, adding up to 1; 0 for a device that would only cost. Empty where memory, KV apart, does not suffice
// for any T.
std::vector<double> FluidShares(const Instance& instance);

// Which blocks of a device stream first where it is too small for all of them.
struct StreamingStyle {
  double largest_mb = 0;  // no larger ones
  double pool_mb = 0;     // at least as large as the largest
  bool spread = true;     // over its blocks; else the first ones of every visit
};

// S rounds over `order`, each device's share cut evenly.  REQUIRES: some device of the order has a share
Assignment UniformRounds(const Instance& instance, const std::vector<int32_t>& unit_begins, const std::vector<double>& shares,
                         const std::vector<int32_t>& order, int rounds);

// Streams what does not fit, device by device in its style. A device that fits keeps everything.
void StreamInStyle(const Instance& instance, const std::vector<StreamingStyle>& styles, Assignment& plan);

// The styles worth trying: one per size of block (at most four sizes), size of pool and placement.
std::vector<StreamingStyle> StreamingStyles(const Instance& instance);

// Orders of the devices that have a share: all where they are at most five, else by speed, memory, disk, as given, and some at random.
std::vector<std::vector<int32_t>> DeviceOrders(const Instance& instance, const std::vector<double>& shares, Random& random);

}  // namespace lime
