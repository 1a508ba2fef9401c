#include "daemon/rpc/link_probe.h"

#include <grpcpp/channel.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/steady_clock.h"
#include "proto/diagnosis/prober.h"
#include "proto/grpc_status.h"

namespace lime {
namespace {

constexpr Bytes kSmall = 64, kMessage = 256 * kKiB, kFirstTurn = 64 * kKiB, kLargestTurn = 16 * kMiB;
constexpr int kWarmUps = 10, kTurns = 100;  // round trips of small messages
// A turn that takes this long is precise enough; the next turns are not larger.
constexpr double kLongTurnMs = 100;
constexpr absl::Duration kPatience = absl::Seconds(10);

class LinkMeter {
 public:
  LinkMeter(const LinkProbe& probe, const ClusterKeys& keys)
      : probe_(probe), keys_(keys), stub_(v1::Control::NewStub(OpenChannel(probe.address, probe.peer, keys, ChannelUse::kControl))) {
    context_.set_wait_for_ready(true);
    context_.set_deadline(absl::ToChronoTime(absl::Now() + kPatience + absl::Seconds(4 * probe.seconds)));
    stream_ = stub_->Probe(&context_);
  }

  absl::StatusOr<MeasuredLink> Run() {
    const double begin = SteadyMs();
    const bool whole = MeasureLatency() && MeasureRate(begin);
    stream_->WritesDone();
    const grpc::Status status = stream_->Finish();
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED || status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      const ProbeTarget target{.name = probe_.peer, .address = probe_.address, .keys = keys_};
      LIME_RETURN_IF_ERROR(FindFault(target).ToStatus(target));
    }
    LIME_RETURN_IF_ERROR(FromGrpc(status, absl::StrCat("device \"", probe_.peer, "\" at ", probe_.address)));
    if (!whole) return absl::UnavailableError(absl::StrCat("device \"", probe_.peer, "\" has ended the measurement of its link"));
    return MeasuredLink{.bytes_per_second = Rate(), .latency_ms = turn_ms_ / 2};
  }

 private:
  struct Turn {
    Bytes bytes = 0;
    double ms = 0;
  };

  // Sends `bytes` bytes and waits for the answer to the last message. False if the stream has
  // broken.
  bool Exchange(Bytes bytes, double& ms) {
    const double begin = SteadyMs();
    for (Bytes remaining = bytes; remaining > 0;) {
      const Bytes now = std::min(remaining, kMessage);
      remaining -= now;
      data_.mutable_data()->resize(static_cast<size_t>(now));
      data_.set_answer(remaining == 0);
      if (!stream_->Write(data_)) return false;
    }
    v1::ProbeAnswer answer;
    const bool read = stream_->Read(&answer);
    ms = SteadyMs() - begin;
    return read;
  }

  bool MeasureLatency() {
    std::vector<double> times;
    const double begin = SteadyMs();
    for (int i = 0; i < kWarmUps + kTurns && (i < kWarmUps + 3 || SteadyMs() - begin < probe_.seconds * 500); ++i) {
      double ms = 0;
      if (!Exchange(kSmall, ms)) return false;
      if (i >= kWarmUps) times.push_back(ms);
    }
    const auto middle = times.begin() + static_cast<int64_t>(times.size()) / 2;
    std::ranges::nth_element(times, middle);
    turn_ms_ = *middle;
    return true;
  }

  bool MeasureRate(double begin) {
    Bytes bytes = kFirstTurn, sent = 0;
    while (turns_.empty() || (SteadyMs() - begin < probe_.seconds * 1000 && sent + bytes <= probe_.most)) {
      Turn turn{.bytes = bytes};
      if (!Exchange(bytes, turn.ms)) return false;
      turns_.push_back(turn);
      sent += bytes;
      if (turn.ms < kLongTurnMs) bytes = std::min(2 * bytes, kLargestTurn);
    }
    return true;
  }

  // Rate of the fastest of the largest turns, without the round-trip time of an empty message.
  // Slower turns were disturbed by other traffic.
  double Rate() const {
    double best = 0;
    for (const Turn& turn : turns_) {
      if (2 * turn.bytes < turns_.back().bytes) continue;
      const double ms = std::max({turn.ms - turn_ms_, turn.ms / 2, 1e-6});
      best = std::max(best, static_cast<double>(turn.bytes) / ms * 1000);
    }
    return best;
  }

  const LinkProbe& probe_;
  const ClusterKeys& keys_;
  const std::unique_ptr<v1::Control::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ProbeData, v1::ProbeAnswer>> stream_;
  v1::ProbeData data_;
  double turn_ms_ = 0;
  std::vector<Turn> turns_;
};

// One operation at a time, so it needs no lock.
class ProbeReactor final : public grpc::ServerBidiReactor<v1::ProbeData, v1::ProbeAnswer> {
 public:
  explicit ProbeReactor(const absl::Status& refused) {
    if (refused.ok())
      StartRead(&data_);
    else
      Finish(ToGrpc(refused));
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    received_ += static_cast<Bytes>(data_.data().size());
    if (received_ > kMaxProbeBytes) return Finish(ToGrpc(absl::ResourceExhaustedError("the measurement of a link sent too many bytes")));
    if (data_.answer()) return StartWrite(&answer_);
    StartRead(&data_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    StartRead(&data_);
  }
  void OnDone() override { delete this; }

  v1::ProbeData data_;
  v1::ProbeAnswer answer_;
  Bytes received_ = 0;
};

}  // namespace

absl::StatusOr<MeasuredLink> MeasureLink(const LinkProbe& probe, const ClusterKeys& keys) {
  return LinkMeter(probe, keys).Run();
}

grpc::ServerBidiReactor<v1::ProbeData, v1::ProbeAnswer>* AnswerProbe(const absl::Status& refused) {
  return new ProbeReactor(refused);
}

}  // namespace lime
