// Tracks which plan is installed on this device and who uses it: one plan at a time, one
// coordinator at a time.
//
//   kNone -> kInstalling -> kInstalled -> kInUse -> kUnloading -> kNone
//
// A plan of a higher epoch replaces an installed plan that nobody uses. A plan is unloaded when its
// coordinator has gone. A plan that is installed but not used is unloaded too, unless its
// coordinator keeps announcing that it will use it (Await). If the run has not ended, but this device
// lost another one or its coordinator, KV and weights stay here for a while: the coordinator may
// install the plan again.
//
// Threads: any; no call waits. Loading and unloading run on a thread of its own.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/machine/worker_thread.h"
#include "daemon/stage/stage_session.h"
#include "proto/channel.h"
#include "proto/convert/convert.h"

namespace lime {

class PlanInstallation {
 public:
  struct Options {
    std::string weights;  // folder; used if an installation names none
    // Folder where KV will probably be stored. While no plan is installed, Statistics reports its
    // free space.
    std::string kv_folder;
    // Returns the folder with the pushed blocks of a model. Empty: nothing was pushed.
    std::function<std::string(uint64_t model)> find_pushed;
    StageFactory make_stage;
    ClusterKeys keys;
    absl::Duration link_patience = absl::Seconds(2);
    // Send probes on idle links to measure their rates. Not set: on links to other machines only.
    std::optional<bool> link_probes;
    absl::Duration unused = absl::Seconds(30);    // time until an unused plan is unloaded
    std::function<absl::Time()> now = absl::Now;  // for that time
    DeviceLog log;
  };
  explicit PlanInstallation(Options options);
  ~PlanInstallation();  // unloads the plan

  struct Installation {
    std::string address;  // of the caller
    std::function<void(const LoadProgress&)> progress;
    std::function<void(absl::StatusOr<InstalledPlan>)> done;  // once, unless Install refuses
  };
  // Returns at once an error that can be found without loading: an old epoch, a plan in use.
  // Otherwise `done` gets the result.
  absl::StatusOr<std::shared_ptr<StageSession>> Install(InstallCall call, Installation installation);

  // The folder from which an installation that names `named` would read the model. Empty if no
  // folder is known.
  std::string WeightsOf(const std::string& named, uint64_t model) const;

  // The caller of Install has gone: unloads the plan, unless a coordinator uses it already.
  void Abandon(const std::shared_ptr<StageSession>& session);

  // FailedPrecondition unless `call` names the epoch of the installed plan, or of a plan that has
  // left its KV here (that KV is then released, unless the call asks to hand it over). KV that is left
  // for the next plan stays until the next plan or another one is installed, or until nobody has read
  // it for a while.
  absl::Status Unload(const UnloadCall& call, std::function<void(const UnloadedPlan&)> done);
  // Unloads any plan for a person who is not its coordinator. FailedPrecondition names the user of
  // the plan, unless call.force. With call.force the user gets kRevoked, now and when it tries to
  // install another plan. `address` is the caller's.
  absl::Status Release(const ReleaseCall& call, const std::string& address, std::function<void(const ReleasedPlan&)> done);
  // KV that the plan of that epoch has left here. FailedPrecondition if there is none.
  absl::StatusOr<std::shared_ptr<KvHandover>> HandoverOf(int64_t epoch) const;

  // Runs `task` on the loading thread, if no plan is installed. A later installation waits for its
  // end.
  absl::Status RunAlone(std::function<void()> task);

  // Gives the plan of that epoch to its coordinator. FailedPrecondition if it is not installed or
  // is in use already.
  absl::StatusOr<std::shared_ptr<StageSession>> Use(int64_t epoch, StageSession::Sink sink);
  // The coordinator does not use the plan any more: unloads it. Unless the run has `ended`, its KV and
  // weights stay for kKvLeftPatience.
  void OnUserGone(const std::shared_ptr<StageSession>& session, const std::string& why, bool ended);

  // The session that receives activations of that epoch.
  absl::StatusOr<std::shared_ptr<StageSession>> Find(int64_t epoch);

  // The coordinator of that epoch still waits for other devices to load it.
  void Await(int64_t epoch);

  // Call it regularly.
  void Tick();

  // The blocks of folder `weights` that the current plan (installed or being installed) reads.
  std::vector<BlockId> BlocksInUse(const std::string& weights) const;

  int64_t epoch() const;
  // Sets what the plan decides: epochs, model and user.
  void Describe(DeviceHealth& health) const;
  // The coordinator that installs, awaits or uses the plan. Empty if there is none any more.
  std::optional<PlanUser> User() const;
  DeviceStatistics Statistics() const;
  Bytes LeftBytes() const;    // of KV and weights that a plan has left here
  PlanMemory Memory() const;  // of the installed plan on this device; zeros if there is none
  TraceChunk DrainTrace(const TraceCall& call);

 private:
  enum class State {
    kNone,
    kInstalling,  // the worker loads it
    kInstalled,   // no coordinator uses it
    kInUse,       // a coordinator uses it
    kUnloading,   // the worker unloads it
  };
  void Post(std::function<void()> task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `left_for`: how long KV and weights stay; 0: not at all.
  void PostUnload(absl::Duration left_for, std::function<void(const UnloadedPlan&)> done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  UnloadedPlan Close(StageSession& session, absl::Duration left_for);
  UnloadedPlan Left() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  UnloadedPlan AfterUnload(const UnloadCall& call);
  PlanHandover ReleaseHandover() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LetGo(int64_t epoch);
  void Load(const std::shared_ptr<StageSession>& session, const std::shared_ptr<StageSession>& before, const Installation& installation);
  absl::Status CheckNew(const InstallCall& call) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<PlanUser> UserNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Who() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckEpoch(int64_t epoch) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckInstalled(int64_t epoch) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<StageSession> Installed() const;  // null: none is installed
  void Log(const std::string& sentence) const;

  const Options options_;
  mutable absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kNone;
  std::shared_ptr<StageSession> session_ ABSL_GUARDED_BY(mutex_);
  PlanHandover handover_ ABSL_GUARDED_BY(mutex_);  // by the plan of handover_epoch_
  int64_t handover_epoch_ ABSL_GUARDED_BY(mutex_) = -1;
  std::vector<std::pair<int32_t, std::string>> handover_hashes_ ABSL_GUARDED_BY(mutex_);  // UnloadedPlan::hashes
  absl::Duration handover_patience_ ABSL_GUARDED_BY(mutex_);                              // while nobody reads it
  int64_t last_epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time unused_since_ ABSL_GUARDED_BY(mutex_);
  std::string address_ ABSL_GUARDED_BY(mutex_);      // of the caller of Install
  absl::Time installed_at_ ABSL_GUARDED_BY(mutex_);  // time of that call
  // The coordinator that lost its plan to Release. 0: none, or another one has installed a plan
  // since.
  uint64_t revoked_from_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status revoked_ ABSL_GUARDED_BY(mutex_);  // the error that this coordinator gets
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  WorkerThread worker_;
};

}  // namespace lime
