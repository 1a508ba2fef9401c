// The coordinator's stream to this device: orders in, news out. Both sides send something at
// regular intervals, so that a lost peer is noticed.
//
// Threads: any. gRPC owns the stream from Begin to its end; others hold weak pointers.
#pragma once

#include <xxhash.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/answer_masks/vocabulary_bytes.h"
#include "daemon/rpc/device_server.h"
#include "daemon/rpc/event_stream.h"
#include "daemon/rpc/vocabulary_keeper.h"
#include "lime/v1/control.grpc.pb.h"

namespace lime {

class OrdersStream final : public EventStream<grpc::ServerBidiReactor<v1::OrderRequest, v1::OrderEvent>, v1::OrderEvent>,
                           public std::enable_shared_from_this<OrdersStream> {
 public:
  using Options = OrdersOptions;
  // The reactor of a new call.
  static std::shared_ptr<OrdersStream> Begin(PlanInstallation& plans, VocabularyKeeper& vocabularies, grpc::CallbackServerContext& context,
                                             const Options& options) {
    std::shared_ptr<OrdersStream> stream = Own(new OrdersStream(plans, vocabularies, context, options));
    stream->StartRead(&stream->reading_);
    return stream;
  }

  void Tick(absl::Time now) {
    {
      absl::MutexLock lock(&mutex_);
      if (ending_) return;
      if (now - heard_ > options_.silence) {
        context_.TryCancel();
        return EndWith(
            absl::DeadlineExceededError(absl::StrCat("its coordinator has sent nothing for ", absl::FormatDuration(now - heard_))));
      }
      if (!open_ || now - said_ < options_.beat) return;
    }
    Say(Alive{});
  }

 private:
  OrdersStream(PlanInstallation& plans, VocabularyKeeper& vocabularies, grpc::CallbackServerContext& context, const Options& options)
      : plans_(plans), vocabularies_(vocabularies), context_(context), options_(options), heard_(absl::Now()), said_(heard_) {}

  void OnReadDone(bool ok) override {
    if (!ok) return End(absl::OkStatus());
    {
      absl::MutexLock lock(&mutex_);
      heard_ = absl::Now();
    }
    const absl::StatusOr<FromCoordinator> what = FromProto(reading_);
    const absl::Status status = what.ok() ? OnMessage(*what) : what.status();
    if (!status.ok()) return End(status);
    StartRead(&reading_);
  }

  void OnDone() override {
    std::string why;
    bool ended = false;
    {
      absl::MutexLock lock(&mutex_);
      ended = end_.ok() && !cancelled_;
      why = !end_.ok() ? std::string(end_.message()) : cancelled_ ? "the coordinator has gone" : "the run has ended";
    }
    if (session_ != nullptr) plans_.OnUserGone(session_, why, ended);
    EventStream::OnDone();
  }

  absl::Status OnMessage(const FromCoordinator& what) {
    if (const auto* open = std::get_if<OpenOrders>(&what)) return OnOpen(*open);
    if (session_ == nullptr) return absl::FailedPreconditionError("the first message of a stream of orders must name the plan's epoch");
    if (const auto* order = std::get_if<OrderMessage>(&what)) return session_->OnOrder(*order);
    if (const auto* part = std::get_if<VocabularyPart>(&what)) return OnVocabulary(*part);
    return absl::OkStatus();
  }

  // The first parts wait here.
  absl::Status OnVocabulary(const VocabularyPart& part) {
    if (vocabulary_digest_ == 0) return absl::FailedPreconditionError("a part of a vocabulary came, but none was announced or needed");
    if (vocabulary_.size() + part.data.size() > static_cast<size_t>(part.total))
      return absl::InvalidArgumentError("a vocabulary is longer than its coordinator said");
    vocabulary_ += part.data;
    if (vocabulary_.size() < static_cast<size_t>(part.total)) return absl::OkStatus();
    const uint64_t digest = std::exchange(vocabulary_digest_, 0);
    const std::string whole = std::exchange(vocabulary_, {});
    if (XXH3_64bits(whole.data(), whole.size()) != digest) return absl::DataLossError("a vocabulary has arrived damaged");
    LIME_ASSIGN_OR_RETURN(json_schema::VocabularyPtr vocabulary, json_schema::ParseVocabularyBytes(whole));
    session_->UseVocabulary(vocabulary);
    vocabularies_.Keep(digest, std::move(vocabulary));
    return absl::OkStatus();
  }

  absl::Status OnOpen(const OpenOrders& open) {
    if (session_ != nullptr) return absl::FailedPreconditionError("the stream of orders is open already");
    LIME_ASSIGN_OR_RETURN(session_, plans_.Use(open.epoch, [weak = weak_from_this()](const FromDevice& what) {
      if (const auto stream = weak.lock()) stream->Say(what);
    }));
    const json_schema::VocabularyPtr vocabulary = vocabularies_.Find(open.vocabulary);
    if (vocabulary != nullptr) session_->UseVocabulary(vocabulary);
    if (vocabulary == nullptr && session_->Samples()) vocabulary_digest_ = open.vocabulary;
    Say(Opened{.wants_vocabulary = vocabulary_digest_ != 0});
    absl::MutexLock lock(&mutex_);
    open_ = true;
    return absl::OkStatus();
  }

  // A failure ends the stream: nothing is sent after it.
  void Say(const FromDevice& what) {
    absl::MutexLock lock(&mutex_);
    if (ending_) return;
    if (queue_.size() >= options_.queued)
      return EndWith(absl::ResourceExhaustedError("the coordinator does not read the messages of this device"));
    v1::OrderEvent event;
    ToProto(what, event);
    said_ = absl::Now();
    Queue(std::move(event));
    if (const auto* failed = std::get_if<FailedNews>(&what)) EndWith(failed->status);
  }

  void End(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    EndWith(status);
  }

  PlanInstallation& plans_;
  VocabularyKeeper& vocabularies_;
  grpc::CallbackServerContext& context_;
  const Options options_;
  // Buffer of the one read at a time.
  v1::OrderRequest reading_;
  // Set by the first message; used by reads only.
  std::shared_ptr<StageSession> session_;
  // Of the vocabulary that is on its way; 0: none. Used by reads only.
  uint64_t vocabulary_digest_ = 0;
  std::string vocabulary_;  // its first bytes

  absl::Time heard_ ABSL_GUARDED_BY(mutex_), said_ ABSL_GUARDED_BY(mutex_);
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lime
