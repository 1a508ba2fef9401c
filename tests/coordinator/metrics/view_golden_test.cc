// What the page and Prometheus see of a small cluster, as golden files: tests/golden/cluster.json
// and metrics_*.txt, to be read in review.
//
// To write them anew: coordinator_tests --files=view_golden_test.cc --update_golden, then read the
// difference as you would read code.
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/cluster_view/cluster_json.h"
#include "coordinator/metrics/server_metrics.h"
#include "daemon/limed/limed_metrics.h"
#include "nlohmann/json.hpp"
#include "tests/coordinator/cluster_view/small_view.h"
#include "tests/golden_file.h"

namespace lime {
namespace {

// The values of this process, and of this release, are not of the small cluster.
std::string WithoutOwnValues(const std::string& text) {
  const std::string values = std::regex_replace(text, std::regex("\n(process_[a-z_]+) [^\n]+"), "\n$1 N");
  return std::regex_replace(values, std::regex("version=\"[^\"]*\""), "version=\"N\"");
}

TEST(ViewGoldenTest, Cluster) {
  const auto seen = nlohmann::ordered_json::parse(ClusterJson(SmallFacts(SmallServedPlan())));
  ExpectGolden("cluster.json", seen.dump(1) + "\n");
}

TEST(ViewGoldenTest, MetricsOfAServerThatHasJustStarted) {
  const ServerMetrics metrics;
  ExpectGolden("metrics_serve.txt", WithoutOwnValues(metrics.Text(SmallFacts(SmallServedPlan()), 3)));
}

TEST(ViewGoldenTest, MetricsOfADevice) {
  const DeviceStatistics statistics{.epoch = 3,
                                    .steps = 1200,
                                    .bytes_read = 123'456'789,
                                    .wait_weights_ms = 1500,
                                    .wait_input_ms = 2750,
                                    .wait_kv_ms = 250,
                                    .kv_pages = 128,
                                    .kv_pages_free = 96,
                                    .pressure_events = 2,
                                    .traffic = {{"a", 100, 200}, {"c", 300, 0}}};
  ExpectGolden("metrics_limed.txt", WithoutOwnValues(LimedMetricsText(statistics, SmallServedPlan().devices[1].memory)));
}

TEST(ViewGoldenTest, MetricsOfADeviceWithoutAPlan) {
  ExpectGolden("metrics_limed_idle.txt", WithoutOwnValues(LimedMetricsText({}, {})));
}

}  // namespace
}  // namespace lime
