// An installed plan on this device: its stage, its links, and its news for the coordinator.
//
//   coordinator ─ orders ─►              ─► activations ─► links ─► other devices
//                            StageSession
//   other devices ─ activations ─►       ─► tokens, ended steps, failures ─► the sink
//
// Threads: any. Only the owner calls Open and Close. The stage and the links call back under their
// own locks, and never wait here.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

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
    std::unique_ptr<Transport> transport;  // to other devices; may be null if the plan has none
    DeviceLog log;                         // of a daemon: sentences about requests and other events
    StallReport report;                    // what a person has to know; empty: goes to the log
    // Dropped once the plan is loaded, because the listener may hold the session.
    std::function<void(const LoadProgress&)> progress;
    // KV and weights of the previous plan; empty if the call takes over none.
    PlanHandover handover;
    std::function<void()> handover_is_read = nullptr;  // nobody needs it any more
  };
  using Sink = std::function<void(const FromDevice&)>;

  explicit StageSession(Options options);

  // Loads the plan. kCancelled after Cancel.
  absl::StatusOr<InstalledPlan> Open();
  void Cancel();
  // Unloads; returns when nothing of the plan is in memory. Called once.
  void Close();
  // As Close, but leaves KV and weights for the next plan; null if there is nothing to take over.
  struct Handover {
    PlanHandover plan;
    std::vector<std::pair<int32_t, std::string>> hashes;  // of logits, by slot
  };
  Handover HandOver();

  // From now on `sink` gets tokens, steps and failures; empty: nobody. Returns the failure, if any.
  absl::Status SetSink(Sink sink);

  // A person has revoked the plan. The coordinator hears that, and nothing after it.
  void Revoke(const absl::Status& why) { Fail(why); }
  absl::Status failure() const;  // the first; OK: none so far

  // This device samples the tokens.
  bool Samples() const { return call_.plan.stages.back().device == call_.device; }
  // The texts of the model's tokens, for the masks of requests.  REQUIRES: before the first order
  void UseVocabulary(json_schema::VocabularyPtr vocabulary) { sampler_.UseVocabulary(std::move(vocabulary)); }
  // Takes an order. After an error nothing has changed.
  absl::Status OnOrder(const OrderMessage& message);
  // Takes an activation from device `from` of the plan.
  absl::Status OnActivation(int32_t from, ActivationMessage activation);

  int64_t epoch() const { return call_.plan.epoch; }
  const Plan& plan() const { return call_.plan; }
  const InstallCall& call() const { return call_; }
  DeviceStatistics Statistics() const;
  double StepShare() const;  // as StageEngine::StepShare
  LoadSummary load() const;  // of the stage; empty if there is none
  // Called every LinkEstimator::kAskAgainUs.
  void Tick();
  // Spans since the last call, oldest first; none if the installation did not ask for them.
  TraceChunk DrainTrace(const TraceCall& call);

 private:
  bool HasHead() const { return lime::HasHead(call_.plan, call_.device); }
  std::unique_ptr<StageEngine> ReleaseStage(bool leaves);
  absl::Status NoStage() const ABSL_SHARED_LOCKS_REQUIRED(stage_mutex_);
  void OpenLinks();
  StagePeers MakePeers();
  std::shared_ptr<KvTakeover> MakeTakeover();
  absl::Status ReadKv(int32_t layer, const std::string& numerics_id, std::span<const KvExtent> wanted, const KvTakeover::PageSink& sink);
  absl::Status ReadKvFromHere(int32_t layer, const KvHolder& holder, const std::string& numerics_id, std::span<const KvExtent> extents,
                              const KvTakeover::PageSink& sink) const;
  absl::Status LetGo();
  void Report(const FromDevice& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(events_mutex_);
  void ReportSampled(int64_t step, std::span<const SampledToken> tokens);
  void ReportEnded(int64_t step);
  void Fail(const absl::Status& status);
  absl::Status OnHosting(int32_t from, const std::vector<std::byte>& message);
  void NoteReceived(int32_t from, const ActivationHeader& header, double begin_ms);
  void LogOrder(const Order& order) const;
  // Logs with the epoch, and the step that has not ended yet.
  void Log(const std::string& sentence) const;

  Options options_;  // without the members that Open has used up
  const InstallCall& call_ = options_.call;
  const std::weak_ptr<KvHandover> kv_handover_;  // options_.handover.kv, for Cancel
  std::atomic<bool> cancelled_ = false;
  std::unique_ptr<TraceRing> trace_;  // made by Open if spans are asked for
  absl::Mutex draining_;              // its one reader at a time; the ring itself takes no lock
  PlanSampler sampler_;

  // Held for reading while the stage is called. Unloading waits for these calls.
  mutable absl::Mutex stage_mutex_;
  std::unique_ptr<StageEngine> stage_ ABSL_GUARDED_BY(stage_mutex_);
  bool handed_over_ ABSL_GUARDED_BY(stage_mutex_) = false;
  // By device; made before the stage, gone after it.
  std::map<int32_t, std::unique_ptr<Link>> links_;

  mutable absl::Mutex events_mutex_ ABSL_ACQUIRED_AFTER(stage_mutex_);
  Sink sink_ ABSL_GUARDED_BY(events_mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(events_mutex_);
  // The newest tokens, in the memory of earlier ones.
  FromDevice sampled_ ABSL_GUARDED_BY(events_mutex_) = SampledNews{};
  bool awaits_end_ ABSL_GUARDED_BY(events_mutex_) = false;  // their step has one micro-batch: its end goes with them
  std::atomic<int64_t> steps_ = 0;                          // that have ended
  struct Received {
    std::atomic<int64_t> messages = 0, bytes = 0;
  };
  std::vector<Received> received_;  // activations, by device
};

}  // namespace lime
