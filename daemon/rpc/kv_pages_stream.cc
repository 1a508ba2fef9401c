#include "daemon/rpc/kv_pages_stream.h"

#include <xxhash.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/grpc_status.h"

namespace lime {

KvPagesStream* KvPagesStream::Begin(const std::shared_ptr<KvLeft>& left, const KvReadCall& call, WorkerThread& worker) {
  if (const absl::Status refused = Check(*left, call); !refused.ok()) return Refuse(refused);
  auto* const stream = new KvPagesStream(left, call, &worker);
  worker.Post([stream] { stream->Next(); });
  return stream;
}

KvPagesStream* KvPagesStream::Refuse(const absl::Status& why) {
  auto* const stream = new KvPagesStream({}, {}, nullptr);
  stream->Finish(ToGrpc(why));
  return stream;
}

absl::Status KvPagesStream::Check(const KvLeft& left, const KvReadCall& call) {
  if (call.numerics_id != left.numerics_id())
    return absl::FailedPreconditionError(absl::StrCat("this KV was computed by kernels of order ", left.numerics_id(),
                                                      ", and those that are to go on with it have ", call.numerics_id));
  if (call.page_bytes != left.page_bytes()) return Invalid("pages of KV have ", left.page_bytes(), " bytes here, not ", call.page_bytes);
  return absl::OkStatus();
}

// Thread: the worker's.
void KvPagesStream::Next() {
  absl::Status status = absl::FailedPreconditionError("the KV is gone: a plan has been installed in its place");
  const bool all = extent_ == call_.extents.size();
  if (const std::shared_ptr<KvLeft> left = left_.lock(); left != nullptr) {
    status = all ? absl::OkStatus() : Fill(*left);
    if (all) left->Given(call_.layer, call_.hosts);
    left->Reading();
  }
  if (all || !status.ok()) return Finish(ToGrpc(status));
  StartWrite(&message_);
}

absl::Status KvPagesStream::Fill(const KvLeft& left) {
  const KvExtent& extent = call_.extents[extent_];
  page_ = std::max(page_, extent.first);
  const int64_t run = KvLeft::RunAt(page_, extent.end, call_.page_bytes);
  if (!reader_) reader_.emplace(left, call_.layer, call_.hosts, extent);
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

void KvPagesStream::OnWriteDone(bool ok) {
  if (!ok) return Finish(grpc::Status::CANCELLED);
  worker_->Post([this] { Next(); });
}

}  // namespace lime
