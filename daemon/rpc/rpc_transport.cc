#include "daemon/rpc/rpc_transport.h"

#include <grpcpp/channel.h>

#include <algorithm>
#include <span>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/input/host_port.h"
#include "daemon/rpc/activation_link.h"
#include "lime/v1/bulk.grpc.pb.h"
#include "proto/convert/kv_convert.h"
#include "proto/grpc_status.h"

namespace lime {
namespace {

bool IsHere(const std::string& address) {
  const absl::StatusOr<bool> loopback = IsLoopback(address);
  return loopback.ok() && *loopback;
}

constexpr absl::Duration kLook = absl::Milliseconds(50);
// A device that sends nothing for this long is given up. It is long because slow links deliver
// little at a time. If a device is lost, the coordinator notices and cancels the installation
// everywhere.
constexpr absl::Duration kKvPatience = absl::Minutes(1);

// Ends a call that is cancelled, or whose peer is silent. Threads: its own thread checks the clock;
// the owner calls Heard.
class Watch {
 public:
  Watch(grpc::ClientContext& context, const std::atomic<bool>& cancelled)
      : context_(context), cancelled_(cancelled), heard_(absl::Now()), thread_([this] { Run(); }) {}
  ~Watch() {
    {
      absl::MutexLock lock(&mutex_);
      over_ = true;
    }
    thread_.join();
  }

  void Heard() {
    absl::MutexLock lock(&mutex_);
    heard_ = absl::Now();
  }

 private:
  void Run() {
    absl::MutexLock lock(&mutex_);
    while (!mutex_.AwaitWithTimeout(absl::Condition(&over_), kLook)) {
      if (cancelled_.load(std::memory_order_relaxed) || absl::Now() - heard_ > kKvPatience) context_.TryCancel();
    }
  }

  grpc::ClientContext& context_;
  const std::atomic<bool>& cancelled_;
  absl::Mutex mutex_;
  absl::Time heard_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Checks that the pages of each extent arrive in order, without gaps.
class Expected {
 public:
  explicit Expected(const KvReadCall& call) {
    for (const KvExtent& extent : call.extents) remaining_[extent.sequence] = {extent.first, extent.end};
  }

  absl::Status Check(const KvPagesRead& pages, Bytes page_bytes) {
    const auto found = remaining_.find(pages.sequence);
    const int64_t count = std::ssize(pages.data) / page_bytes;
    if (found == remaining_.end() || pages.first != found->second.first || count < 1 || pages.first + count > found->second.second ||
        count * page_bytes != std::ssize(pages.data))
      return absl::DataLossError(
          absl::StrCat(pages.data.size(), " bytes of slot ", pages.sequence, " from page ", pages.first, " on arrived out of order"));
    found->second.first += count;
    return absl::OkStatus();
  }
  bool complete() const {
    return std::ranges::all_of(remaining_, [](const auto& of) { return of.second.first == of.second.second; });
  }

 private:
  // By sequence: the next page, and the end.
  std::map<int32_t, std::pair<int64_t, int64_t>> remaining_;
};

}  // namespace

std::unique_ptr<Link> RpcTransport::OpenLink(LinkOptions options) {
  const bool probes = options_.probes.value_or(!IsHere(options.address));
  return OpenActivationLink({.link = std::move(options), .keys = options_.keys, .patience = options_.patience, .probes = probes});
}

absl::Status RpcTransport::ReadKv(const KvHolder& holder, const KvReadCall& call, const std::atomic<bool>& cancelled,
                                  const KvTakeover::PageSink& sink) {
  std::shared_ptr<grpc::Channel>& channel = kv_channels_[holder.address];
  if (channel == nullptr) channel = OpenChannel(holder.address, holder.name, options_.keys, ChannelUse::kBulk);
  const std::string who = absl::StrCat("device \"", holder.name, "\" at ", holder.address);
  const auto stub = v1::Bulk::NewStub(channel);
  grpc::ClientContext context;
  context.set_wait_for_ready(false);
  v1::KvRequest request;
  ToProto(call, request);
  const auto reader = stub->ReadKv(&context, request);
  Expected expected(call);
  absl::Status received;
  {
    Watch watch(context, cancelled);
    for (v1::KvPages message; received.ok() && reader->Read(&message);) {
      watch.Heard();
      received = [&] {
        LIME_ASSIGN_OR_RETURN(const KvPagesRead pages, FromProto(message));
        LIME_RETURN_IF_ERROR(expected.Check(pages, call.page_bytes));
        return sink(pages.sequence, pages.first, std::as_bytes(std::span(pages.data)));
      }();
    }
    if (!received.ok()) context.TryCancel();
  }
  const absl::Status end = FromGrpc(reader->Finish(), who);
  if (!received.ok()) return absl::Status(received.code(), absl::StrCat(who, ": ", received.message()));
  if (cancelled.load(std::memory_order_relaxed)) return absl::CancelledError("loading was cancelled");
  if (absl::IsCancelled(end)) return absl::UnavailableError(absl::StrCat(who, " sends no KV"));
  LIME_RETURN_IF_ERROR(end);
  return expected.complete() ? absl::OkStatus() : absl::DataLossError(absl::StrCat(who, " has not sent all KV of layer ", call.layer));
}

}  // namespace lime
