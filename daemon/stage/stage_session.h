// An installed plan on this device: its stage, its links to the others, and what it tells the coordinator.
//
//   coordinator ─ orders ─►              ─► activations ─► links ─► other devices
//                            StageSession
//   other devices ─ activations ─►       ─► tokens, ended steps, failures ─► the sink
//
// Threads: any. Open and Close are the owner's; the stage and the links call back under their own locks and never wait here.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/synchronization/mutex.h"
#include "common/device_news.h"
#include "common/install_call.h"
#include "common/order_message.h"
#include "daemon/engine/stage_engine.h"
#include "daemon/stage/plan_sampler.h"
#include "daemon/stage/transport.h"
#include "planner/plan/plan_blocks.h"

namespace lime {

using DeviceLog = std::function<void(const std::string&)>;

class StageSession : public std::enable_shared_from_this<StageSession> {
 public:
  struct Options {
    InstallCall call;
    StageFactory make_stage;
    std::unique_ptr<Transport> transport;  // to the other devices; may be null where the plan has none
    DeviceLog log;                         // of a daemon: sentences about requests, and what else happens
    StallReport report;                    // what a person has to know; empty: the log is told
    std::function<void(const LoadProgress&)> progress;
    LeftByPlan left;                               // by the plan before, where the call takes some of it
    std::function<void()> left_is_read = nullptr;  // nobody needs it any more
  };
  using Sink = std::function<void(const FromDevice&)>;

  explicit StageSession(Options options);

  // Loads. kCancelled after Cancel.
  absl::StatusOr<InstalledPlan> Open();
  void Cancel();
  // Unloads; returns when nothing of the plan is in memory.  Once.
  void Close();
  // Likewise, but for what the plan that follows takes over; null where there is nothing to take.
  struct Left {
    LeftByPlan plan;
    std::vector<std::pair<int32_t, std::string>> hashes;  // of logits, by slot
  };
  Left Leave();

  // Who hears of tokens, steps and failures from now on; empty: nobody. The failure, where there was one.
  absl::Status SetSink(Sink sink);

  // A person has taken the plan away: its coordinator hears it, and nothing after it.
  void TakeAway(const absl::Status& why) { Fail(why); }
  absl::Status failure() const;  // the first; OK: none so far

  // An error, and nothing has changed.
  absl::Status OnOrder(const OrderMessage& message);
  // From device `from` of the plan.
  absl::Status OnActivation(int32_t from, ActivationMessage activation);

  int64_t epoch() const { return call_.plan.epoch; }
  const Plan& plan() const { return call_.plan; }
  const InstallCall& call() const { return call_; }
  DeviceStatistics Statistics() const;
  double StepShare() const;  // as StageEngine::StepShare
  LoadSummary load() const;  // of the stage; empty where there is none
  // Every now and then: LinkEstimator::kAskAgainUs.
  void Tick();
  // Spans since the last call, oldest first; none where the installation asked for none.
  TraceChunk TakeTrace(const TraceCall& call);

 private:
  bool HasHead() const { return lime::HasHead(call_.plan, call_.device); }
  std::unique_ptr<StageEngine> TakeStage(bool leaves);
  absl::Status NoStage() const ABSL_SHARED_LOCKS_REQUIRED(stage_mutex_);
  void OpenLinks();
  StagePeers MakePeers();
  std::shared_ptr<KvTakeover> MakeTakeover();
  absl::Status ReadKv(int32_t layer, const std::string& numerics_id, std::span<const KvExtent> wanted, const KvTakeover::Take& take);
  absl::Status ReadKvFromHere(int32_t layer, const KvHolder& holder, const std::string& numerics_id, std::span<const KvExtent> extents,
                              const KvTakeover::Take& take) const;
  absl::Status LetGo();
  void Tell(const FromDevice& what);
  void TellSampled(int64_t step, std::span<const SampledToken> tokens);
  void TellEnded(int64_t step);
  void Fail(const absl::Status& status);
  absl::Status OnKv(int32_t from, const std::vector<std::byte>& message);
  void NoteReceived(int32_t from, const ActivationHeader& header, double begin_ms);
  void LogOrder(const Order& order) const;
  // With the epoch, and the step that has not ended yet.
  void Log(const std::string& sentence) const;

  const InstallCall call_;
  const StageFactory make_stage_;
  const std::unique_ptr<Transport> transport_;
  const DeviceLog log_;
  const StallReport report_;
  std::function<void(const LoadProgress&)> progress_;  // until it is loaded: whoever listens may hold this session
  LeftByPlan left_;                                    // until it is taken and read
  const std::weak_ptr<KvLeft> kv_left_;                // of it, for who cancels
  std::function<void()> left_is_read_;
  std::atomic<bool> cancelled_ = false;
  std::unique_ptr<TraceRing> trace_;  // made by Open, where spans are asked for
  absl::Mutex taking_;                // held by who takes from it
  PlanSampler sampler_;

  // Held for reading while the stage is called; whoever unloads it waits for them.
  mutable absl::Mutex stage_mutex_;
  std::unique_ptr<StageEngine> stage_ ABSL_GUARDED_BY(stage_mutex_);
  bool has_left_ ABSL_GUARDED_BY(stage_mutex_) = false;
  std::map<int32_t, std::unique_ptr<Link>> links_;  // by device; made before the stage, gone after it

  mutable absl::Mutex events_mutex_ ABSL_ACQUIRED_AFTER(stage_mutex_);
  Sink sink_ ABSL_GUARDED_BY(events_mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(events_mutex_);
  // The stage's, under its lock.
  FromDevice sampled_ = SampledNews{};  // the newest, in the memory of those before
  bool awaits_end_ = false;             // they are of a step of one micro-batch, and its end goes with them
  std::atomic<int64_t> steps_ = 0;      // ended
  std::atomic<int64_t> received_messages_ = 0, received_bytes_ = 0;
};

}  // namespace lime
