#include "daemon/stage/engine_stage.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/paced_backend.h"

namespace lime {
namespace {

class EngineStage final : public DeviceStage {
 public:
  explicit EngineStage(std::unique_ptr<StageEngine> engine) : engine_(std::move(engine)) {}

  absl::Status OnOrder(const Order& order) override { return engine_->OnOrder(order); }
  absl::Status OnActivation(ActivationMessage activation) override { return engine_->OnActivation(std::move(activation)); }
  absl::Status OnKv(int32_t from, const std::vector<std::byte>& message) override { return engine_->OnKv(from, message); }
  absl::StatusOr<LeftByPlan> Leave() override { return engine_->Leave(); }
  StageEngine::Stats stats() const override { return engine_->stats(); }
  double StepShare() const override { return engine_->StepShare(); }
  LoadSummary load() const override { return engine_->load(); }
  std::string numerics_id() const override { return engine_->numerics_id(); }

 private:
  const std::unique_ptr<StageEngine> engine_;
};

// What was paced, so that a profile too fast for this machine does not go unnoticed.
std::string PaceSentence(const PaceReport& report) {
  return absl::StrFormat("paced %d parts to %.0f ms, of which the kernels took %.0f; %d came late, at most by %.1f ms", report.parts,
                         report.paced_ms, report.real_ms, report.late, report.latest_ms);
}

std::string LoadSentence(const LoadSummary& load) {
  return absl::StrCat("loaded ", FormatBytes(load.bytes), " of weights in ", absl::StrFormat("%.1f s", load.seconds), ", ", load.loader);
}

std::unique_ptr<Backend> Pace(const EngineStageOptions& options, std::unique_ptr<Backend> backend, const ModelSpec& spec) {
  if (!options.pace) return backend;
  const auto ended = [log = options.log](const PaceReport& report) {
    if (log) log(PaceSentence(report));
  };
  return PaceBackend(std::move(backend), spec, {.profile = *options.pace, .ended = ended});
}

absl::StatusOr<std::unique_ptr<DeviceStage>> MakeStage(const EngineStageOptions& options, SampleMemory& samples, StageSetup setup) {
  const PlanDevice& device = setup.plan.devices[setup.device];
  if (options.memory > 0 && device.budget > options.memory) {
    return absl::ResourceExhaustedError(absl::StrCat("the plan gives device \"", device.name, "\" ", FormatBytes(device.budget),
                                                     ", and limed was started with --memory ", FormatBytes(options.memory),
                                                     "; plan with the smaller one, or start it with more"));
  }
  StageEngine::Options engine_options{.num_threads = options.num_threads,
                                      .cores = options.cores,
                                      .backend = options.backend,
                                      .numerics = options.numerics,
                                      .grow_kv = options.grow_kv,
                                      .sampler = setup.sampler,
                                      .peers = std::move(setup.peers),
                                      .kv_folder = options.kv_dir,
                                      .takeover = std::move(setup.takeover),
                                      .digest = std::move(setup.digest),
                                      .samples = &samples,
                                      .load = std::move(setup.load),
                                      .loader = options.loader,
                                      .planned_steps = options.planned_steps,
                                      .report = std::move(setup.report),
                                      .watch_pressure = options.follow_memory,
                                      .pressure = options.pressure,
                                      .pressure_hold = options.pressure_hold,
                                      .trace = setup.trace,
                                      .wrap_backend = [options](std::unique_ptr<Backend> backend, const ModelSpec& spec) {
                                        return Pace(options, std::move(backend), spec);
                                      }};
  LIME_ASSIGN_OR_RETURN(std::unique_ptr<StageEngine> engine,
                        StageEngine::Install(setup.weights, setup.plan, setup.device, std::move(engine_options)));
  if (options.log && engine->load().bytes > 0) options.log(LoadSentence(engine->load()));
  return std::make_unique<EngineStage>(std::move(engine));
}

}  // namespace

StageFactory MakeEngineStages(const EngineStageOptions& options) {
  return [options, samples = std::make_shared<SampleMemory>()](StageSetup setup) { return MakeStage(options, *samples, std::move(setup)); };
}

}  // namespace lime
