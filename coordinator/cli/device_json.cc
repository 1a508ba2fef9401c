#include "coordinator/cli/device_json.h"

namespace lime::cli {

nlohmann::json DeviceJson(const PlanDevice& device, const InstalledPlan& installed, const DeviceStatistics& of) {
  return {{"name", device.name},
          {"numerics_id", installed.numerics_id},
          {"budget_bytes", device.budget},
          {"peak_rss_bytes", of.peak_resident},
          {"steps", of.steps},
          {"bytes_read", of.bytes_read},
          {"kv_written_bytes", of.kv_written},
          {"kv_read_bytes", of.kv_read},
          {"kv_fetched_bytes", of.kv_fetched},
          {"compute_ms", of.compute_ms},
          {"wait_weights_ms", of.wait_weights_ms},
          {"wait_input_ms", of.wait_input_ms},
          {"residency_changes", of.residency_changes},
          {"sent_messages", of.sent_messages},
          {"sent_bytes", of.sent_bytes}};
}

}  // namespace lime::cli
