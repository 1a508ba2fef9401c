#include "coordinator/local/local_device.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/steady_clock.h"
#include "daemon/engine/process_memory.h"
#include "planner/base/check.h"

namespace lime {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(100);  // between checks for cancellation

}  // namespace

LocalDevice::LocalDevice(Options options) : options_(std::move(options)) {}

LocalDevice::~LocalDevice() {
  Abandon();
}

absl::Status LocalDevice::Install(Plan plan, const InstallOptions& options) {
  LIME_CHECK(session_ == nullptr) << "epoch " << plan_.epoch << " is installed";
  if (plan.NumDevices() != 1) return Invalid("a plan for ", plan.NumDevices(), " devices cannot run in one process");
  plan.epoch = std::max(plan.epoch, plan_.epoch + 1);
  const std::string name = plan.devices.front().name;
  std::optional<KvTakeoverPlan> takeover = TakeoverFor(plan, options.kv);
  PlanHandover handover = std::exchange(handover_, {});  // freed before loading if not taken over
  if (!takeover) handover = {};
  before_.reset();
  auto session = std::make_shared<StageSession>(StageSession::Options{.call = {.plan = plan,
                                                                               .device = 0,
                                                                               .addresses = {""},
                                                                               .weights = options_.weights,
                                                                               .trace_spans = options.trace_spans,
                                                                               .trace_when_asked = options.trace_when_asked,
                                                                               .kv = std::move(takeover)},
                                                                      .make_stage = options_.make_stage,
                                                                      .report = options_.report,
                                                                      .progress =
                                                                          [report = options.progress](const LoadProgress& progress) {
                                                                            if (report) report(progress.done, progress.total);
                                                                          },
                                                                      .handover = std::move(handover)});
  absl::StatusOr<InstalledPlan> installed = Load(*session, options.cancelled);
  if (!installed.ok()) {
    session->Close();
    return WithDevice(installed.status(), name);
  }
  session_ = std::move(session);
  Show(session_);
  installed_ = {*std::move(installed)};
  plan_ = std::move(plan);
  return absl::OkStatus();
}

absl::StatusOr<InstalledPlan> LocalDevice::Load(StageSession& session, const std::atomic<bool>* cancelled) {
  absl::Notification ended;
  std::thread watch([&] {
    while (!ended.WaitForNotificationWithTimeout(kLook)) {
      if (cancelled != nullptr && cancelled->load(std::memory_order_relaxed)) session.Cancel();
    }
  });
  absl::StatusOr<InstalledPlan> installed = session.Open();
  ended.Notify();
  watch.join();
  if (installed.ok()) installed->resident = ProcessResidentBytes();
  return installed;
}

std::optional<KvTakeoverPlan> LocalDevice::TakeoverFor(const Plan& plan, const std::vector<KvSequence>& sequences) const {
  if (!before_ || sequences.empty()) return std::nullopt;
  return MakeKvTakeoverPlan(plan, 0, *before_, sequences, {}, {});
}

absl::Status LocalDevice::Open(News news) {
  news_ = std::move(news);
  session_->UseVocabulary(vocabulary_);
  return WithDevice(session_->SetSink([news = news_](const FromDevice& what) { news(0, what); }), plan_.devices.front().name);
}

void LocalDevice::Send(const OrderMessage& order) {
  const absl::Status status = session_->OnOrder(order);
  if (!status.ok()) news_(0, FailedNews{status});
}

absl::StatusOr<DeviceStatistics> LocalDevice::Statistics(int32_t /*device*/) const {
  const std::shared_ptr<StageSession> session = Shown();
  if (session == nullptr) return absl::FailedPreconditionError("no plan is installed");
  DeviceStatistics statistics = session->Statistics();
  statistics.resident = ProcessResidentBytes(), statistics.peak_resident = ProcessPeakResidentBytes();
  return statistics;
}

absl::StatusOr<TraceChunk> LocalDevice::DrainTrace(const TraceCall& call) const {
  const double received_ms = SteadyMs();
  const std::shared_ptr<StageSession> session = Shown();
  if (session == nullptr) return absl::FailedPreconditionError("no plan is installed");
  TraceChunk chunk = session->DrainTrace(call);
  chunk.received_ms = received_ms, chunk.answered_ms = SteadyMs();
  return chunk;
}

void LocalDevice::Show(std::shared_ptr<StageSession> session) {
  absl::MutexLock lock(&shown_mutex_);
  shown_ = std::move(session);
}

std::shared_ptr<StageSession> LocalDevice::Shown() const {
  absl::MutexLock lock(&shown_mutex_);
  return shown_;
}

absl::Status LocalDevice::Unload() {
  Abandon();
  return absl::OkStatus();
}

absl::StatusOr<Devices::Handover> LocalDevice::HandOver() {
  Show(nullptr);
  StageSession::Handover handover = session_->HandOver();
  session_.reset();
  handover_ = std::move(handover.plan);
  if (handover_.kv == nullptr) return Handover{};
  before_ = plan_;
  return Handover{.all = true, .hashes = {handover.hashes.begin(), handover.hashes.end()}};
}

void LocalDevice::Abandon() {
  Show(nullptr);
  if (session_ != nullptr) session_->Close();
  session_.reset();
}

std::set<std::string> LocalDevice::Free() {
  Abandon();
  handover_ = {};
  before_.reset();
  return DevicesUsed(plan_);
}

}  // namespace lime
