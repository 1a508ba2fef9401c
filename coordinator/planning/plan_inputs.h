// The inputs of `lime plan`: a model, devices and a request, from flags and files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/input/command_line.h"
#include "coordinator/planning/sparse_inputs.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"
#include "planner/problem/plan_problem.h"
#include "planner/search/block_homes.h"

namespace lime {

// Where KV must not go if memory has no room for it.
struct KvBounds {
  bool no_spill = false;             // not to a device's disk
  bool no_lending = false;           // not to another device's memory
  bool no_remote_attention = false;  // hosts compute no attention; KV is fetched for each use

  bool MayTravel() const { return !no_lending; }
  // --no-kv-lending, --no-remote-attention.
  void AddTo(const CommandFlags& command);
};

struct PlanInputFlags {
  std::string model;                 // folder
  std::string model_spec;            // config.json
  std::string cluster;               // cluster.toml
  std::vector<std::string> without;  // its excluded devices
  std::string device_profiles;       // JSON
  std::string bandwidth;             // of every link; overrides the files
  std::optional<std::string> part;   // nullopt: 64MB, or whole blocks
  bool whole_blocks = false;         // if `part` is not given
  int64_t tokens = 2048;
  std::optional<int64_t> batch;
  std::optional<int64_t> sequences;
  int64_t state_snapshots = 0;  // PlanRequest::state_snapshots
  int64_t kv_tokens = 0;
  int64_t prompt_tokens = 0;
  KvBounds kv;
  bool split_head = false;  // devices may share it; only for `lime plan`

  void AddTo(const CommandFlags& command);
};

struct PlanInputs {
  ModelSpec spec;
  std::string model_argument;  // for `lime run --model`; empty: only config.json is here
  std::vector<ClusterDevice> devices;
  PlanRequest request;
  bool split_head = false;
  KvBounds kv;
  // How many experts of every layer have a place in memory; the others are loaded on demand. 0: none
  // are on demand. nullopt: if experts would stream, as many as make the plan fastest.
  std::optional<int64_t> unit_places;
  // How many of these places may have experts that were read ahead (PlanRequest::ahead_places).
  // nullopt: a few if the experts are divided over devices, whose disks wait for each other; else 0.
  std::optional<int32_t> ahead_places;
  // Whether the experts of a layer may be divided over devices. Each device then needs the weights of
  // all layers with experts.
  bool divides_experts = true;
  SparseInputs sparse;
  BlockHomes homes;                              // blocks that each device may read
  std::vector<std::vector<std::string>> shared;  // devices on one machine
  std::vector<std::string> notes;                // assumptions, one sentence each
};

// Rows of the largest step that a device may compute.
int64_t MostRows(const PlanRequest& request);

// Wrong flags and invalid files are wrong calls.
absl::StatusOr<PlanInputs> ReadPlanInputs(const PlanInputFlags& flags);

}  // namespace lime
