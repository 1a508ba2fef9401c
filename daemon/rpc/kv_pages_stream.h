// Sends KV that a plan has left here to the device whose it is now, run by run, as fast as that takes it.
//
// Threads: gRPC's, which owns it until it has ended, and a worker's that may wait for the disk; one after the other.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "daemon/engine/kv_left.h"
#include "daemon/engine/worker_thread.h"
#include "lime/v1/bulk.grpc.pb.h"
#include "proto/kv_convert.h"

namespace lime {

class KvPagesStream final : public grpc::ServerWriteReactor<v1::KvPages> {
 public:
  // Ends by itself, and is gone then. What is to be read is read by `worker`, which outlives it.
  static KvPagesStream* Begin(const std::shared_ptr<KvLeft>& left, const KvReadCall& call, WorkerThread& worker);
  static KvPagesStream* Refuse(const absl::Status& why);

 private:
  KvPagesStream(std::weak_ptr<KvLeft> left, KvReadCall call, WorkerThread* worker)
      : left_(std::move(left)), call_(std::move(call)), worker_(worker) {}
  static absl::Status Check(const KvLeft& left, const KvReadCall& call);
  void Next();
  absl::Status Fill(const KvLeft& left);
  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }

  const std::weak_ptr<KvLeft> left_;  // whoever waits for the reading holds it: a reader that is lost holds up no pages
  const KvReadCall call_;
  WorkerThread* const worker_;
  std::optional<KvLeft::Reader> reader_;  // of the extent: it keeps the piece that it has read
  size_t extent_ = 0;                     // among those asked for
  int64_t page_ = 0;                      // of it, the next
  v1::KvPages message_;
};

}  // namespace lime
