#include "coordinator/serving/devices.h"

#include "absl/strings/cord.h"
#include "planner/plan/kv_spill.h"

namespace lime {
namespace {

constexpr char kDeviceMark[] = "lime/device";

}  // namespace

absl::Status WithDevice(const absl::Status& status, const std::string& device) {
  absl::Status about = status;
  if (!about.ok()) about.SetPayload(kDeviceMark, absl::Cord(device));
  return about;
}

std::string DeviceOf(const absl::Status& status) {
  const absl::optional<absl::Cord> device = status.GetPayload(kDeviceMark);
  return device ? std::string(*device) : "";
}

std::set<std::string> DevicesUsed(const Plan& plan) {
  std::set<std::string> used;
  for (int d = 0; d < plan.NumDevices(); ++d) {
    if (HasPart(plan, d)) used.insert(plan.devices[d].name);
  }
  return used;
}

}  // namespace lime
