#include "daemon/rpc/plan_installation.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "daemon/engine/process_memory.h"
#include "daemon/machine/files.h"
#include "daemon/rpc/rpc_transport.h"
#include "daemon/stores/pushed_models.h"
#include "planner/plan/plan_blocks.h"

namespace lime {

namespace {

// While other devices load, the coordinator announces every second that it will use this one.
constexpr absl::Duration kAwaited = absl::Seconds(2);

// Whether two paths lead to the same folder.
bool SameFolder(const std::string& one, const std::string& other) {
  std::error_code ignored;
  return one == other || std::filesystem::equivalent(one, other, ignored);
}

}  // namespace

PlanInstallation::PlanInstallation(Options options) : options_(std::move(options)) {}

PlanInstallation::~PlanInstallation() {
  {
    absl::MutexLock lock(&mutex_);
    if (session_ != nullptr) session_->Cancel();
    if (handover_.kv != nullptr) handover_.kv->Cancel();
    stopping_ = true;
  }
  // All tasks posted before have ended.
  absl::Notification ended;
  worker_.Post([&] { ended.Notify(); });
  ended.WaitForNotification();
  if (session_ != nullptr) session_->Close();
}

void PlanInstallation::Post(std::function<void()> task) {
  worker_.Post([task = std::move(task)]() mutable {
    task();
    // Releases what it captured, such as the session that it unloads.
    task = nullptr;
    ReturnFreedMemory();
  });
}

// Aborted: the reason may pass when others have finished, so the caller may try again.
absl::Status PlanInstallation::CheckNew(const InstallCall& call) const {
  const int64_t epoch = call.plan.epoch;
  if (revoked_from_ != 0 && revoked_from_ == call.coordinator.id) return revoked_;
  if (stopping_) return absl::UnavailableError("the device is shutting down");
  if (epoch <= last_epoch_) {
    return absl::AbortedError(
        absl::StrCat("epoch ", epoch, " is not new: the device already had epoch ", last_epoch_, "; ask for its health first"));
  }
  switch (state_) {
    case State::kNone:
    case State::kInstalled:
      return absl::OkStatus();
    case State::kInstalling:
    case State::kInUse:
      return absl::AbortedError(absl::StrCat(state_ == State::kInUse ? "runs " : "loads ", session_->plan().model_name, " for ", Who(),
                                             "; wait for its end, or end it with `lime unload --force`"));
    case State::kUnloading:
      return absl::AbortedError(absl::StrCat("epoch ", session_->epoch(), " is being unloaded; try again"));
  }
  return absl::OkStatus();
}

std::string PlanInstallation::WeightsOf(const std::string& named, uint64_t model) const {
  if (!named.empty()) return named;
  std::string pushed = model != 0 && options_.find_pushed ? options_.find_pushed(model) : "";
  return pushed.empty() ? options_.weights : pushed;
}

absl::StatusOr<std::shared_ptr<StageSession>> PlanInstallation::Install(InstallCall call, Installation installation) {
  call.weights = WeightsOf(call.weights, call.model);
  if (call.weights.empty()) {
    return absl::InvalidArgumentError(
        "the device has no weights of this model; send them with `lime push`, name their folder in the cluster's file, or start limed with "
        "--model");
  }
  PlanHandover gone;
  absl::MutexLock lock(&mutex_);
  LIME_RETURN_IF_ERROR(CheckNew(call));
  last_epoch_ = call.plan.epoch;
  address_ = installation.address, installed_at_ = absl::Now();
  revoked_from_ = 0;
  const int64_t before_epoch = call.kv ? call.kv->epoch : -1;
  if (before_epoch != handover_epoch_) gone = ReleaseHandover();
  auto transport = std::make_unique<RpcTransport>(
      RpcTransport::Options{.keys = options_.keys, .patience = options_.link_patience, .probes = options_.link_probes});
  auto session = std::make_shared<StageSession>(StageSession::Options{.call = std::move(call),
                                                                      .make_stage = options_.make_stage,
                                                                      .transport = std::move(transport),
                                                                      .log = options_.log,
                                                                      .progress = installation.progress,
                                                                      .handover = {handover_.kv, std::move(handover_.weights)},
                                                                      .handover_is_read = [this, before_epoch] { LetGo(before_epoch); }});
  state_ = State::kInstalling;
  Post(
      [this, session, before = std::exchange(session_, session), installation = std::move(installation), gone = std::move(gone)]() mutable {
        gone = {};  // before memory is measured
        Load(session, before, installation);
      });
  return session;
}

void PlanInstallation::Load(const std::shared_ptr<StageSession>& session, const std::shared_ptr<StageSession>& before,
                            const Installation& installation) {
  if (before != nullptr) before->Close();
  {
    absl::MutexLock lock(&mutex_);
    Log(absl::StrCat("installs epoch ", session->epoch(), ": ", session->plan().model_name, ", for ", Who()));
  }
  const absl::Time begin = absl::Now();
  absl::StatusOr<InstalledPlan> installed = session->Open();
  if (const absl::Status failure = session->failure(); !installed.ok() && failure.code() == kRevoked) installed = failure;
  if (!installed.ok()) session->Close();
  if (session->call().kv) LetGo(session->call().kv->epoch);
  {
    absl::MutexLock lock(&mutex_);
    state_ = installed.ok() ? State::kInstalled : State::kNone;
    if (!installed.ok()) session_ = nullptr;
    unused_since_ = options_.now();
  }
  if (installed.ok()) {
    NotePushedUse(session->call().weights);
    Log(absl::StrCat("epoch ", session->epoch(), " is installed after ", absl::FormatDuration(absl::Now() - begin)));
  } else {
    Log(absl::StrCat("epoch ", session->epoch(), " is refused: ", installed.status().message()));
  }
  installation.done(std::move(installed));
}

void PlanInstallation::Abandon(const std::shared_ptr<StageSession>& session) {
  absl::MutexLock lock(&mutex_);
  if (session_ != session || (state_ != State::kInstalling && state_ != State::kInstalled)) return;
  Log(absl::StrCat("unloads epoch ", session->epoch(), ": the coordinator that installed it has gone"));
  PostUnload(absl::ZeroDuration(), {});
}

absl::Status PlanInstallation::CheckEpoch(int64_t epoch) const {
  if (state_ == State::kNone || state_ == State::kUnloading) return absl::FailedPreconditionError("no plan is installed");
  if (session_->epoch() == epoch) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("epoch ", session_->epoch(), " is installed, not ", epoch));
}

absl::Status PlanInstallation::CheckInstalled(int64_t epoch) const {
  LIME_RETURN_IF_ERROR(CheckEpoch(epoch));
  if (state_ != State::kInstalling) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("epoch ", epoch, " is still being installed"));
}

// A plan that is being installed is unloaded after its loading has ended; Cancel makes it end
// early.
absl::Status PlanInstallation::Unload(const UnloadCall& call, std::function<void(const UnloadedPlan&)> done) {
  absl::MutexLock lock(&mutex_);
  if (state_ == State::kUnloading && session_->epoch() == call.epoch) {
    // Runs after the task that unloads it.
    Post([this, call, done = std::move(done)] { done(AfterUnload(call)); });
    return absl::OkStatus();
  }
  if (handover_.kv != nullptr && handover_epoch_ == call.epoch) {
    Post([this, call, done = std::move(done)] { done(AfterUnload(call)); });
    return absl::OkStatus();
  }
  LIME_RETURN_IF_ERROR(CheckEpoch(call.epoch));
  const absl::Duration patience = call.interrupted ? kKvLeftPatience : kKvHandoverPatience;
  PostUnload(call.hand_over_kv && state_ == State::kInUse ? patience : absl::ZeroDuration(), std::move(done));
  return absl::OkStatus();
}

// The plan of the call is unloaded: its KV is handed over now, or not kept any longer.
UnloadedPlan PlanInstallation::AfterUnload(const UnloadCall& call) {
  // Destroyed after the lock is released.
  PlanHandover gone;
  absl::MutexLock lock(&mutex_);
  if (handover_.kv == nullptr || handover_epoch_ != call.epoch) return {};
  if (!call.hand_over_kv) {
    gone = ReleaseHandover();
    return {};
  }
  handover_.kv->Reading();
  return Left();
}

// Tells the user of the plan before anything is unloaded, so that it does not take the consequences
// for new faults.
absl::Status PlanInstallation::Release(const ReleaseCall& call, const std::string& address, std::function<void(const ReleasedPlan&)> done) {
  // Destroyed after the lock is released.
  PlanHandover gone;
  absl::ReleasableMutexLock lock(&mutex_);
  if (state_ == State::kNone) {
    gone = ReleaseHandover();
    lock.Release();
    done({});
    return absl::OkStatus();
  }
  if (state_ == State::kUnloading) {
    // Runs after the task that unloads it.
    Post([this, epoch = session_->epoch(), done = std::move(done)] {
      (void)AfterUnload({.epoch = epoch});
      done({});
    });
    return absl::OkStatus();
  }
  ReleasedPlan released{.epoch = session_->epoch(), .model = session_->plan().model_name, .used_by = UserNow()};
  if (released.used_by && !call.force)
    return absl::FailedPreconditionError(absl::StrCat("runs ", released.model, " for ", released.used_by->Who(),
                                                      "; wait for its end, or end it with `lime unload --force`"));
  const std::string by = PlanUser{.coordinator = call.by, .address = address}.Name();
  Log(absl::StrCat("unloads epoch ", released.epoch, " for ", by, released.used_by ? ", while it is used by " : "",
                   released.used_by ? released.used_by->Who() : ""));
  if (released.used_by) {
    revoked_from_ = released.used_by->coordinator.id;
    revoked_ = absl::Status(kRevoked, absl::StrCat(by, " has unloaded the plan with `lime unload --force`"));
    session_->Revoke(revoked_);
  }
  PostUnload(absl::ZeroDuration(), [released, done = std::move(done)](const UnloadedPlan&) { done(released); });
  return absl::OkStatus();
}

std::optional<PlanUser> PlanInstallation::UserNow() const {
  const bool awaited = state_ == State::kInstalled && options_.now() - unused_since_ < kAwaited;
  if (state_ != State::kInstalling && state_ != State::kInUse && !awaited) return std::nullopt;
  return PlanUser{.coordinator = session_->call().coordinator,
                  .address = address_,
                  .seconds = std::max(0.0, absl::ToDoubleSeconds(absl::Now() - installed_at_))};
}

std::optional<PlanUser> PlanInstallation::User() const {
  absl::MutexLock lock(&mutex_);
  return UserNow();
}

// The user of session_.
std::string PlanInstallation::Who() const {
  const std::optional<PlanUser> user = UserNow();
  return user ? user->Who() : "nobody";
}

void PlanInstallation::PostUnload(absl::Duration left_for, std::function<void(const UnloadedPlan&)> done) {
  session_->Cancel();
  if (state_ != State::kInstalling) state_ = State::kUnloading;
  Post([this, left_for, session = session_, done = std::move(done)] {
    bool here = false;
    {
      absl::MutexLock lock(&mutex_);
      // False if its installation has failed.
      here = session_ == session;
      if (here) state_ = State::kUnloading;
    }
    UnloadedPlan unloaded;
    if (here) {
      unloaded = Close(*session, left_for);
      Log(absl::StrCat("has unloaded epoch ", session->epoch(), unloaded.handed_over ? ", except its KV" : ""));
      absl::MutexLock lock(&mutex_);
      state_ = State::kNone;
      session_ = nullptr;
    }
    if (done) done(unloaded);
  });
}

UnloadedPlan PlanInstallation::Close(StageSession& session, absl::Duration left_for) {
  if (left_for == absl::ZeroDuration()) {
    session.Close();
    return {};
  }
  StageSession::Handover handover = session.HandOver();
  absl::MutexLock lock(&mutex_);
  handover_ = std::move(handover.plan), handover_epoch_ = handover_.kv == nullptr ? -1 : session.epoch();
  if (handover_.kv == nullptr) return {};
  handover_hashes_ = std::move(handover.hashes), handover_patience_ = left_for;
  return Left();
}

UnloadedPlan PlanInstallation::Left() const {
  return {.handed_over = true, .hashes = handover_hashes_, .lent = handover_.kv->lent()};
}

Bytes PlanInstallation::LeftBytes() const {
  absl::MutexLock lock(&mutex_);
  return (handover_.kv == nullptr ? 0 : handover_.kv->memory_bytes()) + (handover_.weights == nullptr ? 0 : handover_.weights->bytes());
}

absl::StatusOr<std::shared_ptr<KvHandover>> PlanInstallation::HandoverOf(int64_t epoch) const {
  absl::MutexLock lock(&mutex_);
  if (handover_.kv == nullptr || handover_epoch_ != epoch)
    return absl::FailedPreconditionError(absl::StrCat("epoch ", epoch, " handed over no KV on this device"));
  return handover_.kv;
}

PlanHandover PlanInstallation::ReleaseHandover() {
  handover_epoch_ = -1;
  return std::exchange(handover_, {});
}

void PlanInstallation::LetGo(int64_t epoch) {
  // Destroyed after the lock is released.
  PlanHandover handover;
  absl::MutexLock lock(&mutex_);
  if (handover_epoch_ != epoch) return;
  handover = ReleaseHandover();
}

absl::Status PlanInstallation::RunAlone(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return absl::UnavailableError("the device is shutting down");
  if (state_ != State::kNone) {
    const std::optional<PlanUser> user = UserNow();
    return absl::FailedPreconditionError(absl::StrCat(
        "epoch ", session_->epoch(), " is installed, ", user ? absl::StrCat("for ", user->Who()) : std::string("and nobody uses it"),
        "; the device does nothing else while a plan is installed: ", user ? "wait for its end" : "run `lime unload`"));
  }
  Post([gone = ReleaseHandover(), task = std::move(task)]() mutable {
    gone = {};
    task();
  });
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<StageSession>> PlanInstallation::Use(int64_t epoch, StageSession::Sink sink) {
  std::shared_ptr<StageSession> session;
  {
    absl::MutexLock lock(&mutex_);
    LIME_RETURN_IF_ERROR(CheckInstalled(epoch));
    if (state_ == State::kInUse) return absl::FailedPreconditionError(absl::StrCat("epoch ", epoch, " is in use already, by ", Who()));
    state_ = State::kInUse;
    session = session_;
  }
  const absl::Status failed = session->SetSink(std::move(sink));
  if (!failed.ok()) {
    OnUserGone(session, "it has already failed", /*ended=*/true);
    return failed;
  }
  return session;
}

void PlanInstallation::OnUserGone(const std::shared_ptr<StageSession>& session, const std::string& why, bool ended) {
  absl::MutexLock lock(&mutex_);
  if (session_ != session || state_ != State::kInUse) return;
  Log(absl::StrCat("unloads epoch ", session->epoch(), " of ", Who(), ": ", why));
  PostUnload(ended ? absl::ZeroDuration() : kKvLeftPatience, {});
}

absl::StatusOr<std::shared_ptr<StageSession>> PlanInstallation::Find(int64_t epoch) {
  absl::MutexLock lock(&mutex_);
  LIME_RETURN_IF_ERROR(CheckInstalled(epoch));
  return session_;
}

void PlanInstallation::Await(int64_t epoch) {
  absl::MutexLock lock(&mutex_);
  if (session_ == nullptr || session_->epoch() != epoch) return;
  if (state_ == State::kInstalled) unused_since_ = options_.now();
  // Others may be busy reading from other devices.
  if (handover_.kv != nullptr) handover_.kv->Reading();
}

void PlanInstallation::Tick() {
  if (const std::shared_ptr<StageSession> session = Installed(); session != nullptr) session->Tick();
  // Destroyed after the lock is released.
  PlanHandover gone;
  absl::MutexLock lock(&mutex_);
  if (handover_.kv != nullptr && state_ == State::kNone && handover_.kv->Unread(absl::Now()) > handover_patience_) gone = ReleaseHandover();
  if (state_ != State::kInstalled || options_.now() - unused_since_ < options_.unused) return;
  Log(absl::StrCat("unloads epoch ", session_->epoch(), ": nobody has used it for ", absl::FormatDuration(options_.unused)));
  PostUnload(absl::ZeroDuration(), {});
}

std::vector<BlockId> PlanInstallation::BlocksInUse(const std::string& weights) const {
  std::shared_ptr<StageSession> session;
  {
    absl::MutexLock lock(&mutex_);
    session = session_;
  }
  if (session == nullptr || !SameFolder(session->call().weights, weights)) return {};
  return BlocksOn(session->plan(), session->call().device);
}

int64_t PlanInstallation::epoch() const {
  absl::MutexLock lock(&mutex_);
  return session_ != nullptr ? session_->epoch() : -1;
}

void PlanInstallation::Describe(DeviceHealth& health) const {
  absl::MutexLock lock(&mutex_);
  health.last_epoch = last_epoch_, health.used_by = UserNow();
  if (session_ != nullptr) health.epoch = session_->epoch(), health.model = session_->plan().model_name;
}

std::shared_ptr<StageSession> PlanInstallation::Installed() const {
  absl::MutexLock lock(&mutex_);
  return state_ == State::kInstalled || state_ == State::kInUse ? session_ : nullptr;
}

DeviceStatistics PlanInstallation::Statistics() const {
  const std::shared_ptr<StageSession> session = Installed();
  if (session != nullptr) return session->Statistics();
  DeviceStatistics statistics;
  const absl::StatusOr<Bytes> free = FreeDiskBytes(options_.kv_folder);
  if (free.ok()) statistics.kv_room = *free;
  return statistics;
}

PlanMemory PlanInstallation::Memory() const {
  const std::shared_ptr<StageSession> session = Installed();
  return session != nullptr ? session->plan().devices[static_cast<size_t>(session->call().device)].memory : PlanMemory{};
}

TraceChunk PlanInstallation::DrainTrace(const TraceCall& call) {
  const std::shared_ptr<StageSession> session = Installed();
  return session != nullptr ? session->DrainTrace(call) : TraceChunk{};
}

void PlanInstallation::Log(const std::string& sentence) const {
  if (options_.log) options_.log(sentence);
}

}  // namespace lime
