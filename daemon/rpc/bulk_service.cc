#include "daemon/rpc/bulk_service.h"

#include <xxhash.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "daemon/engine/process_memory.h"
#include "daemon/formats/held_blocks.h"
#include "daemon/kv/kv_handover.h"
#include "daemon/logic/push_stream.h"
#include "daemon/machine/worker_thread.h"
#include "daemon/rpc/event_stream.h"
#include "daemon/stores/neuron_files.h"
#include "daemon/stores/pushed_models.h"
#include "daemon/stores/pushed_store.h"
#include "proto/convert/bulk_convert.h"
#include "proto/convert/convert.h"
#include "proto/convert/kv_convert.h"

namespace lime {
namespace {

constexpr absl::Duration kLookingEvery = absl::Milliseconds(200);

// One push as its worker sees it: it reads messages one by one and sends events. gRPC's threads
// only pass them on.
//
// Threads: Read, Say and End on the worker; Tick and Cancel on any; the rest on gRPC's, which owns
// the stream until it has ended.
class BulkStream final : public EventStream<grpc::ServerBidiReactor<v1::PushRequest, v1::PushEvent>, v1::PushEvent> {
 public:
  static std::shared_ptr<BulkStream> Begin(grpc::CallbackServerContext& context) { return Own(new BulkStream(context)); }

  // Waits for the next message. None: the caller has gone, or was given up.
  std::optional<v1::PushRequest> Read() {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) return std::nullopt;
    reading_ = Reading::kWait;
    waits_since_ = absl::Now();
    StartRead(&request_);
    mutex_.Await(absl::Condition(
        +[](BulkStream* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mutex_) { return self->reading_ != Reading::kWait; }, this));
    waits_since_ = absl::InfiniteFuture();
    if (reading_ == Reading::kOver) return std::nullopt;
    reading_ = Reading::kNo;
    return std::move(request_);
  }

  // Waits while too many events are queued: a caller that takes no events is not read from either.
  void Say(const PushEvent& event) {
    absl::MutexLock lock(&mutex_);
    waits_since_ = absl::Now();
    mutex_.Await(absl::Condition(
        +[](BulkStream* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mutex_) { return self->cancelled_ || self->queue_.size() < kMaxQueued; },
        this));
    waits_since_ = absl::InfiniteFuture();
    v1::PushEvent message;
    ToProto(event, message);
    Queue(std::move(message));
  }

  // Ends the stream after all queued events. Called once: by the worker, or when a push is refused.
  void End(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    EndWith(status);
  }

  bool cancelled() const {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }

  void Cancel() {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    if (!finished_) context_.TryCancel();
  }

  // Gives up the caller if the worker has waited for it longer than `silence`.
  void Tick(absl::Time now, absl::Duration silence) {
    {
      absl::MutexLock lock(&mutex_);
      if (now - waits_since_ < silence) return;
    }
    Cancel();
  }

 private:
  static constexpr size_t kMaxQueued = 64;
  explicit BulkStream(grpc::CallbackServerContext& context) : context_(context) {}

  void OnReadDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    reading_ = ok ? Reading::kHere : Reading::kOver;
  }

  enum class Reading : uint8_t {
    kNo,    // the worker does not read
    kWait,  // a read was started
    kHere,  // a message has arrived
    kOver,  // no message will follow
  };

  grpc::CallbackServerContext& context_;
  v1::PushRequest request_;  // of the one read at a time
  Reading reading_ ABSL_GUARDED_BY(mutex_) = Reading::kNo;
  // Since when the worker has waited for the caller.
  absl::Time waits_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

// Sends KV that a plan has left here to the device that owns it now, run by run, as fast as that
// device takes it.
//
// Threads: gRPC's, which owns the stream until it has ended, and a worker that may wait for the
// disk; one after the other.
class KvPagesStream final : public grpc::ServerWriteReactor<v1::KvPages> {
 public:
  // Deletes itself at its end. `worker` reads the KV and outlives the stream.
  static KvPagesStream* Begin(const std::shared_ptr<KvHandover>& handover, const KvReadCall& call, WorkerThread& worker) {
    if (const absl::Status refused = Check(*handover, call); !refused.ok()) return Refuse(refused);
    auto* const stream = new KvPagesStream(handover, call, &worker);
    worker.Post([stream] { stream->Next(); });
    return stream;
  }

  static KvPagesStream* Refuse(const absl::Status& why) {
    auto* const stream = new KvPagesStream({}, {}, nullptr);
    stream->Finish(ToGrpc(why));
    return stream;
  }

 private:
  KvPagesStream(std::weak_ptr<KvHandover> handover, KvReadCall call, WorkerThread* worker)
      : handover_(std::move(handover)), call_(std::move(call)), worker_(worker) {}

  static absl::Status Check(const KvHandover& handover, const KvReadCall& call) {
    if (call.numerics_id != handover.numerics_id())
      return absl::FailedPreconditionError(absl::StrCat("this KV was computed by kernels of order ", handover.numerics_id(),
                                                        ", but the device that asks for it has kernels of order ", call.numerics_id));
    if (call.page_bytes != handover.page_bytes())
      return Invalid("pages of KV have ", handover.page_bytes(), " bytes here, not ", call.page_bytes);
    return absl::OkStatus();
  }

  // Thread: the worker.
  void Next() {
    absl::Status status = absl::FailedPreconditionError("the KV is gone: another plan was installed");
    const bool all = extent_ == call_.extents.size();
    if (const std::shared_ptr<KvHandover> handover = handover_.lock(); handover != nullptr) {
      status = all ? absl::OkStatus() : Fill(*handover);
      if (all) handover->ReadDone(call_.layer, call_.hosts);
      handover->Reading();
    }
    if (all || !status.ok()) return Finish(ToGrpc(status));
    StartWrite(&message_);
  }

  absl::Status Fill(const KvHandover& handover) {
    const KvExtent& extent = call_.extents[extent_];
    page_ = std::max(page_, extent.first);
    const int64_t run = KvHandover::RunAt(page_, extent.end, call_.page_bytes);
    if (!reader_) reader_.emplace(handover, call_.layer, call_.hosts, extent);
    LIME_ASSIGN_OR_RETURN(const std::span<const std::byte> pages, reader_->Pages(page_, run));
    ToProto(KvPagesRead{.sequence = extent.sequence,
                        .first = page_,
                        .data = std::string(reinterpret_cast<const char*>(pages.data()), pages.size()),
                        .xxh3 = XXH3_64bits(pages.data(), pages.size())},
            message_);
    page_ += run;
    if (page_ == extent.end) ++extent_, page_ = 0, reader_.reset();
    return absl::OkStatus();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    worker_->Post([this] { Next(); });
  }

  void OnDone() override { delete this; }

  // PlanInstallation holds it. A lost reader does not keep pages in memory.
  const std::weak_ptr<KvHandover> handover_;
  const KvReadCall call_;
  WorkerThread* const worker_;
  // Reads the current extent; keeps the piece that it has read.
  std::optional<KvHandover::Reader> reader_;
  size_t extent_ = 0;  // index into call_.extents
  int64_t page_ = 0;   // its next page
  v1::KvPages message_;
};

// The next message. `gone`: the error if there is none. `other`: if it is not a `What`.
template <typename What>
absl::StatusOr<What> ReadNext(BulkStream& stream, const char* gone, const char* other) {
  std::optional<v1::PushRequest> message = stream.Read();
  if (!message) return absl::CancelledError(gone);
  LIME_ASSIGN_OR_RETURN(PushRequest what, FromProto(*message));
  if (auto* wanted = std::get_if<What>(&what)) return std::move(*wanted);
  return absl::FailedPreconditionError(other);
}

// Turns Unavailable into FailedPrecondition for faults of this device's disk. They do not go away
// by themselves, and Unavailable would look like a broken connection, which the coordinator
// retries.
absl::Status OwnFault(const absl::Status& status) {
  if (absl::IsUnavailable(status)) return absl::FailedPreconditionError(status.message());
  if (!absl::IsPermissionDenied(status)) return status;
  return absl::PermissionDeniedError(absl::StrCat(status.message(), "; start limed with a --store that it may write"));
}

// Processes a chunk and returns the event for the coordinator. Sets `quiet` if it should not be
// sent.
absl::StatusOr<PushEvent> ProcessChunk(const PushChunk& chunk, PushReceiver& receiver, PushedStore& store, bool& quiet) {
  using Verdict = PushReceiver::Verdict;
  LIME_ASSIGN_OR_RETURN(Verdict verdict, receiver.OnChunk(chunk.position, static_cast<Bytes>(chunk.data.size()), chunk.intact()));
  quiet = verdict == Verdict::kDrop;
  if (verdict == Verdict::kWrite || verdict == Verdict::kWriteEnd) LIME_RETURN_IF_ERROR(store.Write(std::as_bytes(std::span(chunk.data))));
  if (verdict == Verdict::kWriteEnd) {
    LIME_ASSIGN_OR_RETURN(const bool matches, store.EndUnit());
    LIME_ASSIGN_OR_RETURN(verdict, receiver.OnUnit(matches));
  }
  if (verdict == Verdict::kAgain) return PushAgain{receiver.position()};
  return PushStored{receiver.position()};
}

class PushService final : public BulkService {
 public:
  PushService(const PlanInstallation& plans, const Options& options, const DeviceLog& log) : plans_(plans), options_(options), log_(log) {
    pushes_.Post([this] { EndRemovals(options_.store); });
  }

  ~PushService() override { Stop(); }

  void Stop() override {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (stream_ != nullptr) stream_->Cancel();
  }

  void Tick(absl::Time now) override {
    absl::MutexLock lock(&mutex_);
    if (stream_ != nullptr) stream_->Tick(now, options_.silence);
  }

 private:
  grpc::ServerBidiReactor<v1::PushRequest, v1::PushEvent>* Push(grpc::CallbackServerContext* context) override {
    std::shared_ptr<BulkStream> stream = BulkStream::Begin(*context);
    absl::MutexLock lock(&mutex_);
    if (stream_ != nullptr || stopping_) {
      stream->End(absl::AbortedError(stopping_ ? "the device is shutting down"
                                               : "another push to this device is under way; try again when it has ended"));
    } else {
      stream_ = stream;
      pushes_.Post([this, stream]() mutable { Serve(std::move(stream)); });
    }
    return stream.get();
  }

  grpc::ServerWriteReactor<v1::KvPages>* ReadKv(grpc::CallbackServerContext*, const v1::KvRequest* request) override {
    const absl::StatusOr<KvReadCall> call = FromProto(*request);
    if (!call.ok()) return KvPagesStream::Refuse(call.status());
    const absl::StatusOr<std::shared_ptr<KvHandover>> handover = plans_.HandoverOf(call->epoch);
    if (!handover.ok()) return KvPagesStream::Refuse(handover.status());
    return KvPagesStream::Begin(*handover, *call, kv_reads_);
  }

  // Ends a call with the result of `make`, which runs on `worker`.
  static grpc::ServerUnaryReactor* AnswerOn(WorkerThread& worker, grpc::CallbackServerContext* context, auto* reply, auto make) {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    worker.Post([reactor, reply, make = std::move(make)] { Answer(reactor, make(), reply); });
    return reactor;
  }

  grpc::ServerUnaryReactor* ListStore(grpc::CallbackServerContext* context, const v1::ListStoreRequest*,
                                      v1::ListStoreReply* reply) override {
    return AnswerOn(store_work_, context, reply, [this] { return Stored(); });
  }

  grpc::ServerUnaryReactor* Holdings(grpc::CallbackServerContext* context, const v1::HoldingsRequest* request,
                                     v1::HoldingsReply* reply) override {
    const absl::StatusOr<HoldingsCall> call = FromProto(*request);
    if (!call.ok()) return Answer<DeviceHoldings>(context->DefaultReactor(), call.status(), reply);
    return AnswerOn(looks_, context, reply, [this, call = *call] { return Look(call); });
  }

  grpc::ServerUnaryReactor* RemoveStored(grpc::CallbackServerContext* context, const v1::RemoveStoredRequest* request,
                                         v1::RemoveStoredReply* reply) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    store_work_.Post([this, reactor, reply, model = request->model(), peer = PeerAddress(context->peer())] {
      const absl::StatusOr<Bytes> freed = Remove(model);
      if (freed.ok()) {
        Log(absl::StrFormat("has removed %s for %s: %s are free again", PushedFolder(options_.store, model), peer, FormatBytes(*freed)));
        reply->set_freed_bytes(*freed);
      }
      reactor->Finish(ToGrpc(freed.status()));
    });
    return reactor;
  }

  absl::StatusOr<StoreContent> Stored() const {
    StoreContent content{.folder = options_.store, .models = {}};
    if (content.folder.empty()) return content;
    LIME_ASSIGN_OR_RETURN(const std::vector<PushedModel> models, ListPushed(options_.store));
    const absl::Time now = absl::Now();
    for (const PushedModel& pushed : models) {
      content.models.push_back({.model = pushed.model,
                                .name = pushed.name,
                                .bytes = pushed.bytes,
                                .held = pushed.held,
                                .blocks = pushed.blocks,
                                .unused_seconds = std::max(0.0, absl::ToDoubleSeconds(now - pushed.used)),
                                .in_use = !plans_.BlocksInUse(pushed.dir).empty()});
    }
    if (const absl::StatusOr<DiskRoom> room = DiskRoomOf(options_.store); room.ok()) content.free = room->free, content.total = room->total;
    return content;
  }

  absl::StatusOr<Bytes> Remove(uint64_t model) const {
    if (options_.store.empty())
      return absl::FailedPreconditionError("limed was started without --store FOLDER, and holds no pushed models");
    if (!plans_.BlocksInUse(PushedFolder(options_.store, model)).empty()) {
      const std::optional<PlanUser> user = plans_.User();
      return absl::FailedPreconditionError(absl::StrCat("the installed plan reads this model",
                                                        user ? absl::StrCat(", for ", user->Who()) : std::string(),
                                                        "; wait for its end, or run `lime unload`"));
    }
    return RemovePushed(options_.store, model);
  }

  absl::StatusOr<DeviceHoldings> Look(const HoldingsCall& call) const {
    DeviceHoldings holdings{.accepts_pushes = !options_.store.empty()};
    const std::string folder = plans_.WeightsOf(call.weights, call.model);
    if (folder.empty()) return holdings;
    LIME_ASSIGN_OR_RETURN(std::optional<std::vector<BlockId>> held, BlocksHeldIn(folder));
    holdings.whole = !held.has_value();
    if (holdings.whole) holdings.neurons = NeuronFilesIn(folder);
    if (held) holdings.blocks = *std::move(held);
    return holdings;
  }

  void Serve(std::shared_ptr<BulkStream> stream) {
    const absl::Status status = OwnFault(Receive(*stream));
    if (!status.ok()) Log(absl::StrCat("a push has ended early: ", status.message()));
    {
      absl::MutexLock lock(&mutex_);
      stream_ = nullptr;
    }
    stream->End(status);
    stream.reset();
    // Data in pieces of 16 MiB has passed through the heaps of several threads.
    ReturnFreedMemory();
  }

  absl::Status Receive(BulkStream& stream) {
    LIME_ASSIGN_OR_RETURN(const StoreOffer offer,
                          ReadNext<StoreOffer>(stream, "the coordinator has gone", "the first message of a push must be an offer"));
    if (options_.store.empty())
      return absl::FailedPreconditionError(
          "limed was started without --store FOLDER, so it cannot store weights; add the flag, or copy the weights yourself");
    LIME_ASSIGN_OR_RETURN(const std::unique_ptr<PushedStore> store,
                          PushedStore::Open(options_.disk != nullptr ? *options_.disk : real_disk_, options_.store, offer));
    absl::Time next;
    LIME_ASSIGN_OR_RETURN(const std::vector<int32_t> missing, store->FindMissing(offer.check, [&](Bytes done, Bytes total) {
      if (stream.cancelled()) return absl::CancelledError("the coordinator has gone");
      if (absl::Now() >= next) stream.Say(PushLooking{done, total}), next = absl::Now() + kLookingEvery;
      return absl::OkStatus();
    }));
    LIME_RETURN_IF_ERROR(CheckUnused(*store, missing));
    LIME_RETURN_IF_ERROR(store->Begin(missing));
    Log(absl::StrCat("is offered ", offer.blocks.size(), " blocks of ", offer.model, ", and lacks ", missing.size(), " of ",
                     store->units().size(), " units"));
    stream.Say(PushMissing{missing});
    LIME_RETURN_IF_ERROR(ReceiveUnits(stream, *store, missing));
    Log(absl::StrCat("holds ", store->held().held.size(), " blocks of ", offer.model, " in ", store->dir()));
    stream.Say(PushComplete{});
    return absl::OkStatus();
  }

  absl::Status ReceiveUnits(BulkStream& stream, PushedStore& store, const std::vector<int32_t>& units) {
    std::vector<Bytes> sizes(units.size());
    for (size_t i = 0; i < units.size(); ++i) sizes[i] = store.units()[static_cast<size_t>(units[i])].bytes;
    PushReceiver receiver(sizes, PushReceiver::Options());
    while (!receiver.done()) {
      LIME_ASSIGN_OR_RETURN(const PushChunk chunk,
                            ReadNext<PushChunk>(stream, "the coordinator has gone before all was sent", "a push may have only one offer"));
      bool quiet = false;
      LIME_ASSIGN_OR_RETURN(const PushEvent event, ProcessChunk(chunk, receiver, store, quiet));
      if (!quiet) stream.Say(event);
    }
    return absl::OkStatus();
  }

  // A block that was found damaged is no longer held when this runs. So a plan that is installed in
  // the meantime is refused if it needs the block.
  absl::Status CheckUnused(const PushedStore& store, const std::vector<int32_t>& units) const {
    const std::vector<BlockId> used = plans_.BlocksInUse(store.dir());
    for (const BlockId id : store.BlocksOf(units)) {
      if (std::ranges::find(used, id) == used.end()) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("block ", BlockName(id), " is damaged, but the installed plan reads it; end that run, then push again"));
    }
    return absl::OkStatus();
  }

  void Log(const std::string& sentence) const {
    if (log_) log_(sentence);
  }

  const PlanInstallation& plans_;
  const Options options_;
  const DeviceLog log_;
  StoreDisk real_disk_;
  absl::Mutex mutex_;
  std::shared_ptr<BulkStream> stream_ ABSL_GUARDED_BY(mutex_);  // the running push
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Separate threads: a removal may take minutes, and a run waits for `Holdings`.
  WorkerThread pushes_, kv_reads_, store_work_, looks_;
};

}  // namespace

std::unique_ptr<BulkService> BulkService::Make(const PlanInstallation& plans, const Options& options, const DeviceLog& log) {
  return std::make_unique<PushService>(plans, options, log);
}

}  // namespace lime
