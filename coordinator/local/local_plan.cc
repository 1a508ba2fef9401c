#include "coordinator/local/local_plan.h"

#include <algorithm>
#include <utility>

#include "coordinator/cluster/device_memory.h"
#include "daemon/engine/process_memory.h"
#include "daemon/weights/row_reader.h"
#include "kernels/registry/registry.h"
#include "planner/batches.h"
#include "planner/first_token.h"
#include "planner/lower_bound.h"
#include "planner/plan_problem.h"

namespace lime {
namespace {

constexpr Bytes kRuntimeGrowth = 8 * kMiB;  // that libraries and threads take for themselves while the model is set up
constexpr double kSearchMs = 200;           // a run waits for it
constexpr double kGoodEnough = 1.0001;      // of the bound that no plan can beat
constexpr int64_t kSmallRing = 4;  // pieces: two for a disk and a computation that are steady, and two for what real ones differ by

// Where nothing was measured: a small machine with a plain SSD.
DeviceProfile Assumed(const DeviceProfile* measured) {
  DeviceProfile profile = measured != nullptr ? *measured : DeviceProfile{};
  if (profile.read_bytes_per_second <= 0) profile.read_bytes_per_second = 10e9;
  if (profile.flops <= 0) profile.flops = 1e12;
  if (profile.disk.empty()) profile.SetDisk({{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1e9, .latency_ms = 0.5}});
  return profile;
}

class LocalPlanning {
 public:
  LocalPlanning(const ModelSpec& spec, const LocalPlanRequest& request) : spec_(spec), request_(request) {
    plan_request_ = {.model_name = request.model_name,
                     .context = request.context,
                     .sequences = request.sequences,
                     .batches = {request.sequences},
                     .piece_bytes = request.piece_bytes,
                     .prompt_tokens = std::max<int64_t>(1, request.prompt_tokens)};
    plan_request_.chunks = {std::min(std::max<int64_t>(1, request.chunk), plan_request_.prompt_tokens)};
  }

  absl::StatusOr<Plan> Run() {
    LIME_RETURN_IF_ERROR(DescribeDevice());
    if (!request_.resident_share || *request_.resident_share >= 1) {
      absl::StatusOr<Plan> resident = KeepAll();
      if (resident.ok() || !absl::IsResourceExhausted(resident.status())) return resident;
    }
    return Stream();
  }

 private:
  int64_t MostRows() const { return std::max<int64_t>(plan_request_.chunks.front(), request_.sequences); }
  int64_t LogitRows() const { return std::min(request_.logit_rows, MostRows()); }
  int64_t LayerPages() const { return request_.sequences * ((request_.context + kPageTokens - 1) / kPageTokens); }

  absl::Status DescribeDevice() {
    const BackendOptions backend{.num_threads = request_.num_threads > 0 ? request_.num_threads : UsableCores(),
                                 .max_rows = MostRows(),
                                 .max_logit_rows = std::max<int64_t>(request_.sequences, LogitRows()),
                                 .max_sequences = request_.sequences,
                                 .context = request_.context,
                                 .num_kv_pages = LayerPages() * spec_.config.num_layers,
                                 .numerics = request_.numerics};
    LIME_ASSIGN_OR_RETURN(const Bytes activations, PlanActivationBytes(request_.backend, spec_, backend));
    device_ = {.name = "local",
               .budget = request_.budget,
               .runtime = ProcessResidentBytes() + kRuntimeGrowth,
               .activations = activations,
               .margin = kAssumedMargin,
               .profile = Assumed(request_.profile)};
    return absl::OkStatus();
  }

  absl::StatusOr<Plan> KeepAll() const {
    LIME_ASSIGN_OR_RETURN(const PlanProblem problem, MakePlanProblem(spec_, {&device_, 1}, plan_request_));
    return Make(problem, {.stages = {{0, 0, problem.instance.NumBlocks()}}});
  }

  // Beside what streams are its ring, whose places are contiguous, and rows of the embedding.
  absl::StatusOr<Plan> Stream() {
    device_.activations += RowReader::BytesFor(spec_, MostRows()) + RingSlack(spec_, request_.piece_bytes);
    if (request_.resident_share) return KeepShare(*request_.resident_share);
    LIME_ASSIGN_OR_RETURN(const PlanProblem problem, MakePlanProblem(spec_, {&device_, 1}, plan_request_));
    SearchOptions search;
    search.time_limit_ms = kSearchMs;
    search.good_enough_ms = LowerBoundMs(problem.instance) * kGoodEnough;
    LIME_ASSIGN_OR_RETURN(const BatchedPlan best, PlanBatches(Strategy::kLime, problem.instance, search));
    if (!best.found.feasible) return absl::ResourceExhaustedError(best.found.reason);
    return Make(problem, best.found.plan);
  }

  absl::StatusOr<Plan> KeepShare(double share) {
    LIME_ASSIGN_OR_RETURN(const PlanProblem roomy, MakePlanProblem(spec_, {&device_, 1}, plan_request_));
    const StagePlan stages = Spread(roomy.head, share);
    device_.budget = std::min(device_.budget, BudgetFor(roomy.head, stages));
    LIME_ASSIGN_OR_RETURN(const PlanProblem problem, MakePlanProblem(spec_, {&device_, 1}, plan_request_));
    return Make(problem, stages);
  }

  // Of every stretch of the model about that share stays.
  static StagePlan Spread(const Plan& plan, double share) {
    StagePlan stages{.stages = {{0, 0, plan.NumParts()}}, .embedding_by_rows = true};
    double seen = 0, kept = 0;
    for (int part = 0; part < plan.NumParts(); ++part) {
      const auto bytes = static_cast<double>(plan.parts[part].bytes);
      seen += bytes;
      const bool stays = kept + bytes <= share * seen;
      if (stays) kept += bytes;
      if (!stays) stages.streamed.push_back(part);
    }
    return stages;
  }

  // With what stays, a small ring and all else.
  Bytes BudgetFor(Plan plan, const StagePlan& stages) const {
    plan.stages = stages.stages;
    plan.embedding = EmbeddingPlacement::kByRows;
    Bytes largest = 0;
    for (const int32_t part : stages.streamed) {
      plan.parts[part].streamed = true;
      largest = std::max(largest, plan.parts[part].bytes);
    }
    const PlanNeed need = NeedsOf(plan).front();
    return device_.runtime + device_.activations + device_.margin + need.weights + need.embedding + need.kv_pages * plan.page_bytes +
           std::max(need.ring, kSmallRing * largest);
  }

  absl::StatusOr<Plan> Make(const PlanProblem& problem, const StagePlan& stages) const {
    PlanChoice choice{.stages = stages, .batch = request_.sequences};
    choice.first_token = FirstTokenPredictor(*problem.first_token).Predict(stages);
    LIME_ASSIGN_OR_RETURN(Plan plan, MakePlan(problem, choice));
    plan.logit_rows = static_cast<int32_t>(LogitRows());
    return plan;
  }

  const ModelSpec& spec_;
  const LocalPlanRequest& request_;
  PlanRequest plan_request_;
  ClusterDevice device_;
};

}  // namespace

absl::StatusOr<Plan> PlanForThisProcess(const ModelSpec& spec, const LocalPlanRequest& request) {
  return LocalPlanning(spec, request).Run();
}

}  // namespace lime
