// What the page and the metrics show of a cluster. One process is a cluster of one device. Pure
// data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/base/bytes.h"

namespace lime {

struct StreamedBlock {
  std::string name;
  Bytes bytes = 0;  // read in every step

  friend bool operator==(const StreamedBlock&, const StreamedBlock&) = default;
};

// Memory by kind, as the plan divides it.
struct MemoryFacts {
  Bytes weights = 0;  // with the embedding
  Bytes kv = 0;       // pages, with those of other devices, and the state of sequences
  Bytes ring = 0;
  Bytes activations = 0;
  Bytes runtime = 0;

  friend bool operator==(const MemoryFacts&, const MemoryFacts&) = default;
};

// The work of a device since the server began, over all plans.
struct DeviceTotals {
  Bytes disk_read = 0;
  double wait_weights_seconds = 0, compute_seconds = 0;
  int64_t unit_hits = 0, unit_misses = 0;  // experts on demand that were chosen
  Bytes unit_bytes = 0;                    // of experts, read on demand

  friend bool operator==(const DeviceTotals&, const DeviceTotals&) = default;
};

// The experts of a device that are read on demand. Shares are of the experts that decode steps choose.
struct ExpertsFacts {
  int64_t kept = 0, of = 0;  // of each layer
  double expected_hit_share = 0;
  std::optional<double> measured_hit_share;  // nullopt: no step has chosen any under this plan

  friend bool operator==(const ExpertsFacts&, const ExpertsFacts&) = default;
};

struct DeviceFacts {
  enum class State {
    kOk,       // it answers, and has its part of the plan, if any
    kLoading,  // it answers, and does not have its part yet
    kLost,     // it does not answer
  };
  std::string name, address;  // no address: this process
  State state = State::kLoading;
  std::string backend, numerics_id;
  Bytes budget = 0;
  Bytes resident = 0;  // of the process; 0: unknown
  MemoryFacts memory;
  int64_t blocks = 0;  // that it computes
  std::vector<StreamedBlock> streamed;
  std::optional<double> disk_bytes_per_second;          // nullopt: not known yet
  std::optional<double> planned_disk_bytes_per_second;  // nullopt: nothing streams
  int64_t kv_pages = 0, kv_pages_free = 0;
  std::optional<ExpertsFacts> experts;  // nullopt: none is on demand
  DeviceTotals totals;

  friend bool operator==(const DeviceFacts&, const DeviceFacts&) = default;
};

struct LinkFacts {
  std::string from, to;
  std::optional<double> planned_bytes_per_second, measured_bytes_per_second;
  double age_ms = 0;  // of the measurement
  Bytes sent = 0;     // since the server began

  friend bool operator==(const LinkFacts&, const LinkFacts&) = default;
};

// Part of a device's step. Times of all devices are of one clock, and begin with the step.
struct SpanFacts {
  std::string device;
  std::string kind;  // compute, load, send, wait
  std::string what;  // "mlp 7", "weights", "to phone"
  double begin_ms = 0, end_ms = 0;

  friend bool operator==(const SpanFacts&, const SpanFacts&) = default;
};

struct ClusterFacts {
  std::string name, model;
  // Of the plan in use; nullopt: none is installed yet.
  struct PlanFacts {
    int64_t epoch = 0;
    int64_t stages = 0;
    double ms_per_token = 0, ttft_ms = 0;  // predicted

    friend bool operator==(const PlanFacts&, const PlanFacts&) = default;
  };
  std::optional<PlanFacts> plan;
  double progress = 0;                          // of loading the model, while there is no plan: 0 to 1
  std::optional<double> measured_ms_per_token;  // of the last seconds in which tokens came
  double tokens_per_second = 0;                 // of all requests
  int64_t running = 0, waiting = 0;             // requests
  int64_t recoveries = 0, plan_changes = 0;     // since the server began
  int64_t kv_pages_cached = 0;                  // of those in use: prompts kept for later requests
  std::vector<DeviceFacts> devices;             // in the order of cluster.toml
  std::vector<LinkFacts> links;                 // between neighbours of the plan
  std::optional<int64_t> step;                  // of `spans`
  std::vector<SpanFacts> spans;                 // measured; empty: nobody has looked long enough
  std::vector<SpanFacts> predicted;             // of a step of the plan

  friend bool operator==(const ClusterFacts&, const ClusterFacts&) = default;
};

}  // namespace lime
