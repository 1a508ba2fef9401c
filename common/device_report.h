// Reports of a device about an installed plan, on request.
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

// The current rate of an outgoing link, measured from its traffic.
struct LinkRate {
  std::string peer;
  double bytes_per_second = 0;
  double age_ms = 0;  // since it was measured
  friend bool operator==(const LinkRate&, const LinkRate&) = default;
};
// Activations to and from another device.
struct PeerTraffic {
  std::string peer;
  Bytes sent = 0, received = 0;
  friend bool operator==(const PeerTraffic&, const PeerTraffic&) = default;
};
struct DeviceStatistics {
  int64_t epoch = -1;
  int64_t steps = 0;
  Bytes bytes_read = 0;
  // KV written to the disk or a host because memory is full, and KV read back from the disk.
  // bytes_read includes kv_read.
  Bytes kv_written = 0, kv_read = 0;
  Bytes kv_fetched = 0;  // fetched from the host
  double compute_ms = 0, wait_weights_ms = 0, wait_input_ms = 0;
  double wait_kv_ms = 0;  // for the host of KV; included in wait_input_ms
  // Time to compute decode micro-batches, and the plan's value for the same work.
  double decode_ms = 0, planned_decode_ms = 0;
  double disk_ms = 0;    // time in which the disk worked; the start after each rest does not count
  Bytes disk_bytes = 0;  // read in that time
  // Free disk space after all KV that the plan may still write; nullopt: unknown.
  std::optional<Bytes> kv_room;
  int64_t sent_messages = 0;
  Bytes sent_bytes = 0;
  int64_t received_messages = 0;
  Bytes received_bytes = 0;
  Bytes resident = 0, peak_resident = 0;    // of the process
  int64_t kv_pages = 0, kv_pages_free = 0;  // in memory
  int64_t residency_changes = 0;
  Bytes shed = 0;               // bytes of weights evicted while other programs need memory
  int64_t pressure_events = 0;  // how often that lowered the bytes that may be resident
  // Units on demand, such as experts, that layers have chosen: in memory, or not there yet. Then the
  // same of decode steps alone, for which plans state the expected share.
  int64_t unit_hits = 0, unit_misses = 0;
  int64_t decode_unit_hits = 0, decode_unit_misses = 0;
  Bytes unit_bytes = 0;  // read on demand; included in bytes_read
  // Read-ahead of units: those that were guessed and not in memory; those that were read ahead; of
  // these, those that were chosen before they left; and the bytes of the others.
  int64_t units_suggested = 0, units_read_ahead = 0, read_ahead_used = 0;
  Bytes read_ahead_wasted = 0;  // included in unit_bytes
  // Sparse MLPs: visits of a sparse layer by a micro-batch that computed its active neurons, and their
  // rows, each counted in every sparse layer; neurons that were computed; of these, neurons that were
  // read; the reads and their bytes, which bytes_read includes; the time in which any of them was
  // under way; and neurons that were copied from the matrices that prompts had read.
  int64_t neuron_visits = 0, neuron_rows = 0;
  int64_t neurons_computed = 0, neurons_loaded = 0;
  int64_t neuron_reads = 0;
  Bytes neuron_bytes = 0;
  double neuron_io_ms = 0;
  int64_t neurons_copied = 0;
  std::vector<LinkRate> links;
  std::vector<PeerTraffic> traffic;

  // Share of the units that decode steps have found in memory; nullopt: they have chosen none.
  std::optional<double> decode_hit_share() const {
    const int64_t chosen = decode_unit_hits + decode_unit_misses;
    return chosen > 0 ? std::optional(static_cast<double>(decode_unit_hits) / static_cast<double>(chosen)) : std::nullopt;
  }
  friend bool operator==(const DeviceStatistics&, const DeviceStatistics&) = default;
};

// How long a device records spans after a TraceCall, if its plan was installed with
// trace_when_asked.
inline constexpr double kTraceAskedMs = 3000;

// A request for recorded spans.
struct TraceCall {
  int64_t most = 0;  // spans; 0: only the clock
  friend bool operator==(const TraceCall&, const TraceCall&) = default;
};

// Times are those of the device's steady clock.
struct TraceChunk {
  int64_t epoch = -1;  // of the plan that was traced
  double received_ms = 0, answered_ms = 0;
  int64_t lost = 0;                 // spans dropped so far because the buffer was full
  std::vector<TimelineSpan> spans;  // without `device`

  friend bool operator==(const TraceChunk&, const TraceChunk&) = default;
};

}  // namespace lime
