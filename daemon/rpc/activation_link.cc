#include "daemon/rpc/activation_link.h"

#include <grpcpp/alarm.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/steady_clock.h"
#include "daemon/logic/rates/link_estimator.h"
#include "daemon/rpc/activation_wire.h"
#include "proto/grpc_status.h"

namespace lime {
namespace {

constexpr absl::Duration kRetry = absl::Milliseconds(50);
// Bytes on the wire per byte of payload, with the headers of TCP, IP and Ethernet: frames of 1,514
// bytes carry 1,448 bytes of ours. Link rates are stated and limited in bytes on the wire.
constexpr double kWirePerPayload = 1514.0 / 1448;
constexpr size_t kMostUnanswered = size_t{1} << 18;  // messages; no stage is so far behind

// The peer has not started yet, or has not installed the plan yet.
bool MayPass(grpc::StatusCode code) {
  return code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::FAILED_PRECONDITION;
}

// A link connects, with repeated attempts, until the peer accepts a stream. Then it is open. It
// ends lost, or closed by its owner.
class LinkStream : public std::enable_shared_from_this<LinkStream> {
 public:
  explicit LinkStream(ActivationLinkOptions options)
      : options_(std::move(options)),
        stub_(OpenChannel(options_.link.address, options_.link.peer, options_.keys, ChannelUse::kActivations)),
        retry_until_(absl::Now() + options_.patience),
        estimator_(absl::HashOf(options_.link.epoch, options_.link.from, options_.link.to)) {}

  void Start() {
    absl::MutexLock lock(&mutex_);
    Connect();
  }

  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    if (attempt_ != nullptr) attempt_->Cancel();
    if (waiting_) alarm_.Cancel();
    mutex_.Await(absl::Condition(
        +[](LinkStream* self)
             ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mutex_) { return self->attempt_ == nullptr && !self->waiting_ && self->lost_calls_ == 0; },
        this));
  }

  void Send(ActivationMessage activation) {
    std::optional<absl::Status> overflow;
    {
      absl::MutexLock lock(&mutex_);
      if (closed_ || lost_) return;
      const Bytes bytes = static_cast<Bytes>(activation.payload.size() + kActivationHeaderBytes);
      if (estimator_.under_way() >= kMostUnanswered) {
        overflow = absl::ResourceExhaustedError("it does not answer");
      } else if (QueueOf(activation).size() >= options_.queued_messages || queued_bytes_ + bytes > options_.queued_bytes) {
        overflow = absl::ResourceExhaustedError(
            absl::StrCat(QueueOf(activation).size(), " messages of this kind and ", queued_bytes_, " bytes of all kinds wait already"));
      } else {
        // A queued message follows another one, and so does a message that may wait (a chunk).
        const bool in_train = activation.may_wait || writing_ || !queue_.empty();
        activation.header.answered = in_train ? IsAnsweredInTrain(activation.header) : IsAnsweredAlone(activation.header);
        queued_bytes_ += bytes;
        counts_.messages += 1;
        counts_.bytes += bytes;
        QueueOf(activation).push_back(std::move(activation));
        MayWrite();
        return;
      }
    }
    Lose(*overflow);
  }

  Link::Counts sent() const {
    absl::MutexLock lock(&mutex_);
    return counts_;
  }

  std::optional<Link::Rate> rate() const {
    absl::MutexLock lock(&mutex_);
    const std::optional<LinkEstimate>& estimate = estimator_.estimate();
    if (!estimate) return std::nullopt;
    return Link::Rate{kWirePerPayload * estimate->bytes_per_second,
                      static_cast<double>(std::max<int64_t>(SteadyUs() - estimate->at_us, 0)) / 1000};
  }

  void Tick() {
    absl::MutexLock lock(&mutex_);
    MayWrite();
  }

 private:
  // One stream. It owns itself until gRPC has finished with it.
  class Attempt final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
   public:
    explicit Attempt(std::shared_ptr<LinkStream> link) : link_(std::move(link)) {
      context_.AddMetadata(kEpochKey, std::to_string(link_->options_.link.epoch));
      context_.AddMetadata(kFromKey, std::to_string(link_->options_.link.from));
      context_.set_wait_for_ready(false);
      link_->stub_.PrepareBidiStreamingCall(&context_, kActivationMethod, {}, this);
      // Writes start on other threads.
      AddHold();
      // Ends when the stream ends.
      StartRead(&answer_);
      StartCall();
    }
    void Cancel() { context_.TryCancel(); }
    void Write(const grpc::ByteBuffer& message) {
      writing_ = message;
      StartWrite(&writing_);
    }

   private:
    void OnReadInitialMetadataDone(bool ok) override {
      if (ok) link_->OnAccepted();
    }
    void OnWriteDone(bool ok) override {
      writing_.Clear();
      if (ok) link_->OnWritten();
    }
    void OnReadDone(bool ok) override {
      if (ok) {
        if (const absl::Status status = link_->OnAnswer(answer_); !status.ok()) link_->Lose(status);
        return StartRead(&answer_);
      }
      link_->OnBroken();
      RemoveHold();
    }
    void OnDone(const grpc::Status& status) override {
      const std::shared_ptr<LinkStream> link = std::move(link_);
      link->OnAttemptDone(status);
      delete this;
    }

    std::shared_ptr<LinkStream> link_;
    grpc::ClientContext context_;
    grpc::ByteBuffer writing_, answer_;
  };

  void Connect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    broken_ = false;
    attempt_ = new Attempt(shared_from_this());
  }

  // From now on, nothing may be started on the stream.
  void OnBroken() {
    absl::MutexLock lock(&mutex_);
    broken_ = true;
  }

  void OnAccepted() {
    absl::MutexLock lock(&mutex_);
    open_ = true;
    MayWrite();
  }

  void OnWritten() {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (on_its_way_) on_its_way_->end_ms = SteadyMs(), options_.link.trace->Add(*on_its_way_);
    on_its_way_.reset();
    MayWrite(/*back_to_back=*/true);
  }

  // `back_to_back`: the connection has just taken the message before.
  void MayWrite(bool back_to_back = false) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!open_ || writing_ || broken_ || lost_ || closed_ || attempt_ == nullptr) return;
    const bool beside =
        queue_.empty() && !waiting_queue_.empty() && estimator_.IsFreeFor(static_cast<Bytes>(waiting_queue_.front().payload.size()));
    if (queue_.empty() && !beside) return waiting_queue_.empty() ? MayProbe(back_to_back) : void();
    writing_ = true;
    std::deque<ActivationMessage>& queue = beside ? waiting_queue_ : queue_;
    ActivationMessage next = std::move(queue.front());
    queue.pop_front();
    const Bytes bytes = static_cast<Bytes>(next.payload.size() + kActivationHeaderBytes);
    queued_bytes_ -= bytes;
    if (options_.link.trace != nullptr) on_its_way_ = SpanOf(next.header);
    // Others follow this message.
    if (!queue.empty()) next.header.answered = IsAnsweredInTrain(next.header);
    Note(bytes, next.header.answered, /*probe=*/false, back_to_back);
    attempt_->Write(ToBuffer(std::move(next)));
  }

  std::deque<ActivationMessage>& QueueOf(const ActivationMessage& activation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return activation.may_wait ? waiting_queue_ : queue_;
  }

  void MayProbe(bool back_to_back) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int64_t now_us = SteadyUs();
    const Bytes bytes = options_.probes ? estimator_.WantsProbe(now_us) : 0;
    if (bytes == 0) return;
    writing_ = true;
    Note(bytes, /*answered=*/true, /*probe=*/true, back_to_back);
    attempt_->Write(ProbeBuffer(options_.link.epoch, bytes));
  }

  // Records that a message is written now.
  void Note(Bytes bytes, bool answered, bool probe, bool back_to_back) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    next_answered_.back_to_back = next_answered_.back_to_back && back_to_back;
    if (!answered) {
      next_answered_.between += bytes;
      return;
    }
    next_answered_.bytes = bytes, next_answered_.probe = probe;
    estimator_.OnSent(std::exchange(next_answered_, {.back_to_back = true}), SteadyUs());
  }

  absl::Status OnAnswer(const grpc::ByteBuffer& answer) {
    const int64_t now_us = SteadyUs();
    LIME_ASSIGN_OR_RETURN(const std::vector<int64_t> arrivals_us, ArrivalsOf(answer));
    absl::MutexLock lock(&mutex_);
    for (const int64_t arrived_us : arrivals_us) {
      if (!estimator_.OnArrived(arrived_us, now_us))
        return absl::InvalidArgumentError("it answers a message that was not sent, or its clock went back");
    }
    MayWrite();
    return absl::OkStatus();
  }

  // The span of a message that is now given to the connection. It ends when the connection has
  // taken it.
  TimelineSpan SpanOf(const ActivationHeader& header) const {
    return {.kind = TimelineSpan::Kind::kSend,
            .begin_ms = SteadyMs(),
            .step = static_cast<int32_t>(header.step),
            .stage = header.stage,
            .microbatch = header.microbatch,
            .peer = options_.link.to};
  }

  void OnAttemptDone(const grpc::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      attempt_ = nullptr;
      if (closed_ || lost_) return;
      if (!open_ && MayPass(status.error_code()) && absl::Now() < retry_until_) return Retry();
    }
    Lose(status.ok() ? absl::UnavailableError("it has closed the link") : FromGrpc(status, "the link"));
  }

  // The alarm keeps its callback until it is set again, so a strong pointer in it would keep the
  // link alive forever. Close waits for the alarm.
  void Retry() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    waiting_ = true;
    alarm_.Set(absl::ToChronoTime(absl::Now() + kRetry), [weak = weak_from_this()](bool) {
      const std::shared_ptr<LinkStream> self = weak.lock();
      if (self == nullptr) return;
      absl::MutexLock lock(&self->mutex_);
      self->waiting_ = false;
      if (!self->closed_) self->Connect();
    });
  }

  void Lose(const absl::Status& why) {
    {
      absl::MutexLock lock(&mutex_);
      if (closed_ || lost_) return;
      lost_ = true;
      ++lost_calls_;
      if (attempt_ != nullptr) attempt_->Cancel();
    }
    if (options_.link.lost) {
      options_.link.lost(
          absl::UnavailableError(absl::StrCat("device \"", options_.link.peer, "\" at ", options_.link.address, ": ", why.message())));
    }
    absl::MutexLock lock(&mutex_);
    --lost_calls_;
  }

  const ActivationLinkOptions options_;
  grpc::GenericStub stub_;
  const absl::Time retry_until_;
  mutable absl::Mutex mutex_;
  Attempt* attempt_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;  // the alarm is set
  int lost_calls_ ABSL_GUARDED_BY(mutex_) = 0;    // number of calls of `lost` that are running
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  // The current attempt is broken.
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  // Data so far on the next message that asks for an answer.
  LinkEstimator::Outgoing next_answered_ ABSL_GUARDED_BY(mutex_);
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<ActivationMessage> queue_ ABSL_GUARDED_BY(mutex_);
  // Messages that may wait.
  std::deque<ActivationMessage> waiting_queue_ ABSL_GUARDED_BY(mutex_);
  Bytes queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Link::Counts counts_ ABSL_GUARDED_BY(mutex_);
  // Span of the message being written, if there is a trace.
  std::optional<TimelineSpan> on_its_way_ ABSL_GUARDED_BY(mutex_);
  LinkEstimator estimator_ ABSL_GUARDED_BY(mutex_);
  grpc::Alarm alarm_;
};

// The owner's handle. gRPC may hold the stream longer.
class ActivationLink final : public Link {
 public:
  explicit ActivationLink(ActivationLinkOptions options) : stream_(std::make_shared<LinkStream>(std::move(options))) { stream_->Start(); }
  ~ActivationLink() override { stream_->Close(); }

  void Send(ActivationMessage activation) override { stream_->Send(std::move(activation)); }
  Counts sent() const override { return stream_->sent(); }
  std::optional<Rate> rate() const override { return stream_->rate(); }
  void Tick() override { stream_->Tick(); }

 private:
  const std::shared_ptr<LinkStream> stream_;
};

}  // namespace

std::unique_ptr<Link> OpenActivationLink(ActivationLinkOptions options) {
  return std::make_unique<ActivationLink>(std::move(options));
}

}  // namespace lime
