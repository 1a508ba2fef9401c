#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/plan/plan_rows.h"
#include "tests/sim/sim_cluster_run.h"

namespace lime {

// ---- Plans on devices

void SimCluster::Install(Plan plan, const SimStage::Takeover& takeover, const Installed& done) {
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

absl::Status SimCluster::InstallOn(Device& device, int32_t index, const SimStage::Takeover& takeover) {
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
      .failed = [this, epoch,
                 &device](const absl::Status& why) { SendNews(epoch, device, [this, why, name = device.name] { OnFailure(name, why); }); }};
  LIME_ASSIGN_OR_RETURN(device.stage, SimStage::Install(world_, *device.disk, spec_, *plan_, index, std::move(peers), takeover));
  device.epoch = epoch;
  return absl::OkStatus();
}

void SimCluster::SendNews(int64_t epoch, Device& device, std::function<void()> what) {
  device.news->Send(64, [this, epoch, what = std::move(what)] {
    if (epoch == epoch_) what();
  });
}

void SimCluster::Send(int64_t epoch, int32_t from, int32_t to, ActivationMessage message) {
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
    CheckAccepted(device, "what a peer sends", stopped,
                  message.header.hosting ? device.stage->OnHosting(from, message.payload) : device.stage->OnActivation(std::move(message)));
  });
}

void SimCluster::CheckAccepted(const Device& device, const char* what, const absl::Status& stopped, const absl::Status& answer) {
  if (answer != stopped) world_.Violation("device ", device.name, " refuses ", what, ": ", answer.message());
}

void SimCluster::Unload() {
  for (const auto& device : devices_) {
    if (device->epoch == epoch_) device->stage.reset();
  }
  ++epoch_;
}

void SimCluster::Abandon() {
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

// ---- Another plan while all is well

void SimCluster::MayChangePlan() {
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

absl::Status SimCluster::InstallTakingOver(const SimPlan& plan, const SimKvHandover& handover) {
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

void SimCluster::InstallAgain(const SimPlan& plan, const Installed& done) {
  const absl::Status again = writer_->Restart(OrdersFor(plan));
  if (!again.ok()) return world_.Violation("requests do not begin again: ", again.message());
  Install(plan.plan, {}, done);
}

void SimCluster::OnChanged(const SimPlan& plan, const absl::Status& status, const std::string& device) {
  if (!status.ok()) {
    phase_ = Phase::kRunning;
    return OnFailure(device, status);
  }
  first_ = newest_ = plan;
  result_.recoveries += recovery_->recoveries();
  recovery_.emplace(Recovery::Options{}, Uses(plan.plan));
  GoOn();
}

std::vector<std::string> SimCluster::Alive() const {
  std::vector<std::string> names;
  for (const auto& device : devices_) {
    if (device->alive) names.push_back(device->name);
  }
  if (names.empty()) names.push_back(devices_.front()->name);
  return names;
}

// ---- After a failure

void SimCluster::OnFailure(const std::string& device, const absl::Status& why) {
  if (phase_ != Phase::kRunning && phase_ != Phase::kDraining) return;
  world_.Say("failure of device ", device, ": ", why.message());
  phase_ = Phase::kRecovering;
  change_.reset();
  failed_ = *plan_;
  Abandon();
  if (writer_->idle()) (void)recovery_->OnEvent(Recovery::NewToken{}, world_.clock.now());  // nobody waits for one
  Recover(Recovery::Failed{device, why});
}

void SimCluster::Recover(const Recovery::Event& event) {
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

std::optional<SimKvHandover> SimCluster::TakeLeft() {
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

void SimCluster::InstallInterrupted(const SimPlan& plan, const SimKvHandover& left, const Installed& done) {
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

void SimCluster::OnGiveUp(const absl::Status& why) {
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
    if (const absl::Status asked = Ask(world_.Between(0, 30e3)); !asked.ok()) world_.Violation("a request cannot come: ", asked.message());
  }
  Recover(Recovery::TryAgain{});
}

}  // namespace lime
