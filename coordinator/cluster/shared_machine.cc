#include "coordinator/cluster/shared_machine.h"

#include <algorithm>
#include <map>

#include "common/input/host_port.h"

namespace lime {

std::string MachineOf(std::string_view address) {
  const absl::StatusOr<HostPort> parsed = ParseAddress(address);
  if (!parsed.ok()) return std::string(address);
  return IsLoopback(*parsed) ? "localhost" : PlainHost(parsed->host);
}

std::vector<std::vector<std::string>> SharedMachines(const std::vector<std::string>& names, const std::vector<std::string>& addresses) {
  std::map<std::string, std::vector<std::string>> machines;
  for (size_t i = 0; i < names.size() && i < addresses.size(); ++i) {
    if (!addresses[i].empty()) machines[MachineOf(addresses[i])].push_back(names[i]);
  }
  std::vector<std::vector<std::string>> shared;
  for (auto& [machine, devices] : machines) {
    if (devices.size() > 1) shared.push_back(std::move(devices));
  }
  return shared;
}

void ShareDisks(const std::vector<std::vector<std::string>>& machines, std::vector<DescribedDevice>& devices) {
  for (const std::vector<std::string>& machine : machines) {
    const auto sharers = static_cast<double>(machine.size());
    for (DescribedDevice& device : devices) {
      if (std::ranges::find(machine, device.name) == machine.end()) continue;
      device.profile.ScaleDisk(1 / sharers);
    }
  }
}

}  // namespace lime
