#include "coordinator/local/local_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/call_limits.h"
#include "daemon/engine/process_memory.h"
#include "daemon/machine/system_memory.h"
#include "daemon/weights/row_reader.h"
#include "kernels/registry/registry.h"
#include "planner/demand/calibration.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/sparse_parts.h"
#include "planner/problem/neuron_demand.h"
#include "planner/problem/plan_parts.h"
#include "planner/problem/plan_problem.h"
#include "planner/unit_places.h"

namespace lime {
namespace {

// Assumed if nothing was measured: memory and disk of a small machine, arithmetic of a large one
// (see WorkMs).
constexpr double kMemoryRate = 10e9;
constexpr double kFlops = 1e12;
constexpr DiskPoint kDisk = {.read_bytes = kDiskRead, .depth = kDiskDepth, .bytes_per_second = 1e9, .latency_ms = 0.5};

constexpr Bytes kLeastMargin = 16 * kMiB;   // page tables, allocations outside the plan
constexpr Bytes kMarginShare = 256;         // 1/256 of the budget more if weights stream
constexpr Bytes kRuntimeGrowth = 8 * kMiB;  // added to an advised budget

constexpr std::array<int64_t, 9> kChunks = {16, 64, 128, 256, 512, 1024, 2048, 4096, 8192};

DeviceProfile Assumed(const DeviceProfile* measured) {
  DeviceProfile profile = measured != nullptr ? *measured : DeviceProfile{};
  if (profile.read_bytes_per_second <= 0) profile.read_bytes_per_second = kMemoryRate;
  if (profile.flops <= 0) profile.flops = kFlops;
  if (profile.DiskRate(kDisk.read_bytes, kDisk.depth) <= 0) profile.SetDisk({kDisk});
  return profile;
}

absl::Status CheckRequest(const ModelSpec& spec, const LocalPlanRequest& request) {
  const int64_t most = spec.config.max_positions;
  if (request.context < 1 || request.context > most) {
    return Invalid(request.model_name, ": a context of ", request.context, " positions is outside 1 to ", most,
                   ", which config.json states as max_position_embeddings");
  }
  if (request.sparsity == SparsityWish::kExact && request.neurons.empty())
    return Invalid(request.model_name, ": no layer has bundles, so none can be sparse");
  if (request.unit_places.value_or(0) > 0 && !spec.config.experts)
    return Invalid(request.model_name, ": it has no experts, of which ", *request.unit_places, " could have a place in memory");
  if (request.ahead_places > 0 && !spec.config.experts) return Invalid(request.model_name, ": it has no experts that could be read ahead");
  const int64_t pages = KvPagesFor(request.context) * spec.NumKvLayers();
  if (pages <= std::numeric_limits<int32_t>::max() / std::max(1, request.sequences)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(request.model_name, ": ", request.sequences, " sequences of ", request.context, " positions need ",
                   static_cast<uint64_t>(pages) * static_cast<uint64_t>(request.sequences), " KV pages, which exceeds the limit"));
}

class LocalPlanning {
 public:
  LocalPlanning(const ModelSpec& spec, const LocalPlanRequest& request)
      : spec_(spec),
        request_(request),
        prompt_tokens_(std::clamp<int64_t>(request.prompt_tokens, 1, request.context)),
        work_tokens_(std::max(prompt_tokens_, request.all_prompt_tokens)),
        budget_(request.budget),
        profile_(Assumed(request.profile)),
        disk_profiled_(request.profile != nullptr && request.profile->DiskRate(kDisk.read_bytes, kDisk.depth) > 0) {
    plan_request_ = {.model_name = request.model_name,
                     .context = request.context,
                     .expected_positions = std::clamp<int64_t>(request.expected_positions, 0, request.context),
                     .sequences = request.sequences,
                     .state_snapshots = request.snapshots.count,
                     .batches = {request.sequences},
                     .part_bytes = request.part_bytes,
                     .embedding_with_head = true,
                     .prompt_tokens = prompt_tokens_,
                     .ahead_places = request.ahead_places,
                     .unit_hits = request.routes.hits,
                     .predictor = request.predictor,
                     .predictor_ranks = request.predictor_ranks,
                     .unit_policies = request.routes.policies};
  }

  absl::StatusOr<LocalPlan> Run() {
    if (request_.sparsity == SparsityWish::kExact) return PlanSparse();
    if (request_.unit_places.value_or(0) > 0) {
      plan_request_.unit_places = *request_.unit_places;
      return PlanForKv();
    }
    absl::StatusOr<LocalPlan> whole = PlanForKv();
    const bool asks = request_.placement != Placement::kAuto || request_.ring || request_.ring_parts || request_.resident_share;
    if (absl::IsResourceExhausted(whole.status()) && !asks) {
      const Bytes in_memory = enough_;
      absl::StatusOr<LocalPlan> spills = request_.spills_kv ? Spill() : whole;
      return absl::IsResourceExhausted(spills.status()) ? AboutTheDisk(whole.status(), in_memory) : std::move(spills);
    }
    if (!request_.unit_places && !asks && whole.ok() && MayGainFromDemand(spec_, whole->plan)) {
      absl::StatusOr<LocalPlan> demands = PlanOnDemand(*whole);
      if (!demands.ok() && !absl::IsResourceExhausted(demands.status())) return demands;
      if (demands.ok() && TimeMs(demands->plan) < TimeMs(whole->plan)) return demands;
      plan_request_.unit_places = 0;
    }
    if (request_.kv_tokens <= 0 || asks || !whole.ok() || !Summarize(whole->plan).streams()) return whole;
    plan_request_.kv_tokens = std::clamp(request_.kv_tokens, prompt_tokens_, request_.context);
    budget_ = whole->plan.devices.front().budget;
    absl::StatusOr<LocalPlan> grows = PlanFor(whole->plan.prefill_chunk);
    if (grows.ok()) grows->budget_text = whole->budget_text;
    const bool faster = grows.ok() && grows->plan.predicted.ms_per_step < whole->plan.predicted.ms_per_step;
    return faster || !(grows.ok() || absl::IsResourceExhausted(grows.status())) ? std::move(grows) : std::move(whole);
  }

 private:
  // A chunk as PlanOnDemand takes it: one that is shorter than usual is only for want of memory.
  absl::StatusOr<LocalPlan> PlanForUsualChunk() {
    absl::StatusOr<LocalPlan> plan = PlanFor(request_.chunk > 0 ? request_.chunk : kUsualChunk);
    if (absl::IsResourceExhausted(plan.status()) && request_.chunk == 0) plan = PlanFor(kChunks.front());
    return plan;
  }

  absl::StatusOr<LocalPlan> PlanWithRows(int64_t rows) {
    plan_request_.neuron_rows = request_.neurons;
    for (size_t layer = 0; layer < request_.neurons.size(); ++layer) {
      const bool is_known = request_.calibration == nullptr || OfLayer(*request_.calibration, static_cast<int32_t>(layer)) != nullptr;
      plan_request_.neuron_rows[layer] = is_known ? std::min(request_.neurons[layer], rows) : 0;
    }
    return PlanForUsualChunk();
  }

  absl::StatusOr<LocalPlan> PlanSparse() {
    if (request_.at) request_.at("sparse MLPs");
    plan_request_.window_masks = request_.window_masks;
    plan_request_.calibration = request_.calibration;
    plan_request_.bundles_on_path = request_.bundles_on_path;
    plan_request_.new_tokens = request_.new_tokens;
    if (request_.decider == DeciderWish::kCertified) {
      LIME_RETURN_IF_ERROR(CheckCertified());
      plan_request_.deciders = request_.copies;
    }
    if (request_.neuron_rows) return PlanWithRows(*request_.neuron_rows);
    if (request_.calibration == nullptr) return PlanUncalibrated();
    const bool chooses = request_.decider == DeciderWish::kAuto && !request_.copies.empty() && MayProve();
    return chooses ? PlanWithCopies() : PlanCalibrated();
  }

  bool MayProve() const { return ProvesZeros(request_.backend, spec_, {.numerics = request_.numerics}); }

  absl::Status CheckCertified() const {
    const bool any = std::ranges::any_of(request_.copies, [](const DeciderForm& form) { return form.bits > 0; });
    if (!any)
      return Invalid(request_.model_name, ": no bundles have a copy of a decider; `lime calibrate` and `lime prepare --bundles` make them");
    if (MayProve()) return absl::OkStatus();
    return Invalid(request_.model_name, ": sums in the order of this CPU's bf16 dot product have no proof; use --numerics portable");
  }

  // Each layer with its decider, or with a copy of it.
  absl::StatusOr<LocalPlan> PlanWithCopies() {
    LocalPlan newest, best;
    const auto plan_with = [&](const std::vector<DeciderForm>& deciders) -> absl::StatusOr<Plan> {
      plan_request_.deciders = deciders;
      LIME_ASSIGN_OR_RETURN(newest, PlanCalibrated());
      return newest.plan;
    };
    const std::vector<DeciderForm> copies = KnownCopies(*request_.calibration, request_.copies);
    LIME_RETURN_IF_ERROR(
        ChooseDeciders({.calibration = request_.calibration.get(), .copies = copies, .plan = plan_with, .best = [&] { best = newest; }})
            .status());
    return best;
  }

  absl::StatusOr<LocalPlan> PlanCalibrated() {
    const std::optional<BurstCost> burst = BurstCostOf(profile_);  // its disk is assumed if it was not measured
    if (!burst) return absl::ResourceExhaustedError("the profile of this machine has no rate of small reads; run `lime profile` again");
    LocalPlan newest, best;
    const auto plan_with = [&](const std::vector<int64_t>& rows) -> absl::StatusOr<Plan> {
      plan_request_.neuron_rows = rows;
      LIME_ASSIGN_OR_RETURN(newest, PlanForUsualChunk());
      return newest.plan;
    };
    LIME_RETURN_IF_ERROR(ChooseNeuronRows(spec_, {.neurons = request_.neurons,
                                                  .calibration = request_.calibration.get(),
                                                  .deciders = plan_request_.deciders,
                                                  .predictor_ranks = plan_request_.predictor_ranks,
                                                  .on_path = request_.bundles_on_path,
                                                  .batch = request_.sequences,
                                                  .burst = *burst,
                                                  .plan = plan_with,
                                                  .best = [&] { best = newest; }})
                             .status());
    return best;
  }

  // Nothing is known of zeros. So rows get the memory that the rest of the model leaves, if it fits, and
  // little of it otherwise.
  absl::StatusOr<LocalPlan> PlanUncalibrated() {
    constexpr int64_t kLeastShare = 8, kCloseEnough = 64;
    const int64_t all = std::ranges::max(request_.neurons);
    const auto streams = [](const LocalPlan& plan) { return std::ranges::any_of(plan.plan.parts, &PlanPart::streamed); };
    const int64_t least = std::max<int64_t>(1, all / kLeastShare);
    int64_t rows = least, too_many = all + 1;
    absl::StatusOr<LocalPlan> best = PlanWithRows(rows);
    while (absl::IsResourceExhausted(best.status()) && rows > 1) best = PlanWithRows(rows /= 2);
    if (!best.ok() || rows < least || streams(*best)) return best;
    while (too_many - rows > std::max<int64_t>(1, all / kCloseEnough)) {
      const int64_t middle = too_many == all + 1 && rows == least ? all : (rows + too_many) / 2;
      absl::StatusOr<LocalPlan> more = PlanWithRows(middle);
      if (!more.ok() && !absl::IsResourceExhausted(more.status())) return more;
      const bool fits = more.ok() && !streams(*more);
      (fits ? rows : too_many) = middle;
      if (fits) best = std::move(more);
    }
    return best;
  }

  // With experts on demand, within the budget of `whole`. A chunk of a prompt reads most experts
  // anyway, so a chunk that is shorter than usual is only for want of memory.
  absl::StatusOr<LocalPlan> PlanOnDemand(const LocalPlan& whole) {
    if (request_.at) request_.at("experts on demand");
    budget_ = whole.plan.devices.front().budget;
    LocalPlan newest, best;
    const auto plan_with = [&](int64_t places) -> absl::StatusOr<Plan> {
      plan_request_.unit_places = places;
      absl::StatusOr<LocalPlan> plan = PlanForUsualChunk();
      LIME_RETURN_IF_ERROR(plan.status());
      newest = *std::move(plan);
      return newest.plan;
    };
    LIME_RETURN_IF_ERROR(ChooseUnitPlaces(spec_, {.plan = plan_with, .best = [&] { best = newest; }}).status());
    best.budget_text = whole.budget_text;
    return best;
  }

  // What is planned for a number of rows, and the least memory for it.
  struct Posed {
    int64_t rows = 0;
    PlanProblem problem;
    OneDeviceRequest residency;
    Bytes largest = 0;  // part
    PlanMemory least;
  };

  // The most KV at first, or as much as is asked for, that has a plan which can go on to all of it.
  absl::StatusOr<LocalPlan> Spill() {
    const int64_t most = request_.context / 2;
    if (request_.at) request_.at("KV that does not fit in memory");
    spills_ = plan_request_.keeps_all_pages = true;
    for (int64_t tokens = request_.kv_tokens > 0 ? std::min(std::max(request_.kv_tokens, kKvPiece), most) : most; tokens >= kKvPiece;
         tokens /= 2) {
      plan_request_.kv_tokens = tokens;
      absl::StatusOr<LocalPlan> spills = PlanForKv();
      if (!absl::IsResourceExhausted(spills.status())) return spills;
    }
    return absl::ResourceExhaustedError("no plan has room for any KV");
  }

  // Below this budget there is no plan with KV on the disk; nullopt if the context is too short for
  // one. A plan keeps the working pages of all layers in memory, and a ring of two parts.
  std::optional<Bytes> LeastWithKvOnDisk() {
    if (request_.context / 2 < kKvPiece) return std::nullopt;
    spills_ = plan_request_.keeps_all_pages = true;
    plan_request_.kv_tokens = kKvPiece;
    const absl::StatusOr<Posed> posed = Pose(request_.chunk > 0 ? request_.chunk : kChunks.front());
    if (!posed.ok()) return std::nullopt;
    Plan works = posed->problem.head;
    works.microbatches = 1, works.batch = works.sequences;
    works.prefill_chunk = plan_request_.chunks.front(), works.chunks_per_sweep = 1;
    const Bytes kv = WorkingPages(works) * spec_.NumKvLayers() * works.page_bytes;
    const Bytes part = std::max(posed->largest, works.sequences * KvPieceBytes(works));
    const PlanMemory& least = posed->least;
    return Enough(least.total() - least.kv + std::max(least.kv, kv) + 3 * part - 2 * posed->largest);
  }

  // The refusal of a plan with all KV in memory, which needs `in_memory`, with what is known of one
  // with KV on the disk.
  absl::Status AboutTheDisk(const absl::Status& refusal, Bytes in_memory) {
    constexpr Bytes kWorthSaying = 32 * kMiB;
    const std::optional<Bytes> least = LeastWithKvOnDisk();
    if (!least) return refusal;
    const Bytes free = request_.budget > 0 ? request_.budget : ProcessResidentBytes() + AvailableMemory();
    std::string more;
    if (*least <= free && !request_.spills_kv) more = "; without --no-kv-spill KV may go to the disk";
    if (*least > free && in_memory - *least > kWorthSaying) {
      more = absl::StrCat(request_.spills_kv ? "; with KV on the disk" : "; without --no-kv-spill, with KV on the disk,",
                          " it needs at least ", BudgetAtLeast(*least));
    }
    return absl::ResourceExhaustedError(absl::StrCat(refusal.message(), more));
  }

  absl::StatusOr<LocalPlan> PlanForKv() {
    if (request_.chunk > 0) return PlanFor(request_.chunk);
    absl::StatusOr<LocalPlan> best = PlanFor(kUsualChunk);
    if (best.ok() ? spills_ || !Summarize(best->plan).streams() : !absl::IsResourceExhausted(best.status())) return best;
    return BestChunk(std::move(best));
  }

  int64_t LogitRows(int64_t rows) const { return std::min(request_.logit_rows, rows); }

  // If weights stream, every chunk costs one sweep over the disk. Longer chunks leave less memory
  // for resident weights. Shorter chunks let a model run in a budget that is too small for the
  // usual chunk.
  absl::StatusOr<LocalPlan> BestChunk(absl::StatusOr<LocalPlan> best) {
    const bool refused = !best.ok();
    if (refused) best = PlanFor(kChunks.front());
    if (!best.ok()) return best;  // longer chunks need more memory
    double best_ms = WorkMs(best->plan);
    const int64_t usual = Chunk(kUsualChunk);
    for (const int64_t chunk : kChunks) {
      if (chunk == usual || chunk >= 2 * prompt_tokens_ || (refused && chunk == kChunks.front())) continue;
      absl::StatusOr<LocalPlan> other = PlanFor(chunk);
      if (!other.ok()) continue;
      const double ms = WorkMs(other->plan);
      if (ms < best_ms) best = std::move(other), best_ms = ms;
    }
    return best;
  }

  // Milliseconds of the whole work: one sweep over the disk per chunk or per few chunks, overlapped
  // with computing. The assumed arithmetic is that of a large machine on purpose. A slower machine
  // gets longer chunks than it needs, which costs activation memory. A slow assumption would make a
  // fast machine read its weights again for every few rows.
  double WorkMs(const Plan& plan) const {
    const auto chunks = static_cast<double>(plan.chunks_per_sweep);
    const double sweeps = std::ceil(static_cast<double>(work_tokens_) / static_cast<double>(plan.prefill_chunk) / chunks);
    const double chunk_ms = profile_.StepMs(spec_, {.rows = plan.prefill_chunk, .context = prompt_tokens_, .logit_rows = 1});
    const LocalPlanSummary summary = Summarize(plan);
    const double load_ms = summary.streams() ? 1000 * static_cast<double>(summary.streamed_bytes) / summary.disk_bytes_per_second : 0;
    return sweeps * std::max(chunks * chunk_ms, load_ms) + static_cast<double>(request_.new_tokens) * plan.predicted.ms_per_step;
  }

  // The chunk that the plan will use: it has at most kMaxPrefillChunks chunks per prompt.
  int64_t Chunk(int64_t wanted) const {
    return std::clamp<int64_t>(wanted, (prompt_tokens_ + kMaxPrefillChunks - 1) / kMaxPrefillChunks, prompt_tokens_);
  }

  absl::StatusOr<Posed> Pose(int64_t wanted) {
    plan_request_.chunks = {Chunk(wanted)};
    Posed posed{.rows = std::max<int64_t>(plan_request_.chunks.front(), request_.sequences)};
    LIME_ASSIGN_OR_RETURN(const ClusterDevice device, Describe(posed.rows));
    LIME_ASSIGN_OR_RETURN(posed.problem, MakePlanProblem(spec_, {&device, 1}, plan_request_));
    for (const PlanPart& part : posed.problem.head.parts) posed.largest = std::max(posed.largest, MovableBytes(part));
    posed.residency = {.placement = request_.placement,
                       .ring = request_.ring,
                       .share = request_.resident_share,
                       .rows = RowReader::BytesFor(spec_, posed.rows)};
    if (spills_) posed.residency.spills = &spec_;
    if (request_.ring_parts) posed.residency.ring = *request_.ring_parts * posed.largest;
    posed.least = LeastMemory(posed.problem, posed.residency);
    return posed;
  }

  absl::StatusOr<LocalPlan> PlanFor(int64_t wanted) {
    LIME_ASSIGN_OR_RETURN(Posed posed, Pose(wanted));
    auto& [rows, problem, residency, largest, least] = posed;
    Bytes& budget = problem.head.devices.front().budget;
    LocalPlan answer{.disk_profiled = disk_profiled_};
    if (budget == 0) {
      DerivedBudget derived = Derive(least);
      budget = derived.budget, answer.budget_text = std::move(derived.text);
    }
    residency.streaming_margin = budget / kMarginShare;
    absl::StatusOr<Plan> plan = PlanOneDevice(problem, residency);
    if (absl::IsResourceExhausted(plan.status())) {
      enough_ = least.ring <= 2 * largest ? Enough(least.total()) : 0;
      if (enough_ > 0) return TooSmall(budget, least, largest);
      return absl::ResourceExhaustedError(absl::StrCat(request_.model_name, ": ", plan.status().message(), "; lower --pool"));
    }
    LIME_RETURN_IF_ERROR(plan.status());
    answer.plan = *std::move(plan);
    answer.plan.logit_rows = static_cast<int32_t>(LogitRows(rows));
    return answer;
  }

  absl::StatusOr<ClusterDevice> Describe(int64_t rows) const {
    const int64_t pages =
        request_.sequences * (spills_ ? KvPagesFor(request_.context) * spec_.NumKvLayers() : spec_.KvPages(request_.context, rows));
    const BackendOptions backend{.num_threads = request_.num_threads > 0 ? request_.num_threads : UsableCores(),
                                 .max_rows = rows,
                                 .max_logit_rows = std::max<int64_t>(request_.sequences, LogitRows(rows)),
                                 .max_sequences = request_.sequences,
                                 .context = request_.context,
                                 .num_kv_pages = pages,
                                 .sparse_rows = plan_request_.neuron_rows.empty() ? 0 : request_.sequences,
                                 .copied_directions = CopiedDirections(plan_request_),
                                 .predictor_rank = request_.predictor_ranks.empty() ? 0 : std::ranges::max(request_.predictor_ranks),
                                 .numerics = request_.numerics};
    LIME_ASSIGN_OR_RETURN(const Bytes of_backend, PlanActivationBytes(request_.backend, spec_, backend));
    const Bytes activations = of_backend + SparseMemory(spec_, plan_request_);
    return ClusterDevice{.name = "local",
                         .budget = budget_,
                         .runtime = ProcessResidentBytes() + request_.beside,  // with what the backend loads
                         .activations = activations,
                         .margin = kLeastMargin,
                         .profile = profile_};
  }

  DerivedBudget Derive(const PlanMemory& least) const {
    return DeriveBudget({.available = AvailableMemory(),
                         .machine = MachineMemory(),
                         .process = least.runtime,
                         .fixed = least.total() - least.kv - least.runtime,
                         .planned_kv = least.kv,
                         .kv_bytes = [this](int64_t tokens) { return spec_.KvPages(tokens, kUsualChunk) * spec_.KvPageBytes(); },
                         .context = spec_.config.max_positions,
                         .priority = request_.priority});
  }

  // A budget for `least` bytes, with the margin of weights that stream.
  static Bytes Enough(Bytes least) {
    const double share = 1.0 - 1.0 / static_cast<double>(kMarginShare);
    return static_cast<Bytes>(std::ceil(static_cast<double>(least + kRuntimeGrowth) / share));
  }

  // The advised budget suffices for a model that streams all it can. `part`: the part of the
  // activations that the ring may leave unused.
  absl::Status TooSmall(Bytes budget, const PlanMemory& least, Bytes part) const {
    const Bytes enough = Enough(least.total());
    const std::string advised = BudgetAtLeast(enough);
    const std::string but =
        request_.budget > 0
            ? absl::StrCat("--memory allows ", FormatBytes(budget), "; give --memory ", advised,
                           " or more, or a smaller --context or --chunk")
            : absl::StrCat(FormatBytes(budget), " are free here; end other programs, raise the limit of the control group to ", advised,
                           ", or give a smaller --context or --chunk");
    return absl::ResourceExhaustedError(absl::StrCat(
        request_.model_name, " needs ", advised, " (two parts of streamed weights ",
        FormatBytes(least.weights + least.embedding + least.ring + part), ", KV ", FormatBytes(least.kv),
        least.state > 0 ? ", state " + FormatBytes(least.state) : "", ", activations ", FormatBytes(least.activations - part), ", runtime ",
        FormatBytes(least.runtime), ", margin ", FormatBytes(enough - least.total() + least.margin), "), but ", but));
  }

  const ModelSpec& spec_;
  const LocalPlanRequest& request_;
  const int64_t prompt_tokens_;
  const int64_t work_tokens_;
  Bytes budget_;  // 0: derive it
  const DeviceProfile profile_;
  const bool disk_profiled_;
  bool spills_ = false;  // KV goes on to the disk
  Bytes enough_ = 0;     // the budget that the newest refusal advises; 0: it advises none
  PlanRequest plan_request_;
};

}  // namespace

namespace {

// Of all prompts and steps.
double WholeWorkMs(const LocalPlanRequest& request, const Plan& plan) {
  const double step_ms = TimeMs(plan);
  if (request.new_tokens + request.all_prompt_tokens <= 0) return step_ms;
  const auto prompt = static_cast<double>(std::max<int64_t>(1, request.prompt_tokens));
  const double prompts = std::max(1.0, static_cast<double>(request.all_prompt_tokens) / prompt);
  return prompts * PromptMs(plan) + static_cast<double>(request.new_tokens) * step_ms;
}

absl::StatusOr<LocalPlan> PlanWithWish(const ModelSpec& spec, LocalPlanRequest request, SparsityWish wish) {
  request.sparsity = wish;
  return LocalPlanning(spec, request).Run();
}

// Dense or with sparse MLPs, in the same budget. Which of them changes no result, with or without a predictor.
absl::StatusOr<LocalPlan> PlanFaster(const ModelSpec& spec, LocalPlanRequest request) {
  const bool asks = request.placement != Placement::kAuto || request.ring || request.ring_parts || request.resident_share;
  absl::StatusOr<LocalPlan> off = PlanWithWish(spec, request, SparsityWish::kOff);
  const bool compares = request.sparsity == SparsityWish::kAuto || request.sparsity == SparsityWish::kPredicted;
  if (!compares || request.neurons.empty() || request.calibration == nullptr) return off;
  if (asks && off.ok()) off->sparsity_why = "--placement, --pool and --resident are for plans without sparse MLPs";
  if (asks) return off;
  if (!off.ok() && !absl::IsResourceExhausted(off.status())) return off;
  if (off.ok() && request.new_tokens == 0 && request.all_prompt_tokens > 0) {
    off->sparsity_why = "prompts alone gain nothing from sparse MLPs";
    return off;
  }
  if (off.ok()) request.budget = off->plan.devices.front().budget;
  absl::StatusOr<LocalPlan> exact = PlanWithWish(spec, request, SparsityWish::kExact);
  if (!off.ok() && !exact.ok()) return off;
  if (!exact.ok() && !absl::IsResourceExhausted(exact.status())) {
    off->sparsity_why = absl::StrCat("there is no plan with sparse MLPs: ", exact.status().message());
    return off;
  }
  SparsityTimes times;
  if (off.ok()) times.off_ms = TimeMs(off->plan), times.off_work_ms = WholeWorkMs(request, off->plan);
  if (exact.ok()) times.exact_ms = TimeMs(exact->plan), times.exact_work_ms = WholeWorkMs(request, exact->plan);
  SparsityChoice choice = ChooseSparsity(times);
  if (choice.exact && off.ok()) exact->budget_text = off->budget_text;
  absl::StatusOr<LocalPlan> chosen = std::move(choice.exact ? exact : off);
  chosen->sparsity_why = std::move(choice.why);
  return chosen;
}

}  // namespace

absl::StatusOr<LocalPlan> PlanForThisProcess(const ModelSpec& spec, const LocalPlanRequest& request) {
  LIME_RETURN_IF_ERROR(CheckRequest(spec, request));
  return ChooseSnapshots(request.snapshots, [&](int32_t snapshots) {
    LocalPlanRequest with = request;
    with.snapshots.count = snapshots;
    const bool sparse =
        with.sparsity == SparsityWish::kExact || (with.sparsity == SparsityWish::kPredicted && with.neuron_rows && !with.neurons.empty());
    return sparse ? PlanWithWish(spec, with, SparsityWish::kExact) : PlanFaster(spec, with);
  });
}

LocalPlanSummary Summarize(const Plan& plan) {
  const PlanDevice& device = plan.devices.front();
  LocalPlanSummary summary{device.memory};
  summary.weights += std::exchange(summary.embedding, 0);
  summary.blocks = 1;
  summary.resident_blocks = plan.embedding == EmbeddingPlacement::kByRows ? 0 : 1;
  summary.resident_bytes = plan.embedding == EmbeddingPlacement::kResident ? plan.embedding_bytes : 0;
  summary.ms_per_step = plan.predicted.ms_per_step;
  for (int begin = 0, end = 0; begin < plan.NumParts(); begin = end) {
    end = PartsOf(plan, plan.parts[begin].block).second;
    bool stays = true;
    for (int p = begin; p < end; ++p) {
      const PlanPart& part = plan.parts[p];
      (part.streamed ? summary.streamed_bytes : summary.resident_bytes) += part.on_demand() ? MemoryOf(part) : part.bytes;
      stays = stays && !part.streamed && !part.on_demand();
    }
    ++summary.blocks;
    summary.resident_blocks += stays ? 1 : 0;
  }
  summary.units = UnitUseOf(plan);
  if (summary.streamed_bytes > 0 || summary.units.units > 0 || HasSparseParts(plan) || SpillsKv(plan))
    summary.disk_bytes_per_second = device.disk_mb_per_ms * 1e9;
  return summary;
}

}  // namespace lime
