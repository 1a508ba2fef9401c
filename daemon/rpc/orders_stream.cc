#include "daemon/rpc/orders_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace lime {

std::shared_ptr<OrdersStream> OrdersStream::Begin(PlanKeeper& keeper, grpc::CallbackServerContext& context, const Options& options) {
  std::shared_ptr<OrdersStream> stream = Own(new OrdersStream(keeper, context, options));
  stream->StartRead(&stream->reading_);
  return stream;
}

void OrdersStream::OnReadDone(bool ok) {
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

absl::Status OrdersStream::OnMessage(const FromCoordinator& what) {
  if (const auto* open = std::get_if<OpenOrders>(&what)) return OnOpen(open->epoch);
  if (session_ == nullptr) return absl::FailedPreconditionError("the first message of a stream of orders names the plan's epoch");
  if (const auto* order = std::get_if<OrderMessage>(&what)) return session_->OnOrder(*order);
  return absl::OkStatus();
}

absl::Status OrdersStream::OnOpen(int64_t epoch) {
  if (session_ != nullptr) return absl::FailedPreconditionError("the stream of orders is open already");
  LIME_ASSIGN_OR_RETURN(session_, keeper_.Use(epoch, [weak = weak_from_this()](const FromDevice& what) {
    if (const auto stream = weak.lock()) stream->Say(what);
  }));
  Say(Opened{});
  absl::MutexLock lock(&mutex_);
  open_ = true;
  return absl::OkStatus();
}

// A failure is the last thing that is said.
void OrdersStream::Say(const FromDevice& what) {
  absl::MutexLock lock(&mutex_);
  if (ending_) return;
  if (queue_.size() >= options_.queued) return EndWith(absl::ResourceExhaustedError("the coordinator does not take what it is told"));
  v1::OrderEvent event;
  ToProto(what, event);
  said_ = absl::Now();
  Queue(std::move(event));
  if (const auto* failed = std::get_if<FailedNews>(&what)) EndWith(failed->status);
}

void OrdersStream::End(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  EndWith(status);
}

void OrdersStream::OnDone() {
  std::string why;
  {
    absl::MutexLock lock(&mutex_);
    why = !end_.ok() ? std::string(end_.message()) : cancelled_ ? "the coordinator has gone" : "it has come to its end";
  }
  if (session_ != nullptr) keeper_.Leave(session_, why);
  EventStream::OnDone();
}

void OrdersStream::Tick(absl::Time now) {
  {
    absl::MutexLock lock(&mutex_);
    if (ending_) return;
    if (now - heard_ > options_.silence) {
      context_.TryCancel();
      return EndWith(
          absl::DeadlineExceededError(absl::StrCat("its coordinator has said nothing for ", absl::FormatDuration(now - heard_))));
    }
    if (!open_ || now - said_ < options_.beat) return;
  }
  Say(Alive{});
}

}  // namespace lime
