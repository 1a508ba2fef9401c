// Runs requests over an installed plan. It passes news from the devices to OrderWriter, and orders
// from OrderWriter to the devices. After a device failure it does what Recovery decides, and
// requests continue with the tokens they have. It also changes to a better plan while requests run.
//
//                  ┌── a better plan: ordered steps end, then ChangePlan ─┐
//                  ▼                                                      │
//   Run ─► RunPlan (orders out, news in; Add, Stop at borders) ─► idle or cancelled: Run returns
//                  ▲                                                      │
//                  └── requests continue ◄── Recover ◄── a device fails ──┘
//                                            └── it gives up: Run returns the error or tries again
//
// Threads: one owner, which waits in Run. News arrives on the devices' threads and waits for the
// owner in a queue. Wake: any.
// Bounds: keeps nothing of a request that has ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/logic/order_writer.h"
#include "coordinator/logic/recovery.h"
#include "coordinator/serving/devices.h"
#include "planner/base/recycled_queue.h"

namespace lime {

class ClusterRun {
 public:
  // Another plan to change to while all devices work.
  struct Change {
    Plan plan;
    std::string why;
    // Upper bounds on the pause: from the last step to the next token of any request. If KV is
    // taken over and no request has made a token, the pause ends with the next step.
    std::optional<absl::Duration> taking_over;  // if the new plan takes KV over; nullopt: it cannot
    absl::Duration computing_again;             // if KV is computed again
    absl::Duration going_back;                  // if devices refuse it and the old plan continues
    // KV pages of a layer for which `taking_over` holds; idle KV beyond them is dropped.
    int64_t most_pages = std::numeric_limits<int64_t>::max();
  };

  // How to survive a failure.
  struct Survival {
    Recovery::Options recovery;
    // Makes a plan for some of `devices`. No other device answers. Ends soon after `cancelled` is
    // set, if it is not null; the result is then useless.  Thread: any, one call at a time
    std::function<absl::StatusOr<Plan>(const Recovery::Devices& devices, const std::atomic<bool>* cancelled)> plan;
    Devices::InstallOptions install;
    std::function<void(const std::string& sentence)> say;  // tells the user what happens
    // Returns a plan to change to, or nothing. Called often while tokens arrive. Must not block.
    std::function<std::optional<Change>(const OrderWriter::Remaining& remaining)> change = nullptr;
    // Whether devices that have kept the KV of `pages` pages under `before` have room for it and for
    // `after` at once. Empty: they are asked to try.
    std::function<bool(const Plan& before, const Plan& after, int64_t pages)> takes_over = nullptr;
    // Called with every plan that replaces another one.
    std::function<void(const Plan& plan)> in_use = nullptr;
  };

  // The residencies of a plan at each KV level, its own first. Only its own if KV does not grow.
  // `cancelled` and thread: as Survival::plan.
  using LevelsOf = std::function<std::vector<Residency>(const Plan& plan, const std::atomic<bool>* cancelled)>;

  // Calls that the owner receives in Run, on its thread. All but `at_border` may be empty.
  struct Owner {
    // Called soon after Wake, and no later than the time that the previous call returned. It is
    // called between two reports of the devices, while a recovery waits for them, and while a plan
    // is searched for or installed. It may Add and Stop. If it is set, Run waits for more requests
    // when none is left, and returns only when it is cancelled or fails.
    std::function<absl::Time()> at_border;
    std::function<void(RequestId request)> on_start;  // it has a slot; again under another plan
    // Its ids begin to be computed, except the first `computed` ones, whose KV is there; again under
    // another plan.
    std::function<void(RequestId request, int64_t computed)> on_admit;
    // The computed share of the request's known tokens: at the end of every step, and every 100 ms
    // if the devices report progress within a step. It grows until the next token, and starts again
    // only if another plan computes the request again.
    std::function<void(RequestId request, double share)> on_prompt;
    std::function<void()> on_plan;  // another plan is in use
    // A failure was not survived. The owner must Stop all requests. Requests that it Adds from now
    // on wait until the devices are back, or until the next call. Empty: such a failure ends Run.
    std::function<void(const absl::Status& why)> on_give_up;
  };

  // Without `survival`, Run ends at the first failure. Without `levels`, requests have the KV that
  // a plan begins with. `prompt_cache`: see OrderWriter::For.
  // REQUIRES: a plan is installed; `devices` outlives this object.
  explicit ClusterRun(Devices& devices, std::optional<Survival> survival = {}, LevelsOf levels = {}, Owner owner = {},
                      Bytes prompt_cache = 0);

  // For tests of clients: a step ends no earlier than so long after the one before.  REQUIRES: Run
  // was not called
  void set_pace(absl::Duration pace) { pace_ = pace; }

  // See OrderWriter::Add.
  absl::StatusOr<RequestId> Add(Request request, const RequestSampling& sampling, std::optional<RequestId> id = std::nullopt);
  // Ends a request at once, in any state. No callback mentions it again.  REQUIRES: not finished
  void Stop(RequestId request);
  OrderWriter::RequestLimits limits() const { return writer_.limits(); }
  // The `logits` argument of OrderWriter::Add for this sampling.
  static OrderWriter::Logits LogitsFor(const RequestSampling& sampling);
  // `at_border` is called soon.  Thread: any
  void Wake();

  struct Token {
    RequestId request = 0;
    int32_t token = 0;
    bool known = false;                    // an id of the prompt of a scored request
    uint64_t logits_hash = 0;              // of all its logits so far, if asked for
    std::string_view hash_state;           // LogitsHash::State behind a scored prompt with a hash; valid during the call
    const cpu::RowScore* score = nullptr;  // if asked for; valid during the call
    FinishReason reason = FinishReason::kNone;
  };
  // Returns when all requests have ended, or after `cancel` is set. An owner with `at_border` must
  // also call Wake after it sets `cancel`. Calls `on_token` once for every token, and for a scored
  // request also once for every id of its prompt after the first. `on_token` returns whether the
  // request may continue. Returns the error of a device that failed or was lost, if the failure was
  // not survived. The plan cannot be used after that.
  absl::Status Run(const std::function<bool(const Token&)>& on_token, const std::atomic<bool>* cancel);

  int64_t steps() const { return steps_; }            // steps that have ended
  int64_t recoveries() const { return recoveries_; }  // Thread: any
  int64_t changes() const { return changes_; }        // to better plans.  Thread: any
  // Of each layer, in idle slots.  Thread: any
  int64_t cached_pages() const { return cached_pages_; }
  bool finished(RequestId request) const { return writer_.finished(request); }

 private:
  struct News {
    int32_t device = 0;    // index in the plan
    bool sampled = false;  // the news is `tokens`, else `other`; both keep their memory
    SampledNews tokens;
    FromDevice other;
  };

  struct Inbox {
    absl::Mutex mutex;
    RecycledQueue<News> news ABSL_GUARDED_BY(mutex);
    int64_t opened ABSL_GUARDED_BY(mutex) = 0;  // plans opened; drops news of older ones
    bool woken ABSL_GUARDED_BY(mutex) = false;
  };
  // Runs one installed plan until its requests have ended or the plan cannot be used any more.
  absl::Status RunPlan(const std::function<bool(const Token&)>& on_token, const std::atomic<bool>* cancel);
  // Orders nothing more, and waits until the ordered steps have ended.
  absl::Status Drain(const std::function<bool(const Token&)>& on_token, const std::atomic<bool>* cancel);
  // Changes to `change_`. An error is handled like any failure: Recovery then installs the previous
  // plan.
  absl::Status ChangePlan(const std::atomic<bool>* cancel);
  absl::Status ChangeTakingOver(const Change& change, const std::atomic<bool>* cancel);
  absl::Status ChangeComputingAgain(const Change& change, const std::atomic<bool>* cancel);
  void StatePause(const std::string& what, absl::Duration most);  // `most` counts from now
  // Requests continue with the KV of the plan before.
  absl::Status InstallTakingOver(const Change& change, const Devices::Handover& handover, const std::atomic<bool>* cancel);
  void ReportPause();
  // OK: a plan is installed again, or `cancel` is set.
  absl::Status Recover(const absl::Status& failure, const std::atomic<bool>* cancel);
  Recovery::Event Do(const Recovery::Ask& ask, const std::atomic<bool>* cancel);
  Recovery::Event Do(const Recovery::MakePlan& make, const std::atomic<bool>* cancel);
  Recovery::Event Do(const Recovery::Install& install, const std::atomic<bool>* cancel);
  absl::Status InstallAgain(const Plan& plan, const std::atomic<bool>* cancel);
  bool KvIsLeft(const Plan& next);
  // Requests continue with the KV that the devices have kept, and compute only the rest again.
  absl::Status InstallInterrupted(const Plan& plan, const std::atomic<bool>* cancel);
  absl::Status Install(const Plan& plan, const std::vector<KvSequence>& kv);
  // Does work that may take minutes on a thread of its own, and asks the owner at borders
  // meanwhile.
  // REQUIRES: no plan is open
  template <typename Work>
  auto Beside(const Work& work);
  // OrdersFor, called with Beside, because the search for levels may take minutes.
  OrderWriter::Options NextOrdersFor(const Plan& plan, const std::atomic<bool>* cancel);
  OrderWriter::Options OrdersFor(const Plan& plan, const std::atomic<bool>* cancel) const;
  void CompareKernels();
  void CompareLogits(RequestId request, int32_t position, uint64_t logits_hash);
  // The next plan computes all logits of every request again.
  void ForgetHashes();
  void Say(const std::string& sentence) const;

  absl::Status Open();
  void ReserveNews(RecycledQueue<News>& news) const;
  void AwaitNews(absl::Time until);  // into news_
  void AskAtBorder(bool woken);
  bool Over(const std::atomic<bool>* cancel) const;
  absl::Status OnNextNews(const std::function<bool(const Token&)>& on_token, const std::atomic<bool>* cancel);
  void AwaitPace(const std::atomic<bool>* cancel);
  absl::Status OnNews(const News& news, const std::function<bool(const Token&)>& on_token);
  absl::Status OnStepEnded(int64_t step);
  absl::Status OnSampled(const SampledNews& news, const std::function<bool(const Token&)>& on_token);
  void SendOrders();
  void ReportPrompts();

  struct Asked {
    RequestSampling sampling;
    std::string hash_begins;  // `sampling.hash_state` if all logits are computed again
    int32_t position = -1;    // of the newest token
    uint64_t logits_hash = 0;
    double reported_share = 0;
  };
  int32_t head() const { return devices_.plan().stages.back().device; }  // samples; ends steps

  Devices& devices_;
  const std::optional<Survival> survival_;
  const LevelsOf levels_;
  const Bytes prompt_cache_;
  OrderWriter writer_;
  const Owner owner_;
  absl::Time border_at_;  // the latest time of the next at_border
  absl::Duration pace_;
  absl::Time step_due_ = absl::InfinitePast();  // with a pace: a step ends no earlier
  std::map<RequestId, Asked> asked_;            // requests that have not ended
  bool open_ = false;
  int64_t steps_ = 0;
  RecycledQueue<News> news_;  // taken from the inbox
  OrderMessage message_;      // the newest one sent
  // Shared with the devices: news may come after this object is gone.
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();

  std::optional<Change> change_;                      // the next change, until ordered steps have ended
  absl::Time change_began_ = absl::InfiniteFuture();  // reset by the first token after it
  bool goes_on_in_prompt_ = false;                    // the next step ends the pause
  absl::Duration stated_pause_;
  std::atomic<int64_t> changes_ = 0, recoveries_ = 0, cached_pages_ = 0;
  std::optional<Recovery> recovery_;
  bool may_have_kv_ = false;            // since the failure no plan was installed
  std::set<std::string> answered_;      // devices, when they were asked last
  std::optional<Plan> first_, newest_;  // the plans that Recovery names
  std::set<std::string> numerics_;      // of all kernels used so far
  bool reported_bits_ = false;
};

}  // namespace lime
