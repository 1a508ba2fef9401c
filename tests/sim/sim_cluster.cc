#include "tests/sim/sim_cluster.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"
#include "planner/plan/plan_rows.h"
#include "tests/sim/sim_guesses.h"

namespace lime {
namespace {

constexpr double kLongestMs = 30 * 60e3;  // of a run
constexpr int64_t kMostEvents = 20'000'000;

ModelSpec ModelOf(const SimOptions& options, Random& random) {
  if (options.hybrid) return SimHybridModel(random, 2 + random.Below(3));
  return options.experts ? SimExpertsModel(random, 2 + random.Below(3)) : SimModel(1 + random.Below(3));
}

class SimCluster {
 public:
  explicit SimCluster(const SimOptions& options)
      : options_(options),
        world_(options.seed * 2 + 1, options.bug, options.traces),
        spec_(ModelOf(options, world_.random)),
        cache_random_(options.seed * 2),
        guesses_(options.seed * 2) {}

  SimResult Run() {
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

 private:
  struct Device {
    std::string name;
    bool alive = true;
    bool gone = false;
    bool refuses = false;
    std::unique_ptr<SimDisk> disk;
    std::unique_ptr<SimStage> stage;
    int64_t epoch = 0;  // of the stage
    std::unique_ptr<SimChannel> orders, news;
    // KV that a plan has left here, and its epoch.
    std::unique_ptr<SimKvHandover> left;
    int64_t left_epoch = 0;
  };
  enum class Phase { kInstalling, kRunning, kDraining, kRecovering, kEnded };
  using Installed = std::function<void(const absl::Status& status, const std::string& device)>;

  // ---- Beginning

  absl::Status Begin() {
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

  void AddDevice() {
    auto device = std::make_unique<Device>();
    device->name = absl::StrCat("device", devices_.size());
    device->disk = std::make_unique<SimDisk>(world_);
    device->orders = std::make_unique<SimChannel>(world_, world_.Between(0.05, 2), 1e5);
    device->news = std::make_unique<SimChannel>(world_, world_.Between(0.05, 2), 1e5);
    devices_.push_back(std::move(device));
  }

  absl::Status Ask(double after_ms) {
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

  // Its prompt begins as an earlier prompt and its answer do, or is the same.
  void BeginLikeAnother(Request& request) {
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

  // The planted bugs: one token less, or an end token that is forgotten.
  Request AsItIsAdded(Request request) {
    if (request.max_new_tokens > 1 && world_.Plants(PlantedBug::kEndsEarly, 30)) --request.max_new_tokens;
    if (!request.end_tokens.empty() && world_.Plants(PlantedBug::kEndsLate, 30)) request.end_tokens.clear();
    return request;
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& device : devices_) {
      if (!device->gone) names.push_back(device->name);
    }
    return names;
  }
  Device& Named(const std::string& name) {
    return **std::ranges::find_if(devices_, [&](const auto& device) { return device->name == name; });
  }
  OrderWriter::Options OrdersFor(const SimPlan& plan) const {
    OrderWriter::Options orders = OrderWriter::For(plan.plan, prompt_cache_);
    if (GrowsKv(plan.plan)) orders.levels = plan.levels;
    return orders;
  }
  static bool Lends(const Plan& plan) { return std::ranges::any_of(plan.devices, HasKvOnHost); }
  static Recovery::Devices Uses(const Plan& plan) {
    Recovery::Devices uses;
    for (int d = 0; d < plan.NumDevices(); ++d) {
      if (HasPart(plan, d)) uses.insert(plan.devices[static_cast<size_t>(d)].name);
    }
    return uses;
  }

  // ---- Faults

  void DrawFaults() {
    Random& random = world_.random;
    const int count = random.Below(7);
    const double within_ms = random.Below(3) == 0 ? 1000 : 150;
    for (int f = 0; f < count; ++f) {
      const auto fault = static_cast<SimFault>(random.Below(kNumSimFaults));
      world_.clock.After(world_.Between(0, within_ms), [this, fault] { Happen(fault); });
    }
    // More of these, early: another plan is found a while later, when the requests may have ended.
    if (random.Below(2) == 0) world_.clock.After(world_.Between(0, 60), [this] { Happen(SimFault::kRateChange); });
    // In the middle of the run: places of parts on demand go and come back.
    for (int f = options_.experts ? random.Below(4) : 0; f > 0; --f)
      world_.clock.After(world_.Between(0, 150), [this] { Happen(SimFault::kPressure); });
  }

  void Happen(SimFault fault) {
    Random& random = world_.random;
    Device& device = *devices_[static_cast<size_t>(random.Below(static_cast<int>(devices_.size())))];
    if (phase_ == Phase::kEnded) return;
    world_.Note(fault);
    world_.Say("fault: ", SimFaultName(fault), ", device ", device.name);
    const double now_ms = world_.clock.now_ms();
    switch (fault) {
      case SimFault::kLinkStall:
        if (!links_.empty()) AnyLink().Stall(world_.Between(10, 5000));
        return;
      case SimFault::kLinkLost:
        return LoseLink();
      case SimFault::kNewsLost:
        if (device.stage == nullptr || device.epoch != epoch_) return;
        return OnFailure(device.name, absl::UnavailableError("the connection is lost"));
      case SimFault::kSlowDisk:
        return device.disk->Slow(now_ms + world_.Between(10, 2000));
      case SimFault::kDiskStall:
        return device.disk->Stall(world_.Between(10, 5000));
      case SimFault::kDiskError:
        return device.disk->FailNext();
      case SimFault::kDiskFull:
        return device.disk->Full(now_ms + world_.Between(10, 1000));
      case SimFault::kCrash:
        return Crash(device, /*comes_back_ms=*/world_.Between(10, 20e3));
      case SimFault::kGone:
        device.gone = true;
        return Crash(device, -1);
      case SimFault::kJoin:
        return AddDevice();
      case SimFault::kRefusal:
        device.refuses = true;
        return;
      case SimFault::kPressure:
        if (device.stage != nullptr) device.stage->Press(random.Below(3) == 0 ? 1 : random.Uniform());
        world_.clock.After(world_.Between(1, 200), [&device] {
          if (device.stage != nullptr) device.stage->Press(0);
        });
        return;
      case SimFault::kRateChange:
        return watcher_->ChangeRate();
      case SimFault::kStop:
        return StopAny();
      case SimFault::kCount:
        return;
    }
  }

  void Crash(Device& device, double comes_back_ms) {
    if (!device.alive) return;
    device.alive = false;
    const bool in_use = device.stage != nullptr && device.epoch == epoch_;
    device.stage.reset();
    device.left.reset();
    if (comes_back_ms >= 0) {
      world_.clock.After(comes_back_ms, [this, &device] {
        device.alive = !device.gone;
        world_.Say("device ", device.name, device.alive ? " is back" : " stays away");
      });
    }
    if (!in_use) return;
    const absl::Status lost = absl::UnavailableError(absl::StrCat("device ", device.name, " is lost"));
    Later(world_.Between(1, 300), [this, name = device.name, lost] { OnFailure(name, lost); });
    for (const auto& other : devices_) {
      if (other->stage != nullptr && other->epoch == epoch_) LoseStage(*other, lost);
    }
  }

  // A device notices that one of its links is lost.
  void LoseStage(Device& device, const absl::Status& lost) {
    world_.clock.After(world_.Between(1, 300), [&device, epoch = device.epoch, lost] {
      if (device.stage != nullptr && device.epoch == epoch) device.stage->Fail(lost);
    });
  }

  void LoseLink() {
    if (links_.empty()) return;
    auto link = links_.begin();
    std::advance(link, world_.random.Below(static_cast<int>(links_.size())));
    const auto [from, to] = link->first;
    lost_.insert({epoch_, from, to});
    Device& sender = Named(plan_->devices[static_cast<size_t>(from)].name);
    if (sender.stage != nullptr && sender.epoch == epoch_) LoseStage(sender, absl::UnavailableError("a link is lost"));
  }

  SimChannel& AnyLink() {
    auto link = links_.begin();
    std::advance(link, world_.random.Below(static_cast<int>(links_.size())));
    return *link->second;
  }

  void StopAny() {
    for (size_t r = 0; r < asked_.size(); ++r) {
      if (asked_[r].over() || world_.random.Below(2) == 0) continue;
      writer_->Stop(static_cast<RequestId>(r));
      asked_[r].Stop();
      if (phase_ == Phase::kRunning) SendOrders();
      return;
    }
  }

  // ---- Plans on devices

  // In this epoch.
  template <typename What>
  void Later(double ms, What what) {
    world_.clock.After(ms, [this, epoch = epoch_, what = std::move(what)] {
      if (epoch == epoch_) what();
    });
  }

  void Install(Plan plan, const SimStage::Takeover& takeover, const Installed& done) {
    plan.epoch = ++epoch_;
    plan_ = std::move(plan);
    guesses_.Begin();
    next_order_ = 0;
    idle_.clear();
    links_.clear(), patient_links_.clear();
    auto handover = std::make_shared<SimKvHandover>(takeover.handover == nullptr ? SimKvHandover{} : *takeover.handover);
    auto to_do = std::make_shared<int>(0);
    auto ended = std::make_shared<bool>(false);
    const auto end = [this, to_do, ended, done](const absl::Status& status, const std::string& name) {
      if (*ended) return;
      if (!status.ok() || --*to_do == 0) {
        *ended = true;
        status.ok() ? watcher_->OnPlan(*plan_) : Unload();
        done(status, name);
      }
    };
    for (int32_t d = 0; d < plan_->NumDevices(); ++d) {
      if (!HasPart(*plan_, d)) continue;
      ++*to_do;
      Later(world_.Between(1, 50), [this, d, end, handover, sequences = takeover.sequences] {
        const std::string& name = plan_->devices[static_cast<size_t>(d)].name;
        Device& device = Named(name);
        end(InstallOn(device, d, {.sequences = sequences, .handover = handover.get()}), name);
      });
    }
  }

  absl::Status InstallOn(Device& device, int32_t index, const SimStage::Takeover& takeover) {
    if (!device.alive) return absl::UnavailableError(absl::StrCat("device ", device.name, " does not answer"));
    if (std::exchange(device.refuses, false)) return absl::ResourceExhaustedError(absl::StrCat("device ", device.name, " refuses"));
    if (device.stage != nullptr) return absl::FailedPreconditionError(absl::StrCat("device ", device.name, " holds a plan"));
    const int64_t epoch = epoch_;
    SimStage::Peers peers{
        .send = [this, epoch, index](int32_t to, ActivationMessage message) { Send(epoch, index, to, std::move(message)); },
        .sampled =
            [this, epoch, &device](int64_t step, const std::vector<SampledToken>& tokens) {
              SendNews(epoch, device, [this, step, tokens] { OnSampled(step, tokens); });
            },
        .step_ended =
            [this, epoch, &device, index](int64_t) {
              if (plan_->stages.back().device == index) SendNews(epoch, device, [this] { OnStepEnded(); });
            },
        .failed = [this, epoch, &device](
                      const absl::Status& why) { SendNews(epoch, device, [this, why, name = device.name] { OnFailure(name, why); }); }};
    LIME_ASSIGN_OR_RETURN(device.stage, SimStage::Install(world_, *device.disk, spec_, *plan_, index, std::move(peers), takeover));
    device.epoch = epoch;
    return absl::OkStatus();
  }

  void SendNews(int64_t epoch, Device& device, std::function<void()> what) {
    device.news->Send(64, [this, epoch, what = std::move(what)] {
      if (epoch == epoch_) what();
    });
  }

  void Send(int64_t epoch, int32_t from, int32_t to, ActivationMessage message) {
    if (epoch != epoch_ || lost_.contains({epoch, from, to})) return;
    if (!message.header.hosting && world_.Plants(PlantedBug::kLostMessage, 5)) return;
    auto& link = links_[{from, to}];
    if (link == nullptr) link = std::make_unique<SimChannel>(world_, world_.Between(0.02, 1), world_.Between(100, 1e5));
    const int64_t bytes = std::ssize(message.payload) + 48;
    auto& patient = patient_links_[{from, to}];  // of what may wait for all else
    if (patient == nullptr) patient = std::make_unique<SimChannel>(world_, world_.Between(0.1, 5), world_.Between(50, 1e4));
    (message.may_wait ? patient : link)->Send(bytes, [this, epoch, from, to, message = std::move(message)]() mutable {
      if (epoch != epoch_ || lost_.contains({epoch, from, to})) return;
      Device& device = Named(plan_->devices[static_cast<size_t>(to)].name);
      if (device.stage == nullptr || device.epoch != epoch) return;
      const absl::Status stopped = device.stage->health();
      CheckAccepted(
          device, "what a peer sends", stopped,
          message.header.hosting ? device.stage->OnHosting(from, message.payload) : device.stage->OnActivation(std::move(message)));
    });
  }

  // A stage that has stopped answers with the reason; one that runs takes all that peers and the
  // coordinator send.
  void CheckAccepted(const Device& device, const char* what, const absl::Status& stopped, const absl::Status& answer) {
    if (answer != stopped) world_.Violation("device ", device.name, " refuses ", what, ": ", answer.message());
  }

  // What one device refuses is unloaded from the others.
  void Unload() {
    for (const auto& device : devices_) {
      if (device->epoch == epoch_) device->stage.reset();
    }
    ++epoch_;
  }

  // Devices unload the plan by themselves, soon, and keep its KV.
  void Abandon() {
    const int64_t epoch = epoch_++;
    for (const auto& device : devices_) {
      world_.clock.After(world_.Between(0.1, 100), [&device = *device, epoch] {
        if (device.epoch != epoch || device.stage == nullptr) return;
        device.left = std::make_unique<SimKvHandover>(), device.left_epoch = epoch;
        if (!device.stage->HandOver(*device.left)) device.left.reset();
        device.stage.reset();
      });
    }
  }

  // ---- Running

  void GoOn() {
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

  // Devices have room for the rows that the coordinator orders ahead, so it waits for a guess.
  void SendOrders() {
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

  void SendOrder(const decltype(Order::what)& what) {
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

  void Count(const Order& order) {
    if (const auto* retire = std::get_if<RetireOrder>(&order.what)) {
      result_.kept += retire->kept > 0 ? 1 : 0;
      retire->kept > 0 ? (void)idle_.insert(retire->sequence) : (void)idle_.erase(retire->sequence);
    } else if (const auto* admit = std::get_if<AdmitOrder>(&order.what)) {
      result_.copied += admit->source >= 0 ? 1 : 0;
      result_.continued += idle_.erase(admit->sequence) > 0 && admit->computed > 0 ? 1 : 0;
    }
  }

  void OnSampled(int64_t device_step, const std::vector<SampledToken>& tokens) {
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

  void OnStepEnded() {
    const std::optional<int64_t> step = guesses_.EndStep();
    if (!step) return AfterNews();
    ++result_.steps;
    const absl::Status status = writer_->OnStepEnded(*step);
    if (!status.ok()) return world_.Violation("the coordinator refuses the end of a step: ", status.message());
    AfterNews();
  }

  void AfterNews() {
    if (phase_ == Phase::kRunning && !writer_->idle() && (change_ = watcher_->Next(writer_->remaining()))) phase_ = Phase::kDraining;
    if (phase_ == Phase::kDraining) return MayChangePlan();
    if (phase_ == Phase::kRunning) SendOrders();
  }

  // ---- Another plan while all is well

  void MayChangePlan() {
    if (!guesses_.idle()) return;
    const SimPlan plan = *std::exchange(change_, std::nullopt);
    if (writer_->idle()) {  // nothing is left to be faster
      phase_ = Phase::kRunning;
      return SendOrders();
    }
    ++result_.plan_changes;
    // What devices have told on their way is waited for by who unloads.
    SimKvHandover handover;
    for (int32_t d = 0; d < plan_->NumDevices(); ++d) {
      if (!HasPart(*plan_, d)) continue;
      Device& device = Named(plan_->devices[static_cast<size_t>(d)].name);
      if (device.stage == nullptr || device.epoch != epoch_)
        return OnFailure(device.name, absl::UnavailableError("it went while it was to leave its KV"));
      (void)device.stage->HandOver(handover);
    }
    const bool takes_over = !Lends(*plan_) && !Lends(plan.plan) && world_.random.Below(4) > 0;
    Unload();
    phase_ = Phase::kInstalling;
    const absl::Status installed = takes_over ? InstallTakingOver(plan, handover) : absl::UnimplementedError("KV does not follow");
    if (!installed.ok()) InstallAgain(plan, [this, plan](const auto& status, const auto& device) { OnChanged(plan, status, device); });
  }

  // Requests go on with their KV. Where devices do not take it over, the same plan is installed and
  // it is computed again.
  absl::Status InstallTakingOver(const SimPlan& plan, const SimKvHandover& handover) {
    if (world_.random.Below(10) == 0) return absl::FailedPreconditionError("not every device handed over its KV");
    const bool computed = writer_->remaining().pages > 0;
    LIME_ASSIGN_OR_RETURN(const std::vector<OrderWriter::Continued> continued, writer_->GoOn(OrdersFor(plan)));
    if (computed && std::ranges::none_of(continued, [](const auto& each) { return each.request.has_value(); }))
      return absl::FailedPreconditionError("no request can continue with its KV: the plan begins with too little");
    SimStage::Takeover takeover{.handover = &handover};
    for (const OrderWriter::Continued& each : continued) takeover.sequences.push_back(each.sequence);
    world_.Say("changes to another plan, with KV of ", continued.size(), " sequences");
    Install(plan.plan, takeover, [this, plan, count = std::ssize(continued)](const absl::Status& status, const std::string& device) {
      if (status.ok()) {
        result_.taken_over += count;
        return OnChanged(plan, status, device);
      }
      ++result_.not_taken_over;
      world_.Say("KV cannot be taken over: ", status.message());
      InstallAgain(plan, [this, plan](const auto& again, const auto& refuses) { OnChanged(plan, again, refuses); });
    });
    return absl::OkStatus();
  }

  // What is known of the requests is computed again.
  void InstallAgain(const SimPlan& plan, const Installed& done) {
    const absl::Status again = writer_->Restart(OrdersFor(plan));
    if (!again.ok()) return world_.Violation("requests do not begin again: ", again.message());
    Install(plan.plan, {}, done);
  }

  void OnChanged(const SimPlan& plan, const absl::Status& status, const std::string& device) {
    if (!status.ok()) {
      phase_ = Phase::kRunning;
      return OnFailure(device, status);
    }
    first_ = newest_ = plan;
    result_.recoveries += recovery_->recoveries();
    recovery_.emplace(Recovery::Options{}, Uses(plan.plan));
    GoOn();
  }

  std::vector<std::string> Alive() const {
    std::vector<std::string> names;
    for (const auto& device : devices_) {
      if (device->alive) names.push_back(device->name);
    }
    if (names.empty()) names.push_back(devices_.front()->name);
    return names;
  }

  // ---- After a failure

  void OnFailure(const std::string& device, const absl::Status& why) {
    if (phase_ != Phase::kRunning && phase_ != Phase::kDraining) return;
    world_.Say("failure of device ", device, ": ", why.message());
    phase_ = Phase::kRecovering;
    change_.reset();
    failed_ = *plan_;
    Abandon();
    if (writer_->idle()) (void)recovery_->OnEvent(Recovery::NewToken{}, world_.clock.now());  // nobody waits for one
    Recover(Recovery::Failed{device, why});
  }

  void Recover(const Recovery::Event& event) {
    const Recovery::Answer answer = recovery_->OnEvent(event, world_.clock.now());
    if (!answer.say.empty()) world_.Say("coordinator: ", answer.say);
    if (std::holds_alternative<Recovery::GoOn>(answer.action)) return GoOn();
    if (const auto* end = std::get_if<Recovery::GiveUp>(&answer.action)) return OnGiveUp(end->why);
    if (const auto* ask = std::get_if<Recovery::Ask>(&answer.action)) {
      world_.clock.After(absl::ToDoubleMilliseconds(ask->after) + world_.Between(0.1, 5), [this] {
        Recovery::Devices free;
        for (const auto& each : devices_) {
          if (each->alive && each->stage == nullptr) free.insert(each->name);
        }
        Recover(Recovery::Answered{free});
      });
    } else if (const auto* make = std::get_if<Recovery::MakePlan>(&answer.action)) {
      world_.clock.After(world_.Between(1, 100), [this, names = std::vector(make->devices.begin(), make->devices.end())] {
        absl::StatusOr<SimPlan> plan = DrawSimPlan(world_.random, spec_, names, shape_);
        if (!plan.ok() || !writer_->CheckAll(OrdersFor(*plan)).ok() || world_.random.Below(10) == 0)
          return Recover(Recovery::NoPlan{absl::ResourceExhaustedError("too large")});
        newest_ = *std::move(plan);
        Recover(Recovery::Planned{Uses(newest_->plan)});
      });
    } else if (const auto* install = std::get_if<Recovery::Install>(&answer.action)) {
      if (install->first) newest_ = first_;
      const Installed done = [this](const absl::Status& status, const std::string& device) {
        if (status.ok()) return Recover(Recovery::Installed{});
        Recover(Recovery::InstallFailed{device, status});
      };
      const std::optional<SimKvHandover> left = TakeLeft();
      left ? InstallInterrupted(*newest_, *left, done) : InstallAgain(*newest_, done);
    }
  }

  // The KV of the plan that failed, if all its devices have kept it. Once for a failure.
  std::optional<SimKvHandover> TakeLeft() {
    const std::optional<Plan> failed = std::exchange(failed_, std::nullopt);
    SimKvHandover all;
    bool kept = failed && !writer_->idle() && !Lends(*failed) && !Lends(newest_->plan);
    for (int32_t d = 0; failed && d < failed->NumDevices(); ++d) {
      if (!HasPart(*failed, d)) continue;
      Device& device = Named(failed->devices[static_cast<size_t>(d)].name);
      const std::unique_ptr<SimKvHandover> left = std::move(device.left);
      kept = kept && left != nullptr && device.left_epoch == failed->epoch;
      if (left != nullptr) all.insert(left->begin(), left->end());
    }
    return kept ? std::optional(std::move(all)) : std::nullopt;
  }

  void InstallInterrupted(const SimPlan& plan, const SimKvHandover& left, const Installed& done) {
    const absl::StatusOr<std::vector<OrderWriter::Continued>> continued = writer_->GoOnInterrupted(OrdersFor(plan));
    if (!continued.ok()) return world_.Violation("requests do not go on: ", continued.status().message());
    SimStage::Takeover takeover{.handover = &left};
    for (const OrderWriter::Continued& each : *continued) takeover.sequences.push_back(each.sequence);
    world_.Say("devices have kept the KV of ", continued->size(), " requests");
    Install(plan.plan, takeover, [this, plan, done, count = std::ssize(*continued)](const absl::Status& status, const std::string& device) {
      if (status.ok()) result_.kept_by_all += count;
      if (status.ok() || count == 0) return done(status, device);
      world_.Say("KV cannot be taken over: ", status.message());
      InstallAgain(plan, done);
    });
  }

  // Only where a device is gone for good, or it is one loss after another. A command ends then; a
  // server ends the requests.
  void OnGiveUp(const absl::Status& why) {
    world_.Say("gives up: ", why.message());
    int64_t losses = 0;  // what is slow, wanted or in want of memory is none
    for (const SimFault fault :
         {SimFault::kLinkLost, SimFault::kNewsLost, SimFault::kDiskError, SimFault::kDiskFull, SimFault::kCrash, SimFault::kRefusal})
      losses += world_.faults[static_cast<size_t>(fault)];
    const bool gone = std::ranges::any_of(devices_, [](const auto& device) { return device->gone; });
    if (!gone && losses < 2) world_.Violation("it gives up after ", losses, " losses: ", why.message());
    if (AllOver() || result_.outlived == 2 || world_.random.Below(2) == 0) {
      result_.gave_up = true;
      phase_ = Phase::kEnded;
      return;
    }
    ++result_.outlived;
    for (size_t r = 0; r < asked_.size(); ++r) {
      if (asked_[r].Stop()) writer_->Stop(static_cast<RequestId>(r));
    }
    for (int more = 1 + world_.random.Below(3); more > 0; --more) {
      if (const absl::Status asked = Ask(world_.Between(0, 30e3)); !asked.ok())
        world_.Violation("a request cannot come: ", asked.message());
    }
    Recover(Recovery::TryAgain{});
  }

  // ---- The end

  bool AllOver() const { return to_ask_ == 0 && std::ranges::all_of(asked_, &SimRequest::over); }

  // Nothing will happen any more: no request waits, and nothing is kept of one.
  void CheckRest() {
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

  std::string WhoWaits() const {
    std::string text = absl::StrCat("the coordinator has ", writer_->steps_under_way(), " steps under way");
    for (const auto& device : devices_) {
      if (device->stage != nullptr) absl::StrAppend(&text, "; device ", device->name, " at ", device->stage->Waiting());
    }
    return text;
  }

  SimResult Result() {
    result_.violation = world_.violation;
    result_.transcript = std::move(world_.transcript);
    result_.faults = world_.faults;
    result_.ahead = world_.ahead;
    result_.places = world_.places;
    result_.hosted_units = world_.hosted_units;
    result_.ms = world_.clock.now_ms();
    result_.planted = world_.planted_done;
    if (recovery_) result_.recoveries += recovery_->recoveries();
    return std::move(result_);
  }

  const SimOptions options_;
  SimWorld world_;
  const ModelSpec spec_;
  Random cache_random_;  // so that a seed without it stays the same run
  Bytes prompt_cache_ = 0;
  std::vector<std::vector<int32_t>> prompts_;  // of the requests so far, if they share KV
  std::set<int32_t> idle_;                     // slots that keep KV
  SimPlanShape shape_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::map<std::pair<int32_t, int32_t>, std::unique_ptr<SimChannel>> links_, patient_links_;  // of the plan in use, by device of it
  std::set<std::tuple<int64_t, int32_t, int32_t>> lost_;                                      // by epoch
  std::optional<Plan> plan_;                                                                  // in use
  SimGuesses guesses_;
  int64_t next_order_ = 0;                 // number of an order to the devices
  std::optional<Plan> failed_;             // since its failure no plan was installed
  std::optional<SimPlan> first_, newest_;  // that Recovery speaks of
  std::optional<SimPlan> change_;          // to be made once nothing is under way
  std::optional<OrderWriter> writer_;
  std::optional<Recovery> recovery_;
  std::optional<SimWatcher> watcher_;
  std::vector<SimRequest> asked_;  // by request
  int to_ask_ = 0;
  int64_t epoch_ = 0;
  Phase phase_ = Phase::kInstalling;
  SimResult result_;
};

}  // namespace

SimResult RunSim(const SimOptions& options) {
  return SimCluster(options).Run();
}

}  // namespace lime
