#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_cluster_run.h"

namespace lime {

void SimCluster::DrawFaults() {
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

void SimCluster::Happen(SimFault fault) {
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

void SimCluster::Crash(Device& device, double comes_back_ms) {
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

void SimCluster::LoseStage(Device& device, const absl::Status& lost) {
  world_.clock.After(world_.Between(1, 300), [&device, epoch = device.epoch, lost] {
    if (device.stage != nullptr && device.epoch == epoch) device.stage->Fail(lost);
  });
}

void SimCluster::LoseLink() {
  if (links_.empty()) return;
  auto link = links_.begin();
  std::advance(link, world_.random.Below(static_cast<int>(links_.size())));
  const auto [from, to] = link->first;
  lost_.insert({epoch_, from, to});
  Device& sender = Named(plan_->devices[static_cast<size_t>(from)].name);
  if (sender.stage != nullptr && sender.epoch == epoch_) LoseStage(sender, absl::UnavailableError("a link is lost"));
}

SimChannel& SimCluster::AnyLink() {
  auto link = links_.begin();
  std::advance(link, world_.random.Below(static_cast<int>(links_.size())));
  return *link->second;
}

void SimCluster::StopAny() {
  for (size_t r = 0; r < asked_.size(); ++r) {
    if (asked_[r].over() || world_.random.Below(2) == 0) continue;
    writer_->Stop(static_cast<RequestId>(r));
    asked_[r].Stop();
    if (phase_ == Phase::kRunning) SendOrders();
    return;
  }
}

}  // namespace lime
