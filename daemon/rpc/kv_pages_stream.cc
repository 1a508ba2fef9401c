#include "daemon/rpc/kv_pages_stream.h"

#include <xxhash.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/grpc_status.h"

namespace lime {

KvPagesStream* KvPagesStream::Begin(std::shared_ptr<KvLeft> left, const KvReadCall& call, const absl::Status& why) {
  auto* const stream = new KvPagesStream(std::move(left), call);
  const absl::Status refused = stream->left_ == nullptr ? why : stream->Check();
  if (refused.ok()) {
    stream->Next();
  } else {
    stream->Finish(ToGrpc(refused));
  }
  return stream;
}

absl::Status KvPagesStream::Check() const {
  if (call_.numerics_id != left_->numerics_id())
    return absl::FailedPreconditionError(absl::StrCat("this KV was computed by kernels of order ", left_->numerics_id(),
                                                      ", and those that are to go on with it have ", call_.numerics_id));
  if (call_.page_bytes != left_->page_bytes())
    return absl::InvalidArgumentError(absl::StrCat("pages of KV have ", left_->page_bytes(), " bytes here, not ", call_.page_bytes));
  return absl::OkStatus();
}

void KvPagesStream::Next() {
  if (sequence_ == call_.sequences.size()) {
    left_->Given(call_.layer);
    return Finish(grpc::Status::OK);
  }
  if (const absl::Status filled = Fill(); !filled.ok()) return Finish(ToGrpc(filled));
  left_->Reading();
  StartWrite(&message_);
}

absl::Status KvPagesStream::Fill() {
  const auto& [slot, positions] = call_.sequences[sequence_];
  if (page_ == 0) reader_ = std::make_unique<KvLeft::Reader>(*left_, call_.layer, slot);
  const int64_t count = KvPages::PagesFor(positions, 1), run = KvLeft::RunAt(page_, count, call_.page_bytes);
  LIME_ASSIGN_OR_RETURN(const std::span<const std::byte> pages, reader_->Pages(page_, run));
  ToProto(KvPagesRead{.sequence = slot,
                      .first = page_,
                      .data = std::string(reinterpret_cast<const char*>(pages.data()), pages.size()),
                      .xxh3 = XXH3_64bits(pages.data(), pages.size())},
          message_);
  page_ += run;
  if (page_ == count) ++sequence_, page_ = 0;
  return absl::OkStatus();
}

void KvPagesStream::OnWriteDone(bool ok) {
  if (!ok) return Finish(grpc::Status::CANCELLED);
  Next();
}

}  // namespace lime
