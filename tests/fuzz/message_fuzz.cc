// Whatever a peer sends: no message may do harm, and what is accepted returns through the wire as
// it is.

#include <grpcpp/support/slice.h>

#include <cstdint>
#include <string>

#include "daemon/logic/head_partial.h"
#include "daemon/rpc/activation_wire.h"
#include "lime/v1/bulk.pb.h"
#include "lime/v1/control.pb.h"
#include "planner/base/check.h"
#include "proto/convert/convert.h"

namespace {

template <typename Message>
void Convert(const std::string& bytes) {
  Message message;
  if (!message.ParseFromString(bytes)) return;
  const auto what = lime::FromProto(message);
  if (!what.ok()) return;
  Message again;
  lime::ToProto(*what, again);
  LIME_CHECK(lime::FromProto(again).ok()) << "what was accepted is refused the second time";
}

// In two slices, cut anywhere.
void ConvertActivation(const std::string& bytes) {
  const size_t cut = bytes.empty() ? 0 : static_cast<uint8_t>(bytes[0]) % (bytes.size() + 1);
  const grpc::Slice slices[] = {grpc::Slice(bytes.substr(0, cut)), grpc::Slice(bytes.substr(cut))};
  (void)lime::ArrivalsOf(grpc::ByteBuffer(slices, 2));
  absl::StatusOr<lime::ActivationMessage> activation = lime::FromBuffer(grpc::ByteBuffer(slices, 2));
  if (!activation.ok()) return;
  if (activation->header.probe) return;
  LIME_CHECK_EQ(static_cast<size_t>(activation->header.bytes), activation->payload.size());
  (void)lime::ParseSampledTokens(activation->payload, 1024);
  constexpr int64_t kIds = 6;
  const absl::StatusOr<lime::HeadPartial> partial = lime::ParseHeadPartial(activation->payload, kIds, 4);
  if (!partial.ok()) return;
  float logits[kIds];
  for (const lime::LogitsSoFar& row : partial->rows) row.CopyTo(logits);
}

void ConvertKvPages(const std::string& bytes) {
  lime::v1::KvPages message;
  if (!message.ParseFromString(bytes)) return;
  const auto pages = lime::FromProto(message);
  if (!pages.ok()) return;
  lime::v1::KvPages again;
  lime::ToProto(*pages, again);
  LIME_CHECK(*lime::FromProto(again) == *pages) << "what was accepted returns otherwise";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 21) {
    case 0:
      Convert<lime::v1::OrderRequest>(bytes);
      break;
    case 1:
      Convert<lime::v1::OrderEvent>(bytes);
      break;
    case 2:
      Convert<lime::v1::InstallRequest>(bytes);
      break;
    case 3:
      Convert<lime::v1::InstallEvent>(bytes);
      break;
    case 4:
      Convert<lime::v1::StatisticsReply>(bytes);
      break;
    case 5:
      Convert<lime::v1::HealthReply>(bytes);
      break;
    case 6:
      ConvertActivation(bytes);
      break;
    case 7:
      Convert<lime::v1::ProfileRequest>(bytes);
      break;
    case 8:
      Convert<lime::v1::ProfileEvent>(bytes);
      break;
    case 9:
      Convert<lime::v1::ProbeLinkRequest>(bytes);
      break;
    case 10:
      Convert<lime::v1::TraceRequest>(bytes);
      break;
    case 11:
      Convert<lime::v1::TraceReply>(bytes);
      break;
    case 12:
      Convert<lime::v1::UnloadReply>(bytes);
      break;
    case 13:
      Convert<lime::v1::KvRequest>(bytes);
      break;
    case 14:
      ConvertKvPages(bytes);
      break;
    case 15:
      Convert<lime::v1::ProbeLinkReply>(bytes);
      break;
    case 16:
      Convert<lime::v1::ReleaseRequest>(bytes);
      break;
    case 17:
      Convert<lime::v1::InspectRequest>(bytes);
      break;
    case 18:
      Convert<lime::v1::InspectReply>(bytes);
      break;
    case 19:
      Convert<lime::v1::WeightsDigest>(bytes);
      break;
    default:
      Convert<lime::v1::ReleaseReply>(bytes);
  }
  return 0;
}
