#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"
#include "planner/plan/plan_rows.h"
#include "tests/sim/sim_cluster_run.h"

namespace lime {
namespace {

constexpr double kLongestMs = 30 * 60e3;  // of a run
constexpr int64_t kMostEvents = 20'000'000;

ModelSpec ModelOf(const SimOptions& options, Random& random) {
  if (options.hybrid) return SimHybridModel(random, 2 + random.Below(3));
  if (options.sparse) return SimSparseModel(random, 1 + random.Below(3));
  return options.experts ? SimExpertsModel(random, 2 + random.Below(3)) : SimModel(1 + random.Below(3));
}

}  // namespace

SimCluster::SimCluster(const SimOptions& options)
    : options_(options),
      world_(options.seed * 2 + 1, options.bug, options.traces),
      spec_(ModelOf(options, world_.random)),
      cache_random_(options.seed * 2),
      guesses_(options.seed * 2) {}

// ---- Beginning

SimResult SimCluster::Run() {
  if (const absl::Status status = Begin(); !status.ok()) {
    world_.Violation("the run cannot begin: ", status.message());
    return Result();
  }
  int64_t events = 0;
  while (phase_ != Phase::kEnded && world_.violation.empty()) {
    if (!world_.clock.Step()) {
      CheckRest();
      break;
    }
    if (world_.clock.now_ms() > kLongestMs || ++events > kMostEvents) world_.Violation("requests wait without end: ", WhoWaits());
  }
  return Result();
}

absl::Status SimCluster::Begin() {
  Random& random = world_.random;
  const int num_devices = 1 + random.Below(5);
  for (int d = 0; d < num_devices; ++d) AddDevice();
  shape_.sequences = 1 + random.Below(3);
  shape_.spills = random.Below(5) == 0;
  shape_.grows = random.Below(2) == 0;
  if (shape_.spills) shape_.context = 1100, shape_.prompt = 600, shape_.most_chunk = 90;
  for (int attempt = 0; attempt < 20 && !first_; ++attempt) {
    absl::StatusOr<SimPlan> plan = DrawSimPlan(random, spec_, Names(), shape_);
    if (plan.ok()) {
      first_ = newest_ = *std::move(plan);
    } else if (attempt == 19) {
      return plan.status();
    }
  }
  if (options_.shares_kv) prompt_cache_ = cache_random_.Below(3) == 0 ? 1 + cache_random_.Below(20'000) : int64_t{1} << 40;
  writer_.emplace(OrdersFor(*first_));
  const int num_requests = 1 + random.Below(2 * shape_.sequences + 1);
  for (int r = 0; r < num_requests; ++r) LIME_RETURN_IF_ERROR(Ask(random.Below(3) == 0 ? 1 + random.Below(200) : 0));
  recovery_.emplace(Recovery::Options{}, Uses(first_->plan));
  watcher_.emplace(world_, first_->plan, [this] { return DrawSimPlan(world_.random, spec_, Alive(), shape_); });
  if (options_.faults) DrawFaults();
  Install(first_->plan, {}, [this](const absl::Status& status, const std::string& device) {
    if (status.ok()) return GoOn();
    phase_ = Phase::kRunning;  // as if it had run
    OnFailure(device, status);
  });
  return absl::OkStatus();
}

void SimCluster::AddDevice() {
  auto device = std::make_unique<Device>();
  device->name = absl::StrCat("device", devices_.size());
  device->disk = std::make_unique<SimDisk>(world_);
  device->orders = std::make_unique<SimChannel>(world_, world_.Between(0.05, 2), 1e5);
  device->news = std::make_unique<SimChannel>(world_, world_.Between(0.05, 2), 1e5);
  devices_.push_back(std::move(device));
}

absl::Status SimCluster::Ask(double after_ms) {
  Random& random = world_.random;
  Request request;
  const int64_t context = shape_.context;
  const int64_t most_prompt = shape_.spills ? (random.Below(2) == 0 ? 700 : 60) : 40;
  const int64_t prompt = 1 + random.Below(static_cast<int>(most_prompt));
  request.max_new_tokens = 1 + random.Below(static_cast<int>(std::min<int64_t>(shape_.spills ? 40 : 50, context - prompt)));
  for (int64_t p = 0; p < prompt; ++p) request.prompt.push_back(random.Below(static_cast<int>(spec_.config.vocab_size)));
  if (options_.shares_kv) BeginLikeAnother(request);
  if (random.Below(4) == 0) {
    HashReference reference(spec_, request.prompt);
    request.end_tokens = {reference.TokenAt(std::ssize(request.prompt) + random.Below(static_cast<int>(request.max_new_tokens)))};
  }
  ++to_ask_;
  world_.clock.After(after_ms, [this, request = std::move(request)] {
    --to_ask_;
    SimRequest asked(spec_, request);
    const absl::StatusOr<RequestId> id = writer_->Add(AsItIsAdded(request));
    if (!id.ok()) return world_.Violation("a request is refused: ", id.status().message());
    asked_.push_back(std::move(asked));
    if (phase_ == Phase::kRunning) SendOrders();
  });
  return absl::OkStatus();
}

void SimCluster::BeginLikeAnother(Request& request) {
  request.cache_prompt = cache_random_.Below(8) > 0;
  request.cache_group = cache_random_.Below(4) == 0 ? 1 : 0;
  if (!prompts_.empty() && cache_random_.Below(4) > 0) {
    std::vector<int32_t> ids = prompts_[static_cast<size_t>(cache_random_.Below(static_cast<int>(prompts_.size())))];
    HashReference reference(spec_, ids);
    const int64_t answer = cache_random_.Below(3) == 0 ? 0 : cache_random_.Below(40);
    for (int64_t i = 0; i < answer; ++i) ids.push_back(reference.TokenAt(std::ssize(ids)));
    if (cache_random_.Below(3) == 0) ids.resize(1 + static_cast<size_t>(cache_random_.Below(static_cast<int>(ids.size()))));
    if (cache_random_.Below(3) > 0) ids.insert(ids.end(), request.prompt.begin(), request.prompt.end());
    ids.resize(std::min<size_t>(ids.size(), static_cast<size_t>(shape_.context - request.max_new_tokens)));
    request.prompt = std::move(ids);
  }
  prompts_.push_back(request.prompt);
}

Request SimCluster::AsItIsAdded(Request request) {
  if (request.max_new_tokens > 1 && world_.Plants(PlantedBug::kEndsEarly, 30)) --request.max_new_tokens;
  if (!request.end_tokens.empty() && world_.Plants(PlantedBug::kEndsLate, 30)) request.end_tokens.clear();
  return request;
}

std::vector<std::string> SimCluster::Names() const {
  std::vector<std::string> names;
  for (const auto& device : devices_) {
    if (!device->gone) names.push_back(device->name);
  }
  return names;
}

SimCluster::Device& SimCluster::Named(const std::string& name) {
  return **std::ranges::find_if(devices_, [&](const auto& device) { return device->name == name; });
}

OrderWriter::Options SimCluster::OrdersFor(const SimPlan& plan) const {
  OrderWriter::Options orders = OrderWriter::For(plan.plan, prompt_cache_);
  if (GrowsKv(plan.plan)) orders.levels = plan.levels;
  return orders;
}

Recovery::Devices SimCluster::Uses(const Plan& plan) {
  Recovery::Devices uses;
  for (int d = 0; d < plan.NumDevices(); ++d) {
    if (HasPart(plan, d)) uses.insert(plan.devices[static_cast<size_t>(d)].name);
  }
  return uses;
}

// ---- Running

void SimCluster::GoOn() {
  for (int32_t d = 0; d < plan_->NumDevices(); ++d) {
    if (!HasPart(*plan_, d)) continue;
    Device& device = Named(plan_->devices[static_cast<size_t>(d)].name);
    if (device.stage == nullptr || device.epoch != epoch_) {  // it went while others loaded
      phase_ = Phase::kRunning;
      return OnFailure(device.name, absl::UnavailableError("it went while others loaded"));
    }
  }
  phase_ = Phase::kRunning;
  for (int32_t d = 0; d < plan_->NumDevices(); ++d) {
    if (HasPart(*plan_, d)) Named(plan_->devices[static_cast<size_t>(d)].name).stage->Begin();
  }
  SendOrders();
}

void SimCluster::SendOrders() {
  if (guesses_.guessing()) return;
  const std::vector<Order>& orders = writer_->NextOrders();
  for (const Order& order : orders) {
    Count(order);
    guesses_.Note(order);
    SendOrder(order.what);
  }
  const auto* step = orders.empty() ? nullptr : std::get_if<StepOrder>(&orders.back().what);
  if (step == nullptr) return;
  const std::optional<SimGuesses::Guess> guess = guesses_.Draw(*plan_, spec_.config.vocab_size, *step);
  if (!guess) return;
  ++result_.rolled_back;
  SendOrder(guess->rows);
  SendOrder(guess->back);
}

void SimCluster::SendOrder(const decltype(Order::what)& what) {
  const Order order{.number = next_order_++, .what = what};
  for (int32_t d = 0; d < plan_->NumDevices(); ++d) {
    if (!HasPart(*plan_, d)) continue;
    Device& device = Named(plan_->devices[static_cast<size_t>(d)].name);
    device.orders->Send(64, [this, &device, epoch = epoch_, order] {
      if (device.stage == nullptr || device.epoch != epoch || epoch != epoch_) return;
      const absl::Status stopped = device.stage->health();
      CheckAccepted(device, "an order", stopped, device.stage->OnOrder(order));
    });
  }
}

void SimCluster::Count(const Order& order) {
  if (const auto* retire = std::get_if<RetireOrder>(&order.what)) {
    result_.kept += retire->kept > 0 ? 1 : 0;
    retire->kept > 0 ? (void)idle_.insert(retire->sequence) : (void)idle_.erase(retire->sequence);
  } else if (const auto* admit = std::get_if<AdmitOrder>(&order.what)) {
    result_.copied += admit->source >= 0 ? 1 : 0;
    result_.continued += idle_.erase(admit->sequence) > 0 && admit->computed > 0 ? 1 : 0;
  }
}

void SimCluster::OnSampled(int64_t device_step, const std::vector<SampledToken>& tokens) {
  const std::optional<int64_t> step = guesses_.StepOf(device_step);
  if (!step) return world_.Violation("a guess made a token");
  const auto accepted = writer_->OnTokens(*step, tokens);
  if (!accepted.ok()) return world_.Violation("the coordinator refuses tokens: ", accepted.status().message());
  for (const OrderWriter::Token& token : *accepted) {
    const SampledToken& sampled = tokens[token.index];
    SimRequest& asked = asked_[static_cast<size_t>(token.request)];
    const std::string wrong = asked.OnToken(sampled.position, sampled.token, token.again, token.reason);
    if (!wrong.empty()) return world_.Violation("request ", token.request, " ", wrong);
    if (token.again) continue;
    ++result_.tokens;
    (void)recovery_->OnEvent(Recovery::NewToken{}, world_.clock.now());
  }
  AfterNews();
}

void SimCluster::OnStepEnded() {
  const std::optional<int64_t> step = guesses_.EndStep();
  if (!step) return AfterNews();
  ++result_.steps;
  const absl::Status status = writer_->OnStepEnded(*step);
  if (!status.ok()) return world_.Violation("the coordinator refuses the end of a step: ", status.message());
  AfterNews();
}

void SimCluster::AfterNews() {
  if (phase_ == Phase::kRunning && !writer_->idle() && (change_ = watcher_->Next(writer_->remaining()))) phase_ = Phase::kDraining;
  if (phase_ == Phase::kDraining) return MayChangePlan();
  if (phase_ == Phase::kRunning) SendOrders();
}

// ---- The end

void SimCluster::CheckRest() {
  if (!AllOver()) return world_.Violation("nothing will happen any more, and requests wait: ", WhoWaits());
  if (phase_ != Phase::kRunning || !writer_->idle() || writer_->steps_under_way() > 0 || !writer_->NextOrders().empty())
    return world_.Violation("all requests are over, and the coordinator goes on: ", WhoWaits());
  for (int32_t d = 0; d < plan_->NumDevices(); ++d) {
    if (!HasPart(*plan_, d)) continue;
    Device& device = Named(plan_->devices[static_cast<size_t>(d)].name);
    if (device.stage == nullptr || device.epoch != epoch_) return world_.Violation("device ", device.name, " is lost, and nobody knows");
    std::map<int32_t, SimStage::Kept> kept;
    for (const PrefixCache::Idle& idle : writer_->cache().idle())
      kept[idle.slot] = {.positions = std::ssize(idle.ids), .snapshots = idle.snapshots};
    const std::string left = device.stage->LeftOver(kept);
    if (!left.empty()) world_.Violation("all requests are over, and on device ", device.name, " ", left);
  }
}

std::string SimCluster::WhoWaits() const {
  std::string text = absl::StrCat("the coordinator has ", writer_->steps_under_way(), " steps under way");
  for (const auto& device : devices_) {
    if (device->stage != nullptr) absl::StrAppend(&text, "; device ", device->name, " at ", device->stage->Waiting());
  }
  return text;
}

SimResult SimCluster::Result() {
  result_.violation = world_.violation;
  result_.transcript = std::move(world_.transcript);
  result_.faults = world_.faults;
  result_.ahead = world_.ahead;
  result_.places = world_.places;
  result_.neurons = world_.neurons;
  result_.hosted_units = world_.hosted_units;
  result_.ms = world_.clock.now_ms();
  result_.planted = world_.planted_done;
  if (recovery_) result_.recoveries += recovery_->recoveries();
  return std::move(result_);
}

SimResult RunSim(const SimOptions& options) {
  return SimCluster(options).Run();
}

}  // namespace lime
