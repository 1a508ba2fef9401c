// Takes weights that a coordinator pushes, into the store of this device, says which are there, and gives KV that a plan has left here to
// its next device.
//
//   BulkStream ── messages ──► worker: PushReceiver says what fits, PushedStore writes it ── events ──► BulkStream
//
// One push at a time, on one thread of its own that may wait for disk and network. Blocks that an installed plan reads are not written.
#pragma once

#include <memory>
#include <string>

#include "absl/synchronization/mutex.h"
#include "daemon/engine/worker_thread.h"
#include "daemon/rpc/bulk_stream.h"
#include "daemon/rpc/plan_keeper.h"
#include "daemon/weights/pushed_store.h"

namespace lime {

class BulkService final : public v1::Bulk::CallbackService {
 public:
  struct Options {
    std::string store;                           // folder; empty: pushes are refused
    absl::Duration silence = absl::Seconds(60);  // a coordinator that sends nothing for so long is lost
    StoreDisk* disk = nullptr;                   // null: the real one; outlives the service
  };
  // `plans` outlives this.
  BulkService(const PlanKeeper& plans, Options options, DeviceLog log);
  ~BulkService() override;

  // Every now and then.
  void Tick(absl::Time now);
  // Ends what is under way and takes nothing new: before the server shuts down.
  void Stop();

 private:
  grpc::ServerBidiReactor<v1::PushRequest, v1::PushEvent>* Push(grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<v1::KvPages>* ReadKv(grpc::CallbackServerContext* context, const v1::KvRequest* request) override;
  grpc::ServerUnaryReactor* ListStore(grpc::CallbackServerContext* context, const v1::ListStoreRequest* request,
                                      v1::ListStoreReply* reply) override;
  grpc::ServerUnaryReactor* RemoveStored(grpc::CallbackServerContext* context, const v1::RemoveStoredRequest* request,
                                         v1::RemoveStoredReply* reply) override;
  absl::StatusOr<StoreContent> Stored() const;
  absl::StatusOr<Bytes> Remove(uint64_t model) const;
  grpc::ServerUnaryReactor* Holdings(grpc::CallbackServerContext* context, const v1::HoldingsRequest* request,
                                     v1::HoldingsReply* reply) override;
  absl::StatusOr<DeviceHoldings> Look(const HoldingsCall& call) const;
  void Serve(std::shared_ptr<BulkStream> stream);
  absl::Status Receive(BulkStream& stream);
  absl::Status ReceiveUnits(BulkStream& stream, PushedStore& store, const std::vector<int32_t>& units);
  absl::Status CheckUnused(const PushedStore& store, const std::vector<int32_t>& units) const;
  void Log(const std::string& sentence) const;

  const PlanKeeper& plans_;
  const Options options_;
  const DeviceLog log_;
  StoreDisk real_disk_;
  absl::Mutex mutex_;
  std::shared_ptr<BulkStream> stream_ ABSL_GUARDED_BY(mutex_);  // under way
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  WorkerThread pushes_, kv_reads_, store_work_, looks_;  // a removal may take minutes, and a run waits for a look
};

}  // namespace lime
