// Watches a cluster while somebody looks: asks the devices for their statistics and spans, and keeps
// one snapshot for all who look.
//
//   Events ──► a stream: asked twice a second, a snapshot each time ──┐
//   Json   ──► the same for kLookFor                                  ├─► devices, one thread each
//   Facts  ──► asked every kScraped, without spans, for kScrapeFor ───┘
//
// Each device is asked once at the start. Then nothing is asked, computed or recorded when nobody
// looks. The answer to who looks first after that therefore has older numbers of the devices; what
// the server knows by itself is always of now.
//
// Threads: one for each device, and one that makes the snapshots. All calls but Open and Close: any;
// they do not wait for a device.
// Bounds: one snapshot for all streams. A stream that is read slowly misses snapshots.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/device_report.h"
#include "common/http/answer.h"
#include "common/http/body_source.h"
#include "coordinator/cluster_view/cluster_facts.h"
#include "planner/plan/plan.h"

namespace lime {

class ClusterWatch {
 public:
  // A device of cluster.toml, or this process. Its functions are called on a thread of its own, one
  // at a time, and return after a second at the latest.
  struct Device {
    std::string name, address, backend;
    std::string numerics_id;  // of its kernels, if known; else that of the plan
    // Unavailable, DeadlineExceeded: the device is lost. Other errors: it has no plan now.
    std::function<absl::StatusOr<DeviceStatistics>()> statistics;
    std::function<absl::StatusOr<TraceChunk>(const TraceCall& call)> trace;
  };
  // What the server knows by itself.
  struct Now {
    std::shared_ptr<const Plan> plan;  // null: none is installed yet
    double progress = 0;               // of loading the model, while there is no plan: 0 to 1
    double predicted_ms_per_token = 0;
    std::optional<double> measured_ms_per_token;
    double tokens_per_second = 0;
    int64_t running = 0, waiting = 0;
    int64_t recoveries = 0, plan_changes = 0;
    int64_t kv_pages_cached = 0;
  };
  struct Cluster {
    std::string name, model;
    std::vector<Device> devices;
    // Bytes per second from a device to another one, of the cluster's files; nullopt: unknown. May
    // be empty.  Thread: any
    std::function<std::optional<double>(const Plan& plan, const std::string& from, const std::string& to)> planned_rate;
  };
  struct Options {
    std::function<Now()> now;  // thread: any; does not wait
    absl::Duration every = absl::Milliseconds(500);
    absl::Duration look_for = absl::Seconds(3);     // after Json
    absl::Duration scraped = absl::Seconds(2);      // between questions for Facts
    absl::Duration scrape_for = absl::Seconds(90);  // after Facts; longer than a scraper waits
    absl::Duration trusted = absl::Seconds(6);      // how long an answer tells which plan a device has
  };
  // There are no devices before Open.
  explicit ClusterWatch(Options options);
  ~ClusterWatch();  // Close

  // Call once.
  void Open(Cluster cluster);
  // Asks no device any more. Snapshots are no longer made.
  void Close();

  ClusterFacts Facts();
  std::string Json();
  // "event: cluster" with the same object, twice a second. Wakes `answer`.
  std::unique_ptr<BodySource> Events(std::shared_ptr<HttpAnswer> answer);

 private:
  class Watching;
  class EventSource;
  const std::shared_ptr<Watching> watching_;
};

}  // namespace lime
