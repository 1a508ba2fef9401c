// Devices of a cluster that are daemons on one machine, and so share its disk.
//
// Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coordinator/cluster/device_profiles.h"

namespace lime {

// The machine of "host:port" or "[address]:port"; one name for all addresses of loopback. Nothing is resolved: two names of one machine are
// two machines here.
std::string MachineOf(std::string_view address);

// The names of devices that share a machine, a list for each machine that has more than one. `addresses` by device; those without any share
// nothing.
std::vector<std::vector<std::string>> SharedMachines(const std::vector<std::string>& names, const std::vector<std::string>& addresses);

// Each was measured alone. A plan lets all of them read at once: of n on one machine, each gets an n-th of what it read then.
void ShareDisks(const std::vector<std::vector<std::string>>& machines, std::vector<DescribedDevice>& devices);

}  // namespace lime
