// What `lime plan` plans for: a model, devices and a request, from flags and files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/cli11.h"
#include "planner/base/status.h"
#include "planner/block_homes.h"
#include "planner/plan/model_spec.h"
#include "planner/plan_problem.h"

namespace lime::cli {

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
  bool no_kv_spill = false;
  bool no_kv_lending = false;
  bool no_remote_attention = false;
  bool split_head = false;  // devices may share it; a flag of `lime plan` alone

  void AddTo(CLI::App& app);
};

struct PlanInputs {
  ModelSpec spec;
  std::string model_argument;  // how `lime run` is told of the model; empty where only its config.json is there
  std::vector<ClusterDevice> devices;
  PlanRequest request;
  bool split_head = false;
  bool kv_spill = true;                          // KV that memory has no room for may go to disks
  bool kv_lending = true;                        // and into the memory of other devices
  bool remote_attention = true;                  // which may attend to it
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
