#include "coordinator/planning/cluster_planning.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/steady_clock.h"
#include "coordinator/cli/command.h"
#include "coordinator/cluster/device_memory.h"
#include "coordinator/planning/baselines/retained_kv.h"
#include "coordinator/planning/sparse_search.h"
#include "daemon/logic/hosting/units_message.h"
#include "planner/evaluation/lower_bound.h"
#include "planner/kv/hosting/kv_hosting.h"
#include "planner/kv/kv_growth.h"
#include "planner/plan/device/backend_names.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_rows.h"
#include "planner/problem/plan_parts.h"
#include "planner/unit_places.h"

namespace lime {
namespace {

constexpr double kExplainShare = 0.25;  // of the time limit
constexpr double kMostExplainMs = 2000;
constexpr double kShareOfLeft = 0.5;   // of the remaining time, for one search
constexpr double kLevelsOfLimit = 50;  // level searches that fit in a time limit

// Annealer moves per block, device and batch size, but never less work than looking at all plans of
// a small cluster may take: with four times the work, plans of 31 blocks on three devices were at
// most 0.1 % faster. The search of a large cluster ends long before.
constexpr double kMovesPerPlace = 10'000, kLeastWork = 1000 * SearchBudget::kWorkPerMs;

constexpr int kMostUnitPlans = 5;                       // searches with experts on demand
constexpr double kMemoryForExperts[] = {1, 0.9, 0.75};  // of what a plan leaves, if they are divided over devices
constexpr int32_t kAheadIfDivided = 2;                  // PlanRequest::ahead_places; a disk rarely waits for longer reads of others
constexpr double kMostPromptLoss = 1.2;                 // a prompt takes at most so many times as long if experts are divided

constexpr char kPromptsAlone[] = "prompts alone gain nothing from sparse MLPs";

constexpr double kWorthLeaving = 0.005;  // minimum gain in the mean time over all levels

// The streamed parts of `cut`, as parts of `plan`, from which it was cut.
std::vector<int32_t> StreamedBeforeCut(const Plan& cut, const Plan& plan) {
  std::vector<int32_t> streamed;
  for (const PlanPart& part : cut.parts) {
    if (!part.streamed || part.is_kv()) continue;
    const auto [begin, end] = PartsOf(plan, part.block);
    for (int p = begin; p < end; ++p) {
      const bool has = std::ranges::any_of(plan.parts[p].rows, [&](const MatrixRows& rows) {
        const MatrixRows& first = part.rows.front();
        return rows.role == first.role && rows.expert == first.expert && rows.begin == first.begin;
      });
      if (has && (streamed.empty() || streamed.back() != p)) streamed.push_back(p);
    }
  }
  return streamed;
}

// Whether plans for both have the same parts, in the same order.
bool HaveTheSameParts(const PlanRequest& a, const PlanRequest& b) {
  const auto is_sparse = [](int64_t rows) { return rows > 0; };
  return std::ranges::equal(a.neuron_rows, b.neuron_rows, {}, is_sparse, is_sparse) && a.deciders == b.deciders;
}

// The work of a thorough search for `instance`. A move looks at all blocks four times.
double MostWork(const Instance& instance) {
  const double blocks = instance.NumBlocks(), places = blocks * instance.NumDevices();
  const double moves = kMovesPerPlace * places * std::max<double>(1, std::ssize(instance.net.tx_ms_by_batch));
  return std::max(kLeastWork, moves * (4 * blocks + 100));
}

}  // namespace

ClusterPlanning::ClusterPlanning(const Options& options, PlanInputs inputs)
    : options_(options), begin_ms_(SteadyMs()), inputs_(std::move(inputs)) {}

double ClusterPlanning::LeftMs() const {
  if (!options_.time_limit_ms) return HUGE_VAL;
  return *options_.time_limit_ms * (1 - kExplainShare) - (SteadyMs() - begin_ms_);
}

double ClusterPlanning::LevelWork() const {
  const double usual = KvLevelOptions().work;
  return options_.time_limit_ms ? std::min(usual, *options_.time_limit_ms * SearchBudget::kWorkPerMs / kLevelsOfLimit) : usual;
}

SearchOptions ClusterPlanning::SearchFor() const {
  SearchOptions options;
  options.granularity = inputs_.split_head ? Granularity::kModelBlock : Granularity::kWholeBlock;
  options.seed = options_.seed;
  options.time_limit_ms = std::max(1.0, std::min(work_share_ * options_.work_ms, kShareOfLeft * LeftMs()));
  if (!options_.time_limit_ms) options.max_work = MostWork(problem_.instance);
  // KV does not grow under plans that read weights again for every micro-batch.
  options.may_reload = inputs_.request.kv_tokens == 0;
  options.elapsed_ms = [this, begin_ms = SteadyMs()] {
    if (Ends()) return HUGE_VAL;
    return options_.by_clock || options_.time_limit_ms ? SteadyMs() - begin_ms : 0;
  };
  if (options_.max_ttft_ms > 0 && problem_.first_token) options.first_token = FirstTokenBound{*problem_.first_token, options_.max_ttft_ms};
  return options;
}

absl::StatusOr<Plan> ClusterPlanning::Run() {
  absl::StatusOr<Plan> plan = SearchAll();
  if (absl::IsResourceExhausted(plan.status()) && !inputs_.homes.empty())
    return absl::ResourceExhaustedError("no plan fits with the blocks that the devices hold");
  if (!absl::IsResourceExhausted(plan.status()) || best_.found.feasible) return plan;
  if (options_.time_limit_ms && LeftMs() <= 0 && MayFit()) {
    return absl::DeadlineExceededError(
        absl::StrFormat("%s: no plan was found within the time limit of %.0f ms; plan with a longer --time-limit, or without one",
                        inputs_.request.model_name, *options_.time_limit_ms));
  }
  return Infeasible();
}

// KV that grows is an advantage if weights would otherwise stream to make room for unused KV.
absl::StatusOr<Plan> ClusterPlanning::SearchAll() {
  At("stages");
  const int64_t kv_tokens = std::exchange(inputs_.request.kv_tokens, 0);
  inputs_.request.unit_places = inputs_.unit_places.value_or(0);
  inputs_.request.ahead_places = inputs_.ahead_places.value_or(0);
  if (inputs_.request.unit_places > 0 && !inputs_.spec.config.experts)
    return cli::WrongCall(absl::StrCat("--experts ", inputs_.request.unit_places, " is for models with experts, and ",
                                       inputs_.request.model_name, " has none; leave it out"));
  if (inputs_.request.ahead_places > 0 && !inputs_.spec.config.experts)
    return cli::WrongCall(absl::StrCat("--read-ahead ", inputs_.request.ahead_places, " is for models with experts, and ",
                                       inputs_.request.model_name, " has none; leave it out"));
  const SparseInputs& sparse = inputs_.sparse;
  if (sparse.model.predictor != nullptr) {
    LIME_RETURN_IF_ERROR(CheckHavePredictor(sparse, inputs_.devices));
    UseCalibration(sparse, inputs_.request);
    for (ClusterDevice& device : inputs_.devices) device.activations += SparseActivations();
  }
  absl::StatusOr<Plan> whole = Search();
  if (inputs_.request.unit_places > 0) return whole;
  if (auto faster = SearchFasterSparse(whole)) return *std::move(faster);
  if (kv_tokens == 0 && absl::IsResourceExhausted(whole.status()) && (MaySpill() || MayUseHosts())) {
    absl::StatusOr<Plan> spills = SearchToSpill();
    if (spills.ok()) return spills;
  }
  if (absl::IsResourceExhausted(whole.status()) && MayRetainLess()) {
    absl::StatusOr<Plan> keeps = SearchRetained();
    if (keeps.ok()) return keeps;
  }
  if (whole.ok() && !inputs_.unit_places && options_.strategy == Strategy::kLime && MayGainFromDemand(inputs_.spec, *whole)) {
    const auto before = std::tuple(inputs_, problem_, best_);
    absl::StatusOr<Plan> demands = SearchOnDemand();
    if (!demands.ok() && !absl::IsResourceExhausted(demands.status())) return demands;
    if (demands.ok() && MayDivide()) {
      const auto undivided = std::tuple(inputs_, problem_, best_);
      absl::StatusOr<Plan> divided = SearchDivided(*demands);
      if (!divided.ok() && !absl::IsResourceExhausted(divided.status())) return divided;
      const bool pays =
          divided.ok() && TimeMs(*divided) < TimeMs(*demands) && divided->predicted.ttft_ms <= kMostPromptLoss * demands->predicted.ttft_ms;
      if (pays) {
        demands = std::move(divided);
      } else {
        std::tie(inputs_, problem_, best_) = undivided;
      }
    }
    if (demands.ok() && TimeMs(*demands) < TimeMs(*whole)) return demands;
    std::tie(inputs_, problem_, best_) = before;
  }
  if (kv_tokens == 0 || (whole.ok() && ResidencyOf(*whole).streamed.empty())) return whole;
  const auto before = std::tuple(inputs_, problem_, best_);
  inputs_.request.kv_tokens = kv_tokens;
  absl::StatusOr<Plan> growing = SearchToGrow(std::get<BatchedPlan>(before));
  const bool grows = growing.ok() ? !whole.ok() || growing->predicted.ms_per_step < whole->predicted.ms_per_step
                                  : !whole.ok() || !absl::IsResourceExhausted(growing.status());
  if (grows) return growing;
  std::tie(inputs_, problem_, best_) = before;
  return whole;
}

std::optional<absl::StatusOr<Plan>> ClusterPlanning::SearchFasterSparse(const absl::StatusOr<Plan>& whole) {
  const SparseInputs& sparse = inputs_.sparse;
  if (sparse.asks()) return SearchSparse(whole);
  if (!sparse.compares() || options_.strategy != Strategy::kLime || !whole.ok()) return std::nullopt;
  if (inputs_.request.prompt_tokens == inputs_.request.context && sparse.new_tokens == 0) {
    sparsity_why_ = kPromptsAlone;
    return std::nullopt;
  }
  const auto before = std::tuple(inputs_, problem_, best_);
  absl::StatusOr<Plan> found = SearchSparse(whole);
  SparsityTimes times{.off_ms = TimeMs(*whole), .off_work_ms = WholeWorkMs(sparse, *whole)};
  if (found.ok()) times.exact_ms = TimeMs(*found), times.exact_work_ms = WholeWorkMs(sparse, *found);
  SparsityChoice choice = ChooseSparsity(times);
  const bool is_odd = !found.ok() && !absl::IsResourceExhausted(found.status());
  sparsity_why_ = is_odd ? absl::StrCat("there is no plan with sparse MLPs: ", found.status().message()) : std::move(choice.why);
  if (choice.exact) return found;
  std::tie(inputs_, problem_, best_) = before;
  return std::nullopt;
}

absl::StatusOr<Plan> ClusterPlanning::SearchSparse(const absl::StatusOr<Plan>& whole) {
  At("sparse MLPs");
  const SparseInputs sparse = inputs_.sparse;
  const std::vector<ClusterDevice> devices = inputs_.devices;
  const Bytes before = SparseActivations();
  UseCalibration(sparse, inputs_.request);
  if (whole.ok()) begins_at_ = HomesLike(*whole);
  auto best = std::tuple(inputs_, problem_, best_);
  const auto search = [&](const SparseChoice& choice, double work) -> absl::StatusOr<Plan> {
    inputs_.request.neuron_rows = choice.neuron_rows, inputs_.request.deciders = choice.deciders;
    const Bytes more = SparseActivations() - before;
    for (size_t d = 0; d < devices.size(); ++d) inputs_.devices[d].activations = devices[d].activations + more;
    const auto& [of_best, problem, found] = best;
    seeds_.clear();
    if (HaveTheSameParts(of_best.request, inputs_.request)) seeds_.push_back(found.found.plan);
    work_share_ = work;
    absl::StatusOr<Plan> plan = Search();
    work_share_ = 1;
    return plan;
  };
  absl::StatusOr<Plan> plan = SearchSparsePlan({.spec = inputs_.spec,
                                                .sparse = sparse,
                                                .devices = devices,
                                                .whole = whole.ok() ? &*whole : nullptr,
                                                .batch = whole.ok() ? whole->batch : inputs_.request.sequences,
                                                .plan = search,
                                                .best = [&] { best = std::tuple(inputs_, problem_, best_); },
                                                .ends = [this] { return Ends(); }});
  begins_at_.clear(), seeds_.clear();
  std::tie(inputs_, problem_, best_) = std::move(best);
  return plan;
}

// What kernels need for sparse MLPs and predictors, and places for pieces.
Bytes ClusterPlanning::SparseActivations() const {
  const PlanRequest& request = inputs_.request;
  Bytes bytes = 0;
  if (!request.neuron_rows.empty())
    bytes += SharedSparseMemory(inputs_.spec, request) + AssumedForNeurons(inputs_.spec, request.sequences, CopiedDirections(request));
  if (!request.predictor_ranks.empty())
    bytes += AssumedForPredictors(inputs_.spec, MostRows(request), std::ranges::max(request.predictor_ranks));
  return bytes;
}

// Layers that are sparse are at home where they may be.
BlockHomes ClusterPlanning::Homes() const {
  const bool asked = inputs_.sparse.decider == DeciderWish::kCertified;
  BlockHomes homes = inputs_.homes;
  for (int32_t layer = 0; layer < std::ssize(inputs_.request.neuron_rows); ++layer) {
    if (inputs_.request.neuron_rows[static_cast<size_t>(layer)] == 0) continue;
    const bool certified = FormOf(inputs_.request, layer).bits > 0;
    for (const ClusterDevice& device : inputs_.devices) {
      if (certified ? MayProve(inputs_.sparse, device, layer, asked) : MayBeSparse(inputs_.sparse, device, layer)) continue;
      std::vector<BlockId>& blocks = homes[device.name];
      if (!inputs_.homes.contains(device.name) && blocks.empty())
        std::ranges::transform(inputs_.spec.blocks, std::back_inserter(blocks), &BlockSpec::id);
      std::erase(blocks, BlockId{BlockKind::kMlp, layer});
    }
  }
  return homes;
}

absl::StatusOr<Plan> ClusterPlanning::SearchOnDemand() {
  At("experts on demand");
  auto best = std::tuple(inputs_, problem_, best_);
  const auto search = [this](int64_t places) {
    inputs_.request.unit_places = places;
    return Search();
  };
  absl::StatusOr<Plan> plan = ChooseUnitPlaces(inputs_.spec, {.plan = search,
                                                              .best = [&] { best = std::tuple(inputs_, problem_, best_); },
                                                              .ends = [this] { return Ends(); },
                                                              .most_plans = kMostUnitPlans});
  std::tie(inputs_, problem_, best_) = std::move(best);
  return plan;
}

// The hosts of experts compute sums in the order of the device that asks them. libtorch, whose
// order has its name, computes no experts for others.
bool ClusterPlanning::MayDivide() const {
  const std::vector<ClusterDevice>& devices = inputs_.devices;
  if (!inputs_.divides_experts || devices.size() < 2 || devices.front().numerics_id == kTorchBackend) return false;
  return std::ranges::all_of(devices, [&](const ClusterDevice& device) { return device.numerics_id == devices.front().numerics_id; });
}

// Experts of every layer over the disks of all devices, with the memory that `plan`, with experts
// on the devices of their layers, leaves for them. What the divided plan needs beside them is not
// known before, so less memory for experts is tried, too.
absl::StatusOr<Plan> ClusterPlanning::SearchDivided(const Plan& plan) {
  At("experts over several disks");
  const auto others = std::ssize(inputs_.devices) - 1;
  const Bytes messages = UnitsMessageBytes(inputs_.spec, MostRows(inputs_.request), others, others) +
                         AssumedForOthers(inputs_.spec, MostRows(inputs_.request));
  DividedSearch search{.message_bytes = messages, .hits = inputs_.request.unit_hits};
  for (ClusterDevice& device : inputs_.devices) {
    search.idle_bytes.push_back(device.runtime + device.activations + device.margin);
    device.activations += messages;
  }
  inputs_.request.ahead_places = inputs_.ahead_places.value_or(kAheadIfDivided);
  absl::StatusOr<Plan> divided = absl::ResourceExhaustedError("no experts can be divided");
  for (const double of_memory : kMemoryForExperts) {
    search.of_memory = of_memory;
    LIME_ASSIGN_OR_RETURN(inputs_.request.unit_shares, SharesLike(inputs_.spec, plan, search));
    divided = Search();
    if (divided.ok() || !absl::IsResourceExhausted(divided.status()) || Ends()) break;
  }
  return divided;
}

// Stages that are best for the KV of the first level may not leave room for all KV. The stages of
// `whole` do.
absl::StatusOr<Plan> ClusterPlanning::SearchToGrow(const BatchedPlan& whole) {
  LIME_ASSIGN_OR_RETURN(Plan plan, Search());
  if (!GrowsKv(plan)) return plan;
  if (IsFixed(plan)) return cli::WrongCall("KV cannot grow if every micro-batch reads the streamed parts again; leave --kv-tokens out");
  absl::StatusOr<Plan> grows = Grow(plan);
  if (!grows.ok() && whole.found.feasible) {
    best_ = whole;
    LIME_ASSIGN_OR_RETURN(problem_, MakeProblem());
    LIME_ASSIGN_OR_RETURN(plan, Settle(problem_, best_));
    grows = Grow(plan);
  }
  // The parts that stream beside the rings of the growing plan.
  if (grows.ok()) best_.found.plan.streamed = StreamedBeforeCut(*grows, plan);
  return grows;
}

// As KV grows, either more weights stream, or KV goes to disks or other devices. Chooses what is
// faster in the mean over all levels. KV also leaves if no more weights can stream.
absl::StatusOr<Plan> ClusterPlanning::Grow(const Plan& plan) const {
  At("streaming as KV grows");
  KvLevelOptions options{.work = LevelWork(), .disks = MaySpill(), .cancelled = [this] { return Ends(); }};
  absl::StatusOr<Plan> grows = only_away_ ? absl::ResourceExhaustedError("memory has no room for all KV") : PlanToGrow(plan, options);
  if (!MaySpill() && !MayUseHosts()) return grows;
  At("KV that does not fit in memory");
  absl::StatusOr<Plan> leaves = CutForKv(plan, inputs_.spec, MayUseHosts());
  if (leaves.ok()) {
    KvHosting hosting = MakeKvHosting(inputs_.spec, inputs_.devices, inputs_.request.default_link, *leaves);
    hosting.asks = !inputs_.kv.no_remote_attention;
    if (MayUseHosts()) options.hosting = &hosting;
    leaves = PlanToSpill(*leaves, options);
  }
  if (!leaves.ok() || !SpillsKv(*leaves)) return grows;
  if (grows.ok() && MeanMs(MakeKvLevels(*leaves)) > MeanMs(MakeKvLevels(*grows)) * (1 - kWorthLeaving)) return grows;
  return leaves;
}

// Finds the plan with the most initial KV that can grow to all KV.
absl::StatusOr<Plan> ClusterPlanning::SearchToSpill() {
  absl::StatusOr<Plan> spills = absl::ResourceExhaustedError("no context fits");
  const auto before = std::tuple(inputs_, problem_, best_);
  only_away_ = inputs_.request.keeps_all_pages = true;
  for (int64_t tokens = inputs_.request.context / 2; tokens >= kKvPiece && !spills.ok() && !Ends(); tokens /= 2) {
    inputs_.request.kv_tokens = tokens;
    spills = SearchToGrow({});
  }
  if (!spills.ok()) std::tie(inputs_, problem_, best_) = before;
  return spills;
}

absl::StatusOr<Plan> ClusterPlanning::SearchRetained() {
  At("how much KV to keep");
  auto before = std::tuple(inputs_, problem_, best_), best = before;
  LIME_ASSIGN_OR_RETURN(const double bound_ms, BoundMs());
  const auto search = [this](const RetainedKv& retained) {
    inputs_.request = retained.request, inputs_.devices = retained.devices;
    return Search();
  };
  absl::StatusOr<Plan> plan = SearchRetainedKv(inputs_.spec, {inputs_.request, inputs_.devices},
                                               {.most_rows = MostRows(inputs_.request),
                                                .bound_ms = bound_ms,
                                                .search = search,
                                                .best = [&] { best = std::tuple(inputs_, problem_, best_); },
                                                .ends = [this] { return Ends(); }});
  std::tie(inputs_, problem_, best_) = std::move(plan.ok() ? best : before);
  return plan;
}

absl::StatusOr<PlanProblem> ClusterPlanning::MakeProblem() const {
  LIME_ASSIGN_OR_RETURN(PlanProblem problem, MakePlanProblem(inputs_.spec, inputs_.devices, inputs_.request));
  KeepAtHome(Homes(), problem);
  return problem;
}

// The problem assumes the worst link between any two devices. If the plan uses better links, the
// search continues with these.
absl::StatusOr<Plan> ClusterPlanning::Search() {
  LIME_ASSIGN_OR_RETURN(problem_, MakeProblem());
  SearchOptions begin = SearchFor();
  const BlockHomes homes = Homes();
  begin.seeds = PlansAtHome(homes, problem_);
  begin.seeds.insert(begin.seeds.end(), seeds_.begin(), seeds_.end());
  if (!begins_at_.empty()) std::ranges::move(PlansAtHome(begins_at_, problem_), std::back_inserter(begin.seeds));
  LIME_ASSIGN_OR_RETURN(best_, PlanBatches(options_.strategy, problem_.instance, begin));
  if (!best_.found.feasible) return absl::ResourceExhaustedError(best_.found.reason);
  best_.found.plan = WithoutDemand(problem_, std::move(best_.found.plan));
  const Instance::Net assumed = problem_.instance.net;
  LIME_ASSIGN_OR_RETURN(Plan plan, Settle(problem_, best_));
  if (!IsAtHome(homes, plan)) return absl::ResourceExhaustedError("blocks are missing");
  const bool even = problem_.instance.net.tx_ms == assumed.tx_ms && problem_.instance.net.lat_ms == assumed.lat_ms;
  if (even || plan.stages.size() == 1 || Ends()) return plan;
  PlanProblem again = problem_;
  SearchOptions options = SearchFor();
  options.seeds = {best_.found.plan};
  LIME_ASSIGN_OR_RETURN(BatchedPlan found, PlanBatches(options_.strategy, again.instance, options));
  if (!found.found.feasible) return plan;
  found.found.plan = WithoutDemand(again, std::move(found.found.plan));
  LIME_ASSIGN_OR_RETURN(Plan other, Settle(again, found));
  if (other.predicted.ms_per_step >= plan.predicted.ms_per_step || !IsAtHome(homes, other)) return plan;
  problem_ = std::move(again);
  best_ = std::move(found);
  return other;
}

// Makes the plan that was found, with the links that it uses.
absl::StatusOr<Plan> ClusterPlanning::Settle(PlanProblem& problem, BatchedPlan& best) const {
  RefineNet(inputs_.devices, inputs_.spec, inputs_.request, best.found.plan, problem);
  const bool uneven = std::ranges::any_of(inputs_.devices, [](const ClusterDevice& device) { return !device.profile.links.empty(); });
  if (uneven) {
    LIME_ASSIGN_OR_RETURN(best.lower_bound_ms, BoundMs());
  }
  return MakePlan(problem, Choice(problem, best));
}

// With the fastest links between any two devices: no plan has better ones.
absl::StatusOr<double> ClusterPlanning::BoundMs() const {
  std::vector<ClusterDevice> devices = inputs_.devices;
  PlanRequest request = inputs_.request;
  for (ClusterDevice& device : devices) {
    for (const LinkPoint& link : device.profile.links) {
      const bool inside = std::ranges::any_of(inputs_.devices, [&](const ClusterDevice& other) { return other.name == link.peer; });
      if (!inside) continue;
      request.default_link.bytes_per_second = std::max(request.default_link.bytes_per_second, link.bytes_per_second);
      request.default_link.latency_ms = std::min(request.default_link.latency_ms, link.latency_ms);
    }
    device.profile.links.clear();
  }
  LIME_ASSIGN_OR_RETURN(const PlanProblem problem, MakePlanProblem(inputs_.spec, devices, request));
  LIME_ASSIGN_OR_RETURN(const std::vector<BatchedInstance> choices, BatchChoices(problem.instance));
  double bound_ms = std::numeric_limits<double>::infinity();
  for (const BatchedInstance& choice : choices) bound_ms = std::min(bound_ms, LowerBoundMs(choice.instance));
  return bound_ms;
}

PlanChoice ClusterPlanning::Choice(const PlanProblem& problem, const BatchedPlan& best) const {
  PlanChoice choice = {.stages = best.found.plan,
                       .microbatches = std::max(1, best.microbatches),
                       .batch = best.batch,
                       .reads_once = best.found.reads_once,
                       .lower_bound_ms = best.lower_bound_ms};
  if (problem.first_token) choice.first_token = FirstTokenPredictor(*problem.first_token).Predict(best.found.plan);
  return choice;
}

std::vector<DeviceExplanation> ClusterPlanning::Explain(const Plan& plan) const {
  const Instance chosen = WithBatch(problem_.instance, best_.microbatches, best_.batch).value_or(problem_.instance);
  return ExplainDevices(chosen, best_.found.plan, plan.predicted.ms_per_step, HowToExplain());
}

ExplainOptions ClusterPlanning::HowToExplain() const {
  return {.strategy = best_.found.reads_once ? options_.strategy : Strategy::kPpOffload,
          .search = SearchFor(),
          .total_ms = std::min(kMostExplainMs, options_.time_limit_ms.value_or(options_.work_ms) * kExplainShare),
          .tokens_per_step = static_cast<double>(inputs_.request.sequences),
          .context = inputs_.request.context,
          .on_demand = inputs_.request.unit_places > 0 || HasSparseParts(problem_.head)};
}

// A plan may exist without the bound on the first token.
// Whether a longer search may find a plan: one with all KV in memory, or one that needs less.
bool ClusterPlanning::MayFit() const {
  Instance least = problem_.instance;
  if (MaySpill() || MayUseHosts() || MayRetainLess()) {
    for (Instance::Block& block : least.blocks) block.kv_mb = block.state_mb;
  }
  return !CannotFit(least);
}

absl::Status ClusterPlanning::Infeasible() const {
  if (options_.max_ttft_ms > 0) {
    SearchOptions unbounded = SearchFor();
    unbounded.first_token.reset();
    const absl::StatusOr<BatchedPlan> best = PlanBatches(options_.strategy, problem_.instance, unbounded);
    if (best.ok() && best->found.feasible) {
      const FirstToken first = FirstTokenPredictor(*problem_.first_token).Predict(best->found.plan);
      return absl::ResourceExhaustedError(absl::StrFormat(
          "no plan found has the first token within %.0f ms after %d tokens; the plan that is fastest per token needs %.0f ms; raise "
          "--max-ttft or shorten --prompt-tokens",
          options_.max_ttft_ms, inputs_.request.prompt_tokens, first.ms));
    }
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(inputs_.request.model_name, ": ", ExplainInfeasible(problem_.instance, best_.found.reason, HowToExplain())));
}

}  // namespace lime
