// Answers many requests side by side over one plan. Commands and servers use it.
//
//   Submit ─► ServeQueue: admits or refuses ──┐
//   Cancel ─► ServeQueue: marks as cancelled ─┼─► next border: ClusterRun ─► Devices ─► sinks
//   Drain  ─► ServeQueue: admits no more ─────┘
//
// The devices are those of a cluster, or this process alone. ClusterRun handles lost devices and
// better plans; requests see a pause.
//
// Threads: a thread of its own owns ClusterRun and the devices and calls the sinks. It sleeps when
// no request is left, and the plan stays installed. Submit, Cancel, Drain and the counts: any.
// Bounds: ServeQueue bounds the requests. Nothing is kept of a request that has ended. A token
// allocates nothing.
// Bits: the answer to a request depends on that request alone, not on other requests.
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
#include "common/json_schema/vocabulary.h"
#include "coordinator/logic/serve_queue.h"
#include "coordinator/serving/cluster_run.h"
#include "coordinator/serving/devices.h"
#include "coordinator/serving/held_formats.h"
#include "coordinator/serving/serving_request.h"
#include "coordinator/text/answer_text.h"
#include "planner/base/bytes.h"

namespace lime {

class Serving {
 public:
  struct Options {
    ServeQueue::Options queue;
    const Tokenizer* tokenizer = nullptr;  // null: tokens have no text
    // The texts of the model's tokens, for the masks of RequestSampling::format. Null: requests
    // with a format are refused.
    json_schema::VocabularyPtr vocabulary = nullptr;
    // See ClusterRun. Its callbacks come on the thread of this object. Serving sets
    // `install.cancelled`.
    std::optional<ClusterRun::Survival> survival;
    ClusterRun::LevelsOf levels;
    // A failure that is not survived ends only the requests of that time. Serving then asks for the
    // devices until they are back. Later requests wait for them, for about as long as Recovery
    // does. False, or a person took the devices away: the failure ends everything.
    // REQUIRES: `survival`
    bool outlives_failures = false;
    absl::Duration pace;  // see ClusterRun::set_pace
    // KV of requests that have ended is kept for later ones, up to this number of bytes on all
    // devices together. It lies in free slots of the plan, so no memory is used beyond the plan's.
    // 0: none is kept, and running requests share none.
    Bytes prompt_cache = 0;
    // ModelConfig::short_positions: requests that may have more positions share no KV with others.
    int64_t short_positions = 0;
  };
  // REQUIRES: a plan is installed. All arguments outlive this object. Nobody else calls `devices`
  // until Drain has returned.
  Serving(Devices& devices, Options options);
  // Drains with no time left.
  ~Serving();
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  // Queues a request behind all earlier ones. The sink is called only if this returns an id. Ids
  // count from 0 and are never reused.
  // Errors: InvalidArgument for an invalid request; ResourceExhausted, with the numbers, if it can
  // never fit, too many requests wait, or their formats need too much memory; Unavailable after
  // Drain; after a failure that was not
  // survived, its error.
  absl::StatusOr<RequestId> Submit(ServingRequest request, std::shared_ptr<RequestSink> sink);
  // Submits requests that begin with the same step if slots are free. Accepts all or none. Returns
  // the id of the first; the other ids follow it.  REQUIRES: at least one
  absl::StatusOr<RequestId> SubmitTogether(std::vector<Submission> submissions);
  // Ends a request at the next border of a step, in any state. Its slot and its KV are free then.
  // Does nothing if it has ended.
  void Cancel(RequestId request);
  // Accepts no more requests and ends the waiting ones. Returns when the last running request has
  // ended; at the deadline it ends the running ones too. If called several times, the earliest
  // deadline counts. Then the caller may use the devices again, with their plan.
  // Errors: DeadlineExceeded if requests were ended at the deadline; the error of a failure that
  // was not survived.  REQUIRES: not called from a sink
  absl::Status Drain(absl::Time deadline);

  // The limits of one request that Submit checks.
  OrderWriter::RequestLimits limits() const;
  struct Load {
    int64_t waiting = 0, running = 0;
  };
  Load load() const;
  int64_t recoveries() const { return run_.recoveries(); }
  int64_t changes() const { return run_.changes(); }            // changes of plans while all devices worked
  int64_t cached_pages() const { return run_.cached_pages(); }  // of each layer, kept for later requests

 private:
  struct Active {
    RequestId id = 0;
    std::shared_ptr<RequestSink> sink;
    Request request;
    RequestSampling sampling;
    HeldFormats::Hold format;
    std::optional<AnswerText> text;
    bool admitted = false, has_tokens = false;
    RequestEnd end;  // holds the times so far
  };

  ClusterRun::Owner OwnerOfRun(bool outlives_failures);
  absl::Status Check(const ServingRequest& request) const;
  absl::Status CheckSampling(const RequestSampling& sampling) const;
  absl::StatusOr<std::unique_ptr<Active>> Make(Submission submission);
  void Serve();
  absl::Time AtBorder();
  void Begin(std::unique_ptr<Active> active);
  bool OnToken(const ClusterRun::Token& token);
  void End(RequestId request, FinishReason reason, absl::Status status);
  void GiveUp(const absl::Status& why);
  void EndAll(const absl::Status& status);

  Devices& devices_;
  const Tokenizer* const tokenizer_;
  const json_schema::VocabularyPtr vocabulary_;
  const int64_t vocab_size_;
  const int64_t short_positions_;
  HeldFormats formats_;             // outlives all requests
  std::atomic<bool> stop_ = false;  // set: end all requests at once
  ClusterRun run_;
  std::map<RequestId, std::unique_ptr<Active>> active_;  // in run_.  Thread: its own
  std::vector<std::unique_ptr<Active>> beginning_;       // the same, within AtBorder

  mutable absl::Mutex mutex_;
  ServeQueue queue_ ABSL_GUARDED_BY(mutex_);
  OrderWriter::RequestLimits limits_ ABSL_GUARDED_BY(mutex_);
  RequestId next_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<Active>> arrived_ ABSL_GUARDED_BY(mutex_);  // since the last border
  absl::Status over_with_ ABSL_GUARDED_BY(mutex_);
  absl::Notification over_;
  std::thread thread_;
};

}  // namespace lime
