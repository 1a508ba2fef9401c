#include "coordinator/logic/cluster_rates.h"

#include "absl/strings/str_format.h"
#include "planner/plan/plan_blocks.h"

namespace lime {
namespace {

constexpr double kBytesPerMbit = 125'000;
constexpr double kLeastMs = 100;  // minimum work to measure a rate

}  // namespace

double PlannedLoadMs(const Plan& plan, const std::string& device, Bytes bytes) {
  double read = 0, ms = 0;
  const int32_t index = DeviceNamed(plan, device);
  if (index < 0) return 0;
  const PlanDevice& at = plan.devices[index];
  for (const int p : PartsOn(plan, index)) {
    const PlanPart& part = plan.parts[p];
    const double on_demand = DemandBytes(part) * plan.microbatches;
    if ((!part.streamed && on_demand <= 0) || at.disk_mb_per_ms <= 0) continue;
    const double reads = part.streamed ? 1 : on_demand / static_cast<double>(part.unit_bytes);
    read += part.streamed ? static_cast<double>(part.bytes) : on_demand;
    ms += (part.streamed ? static_cast<double>(part.bytes) : on_demand) / 1e6 / at.disk_mb_per_ms + reads * at.disk_lat_ms;
  }
  return read > 0 ? ms * static_cast<double>(bytes) / read : 0;
}

std::string DescribeRates(const RateKey& key, double planned, double now) {
  switch (key.kind) {
    case RateKey::Kind::kLink:
      return absl::StrFormat("link %s -> %s: %.3g -> %.3g Mbit/s", key.device, key.peer, planned / kBytesPerMbit, now / kBytesPerMbit);
    case RateKey::Kind::kDisk:
      return absl::StrFormat("disk of %s: %.2g -> %.2g times its profile", key.device, planned, now);
    case RateKey::Kind::kCompute:
      return absl::StrFormat("computing of %s: %.2g -> %.2g times its profile", key.device, planned, now);
  }
  return "";
}

void RateMeter::Add(const Plan& plan, const std::string& device, const DeviceStatistics& work, ClusterRates& rates) {
  DeviceStatistics& before = newest_[device];
  if (work.epoch != plan.epoch || before.epoch != plan.epoch) {
    before = work;
    return;
  }
  if (const double ms = work.disk_ms - before.disk_ms; ms >= kLeastMs) {
    const double planned = PlannedLoadMs(plan, device, work.disk_bytes - before.disk_bytes);
    if (planned > 0) rates[DiskKey(device)] = planned / ms;
    before.disk_ms = work.disk_ms, before.disk_bytes = work.disk_bytes;
  }
  if (const double ms = work.decode_ms - before.decode_ms; ms >= kLeastMs) {
    const double planned = work.planned_decode_ms - before.planned_decode_ms;
    if (planned > 0) rates[ComputeKey(device)] = planned / ms;
    before.decode_ms = work.decode_ms, before.planned_decode_ms = work.planned_decode_ms;
  }
}

}  // namespace lime
