// Which plan is installed on this device, and who uses it: one plan at a time, one coordinator at a time.
//
//   kNone -> kInstalling -> kInstalled -> kInUse -> kUnloading -> kNone
//
// A plan of a higher epoch takes the place of one that nobody uses. A plan whose coordinator is gone is unloaded, and so is one that
// nobody begins to use, unless somebody says now and then that he will.
//
// Threads: any, none waits; loading and unloading happen on one thread of its own.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/engine/worker_thread.h"
#include "daemon/stage/stage_session.h"
#include "proto/channel.h"
#include "proto/convert.h"

namespace lime {

class PlanKeeper {
 public:
  struct Options {
    std::string weights;                                     // folder, where an installation names none
    std::string kv_folder;                                   // where KV is likely to go; its disk's room is told while no plan is here
    std::function<std::string(uint64_t model)> find_pushed;  // the folder of what was pushed of a model; empty: nothing was
    StageFactory make_stage;
    ClusterKeys keys;
    absl::Duration link_patience = absl::Seconds(2);
    std::optional<bool> link_probes;            // on links that are idle, to know how fast they are; not said: to other machines only
    absl::Duration unused = absl::Seconds(30);  // before a plan that nobody uses is unloaded
    DeviceLog log;
  };
  explicit PlanKeeper(Options options);
  ~PlanKeeper();  // unloads

  struct Installation {
    std::string address;  // of who asks
    std::function<void(const LoadProgress&)> progress;
    std::function<void(absl::StatusOr<InstalledPlan>)> done;  // once, unless Install refuses
  };
  // Refuses at once what needs no loading to be refused: an old epoch, a plan in use. Else `done` tells.
  absl::StatusOr<std::shared_ptr<StageSession>> Install(InstallCall call, Installation installation);

  // The folder that an installation would read the model from, where it names `named`; empty where nobody says one.
  std::string WeightsOf(const std::string& named, uint64_t model) const;

  // Whoever had it installed has gone: it is unloaded, unless somebody uses it already.
  void Abandon(const std::shared_ptr<StageSession>& session);

  // FailedPrecondition for any epoch but that of the plan which is here, or has left its KV here, which goes then. What is left for the
  // next plan stays until that is installed, another one is, or nobody has read it for a while.
  absl::Status Unload(const UnloadCall& call, std::function<void(const UnloadedPlan&)> done);
  // For a person who is not its coordinator: unloads whatever plan is here. FailedPrecondition names who uses it, unless call.force; that
  // one hears kTakenAway, and so it does when it wants to install another.  `address`: of who asks.
  absl::Status Release(const ReleaseCall& call, const std::string& address, std::function<void(const ReleasedPlan&)> done);
  // What the plan of that epoch has left; FailedPrecondition where nothing is.
  absl::StatusOr<std::shared_ptr<KvLeft>> Left(int64_t epoch) const;

  // Runs `task` on the thread that loads, where no plan is here: what is to be installed meanwhile waits for its end.
  absl::Status RunAlone(std::function<void()> task);

  // The plan of that epoch for whoever coordinates it; FailedPrecondition where it is not installed or another uses it already.
  absl::StatusOr<std::shared_ptr<StageSession>> Use(int64_t epoch, StageSession::Sink sink);
  // Its coordinator does not use it any more: it is unloaded.
  void Leave(const std::shared_ptr<StageSession>& session, const std::string& why);

  // For activations.
  absl::StatusOr<std::shared_ptr<StageSession>> Find(int64_t epoch);

  // Whoever had that epoch installed still waits for devices to load it.
  void Await(int64_t epoch);

  // Every now and then.
  void Tick(absl::Time now);

  // Blocks of the folder that the plan which is here, or is being installed, reads.
  std::vector<BlockId> BlocksInUse(const std::string& weights) const;

  int64_t epoch() const;
  int64_t last_epoch() const;
  std::string model() const;  // of the plan, for people; empty: none
  // Who has the plan installed or uses it; nobody where it was left behind.
  std::optional<PlanUser> User() const;
  DeviceStatistics Statistics() const;
  TraceChunk TakeTrace(const TraceCall& call);

 private:
  enum class State {
    kNone,
    kInstalling,  // on the worker
    kInstalled,   // nobody uses it
    kInUse,       // by a coordinator
    kUnloading,   // on the worker
  };
  void Post(std::function<void()> task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PostUnload(bool leave_kv, std::function<void(const UnloadedPlan&)> done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  UnloadedPlan Close(StageSession& session, bool leave_kv);
  LeftByPlan TakeLeft() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LetGo(int64_t epoch);
  void Load(std::shared_ptr<StageSession> session, std::shared_ptr<StageSession> before, const Installation& installation);
  absl::Status CheckNew(const InstallCall& call) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<PlanUser> UserNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Who() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckEpoch(int64_t epoch) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckInstalled(int64_t epoch) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<StageSession> Installed() const;  // null: nothing is
  void Log(const std::string& sentence) const;

  const Options options_;
  mutable absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kNone;
  std::shared_ptr<StageSession> session_ ABSL_GUARDED_BY(mutex_);
  LeftByPlan left_ ABSL_GUARDED_BY(mutex_);  // by the plan of left_epoch_
  int64_t left_epoch_ ABSL_GUARDED_BY(mutex_) = -1;
  int64_t last_epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time unused_since_ ABSL_GUARDED_BY(mutex_);
  std::string address_ ABSL_GUARDED_BY(mutex_);      // of who had session_ installed
  absl::Time installed_at_ ABSL_GUARDED_BY(mutex_);  // that it was asked for
  uint64_t taken_from_ ABSL_GUARDED_BY(mutex_) = 0;  // coordinator that a plan was taken away from; 0: none, or another has come since
  absl::Status taken_ ABSL_GUARDED_BY(mutex_);       // what it was told
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  WorkerThread worker_;
};

}  // namespace lime
