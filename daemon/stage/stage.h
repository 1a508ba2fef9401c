// What a daemon runs an installed plan with: the StageEngine, or in tests something that computes nothing.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/engine/stage_engine.h"

namespace lime {

class DeviceStage {
 public:
  virtual ~DeviceStage() = default;
  virtual absl::Status OnOrder(const Order& order) = 0;
  virtual absl::Status OnActivation(ActivationMessage activation) = 0;
  // From the host of this device's KV, or from a device whose host it is.
  virtual absl::Status OnKv(int32_t /*from*/, const std::vector<std::byte>& /*message*/) {
    return absl::InvalidArgumentError("this device has no KV with others");
  }
  // As StageEngine::Leave.
  virtual absl::StatusOr<LeftByPlan> Leave() { return absl::UnimplementedError("this device leaves no KV"); }
  virtual StageEngine::Stats stats() const = 0;
  virtual double StepShare() const { return 0; }
  virtual LoadSummary load() const { return {}; }
  virtual std::string numerics_id() const = 0;
};

struct StageSetup {
  std::string weights;  // folder
  Plan plan;
  int32_t device = 0;  // of the plan
  StageEngine::Peers peers;
  std::shared_ptr<KvTakeover> takeover;  // of the plan before; null: every sequence begins anew
  std::optional<WeightsDigest> digest;   // that the weights must have; nothing: not said
  TokenSampler* sampler = nullptr;       // where this device has a part of the head; outlives the stage
  LoadOptions load;
  StallReport report;
  TraceRing* trace = nullptr;  // for spans, where they are asked for; outlives the stage
};

// May take minutes; returns kCancelled within moments after load.cancelled is set.
using StageFactory = std::function<absl::StatusOr<std::unique_ptr<DeviceStage>>(StageSetup setup)>;

}  // namespace lime
