// What a device says of an installed plan when it is asked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/plan/timeline_span.h"

namespace lime {

struct InstalledPlan {
  std::string numerics_id;
  Bytes resident = 0;  // of the process
  friend bool operator==(const InstalledPlan&, const InstalledPlan&) = default;
};

// How fast a way out of a device is now, by what passed.
struct LinkRate {
  std::string peer;
  double bytes_per_second = 0;
  double age_ms = 0;  // since it was measured
  friend bool operator==(const LinkRate&, const LinkRate&) = default;
};
struct DeviceStatistics {
  int64_t epoch = -1;
  int64_t steps = 0;
  Bytes bytes_read = 0;
  Bytes kv_written = 0, kv_read = 0;  // to the disk or a host for want of memory, and back from the disk; the latter in bytes_read too
  Bytes kv_fetched = 0;               // back from the host
  double compute_ms = 0, wait_weights_ms = 0, wait_input_ms = 0;
  double decode_ms = 0, planned_decode_ms = 0;  // computing micro-batches that decode, and what the plan says of the same
  double disk_ms = 0;                           // that the disk was at work, but for beginnings
  Bytes disk_bytes = 0;                         // read in that time
  std::optional<Bytes> kv_room;                 // free on the disk beside what KV of the plan may still take; nothing: not known
  int64_t sent_messages = 0;
  Bytes sent_bytes = 0;
  int64_t received_messages = 0;
  Bytes received_bytes = 0;
  Bytes peak_resident = 0;
  int64_t residency_changes = 0;
  Bytes given = 0;  // of weights, back to the machine, as long as others need the memory
  std::vector<LinkRate> links;

  friend bool operator==(const DeviceStatistics&, const DeviceStatistics&) = default;
};

// Spans that a device has recorded, as it is asked for them.
struct TraceCall {
  int64_t most = 0;  // spans; 0: the clock alone
  friend bool operator==(const TraceCall&, const TraceCall&) = default;
};

// Times are of the device's steady clock.
struct TraceChunk {
  int64_t epoch = -1;  // of the plan that the spans are of
  double received_ms = 0, answered_ms = 0;
  int64_t lost = 0;                 // spans that found no room, so far
  std::vector<TimelineSpan> spans;  // `device` is not said

  friend bool operator==(const TraceChunk&, const TraceChunk&) = default;
};

}  // namespace lime
