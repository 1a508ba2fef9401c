#include "daemon/limed/engine_stage.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace lime {
namespace {

class EngineStage final : public DeviceStage {
 public:
  explicit EngineStage(std::unique_ptr<StageEngine> engine) : engine_(std::move(engine)) {}

  absl::Status OnOrder(const Order& order) override { return engine_->OnOrder(order); }
  absl::Status OnActivation(ActivationMessage activation) override { return engine_->OnActivation(std::move(activation)); }
  StageEngine::Stats stats() const override { return engine_->stats(); }
  std::string numerics_id() const override { return engine_->numerics_id(); }

 private:
  const std::unique_ptr<StageEngine> engine_;
};

absl::StatusOr<std::unique_ptr<DeviceStage>> MakeStage(const EngineStageOptions& options, StageSetup setup) {
  const PlanDevice& device = setup.plan.devices[setup.device];
  if (options.memory > 0 && device.budget > options.memory) {
    return absl::ResourceExhaustedError(absl::StrCat("the plan gives device \"", device.name, "\" ", FormatBytes(device.budget),
                                                     ", and limed was started with --memory ", FormatBytes(options.memory),
                                                     "; plan with the smaller one, or start it with more"));
  }
  LIME_ASSIGN_OR_RETURN(std::unique_ptr<StageEngine> engine, StageEngine::Install(setup.weights, setup.plan, setup.device,
                                                                                  {.num_threads = options.num_threads,
                                                                                   .numerics = options.numerics,
                                                                                   .sampler = setup.sampler,
                                                                                   .peers = std::move(setup.peers),
                                                                                   .load = std::move(setup.load),
                                                                                   .report = std::move(setup.report)}));
  return std::make_unique<EngineStage>(std::move(engine));
}

}  // namespace

StageFactory MakeEngineStages(const EngineStageOptions& options) {
  return [options](StageSetup setup) { return MakeStage(options, std::move(setup)); };
}

}  // namespace lime
