// What `lime plan` plans for: a model, devices and a request, from flags and files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/command_line.h"
#include "planner/base/status.h"
#include "planner/block_homes.h"
#include "planner/plan/model_spec.h"
#include "planner/plan_problem.h"

namespace lime::cli {

// Where KV may not go that memory has no room for.
struct KvBounds {
  bool no_spill = false;             // to no device's disk
  bool no_lending = false;           // into no other device's memory
  bool no_remote_attention = false;  // there no device attends to it: what it keeps comes back for every use

  // --no-kv-lending, --no-remote-attention.
  void AddTo(const CommandFlags& command);
};

struct PlanInputFlags {
  std::string model;                 // folder
  std::string model_spec;            // config.json
  std::string cluster;               // cluster.toml
  std::vector<std::string> without;  // of its devices: left out
  std::string device_profiles;       // JSON
  std::string bandwidth;             // of every link, instead of what the files say
  std::optional<std::string> piece;  // nothing: 64MB, or whole blocks
  bool whole_blocks = false;         // where `piece` says nothing
  int64_t tokens = 2048;
  std::optional<int64_t> batch;
  std::optional<int64_t> sequences;
  int64_t kv_tokens = 0;
  int64_t prompt_tokens = 0;
  KvBounds kv;
  bool split_head = false;  // devices may share it; a flag of `lime plan` alone

  void AddTo(const CommandFlags& command);
};

struct PlanInputs {
  ModelSpec spec;
  std::string model_argument;  // how `lime run` is told of the model; empty where only its config.json is there
  std::vector<ClusterDevice> devices;
  PlanRequest request;
  bool split_head = false;
  KvBounds kv;
  BlockHomes homes;                              // where blocks are that no plan may make others read
  std::vector<std::vector<std::string>> shared;  // devices that are on one machine
  std::vector<std::string> notes;                // what was assumed, a sentence each
};

// What a plan that keeps KV of so many positions takes of every device beside what it has for activations: hidden states of those that are
// computed again, here and on their way (planner/plan/kv_eviction.h).
Bytes EvictionBytes(const PlanInputs& inputs, int64_t kept_positions, int32_t batch);

// Wrong flags, and files that are not what they should be, are errors of the call.
absl::StatusOr<PlanInputs> ReadPlanInputs(const PlanInputFlags& flags);

}  // namespace lime::cli
