#include "daemon/rpc/activation_link.h"

#include <grpcpp/alarm.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>

#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "daemon/engine/steady_clock.h"
#include "daemon/rpc/activation_wire.h"
#include "proto/grpc_status.h"

namespace lime {
namespace {

constexpr absl::Duration kRetry = absl::Milliseconds(50);

bool MayPass(grpc::StatusCode code) {  // the peer is not up yet, or has not installed the plan yet
  return code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::FAILED_PRECONDITION;
}

}  // namespace

// Connecting: attempt after attempt until the peer has accepted a stream. Then open. Then lost, or closed by its owner.
class ActivationLink::Impl : public std::enable_shared_from_this<Impl> {
 public:
  explicit Impl(Options options)
      : options_(std::move(options)),
        stub_(OpenChannel(options_.address, options_.peer, options_.keys, ChannelUse::kActivations)),
        give_up_(absl::Now() + options_.patience) {}

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
        +[](Impl* self) ABSL_NO_THREAD_SAFETY_ANALYSIS { return self->attempt_ == nullptr && !self->waiting_ && self->telling_ == 0; },
        this));
  }

  void Send(ActivationMessage activation) {
    std::optional<absl::Status> overflow;
    {
      absl::MutexLock lock(&mutex_);
      if (closed_ || lost_) return;
      const Bytes bytes = static_cast<Bytes>(activation.payload.size() + kActivationHeaderBytes);
      if (queue_.size() >= options_.queued_messages || queued_bytes_ + bytes > options_.queued_bytes) {
        overflow = absl::ResourceExhaustedError(absl::StrCat(queue_.size(), " messages of ", queued_bytes_, " bytes wait already"));
      } else {
        queued_bytes_ += bytes;
        counts_.messages += 1;
        counts_.bytes += bytes;
        queue_.push_back(std::move(activation));
        MayWrite();
        return;
      }
    }
    Lose(*overflow);
  }

  Counts sent() const {
    absl::MutexLock lock(&mutex_);
    return counts_;
  }

 private:
  // One stream. It owns itself until gRPC has done with it.
  class Attempt final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
   public:
    explicit Attempt(std::shared_ptr<Impl> link) : link_(std::move(link)) {
      context_.AddMetadata(kEpochKey, std::to_string(link_->options_.epoch));
      context_.AddMetadata(kFromKey, std::to_string(link_->options_.from));
      context_.set_wait_for_ready(false);
      link_->stub_.PrepareBidiStreamingCall(&context_, kActivationMethod, {}, this);
      AddHold();             // writes start on other threads
      StartRead(&nothing_);  // ends when the stream does
      StartCall();
    }
    void Cancel() { context_.TryCancel(); }
    void Write(ActivationMessage activation) {
      writing_ = ToBuffer(std::move(activation));
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
      if (ok) return Cancel(), StartRead(&nothing_);  // nothing is ever sent this way
      link_->OnBroken();
      RemoveHold();
    }
    void OnDone(const grpc::Status& status) override {
      const std::shared_ptr<Impl> link = std::move(link_);
      link->OnAttemptDone(status);
      delete this;
    }

    std::shared_ptr<Impl> link_;
    grpc::ClientContext context_;
    grpc::ByteBuffer writing_, nothing_;
  };

  void Connect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    broken_ = false;
    attempt_ = new Attempt(shared_from_this());
  }

  // Nothing may be started on the stream from now on.
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
    if (options_.trace != nullptr) on_its_way_.end_ms = SteadyMs(), options_.trace->Add(on_its_way_);
    MayWrite();
  }

  void MayWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!open_ || writing_ || broken_ || lost_ || closed_ || attempt_ == nullptr || queue_.empty()) return;
    writing_ = true;
    ActivationMessage next = std::move(queue_.front());
    queue_.pop_front();
    queued_bytes_ -= static_cast<Bytes>(next.payload.size() + kActivationHeaderBytes);
    if (options_.trace != nullptr) on_its_way_ = SpanOf(next.header);
    attempt_->Write(std::move(next));
  }

  // Of a message that is handed to the connection now; it ends when the connection has it.
  TimelineSpan SpanOf(const ActivationHeader& header) const {
    return {.kind = TimelineSpan::Kind::kSend,
            .begin_ms = SteadyMs(),
            .step = static_cast<int32_t>(header.step),
            .stage = header.stage,
            .microbatch = header.microbatch,
            .peer = options_.to};
  }

  void OnAttemptDone(const grpc::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      attempt_ = nullptr;
      if (closed_ || lost_) return;
      if (!open_ && MayPass(status.error_code()) && absl::Now() < give_up_) return Retry();
    }
    Lose(status.ok() ? absl::UnavailableError("it has closed the link") : FromGrpc(status, "the link"));
  }

  // The alarm keeps what it calls until it is set again: a strong pointer there would keep the link alive for ever. Close waits for it.
  void Retry() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    waiting_ = true;
    alarm_.Set(absl::ToChronoTime(absl::Now() + kRetry), [weak = weak_from_this()](bool) {
      const std::shared_ptr<Impl> self = weak.lock();
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
      ++telling_;
      if (attempt_ != nullptr) attempt_->Cancel();
    }
    if (options_.lost) {
      options_.lost(absl::UnavailableError(absl::StrCat("device \"", options_.peer, "\" at ", options_.address, ": ", why.message())));
    }
    absl::MutexLock lock(&mutex_);
    --telling_;
  }

  const Options options_;
  grpc::GenericStub stub_;
  const absl::Time give_up_;
  mutable absl::Mutex mutex_;
  Attempt* attempt_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;  // for the alarm
  int telling_ ABSL_GUARDED_BY(mutex_) = 0;       // `lost` is being called
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;  // the attempt at hand
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<ActivationMessage> queue_ ABSL_GUARDED_BY(mutex_);
  Bytes queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Counts counts_ ABSL_GUARDED_BY(mutex_);
  TimelineSpan on_its_way_ ABSL_GUARDED_BY(mutex_);  // of the message being written, where there is a trace
  grpc::Alarm alarm_;
};

ActivationLink::ActivationLink(Options options) : impl_(std::make_shared<Impl>(std::move(options))) {
  impl_->Start();
}
ActivationLink::~ActivationLink() {
  impl_->Close();
}
void ActivationLink::Send(ActivationMessage activation) {
  impl_->Send(std::move(activation));
}
ActivationLink::Counts ActivationLink::sent() const {
  return impl_->sent();
}

}  // namespace lime
