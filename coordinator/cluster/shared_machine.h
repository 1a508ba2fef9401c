// Finds devices of a cluster that are daemons on one machine and share its disk. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coordinator/cluster/device_profiles.h"

namespace lime {

// The machine of "host:port" or "[address]:port". All loopback addresses are one machine. Names are
// not resolved: two names of one machine count as two machines.
std::string MachineOf(std::string_view address);

// The names of devices that share a machine: one list for each machine with more than one device.
// `addresses` by device; an empty address shares nothing.
std::vector<std::vector<std::string>> SharedMachines(const std::vector<std::string>& names, const std::vector<std::string>& addresses);

// Divides the disk rates. Each device was measured alone, but a plan lets all of them read at once:
// each of n devices on one machine gets an n-th of its measured rate.
void ShareDisks(const std::vector<std::vector<std::string>>& machines, std::vector<DescribedDevice>& devices);

}  // namespace lime
