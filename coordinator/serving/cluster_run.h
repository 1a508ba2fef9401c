// Runs requests over an installed plan: what devices report goes to the OrderWriter, what that writes goes to the devices. When a device
// fails, Recovery says what to do, this does it, and the requests go on with their tokens so far. So they do when another plan is to be
// used because it is better now.
//
//                  ┌── a better plan: what is ordered ends, then ChangePlan ──┐
//                  ▼                                                          │
//   Run ─► RunPlan (orders out, news in; at each border the owner Adds and Stops) ─► idle, or cancelled: Run returns
//                  ▲                                                          │
//                  └──── it goes on ◄──── Recover ◄── a device fails ─────────┘
//                                            └── it gives up: Run returns why, or the owner ends its requests and it looks on
//
// Threads: one owner, that waits in Run; news comes on threads of the devices and waits for it in a queue. Wake: any.
// Bounds: nothing is kept of a request that has ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
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
  // Another plan to go on with while all is well.
  struct Change {
    Plan plan;
    std::string why;
    // From the last step to the next token, whatever request it is of, at most; where no request has made any and KV is taken over, to the
    // end of the next step.
    std::optional<absl::Duration> taking_over;  // where KV follows its layers; nothing: it cannot
    absl::Duration computing_again;             // where it is computed again
    absl::Duration going_back;                  // where devices refuse the plan: from then on, by the one before
  };

  // How a failure is survived.
  struct Survival {
    Recovery::Options recovery;
    // A plan for some of these devices, which are all that answer.
    std::function<absl::StatusOr<Plan>(const Recovery::Devices& devices)> plan;
    Devices::InstallOptions install;
    std::function<void(const std::string& sentence)> say;  // what is going on
    // Asked often while tokens come, and never waits.
    std::function<std::optional<Change>(const OrderWriter::Left& left)> change = nullptr;
    std::function<void(const Plan& plan)> in_use = nullptr;  // told of every plan that is installed in the place of another
  };

  // Of a plan that is installed or to be: what streams at each level of its KV, its own first, and only that where KV does not grow.
  using LevelsOf = std::function<std::vector<Residency>(const Plan& plan)>;

  // What an owner hears in Run, on its thread. All but `at_border` may be empty.
  struct Owner {
    // Called after Wake, and at the latest when the call before has said: between two reports of the devices, and while a recovery waits
    // for them. May Add and Stop. With it Run waits for more where nothing is left to do, and ends when it is cancelled or fails.
    std::function<absl::Time()> at_border;
    std::function<void(RequestId request)> on_start;  // it has a slot; once more after a recovery or a change of plans
    // How much of what is known of it is computed: at every step's end, and every 100 ms where the devices say how far their step is. It
    // grows until its next token, but where another plan computes it again.
    std::function<void(RequestId request, double share)> on_prompt;
    std::function<void()> on_plan;  // another plan is in use
    // A failure was not survived, which nobody wants to last: it has to Stop all requests, and those that it Adds from now on wait until
    // the devices are back, or for its next call. Empty: such a failure ends Run.
    std::function<void(const absl::Status& why)> on_give_up;
  };

  // Without `survival` the first failure is the end; without `levels` requests have the KV that a plan begins with.
  // REQUIRES: a plan is installed; `devices` outlives this.
  explicit ClusterRun(Devices& devices, std::optional<Survival> survival = {}, LevelsOf levels = {}, Owner owner = {});

  // As OrderWriter::Add.
  absl::StatusOr<RequestId> Add(Request request, const RequestSampling& sampling, std::optional<RequestId> id = std::nullopt);
  // Ends a request at once, in whatever state: nothing more is heard of it.  REQUIRES: not finished
  void Stop(RequestId request);
  OrderWriter::Room room() const { return writer_.room(); }
  // What Add takes for which logits of a request are made.
  static OrderWriter::Logits LogitsFor(const RequestSampling& sampling);
  // `at_border` is called soon.  Thread: any
  void Wake();

  struct Token {
    RequestId request = 0;
    int32_t token = 0;
    bool known = false;                    // an id of the prompt of a request that is scored
    uint64_t logits_hash = 0;              // of all logits of its request so far, where its sampling asks for it
    const cpu::RowScore* score = nullptr;  // likewise; for the call
    FinishReason reason = FinishReason::kNone;
  };
  // Until all requests have ended or `cancel` is set, which an owner that is asked at borders follows with Wake. `on_token` is called for
  // every token once, of a request that is scored also for every id of its prompt after the first, and answers whether its request may go
  // on. What a device reports as its failure, or a device that is lost, is the error where it was not survived; the plan is not to be used
  // any more after it.
  absl::Status Run(const std::function<bool(const Token&)>& on_token, const std::atomic<bool>* cancel);

  int64_t steps() const { return steps_; }            // ended
  int64_t recoveries() const { return recoveries_; }  // Thread: any
  int64_t changes() const { return changes_; }        // of plans, while all was well.  Thread: any
  bool finished(RequestId request) const { return writer_.finished(request); }

 private:
  struct News {
    int32_t device = 0;    // of the plan
    bool sampled = false;  // `tokens` is what it tells, else `other`: they keep their memory
    SampledNews tokens;
    FromDevice other;
  };

  struct Inbox {
    absl::Mutex mutex;
    RecycledQueue<News> news ABSL_GUARDED_BY(mutex);
    int64_t opened ABSL_GUARDED_BY(mutex) = 0;  // plans: what comes of earlier ones is dropped
    bool woken ABSL_GUARDED_BY(mutex) = false;
  };
  // One installed plan, until its requests have ended or it is no use any more.
  absl::Status RunPlan(const std::function<bool(const Token&)>& on_token, const std::atomic<bool>* cancel);
  // Nothing more is ordered, until what is has ended.
  absl::Status Drain(const std::function<bool(const Token&)>& on_token, const std::atomic<bool>* cancel);
  // To `change_`. An error is a failure like any other: the plan before is installed again.
  absl::Status ChangePlan(const std::atomic<bool>* cancel);
  absl::Status ChangeTaking(const Change& change, const std::atomic<bool>* cancel);
  absl::Status ChangeComputingAgain(const Change& change);
  void StatePause(const std::string& what, absl::Duration most);  // from now on
  // Requests go on with what the plan before has left.
  absl::Status InstallTaking(const Plan& plan, const Devices::Left& left);
  void TellPause();
  // OK: it is installed again, or `cancel` is set.
  absl::Status Recover(const absl::Status& failure, const std::atomic<bool>* cancel);
  Recovery::Event Do(const Recovery::Ask& ask, const std::atomic<bool>* cancel);
  Recovery::Event Do(const Recovery::MakePlan& make);
  Recovery::Event Do(const Recovery::Install& install);
  absl::Status InstallAgain(const Plan& plan);
  absl::Status Install(const Plan& plan, const std::vector<KvSequence>& kv);
  OrderWriter::Options OrdersFor(const Plan& plan) const;
  void CompareKernels();
  void CompareLogits(RequestId request, int32_t position, uint64_t logits_hash);
  void Say(const std::string& sentence) const;

  absl::Status Open();
  void ReserveNews(RecycledQueue<News>& news) const;
  void AwaitNews(absl::Time until);  // into news_
  void AskAtBorder(bool woken);
  bool Over(const std::atomic<bool>* cancel) const;
  absl::Status OnNextNews(const std::function<bool(const Token&)>& on_token);
  absl::Status OnNews(const News& news, const std::function<bool(const Token&)>& on_token);
  absl::Status OnStepEnded(int64_t step);
  absl::Status OnSampled(const SampledNews& news, const std::function<bool(const Token&)>& on_token);
  void SendOrders();
  void TellPrompts();

  struct Asked {
    RequestSampling sampling;
    int32_t position = -1;  // of the newest token
    uint64_t logits_hash = 0;
    double told_share = 0;
  };
  int32_t head() const { return devices_.plan().stages.back().device; }  // it samples, and with it a step ends

  Devices& devices_;
  const std::optional<Survival> survival_;
  const LevelsOf levels_;
  OrderWriter writer_;
  const Owner owner_;
  absl::Time border_at_;              // when it wants to be asked at the latest
  std::map<RequestId, Asked> asked_;  // that have not ended
  bool open_ = false;
  int64_t steps_ = 0;
  RecycledQueue<News> news_;                                        // taken
  OrderMessage message_;                                            // sent last
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();  // the devices' too: news may come after this is gone

  std::optional<Change> change_;                      // to be done
  absl::Time change_began_ = absl::InfiniteFuture();  // until the first token behind it
  bool goes_on_in_prompt_ = false;                    // likewise, or the first step: no request had made a token
  absl::Duration stated_pause_;
  std::atomic<int64_t> changes_ = 0, recoveries_ = 0;
  std::optional<Recovery> recovery_;
  std::optional<Plan> first_, newest_;  // that Recovery speaks of
  std::set<std::string> numerics_;      // of all kernels that have computed so far
  bool told_bits_ = false;
};

}  // namespace lime
