#include "coordinator/rpc/orders_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/grpc_status.h"

namespace lime {

OrdersCall::OrdersCall(v1::Control::Stub& stub, Options options) : options_(std::move(options)), heard_(absl::Now()), said_(heard_) {
  stub.async()->Orders(&context_, this);
  AddHold();  // writes start on other threads
  StartRead(&reading_);
  StartCall();
  v1::OrderRequest open;
  ToProto(options_.open, open);
  Send(open);
}

OrdersCall::~OrdersCall() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  context_.TryCancel();
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&done_));
}

void OrdersCall::Send(const v1::OrderRequest& request) {
  absl::MutexLock lock(&mutex_);
  if (broken_ || ending_) return;
  queue_.push_back(request);
  said_ = absl::Now();
  Write();
}

void OrdersCall::Write() {
  if (writing_ || broken_) return;
  if (!queue_.empty()) {
    writing_ = true;
    StartWrite(&queue_.front());
  } else if (ending_ && !std::exchange(ended_, true)) {
    StartWritesDone();
  }
}

void OrdersCall::End() {
  absl::MutexLock lock(&mutex_);
  closing_ = ending_ = true;
  Write();
}

bool OrdersCall::AwaitEnd(absl::Time until) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithDeadline(absl::Condition(&done_), until);
}

void OrdersCall::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  queue_.pop_front();
  if (ok) Write();
}

void OrdersCall::OnReadDone(bool ok) {
  if (!ok) {
    {
      absl::MutexLock lock(&mutex_);
      broken_ = true;
    }
    return RemoveHold();
  }
  {
    absl::MutexLock lock(&mutex_);
    heard_ = absl::Now();
  }
  absl::StatusOr<FromDevice> what = FromProto(reading_);
  if (!what.ok()) {
    Post(FailedNews{what.status()});
    context_.TryCancel();
  } else if (!std::holds_alternative<Alive>(*what)) {
    Post(*std::move(what));
  }
  StartRead(&reading_);
}

void OrdersCall::OnDone(const grpc::Status& status) {
  bool silent = false;
  {
    absl::MutexLock lock(&mutex_);
    silent = silent_;
  }
  if (silent) {
    Post(FailedNews{absl::UnavailableError(absl::StrCat("it has sent nothing for ", absl::FormatDuration(options_.silence)))});
  } else {
    Post(FailedNews{status.ok() ? absl::UnavailableError("it has ended the stream of orders") : FromGrpc(status, "its stream of orders")});
  }
  absl::MutexLock lock(&mutex_);
  done_ = true;
}

void OrdersCall::Post(FromDevice what) {
  if (failure_delivered_) return;
  if (auto* failed = std::get_if<FailedNews>(&what)) {
    failure_delivered_ = true;
    failed->status = absl::Status(failed->status.code(), absl::StrCat("device \"", options_.device, "\": ", failed->status.message()));
  }
  {
    absl::MutexLock lock(&mutex_);
    if (closing_) return;
  }
  options_.news(what);
}

void OrdersCall::Tick(absl::Time now) {
  bool beat = false;
  {
    absl::MutexLock lock(&mutex_);
    if (broken_ || done_) return;
    if (now - heard_ > options_.silence) {
      silent_ = true;
      context_.TryCancel();
      return;
    }
    beat = now - said_ > options_.beat;
  }
  v1::OrderRequest alive;
  ToProto(Alive{}, alive);
  if (beat) Send(alive);
}

}  // namespace lime
