// Any text as a cluster file and as devices described in JSON: an error in one sentence, or values
// within their bounds.
#include <string_view>

#include "common/input/device_name.h"
#include "coordinator/cluster/cluster_config.h"
#include "coordinator/cluster/device_profiles.h"
#include "planner/base/check.h"

namespace {

void CheckSentence(const absl::Status& status) {
  LIME_CHECK(!status.message().empty());
  LIME_CHECK(status.message().find('\n') == absl::string_view::npos) << std::string(status.message());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lime;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const absl::StatusOr<ClusterConfig> config = ParseClusterConfig(text, "fuzz"); config.ok()) {
    LIME_CHECK(!config->devices.empty());
    for (const ClusterConfig::Device& device : config->devices)
      LIME_CHECK(IsDeviceName(device.name) && device.memory >= 0 && device.threads >= 0);
    for (const ClusterConfig::Link& link : config->links) LIME_CHECK(link.bytes_per_second >= 1 && link.latency_ms >= 0);
  } else {
    CheckSentence(config.status());
  }
  if (const absl::StatusOr<DescribedCluster> cluster = ParseDeviceProfiles(text, "fuzz"); cluster.ok()) {
    for (const DescribedDevice& device : cluster->devices) LIME_CHECK(IsDeviceName(device.name) && device.memory >= 1);
  } else {
    CheckSentence(cluster.status());
  }
  return 0;
}
