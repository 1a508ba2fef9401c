// Requests at any time, answered side by side over one plan: what commands and servers sit on.
//
//   Submit ─► ServeQueue: may it come? ─┐
//   Cancel ─► ServeQueue: it left ──────┼─► at the next border of a step: ClusterRun ─► Devices ─► sinks
//   Drain  ─► ServeQueue: nobody comes ─┘
//
// Devices are those of a cluster or this process alone. Devices that are lost, and plans that are better now, are ClusterRun's; requests
// see a pause.
//
// Threads: one of its own owns ClusterRun and the devices and calls the sinks; it sleeps while nothing is left to do, and the plan stays
// installed. Submit, Cancel, Drain and the counts: any.
// Bounds: requests as ServeQueue takes them; nothing is kept of one that has ended. A token allocates nothing.
// Bits: what a request answers depends on itself alone, never on who runs beside it or came before.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "coordinator/logic/serve_queue.h"
#include "coordinator/serving/cluster_run.h"
#include "coordinator/serving/devices.h"
#include "coordinator/serving/serving_request.h"
#include "coordinator/text/answer_text.h"

namespace lime {

class Serving {
 public:
  struct Options {
    ServeQueue::Options queue;
    const Tokenizer* tokenizer = nullptr;  // null: tokens have no text
    // As of ClusterRun; its callbacks come on this one's thread. `install.cancelled` is set here.
    std::optional<ClusterRun::Survival> survival;
    ClusterRun::LevelsOf levels;
    // A failure that is not survived ends the requests of that time alone: the devices are looked for until they are back, and requests
    // that come then wait for them, for about as long as Recovery does. Else it is the end of all.  REQUIRES: `survival`
    bool outlives_failures = false;
  };
  // REQUIRES: a plan is installed. All that is given outlives this, and nobody else calls `devices` until Drain has returned.
  Serving(Devices& devices, Options options);
  // Drains at once.
  ~Serving();
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  // Queues a request behind those before. InvalidArgument for one that is none; ResourceExhausted, with the numbers, where it can never
  // fit, or as many wait as may; Unavailable after Drain; after a failure that was not survived, that. The sink hears of it only where this
  // answers with its id. Ids count from 0 and are never used again.
  absl::StatusOr<RequestId> Submit(ServingRequest request, std::shared_ptr<RequestSink> sink);
  // Likewise for requests that begin with the same step where slots are free: all are taken or none. Answers with the id of the first; the
  // others follow it.  REQUIRES: at least one
  absl::StatusOr<RequestId> SubmitTogether(std::vector<Submission> submissions);
  // Ends a request at the next border of a step, in whatever state; its slot and its KV are free then. Nothing where it has ended.
  void Cancel(RequestId request);
  // Takes no more requests, ends those that wait, and returns when the last has ended; at the deadline those that run are ended too. Of
  // several calls the earliest deadline counts. DeadlineExceeded where requests were ended for it; after a failure that was not survived,
  // that. The devices are the caller's again, with their plan.  Not from a sink
  absl::Status Drain(absl::Time deadline);

  // How long a request may be: what Submit checks.
  OrderWriter::Room room() const;
  struct Load {
    int64_t waiting = 0, running = 0;
  };
  Load load() const;
  int64_t recoveries() const { return run_.recoveries(); }
  int64_t changes() const { return run_.changes(); }  // of plans, while all was well

 private:
  struct Active {
    RequestId id = 0;
    std::shared_ptr<RequestSink> sink;
    Request request;
    RequestSampling sampling;
    std::optional<AnswerText> text;
    bool has_tokens = false;
    RequestEnd end;  // the times so far
  };

  ClusterRun::Owner OwnerOfRun(bool outlives_failures);
  absl::Status Check(const ServingRequest& request) const;
  absl::StatusOr<std::unique_ptr<Active>> Make(Submission submission) const;
  void Serve();
  absl::Time AtBorder();
  void Begin(std::unique_ptr<Active> active);
  bool Take(const ClusterRun::Token& token);
  void End(RequestId request, FinishReason reason, absl::Status status);
  void Tell(Active& active, FinishReason reason, absl::Status status);
  void GiveUp(const absl::Status& why);
  void EndAll(const absl::Status& status);

  Devices& devices_;
  const Tokenizer* const tokenizer_;
  const int64_t vocab_size_;
  std::atomic<bool> stop_ = false;  // at once
  ClusterRun run_;
  std::map<RequestId, std::unique_ptr<Active>> active_;  // that run_ knows. Of the thread
  std::vector<std::unique_ptr<Active>> beginning_;       // likewise, from AtBorder to AtBorder

  mutable absl::Mutex mutex_;
  ServeQueue queue_ ABSL_GUARDED_BY(mutex_);
  OrderWriter::Room room_ ABSL_GUARDED_BY(mutex_);
  RequestId next_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<Active>> arrived_ ABSL_GUARDED_BY(mutex_);  // since the last border
  absl::Status over_with_ ABSL_GUARDED_BY(mutex_);
  absl::Notification over_;
  std::thread thread_;
};

}  // namespace lime
