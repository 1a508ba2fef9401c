// Sends KV that a plan has left here to the device whose it is now, run by run, as fast as that takes it.
//
// Threads: gRPC's, which owns it until it has ended.
#pragma once

#include <memory>

#include "daemon/engine/kv_left.h"
#include "lime/v1/bulk.grpc.pb.h"
#include "proto/kv_convert.h"

namespace lime {

class KvPagesStream final : public grpc::ServerWriteReactor<v1::KvPages> {
 public:
  // Ends by itself, and is gone then. Null `left`: refused with `why`.
  static KvPagesStream* Begin(std::shared_ptr<KvLeft> left, const KvReadCall& call, const absl::Status& why);

 private:
  KvPagesStream(std::shared_ptr<KvLeft> left, KvReadCall call) : left_(std::move(left)), call_(std::move(call)) {}
  absl::Status Check() const;
  void Next();
  absl::Status Fill();
  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }

  const std::shared_ptr<KvLeft> left_;
  const KvReadCall call_;
  size_t sequence_ = 0;  // among those asked for
  int64_t page_ = 0;     // of it, the next
  std::unique_ptr<KvLeft::Reader> reader_;
  v1::KvPages message_;
};

}  // namespace lime
