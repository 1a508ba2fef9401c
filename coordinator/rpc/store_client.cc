#include "coordinator/rpc/store_client.h"

#include <grpcpp/channel.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "lime/v1/bulk.grpc.pb.h"
#include "proto/channel.h"
#include "proto/grpc_status.h"

namespace lime {
namespace {

// A slow disk needs time to list all files of its models, or to remove a large one.
constexpr absl::Duration kListPatience = absl::Seconds(30), kRemovePatience = absl::Minutes(5);

void SetStoreDeadline(grpc::ClientContext& context, absl::Duration patience) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + patience));
}

}  // namespace

struct StoreClient::Stub {
  const std::unique_ptr<v1::Bulk::Stub> bulk;
};

StoreClient::StoreClient(std::string name, std::string address, const ClusterKeys& keys)
    : name_(std::move(name)),
      address_(std::move(address)),
      stub_(new Stub{.bulk = v1::Bulk::NewStub(OpenChannel(address_, name_, keys, ChannelUse::kBulk))}) {}

StoreClient::~StoreClient() = default;

std::string StoreClient::Who() const {
  return absl::StrCat("device \"", name_, "\" at ", address_);
}

absl::StatusOr<StoreContent> StoreClient::List() const {
  grpc::ClientContext context;
  SetStoreDeadline(context, kListPatience);
  v1::ListStoreReply reply;
  LIME_RETURN_IF_ERROR(FromGrpc(stub_->bulk->ListStore(&context, v1::ListStoreRequest(), &reply), Who()));
  return FromProto(reply);
}

absl::StatusOr<Bytes> StoreClient::Remove(uint64_t model) const {
  grpc::ClientContext context;
  SetStoreDeadline(context, kRemovePatience);
  v1::RemoveStoredRequest request;
  request.set_model(model);
  v1::RemoveStoredReply reply;
  LIME_RETURN_IF_ERROR(FromGrpc(stub_->bulk->RemoveStored(&context, request, &reply), Who()));
  return std::max<Bytes>(0, reply.freed_bytes());
}

}  // namespace lime
