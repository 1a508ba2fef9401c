#include "daemon/rpc/activation_service.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/steady_clock.h"
#include "daemon/rpc/activation_wire.h"
#include "proto/grpc_status.h"

namespace lime {
namespace {

// Ends the call with a status.
class Refusal final : public grpc::ServerGenericBidiReactor {
 public:
  explicit Refusal(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

// Reads one message after another. Answers with the arrival times of messages that ask for it; one
// answer has several times if messages arrive faster than answers go out. No message waits for an
// answer.
class Stream final : public grpc::ServerGenericBidiReactor {
 public:
  Stream(std::shared_ptr<StageSession> session, int32_t from, const DeviceLog& log) : session_(std::move(session)), from_(from), log_(log) {
    StartSendInitialMetadata();  // tells the sender that it is accepted
    StartRead(&buffer_);
  }

 private:
  void OnReadDone(bool ok) override {
    const int64_t arrived_us = SteadyUs();
    if (!ok) return End(absl::OkStatus());
    absl::StatusOr<ActivationMessage> activation = FromBuffer(buffer_);
    buffer_.Clear();
    const bool answered = activation.ok() && activation->header.answered;
    absl::Status status = activation.ok() ? session_->OnActivation(from_, *std::move(activation)) : activation.status();
    if (status.ok() && answered) status = Note(arrived_us);
    if (status.ok()) {
      // A later answer is recorded after this one.
      StartRead(&buffer_);
      absl::MutexLock lock(&mutex_);
      return Answer();
    }
    if (log_)
      log_(absl::StrCat("epoch ", session_->epoch(), ": refuses an activation of device \"", session_->plan().devices[from_].name,
                        "\": ", status.message()));
    End(status);
  }
  absl::Status Note(int64_t arrived_us) {
    absl::MutexLock lock(&mutex_);
    if (arrived_us_.size() >= kMostArrivals) return absl::ResourceExhaustedError("it does not read the answers to its messages");
    arrived_us_.push_back(arrived_us);
    return absl::OkStatus();
  }
  void Answer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || ending_ || arrived_us_.empty()) return;
    writing_ = true;
    answer_ = ToBuffer(arrived_us_);
    arrived_us_.clear();
    StartWrite(&answer_);
  }
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) arrived_us_.clear();
    if (ending_) return Finish(ToGrpc(end_));
    Answer();
  }
  // Call once. An answer that is being written goes out first.
  void End(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
    end_ = status;
    if (!writing_) Finish(ToGrpc(end_));
  }
  void OnDone() override { delete this; }

  const std::shared_ptr<StageSession> session_;
  const int32_t from_;
  const DeviceLog log_;
  grpc::ByteBuffer buffer_;

  absl::Mutex mutex_;
  std::vector<int64_t> arrived_us_ ABSL_GUARDED_BY(mutex_);  // not answered yet
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ByteBuffer answer_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<int64_t> Number(const grpc::CallbackServerContext& context, const char* key) {
  const auto& metadata = context.client_metadata();
  const auto [begin, end] = metadata.equal_range(key);
  int64_t value = 0;
  if (begin == end || std::next(begin) != end || !absl::SimpleAtoi(absl::string_view(begin->second.data(), begin->second.size()), &value))
    return Invalid("a stream of activations must name its ", key, " once, as a number");
  return value;
}

// If the cluster has keys, the sender's certificate must name the device that it speaks for.
bool Is(const std::string& device, const grpc::CallbackServerContext& context) {
  const std::shared_ptr<const grpc::AuthContext> who = context.auth_context();
  if (!who->IsPeerAuthenticated()) return true;
  return std::ranges::any_of(who->GetPeerIdentity(), [&](const grpc::string_ref& name) { return name == device; });
}

}  // namespace

grpc::ServerGenericBidiReactor* ActivationService::CreateReactor(grpc::GenericCallbackServerContext* context) {
  if (context->method() != kActivationMethod) return new Refusal(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "no such method"));
  const absl::StatusOr<int64_t> epoch = Number(*context, kEpochKey), from = Number(*context, kFromKey);
  if (!epoch.ok()) return new Refusal(ToGrpc(epoch.status()));
  if (!from.ok()) return new Refusal(ToGrpc(from.status()));
  absl::StatusOr<std::shared_ptr<StageSession>> session = plans_.Find(*epoch);
  if (!session.ok()) return new Refusal(ToGrpc(session.status()));
  if (*from < 0 || *from >= (*session)->plan().NumDevices())
    return new Refusal(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, absl::StrCat("the plan has no device ", *from)));
  if (const std::string& device = (*session)->plan().devices[*from].name; !Is(device, *context)) {
    return new Refusal(grpc::Status(grpc::StatusCode::PERMISSION_DENIED, absl::StrCat("the sender is not device \"", device, "\"")));
  }
  return new Stream(*std::move(session), static_cast<int32_t>(*from), log_);
}

}  // namespace lime
