#include <algorithm>

#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_checks.h"

namespace lime {

absl::Status CheckHost(const Plan& plan, int d) {
  const PlanDevice& device = plan.devices[d];
  const std::string name = absl::StrCat("devices[", d, "].kv_host");
  LIME_RETURN_IF_ERROR(CheckInt(name, device.kv_host, -1, plan.NumDevices() - 1));
  if (device.kv_host < 0) return absl::OkStatus();
  const PlanDevice& host = plan.devices[device.kv_host];
  if (device.kv_host == d) return Invalid("plan: ", name, " is the device itself");
  if (HasKvOnHost(device) && std::ranges::find(plan.stages, d, &Stage::device) == plan.stages.end())
    return Invalid("plan: ", name, " is given, but the device has no stage");
  if (host.numerics_id != device.numerics_id)
    return Invalid("plan: ", name, " has kernels of order \"", host.numerics_id, "\", but the device has kernels of order \"",
                   device.numerics_id, "\"");
  return absl::OkStatus();
}

absl::Status CheckComingBack(const Plan& plan, int d) {
  const PlanDevice& device = plan.devices[d];
  const std::string name = absl::StrCat("devices[", d, "].kv_fetch_pieces");
  LIME_RETURN_IF_ERROR(CheckInt(name, device.kv_fetch_pieces, 0, kMaxPartBytes / KvPieceBytes(plan)));
  if (!HasKvOnHost(device))
    return device.kv_fetch_pieces > 0 ? Invalid("plan: ", name, " is given, but no host has KV of the device") : absl::OkStatus();
  if (device.asks_kv || HostedPieces(plan, device) == 0) return absl::OkStatus();
  if (!(device.kv_fetch_mb_per_ms > 0))
    return Invalid("plan: devices[", d, "].kv_fetch_mb_per_ms = ", device.kv_fetch_mb_per_ms,
                   ", but all KV on the host comes back, which needs a rate");
  const int64_t least = HostedPieces(plan, device) + kKvFetchesUnderWay;
  if (device.kv_fetch_pieces < least)
    return Invalid("plan: ", name, " = ", device.kv_fetch_pieces, " has no room for the ", least,
                   " pieces of a layer that its host is not asked about");
  return absl::OkStatus();
}

absl::Status CheckKvOfOthers(const PlanDevice& device, const PlanNeed& need, const std::string& name) {
  const PlanMemory& memory = device.memory;
  LIME_RETURN_IF_ERROR(CheckSum(name + ".memory.hosted", memory.hosted, need.hosted, "the bytes of KV that it keeps for others"));
  LIME_RETURN_IF_ERROR(CheckSum(name + ".memory.fetched", memory.fetched, need.fetched, "the room for KV that its host sends back"));
  LIME_RETURN_IF_ERROR(CheckNumber(name + ".ask_kv_ms", device.ask_kv_ms));
  LIME_RETURN_IF_ERROR(CheckNumber(name + ".kv_fetch_mb_per_ms", device.kv_fetch_mb_per_ms));
  if (device.kv_fetch_mb_per_ms > 0 && device.kv_fetch_mb_per_ms < kMinDiskRate)
    return Invalid("plan: ", name, ".kv_fetch_mb_per_ms = ", device.kv_fetch_mb_per_ms, " is below ", kMinDiskRate);
  return absl::OkStatus();
}

}  // namespace lime
