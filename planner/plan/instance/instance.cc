#include "planner/plan/instance/instance.h"

#include "absl/strings/str_cat.h"

namespace lime {
namespace {

bool InRange(double value) {
  return value >= 0 && value <= kMaxPlanNumber;  // false for NaN
}

template <typename... Name>
absl::Status OutOfRange(double value, const Name&... name) {
  return Invalid("instance: field \"", name..., "\" = ", value, " is outside 0 to ", kMaxPlanNumber);
}

absl::Status CheckCount(const char* field, int64_t count, int64_t low, int64_t high) {
  if (count >= low && count <= high) return absl::OkStatus();
  return Invalid("instance: field \"", field, "\": ", count, " is outside ", low, " to ", high);
}

absl::Status CheckTimes(const Instance& instance, const std::vector<double>& comp_ms, int device, const std::string& field) {
  if (comp_ms.size() != instance.blocks.size()) {
    return Invalid("instance: field \"devices[", device, "].", field, "\" has ", comp_ms.size(), " times for ", instance.blocks.size(),
                   " blocks");
  }
  for (size_t b = 0; b < comp_ms.size(); ++b) {
    if (!InRange(comp_ms[b])) return OutOfRange(comp_ms[b], "devices[", device, "].", field, "[", b, "]");
  }
  return absl::OkStatus();
}

absl::Status CheckDevice(const Instance& instance, int index) {
  const Instance::Device& device = instance.devices[index];
  if (!InRange(device.mem_mb)) return OutOfRange(device.mem_mb, "devices[", index, "].mem_mb");
  if (!InRange(device.disk_mb_per_ms)) return OutOfRange(device.disk_mb_per_ms, "devices[", index, "].disk_mb_per_ms");
  if (device.disk_mb_per_ms > 0 && device.disk_mb_per_ms < kMinDiskRate) {
    return Invalid("instance: field \"devices[", index, "].disk_mb_per_ms\" = ", device.disk_mb_per_ms,
                   " is neither 0 (no disk) nor at least ", kMinDiskRate);
  }
  if (!InRange(device.disk_lat_ms)) return OutOfRange(device.disk_lat_ms, "devices[", index, "].disk_lat_ms");
  if (device.embed_rows_ms && !InRange(*device.embed_rows_ms))
    return OutOfRange(*device.embed_rows_ms, "devices[", index, "].embed_rows_ms");
  LIME_RETURN_IF_ERROR(CheckTimes(instance, device.comp_ms, index, "comp_ms"));
  for (const auto& [batch, comp_ms] : device.comp_ms_by_batch) {
    LIME_RETURN_IF_ERROR(CheckTimes(instance, comp_ms, index, absl::StrCat("comp_ms_by_batch.", batch)));
  }
  return absl::OkStatus();
}

absl::Status CheckNet(const Instance::Net& net) {
  if (!InRange(net.tx_ms)) return OutOfRange(net.tx_ms, "net.tx_ms");
  if (!InRange(net.lat_ms)) return OutOfRange(net.lat_ms, "net.lat_ms");
  for (const auto& [batch, tx_ms] : net.tx_ms_by_batch) {
    if (!InRange(tx_ms)) return OutOfRange(tx_ms, "net.tx_ms_by_batch.", batch);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Instance::Validate() const {
  LIME_RETURN_IF_ERROR(CheckCount("blocks", blocks.size(), 1, kMaxPlanBlocks));
  LIME_RETURN_IF_ERROR(CheckCount("devices", devices.size(), 1, kMaxPlanDevices));
  LIME_RETURN_IF_ERROR(CheckCount("microbatches", microbatches, 1, kMaxMicrobatches));
  LIME_RETURN_IF_ERROR(CheckCount("sequences", sequences, 0, kMaxMicrobatches));
  LIME_RETURN_IF_ERROR(CheckCount("blocks x microbatches", int64_t{NumBlocks()} * microbatches, 1, kMaxBlockRunsPerStep));
  if (!InRange(embed_mb)) return OutOfRange(embed_mb, "embed_mb");
  LIME_RETURN_IF_ERROR(CheckNet(net));
  for (int b = 0; b < NumBlocks(); ++b) {
    if (!InRange(blocks[b].mb)) return OutOfRange(blocks[b].mb, "blocks[", b, "].mb");
    if (!InRange(blocks[b].kv_mb)) return OutOfRange(blocks[b].kv_mb, "blocks[", b, "].kv_mb");
  }
  for (int d = 0; d < NumDevices(); ++d) LIME_RETURN_IF_ERROR(CheckDevice(*this, d));
  return absl::OkStatus();
}

char KindLetter(Instance::Kind kind) {
  return "AMHL"[static_cast<int>(kind)];
}

std::string DeviceLabel(const Instance& instance, int device) {
  const std::string& name = instance.devices[device].name;
  return name.empty() ? absl::StrCat("device ", device) : absl::StrCat("device ", device, " (\"", name.substr(0, 80), "\")");
}

}  // namespace lime
