#include "coordinator/rpc/push_blocks.h"

#include <grpcpp/channel.h>
#include <xxhash.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "lime/v1/bulk.grpc.pb.h"
#include "proto/channel.h"
#include "proto/convert/bulk_convert.h"
#include "proto/diagnosis/prober.h"
#include "proto/grpc_status.h"

namespace lime {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(100);
constexpr absl::Duration kRetry = absl::Milliseconds(500);

// One connection of a push. The owner's thread sends, a second one reads the device's messages, a
// third one watches the time.
class PushCall {
 public:
  PushCall(const StoreSource& source, const PushTarget& target, const PushOptions& options, PushState& state)
      : source_(source), target_(target), options_(options), state_(state) {}

  absl::Status Run(v1::Bulk::Stub& stub, const std::vector<PushUnit>& units, const StoreOffer& offer) {
    context_.set_wait_for_ready(false);
    stream_ = stub.Push(&context_);
    std::thread watch([this] { Watch(); });
    v1::PushRequest request;
    ToProto(offer, request);
    absl::Status status = stream_->Write(request) ? AwaitMissing(units) : Broken();
    if (status.ok()) {
      std::thread listen([this] { Listen(); });
      status = SendAll();
      if (!status.ok() && !broken_) context_.TryCancel();
      listen.join();
    } else if (!broken_) {
      context_.TryCancel();
    }
    absl::Status end = FromGrpc(stream_->Finish(), Who());
    {
      absl::MutexLock lock(&mutex_);
      over_ = true;
    }
    watch.join();
    return Reason(status, end);
  }

 private:
  std::string Who() const { return absl::StrCat("device \"", target_.name, "\" at ", target_.address); }
  // After a break there is nothing to cancel. The status of the call says why.
  absl::Status Broken() {
    broken_ = true;
    return absl::UnavailableError(absl::StrCat(Who(), " has broken the connection"));
  }
  bool interrupted() const { return options_.cancelled != nullptr && options_.cancelled->load(); }

  // Prefers the device's own reason for a refusal over the end of the stream.
  absl::Status Reason(const absl::Status& status, const absl::Status& end) {
    absl::MutexLock lock(&mutex_);
    if (interrupted() && !complete_)
      return absl::CancelledError(absl::StrCat("pushing to ", Who(), " was interrupted; the same command continues where it stopped"));
    if (silent_) return absl::UnavailableError(absl::StrCat(Who(), " has sent nothing for ", absl::FormatDuration(options_.silence)));
    if (!said_.ok()) return said_;
    if (!end.ok() && !absl::IsCancelled(end)) return end;
    return status;
  }

  // ---- Before the first chunk

  absl::Status AwaitMissing(const std::vector<PushUnit>& units) {
    v1::PushEvent message;
    while (stream_->Read(&message)) {
      Heard();
      LIME_ASSIGN_OR_RETURN(const PushEvent event, FromProto(message));
      if (const auto* looking = std::get_if<PushLooking>(&event)) {
        state_.looked = looking->done, state_.to_look = looking->total;
        Report();
      } else if (const auto* missing = std::get_if<PushMissing>(&event)) {
        return QueueMissing(missing->units, units);
      } else {
        return absl::InternalError(absl::StrCat(Who(), " answered an offer with another message; run the same release everywhere"));
      }
    }
    return Broken();
  }

  absl::Status QueueMissing(const std::vector<int32_t>& missing, const std::vector<PushUnit>& units) {
    std::vector<Bytes> sizes;
    Bytes bytes = 0;
    for (const int32_t index : missing) {
      if (index >= static_cast<int32_t>(units.size()))
        return absl::InternalError(absl::StrCat(Who(), " lacks piece ", index, " of ", units.size(), "; run the same release everywhere"));
      units_.push_back(units[static_cast<size_t>(index)]);
      sizes.push_back(units_.back().bytes);
      bytes += sizes.back();
    }
    state_.looked = state_.to_look;
    if (state_.missing == 0) state_.missing = bytes;
    before_ = std::max<Bytes>(0, state_.missing - bytes);
    absl::MutexLock lock(&mutex_);
    sender_.emplace(sizes, options_.stream);
    return absl::OkStatus();
  }

  // ---- The thread that sends

  absl::Status SendAll() {
    const absl::Time begin = absl::Now();
    v1::PushRequest request;
    while (true) {
      const absl::StatusOr<std::optional<PushSender::Chunk>> chunk = AwaitChunk();
      if (!chunk.ok() || !*chunk) {
        absl::MutexLock lock(&mutex_);
        state_.send_seconds += absl::ToDoubleSeconds(absl::Now() - begin);
        return chunk.status();
      }
      LIME_RETURN_IF_ERROR(Fill(**chunk, request));
      if (!stream_->Write(request)) return Broken();
    }
  }

  // nullopt: the device has everything.
  absl::StatusOr<std::optional<PushSender::Chunk>> AwaitChunk() {
    absl::MutexLock lock(&mutex_);
    while (true) {
      LIME_RETURN_IF_ERROR(said_);
      if (complete_) return std::nullopt;
      if (ended_) return Broken();
      if (std::optional<PushSender::Chunk> chunk = sender_->Next()) {
        state_.sent += chunk->bytes;
        return chunk;
      }
      changed_.Wait(&mutex_);
    }
  }

  absl::Status Fill(const PushSender::Chunk& chunk, v1::PushRequest& request) const {
    const PushUnit& unit = units_[chunk.unit];
    std::string data(static_cast<size_t>(chunk.bytes), '\0');
    LIME_RETURN_IF_ERROR(source_.Read(unit.file, unit.offset + chunk.offset, std::as_writable_bytes(std::span(data))));
    const uint64_t xxh3 = XXH3_64bits(data.data(), data.size());
    if (options_.spoil) options_.spoil(chunk, data);
    ToProto(PushChunk{.position = chunk.position, .data = std::move(data), .xxh3 = xxh3}, request);
    return absl::OkStatus();
  }

  // ---- The thread that reads

  void Listen() {
    v1::PushEvent message;
    while (stream_->Read(&message)) {
      Heard();
      const absl::StatusOr<PushEvent> event = FromProto(message);
      const absl::Status status = event.ok() ? OnEvent(*event) : event.status();
      if (status.ok()) continue;
      absl::MutexLock lock(&mutex_);
      said_ = absl::Status(status.code(), absl::StrCat(Who(), ": ", status.message()));
      context_.TryCancel();
      break;
    }
    while (stream_->Read(&message)) {
    }
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    changed_.SignalAll();
  }

  absl::Status OnEvent(const PushEvent& event) {
    {
      absl::MutexLock lock(&mutex_);
      if (const auto* stored = std::get_if<PushStored>(&event)) {
        LIME_RETURN_IF_ERROR(sender_->OnStored(stored->position));
      } else if (const auto* again = std::get_if<PushAgain>(&event)) {
        LIME_RETURN_IF_ERROR(sender_->OnAgain(again->position));
      } else if (std::holds_alternative<PushComplete>(event)) {
        if (!sender_->done()) return absl::InternalError("reports a complete push before all data was sent");
        complete_ = true;
      } else {
        return absl::InternalError("reports a check of its blocks while it receives data");
      }
      state_.stored = before_ + sender_->stored();
      changed_.SignalAll();
    }
    Report();
    return absl::OkStatus();
  }

  void Report() {
    PushState state;
    {
      absl::MutexLock lock(&mutex_);
      state = state_;
    }
    if (options_.progress) options_.progress(state);
  }

  // ---- The thread that looks at the clock

  void Heard() {
    absl::MutexLock lock(&mutex_);
    heard_ = absl::Now();
  }

  void Watch() {
    absl::MutexLock lock(&mutex_);
    while (!mutex_.AwaitWithTimeout(absl::Condition(&over_), kPoll)) {
      silent_ = silent_ || absl::Now() - heard_ > options_.silence;
      if (silent_ || interrupted()) context_.TryCancel();
    }
  }

  const StoreSource& source_;
  const PushTarget& target_;
  const PushOptions& options_;
  PushState& state_;
  std::vector<PushUnit> units_;  // that the device lacks
  bool broken_ = false;          // owner's thread only
  Bytes before_ = 0;             // missing bytes that earlier connections sent
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::PushRequest, v1::PushEvent>> stream_;

  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::optional<PushSender> sender_ ABSL_GUARDED_BY(mutex_);
  absl::Time heard_ ABSL_GUARDED_BY(mutex_) = absl::Now();
  absl::Status said_ ABSL_GUARDED_BY(mutex_);  // the fault in the device's messages
  bool complete_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool silent_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

// Whether to try again: the connection broke, or another push is under way.
bool MayPass(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status) || absl::IsDeadlineExceeded(status);
}

ProbeTarget ProbeTargetOf(const PushTarget& target, const PushOptions& options) {
  return {.name = target.name, .address = target.address, .keys = options.keys, .start = target.start};
}

bool HasAnswered(const PushState& state) {
  return state.missing > 0 || state.to_look > 0;
}

// Why waiting for the device cannot help. OK: it may help.
absl::Status LastingFault(const PushTarget& target, const PushOptions& options, const PushState& state) {
  const ProbeTarget probe = ProbeTargetOf(target, options);
  const Diagnosis diagnosis = FindFault(probe);
  return diagnosis.lasts(/*expected=*/HasAnswered(state)) ? diagnosis.ToStatus(probe) : absl::OkStatus();
}

// A device that has never answered probably does not run, so it gets less time than a lost one.
absl::Duration PatienceWith(const absl::Status& status, const PushState& state, const PushOptions& options) {
  constexpr absl::Duration kFirst = absl::Seconds(5);
  const bool never = absl::IsUnavailable(status) && !HasAnswered(state);
  return never ? std::min(kFirst, options.patience) : options.patience;
}

absl::Status ErrorAfterPatience(const absl::Status& status, const PushTarget& target, const PushOptions& options) {
  if (!absl::IsUnavailable(status)) return status;
  const ProbeTarget probe = ProbeTargetOf(target, options);
  const absl::Status fault = FindFault(probe).ToStatus(probe);  // OK: the call ended for another reason
  const absl::Status& why = fault.ok() ? status : fault;
  return absl::UnavailableError(absl::StrCat(why.message(), ". The same command continues where this one stopped"));
}

}  // namespace

absl::StatusOr<PushState> PushBlocks(const StoreSource& source, const PushTarget& target, const PushOptions& options) {
  LIME_ASSIGN_OR_RETURN(const std::vector<PushUnit> units, CutIntoUnits(source.manifest(), target.blocks));
  StoreOffer offer = source.OfferOf(target.blocks, options.check);
  PushState state;
  for (const PushUnit& unit : units) state.needed += unit.bytes;
  const auto stub = v1::Bulk::NewStub(OpenChannel(target.address, target.name, options.keys, ChannelUse::kBulk));
  absl::Time last_progress = absl::Now();
  while (true) {
    const Bytes before = state.stored;
    const absl::Status status = PushCall(source, target, options, state).Run(*stub, units, offer);
    if (status.ok()) return state;
    if (state.stored > before) last_progress = absl::Now();
    if (!MayPass(status)) return status;
    if (absl::Now() - last_progress > PatienceWith(status, state, options)) return ErrorAfterPatience(status, target, options);
    if (absl::IsUnavailable(status)) {
      ++state.breaks;
      LIME_RETURN_IF_ERROR(LastingFault(target, options, state));
    }
    if (state.missing > 0) offer.check = false;  // the device has checked once
    absl::SleepFor(kRetry);
    if (options.cancelled != nullptr && options.cancelled->load()) return status;
  }
}

}  // namespace lime
