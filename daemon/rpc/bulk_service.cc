#include "daemon/rpc/bulk_service.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "daemon/engine/process_memory.h"
#include "daemon/logic/push_stream.h"
#include "daemon/rpc/kv_pages_stream.h"
#include "daemon/weights/held_blocks.h"
#include "daemon/weights/pushed_models.h"
#include "proto/bulk_convert.h"
#include "proto/convert.h"
#include "proto/grpc_status.h"

namespace lime {
namespace {

constexpr absl::Duration kLookingEvery = absl::Milliseconds(200);

absl::StatusOr<StoreOffer> ReadOffer(BulkStream& stream) {
  std::optional<v1::PushRequest> message = stream.Read();
  if (!message) return absl::CancelledError("the coordinator has gone");
  LIME_ASSIGN_OR_RETURN(PushRequest what, FromProto(*message));
  if (auto* offer = std::get_if<StoreOffer>(&what)) return std::move(*offer);
  return absl::FailedPreconditionError("the first message of a push is an offer");
}

absl::StatusOr<PushChunk> ReadChunk(BulkStream& stream) {
  std::optional<v1::PushRequest> message = stream.Read();
  if (!message) return absl::CancelledError("the coordinator has gone before all was sent");
  LIME_ASSIGN_OR_RETURN(PushRequest what, FromProto(*message));
  if (auto* chunk = std::get_if<PushChunk>(&what)) return std::move(*chunk);
  return absl::FailedPreconditionError("an offer comes once in a push");
}

// What this device's disk refuses does not pass by itself, so that it must not look like a connection that broke: that one is retried.
absl::Status OwnFault(const absl::Status& status) {
  if (absl::IsUnavailable(status)) return absl::FailedPreconditionError(status.message());
  if (!absl::IsPermissionDenied(status)) return status;
  return absl::PermissionDeniedError(absl::StrCat(status.message(), "; start limed with a --store that it may write"));
}

// What to tell the coordinator after a chunk.
absl::StatusOr<PushEvent> TakeChunk(const PushChunk& chunk, PushReceiver& receiver, PushedStore& store, bool& quiet) {
  using Verdict = PushReceiver::Verdict;
  LIME_ASSIGN_OR_RETURN(Verdict verdict, receiver.OnChunk(chunk.position, static_cast<Bytes>(chunk.data.size()), chunk.intact()));
  quiet = verdict == Verdict::kDrop;
  if (verdict == Verdict::kWrite || verdict == Verdict::kWriteEnd) {
    LIME_RETURN_IF_ERROR(store.Write(std::as_bytes(std::span(chunk.data))));
  }
  if (verdict == Verdict::kWriteEnd) {
    LIME_ASSIGN_OR_RETURN(const bool matches, store.EndUnit());
    LIME_ASSIGN_OR_RETURN(verdict, receiver.OnUnit(matches));
  }
  if (verdict == Verdict::kAgain) return PushAgain{receiver.position()};
  return PushStored{receiver.position()};
}

}  // namespace

BulkService::BulkService(const PlanKeeper& plans, Options options, DeviceLog log)
    : plans_(plans), options_(std::move(options)), log_(std::move(log)) {
  pushes_.Post([this] { EndRemovals(options_.store); });
}

BulkService::~BulkService() {
  Stop();
}

void BulkService::Stop() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
  if (stream_ != nullptr) stream_->Cancel();
}

void BulkService::Tick(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  if (stream_ != nullptr) stream_->Tick(now, options_.silence);
}

grpc::ServerBidiReactor<v1::PushRequest, v1::PushEvent>* BulkService::Push(grpc::CallbackServerContext* context) {
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

grpc::ServerWriteReactor<v1::KvPages>* BulkService::ReadKv(grpc::CallbackServerContext*, const v1::KvRequest* request) {
  const absl::StatusOr<KvReadCall> call = FromProto(*request);
  if (!call.ok()) return KvPagesStream::Refuse(call.status());
  const absl::StatusOr<std::shared_ptr<KvLeft>> left = plans_.Left(call->epoch);
  if (!left.ok()) return KvPagesStream::Refuse(left.status());
  return KvPagesStream::Begin(*left, *call, kv_reads_);
}

grpc::ServerUnaryReactor* BulkService::ListStore(grpc::CallbackServerContext* context, const v1::ListStoreRequest*,
                                                 v1::ListStoreReply* reply) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  store_work_.Post([this, reactor, reply] {
    const absl::StatusOr<StoreContent> content = Stored();
    if (content.ok()) ToProto(*content, *reply);
    reactor->Finish(ToGrpc(content.status()));
  });
  return reactor;
}

grpc::ServerUnaryReactor* BulkService::Holdings(grpc::CallbackServerContext* context, const v1::HoldingsRequest* request,
                                                v1::HoldingsReply* reply) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const absl::StatusOr<HoldingsCall> call = FromProto(*request);
  if (!call.ok()) {
    reactor->Finish(ToGrpc(call.status()));
    return reactor;
  }
  looks_.Post([this, reactor, reply, call = *call] {
    const absl::StatusOr<DeviceHoldings> holdings = Look(call);
    if (holdings.ok()) ToProto(*holdings, *reply);
    reactor->Finish(ToGrpc(holdings.status()));
  });
  return reactor;
}

grpc::ServerUnaryReactor* BulkService::RemoveStored(grpc::CallbackServerContext* context, const v1::RemoveStoredRequest* request,
                                                    v1::RemoveStoredReply* reply) {
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

absl::StatusOr<StoreContent> BulkService::Stored() const {
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

absl::StatusOr<Bytes> BulkService::Remove(uint64_t model) const {
  if (options_.store.empty()) return absl::FailedPreconditionError("limed was started without --store FOLDER, and holds no pushed models");
  if (!plans_.BlocksInUse(PushedFolder(options_.store, model)).empty()) {
    const std::optional<PlanUser> user = plans_.User();
    return absl::FailedPreconditionError(absl::StrCat("the plan that is installed reads this model",
                                                      user ? absl::StrCat(", for ", user->Who()) : std::string(),
                                                      "; wait for its end, or run `lime unload`"));
  }
  return RemovePushed(options_.store, model);
}

absl::StatusOr<DeviceHoldings> BulkService::Look(const HoldingsCall& call) const {
  DeviceHoldings holdings{.takes = !options_.store.empty()};
  const std::string folder = plans_.WeightsOf(call.weights, call.model);
  if (folder.empty()) return holdings;
  LIME_ASSIGN_OR_RETURN(std::optional<std::vector<BlockId>> held, BlocksHeldIn(folder));
  holdings.whole = !held.has_value();
  if (held) holdings.blocks = *std::move(held);
  return holdings;
}

void BulkService::Serve(std::shared_ptr<BulkStream> stream) {
  const absl::Status status = OwnFault(Receive(*stream));
  if (!status.ok()) Log(absl::StrCat("a push has ended early: ", status.message()));
  {
    absl::MutexLock lock(&mutex_);
    stream_ = nullptr;
  }
  stream->End(status);
  stream.reset();
  ReturnFreedMemory();  // pieces of 16 MiB have passed through the heaps of several threads
}

absl::Status BulkService::Receive(BulkStream& stream) {
  LIME_ASSIGN_OR_RETURN(const StoreOffer offer, ReadOffer(stream));
  if (options_.store.empty())
    return absl::FailedPreconditionError(
        "limed was started without --store FOLDER, and has no place for weights; add it, or copy them yourself");
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
  Log(absl::StrCat("is offered ", offer.blocks.size(), " blocks of ", offer.model, ", lacks ", missing.size(), " of ",
                   store->units().size(), " pieces of them"));
  stream.Say(PushMissing{missing});
  LIME_RETURN_IF_ERROR(ReceiveUnits(stream, *store, missing));
  Log(absl::StrCat("holds ", store->held().held.size(), " blocks of ", offer.model, " in ", store->dir()));
  stream.Say(PushComplete{});
  return absl::OkStatus();
}

absl::Status BulkService::ReceiveUnits(BulkStream& stream, PushedStore& store, const std::vector<int32_t>& units) {
  std::vector<Bytes> sizes;
  for (const int32_t unit : units) sizes.push_back(store.units()[static_cast<size_t>(unit)].bytes);
  PushReceiver receiver(sizes, PushReceiver::Options());
  while (!receiver.done()) {
    LIME_ASSIGN_OR_RETURN(const PushChunk chunk, ReadChunk(stream));
    bool quiet = false;
    LIME_ASSIGN_OR_RETURN(const PushEvent event, TakeChunk(chunk, receiver, store, quiet));
    if (!quiet) stream.Say(event);
  }
  return absl::OkStatus();
}

// A block that was found damaged is not held any more when this asks, so that a plan which is installed meanwhile is refused for it.
absl::Status BulkService::CheckUnused(const PushedStore& store, const std::vector<int32_t>& units) const {
  const std::vector<BlockId> used = plans_.BlocksInUse(store.dir());
  for (const BlockId id : store.BlocksOf(units)) {
    if (std::ranges::find(used, id) == used.end()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "block ", BlockName(id), " is not as it should be, and the plan that is installed reads it; end that run, then push again"));
  }
  return absl::OkStatus();
}

void BulkService::Log(const std::string& sentence) const {
  if (log_) log_(sentence);
}

}  // namespace lime
