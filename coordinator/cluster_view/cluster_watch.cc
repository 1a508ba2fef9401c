#include "coordinator/cluster_view/cluster_watch.h"

#include <algorithm>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/steady_clock.h"
#include "coordinator/cluster_view/cluster_json.h"
#include "coordinator/cluster_view/device_history.h"
#include "coordinator/cluster_view/plan_view.h"
#include "coordinator/cluster_view/step_traces.h"

namespace lime {
namespace {

constexpr int64_t kSpansAtOnce = int64_t{1} << 12;
constexpr int kMostAnswers = 16;  // of one device for one snapshot

bool HasStage(const Plan& plan, const std::string& device) {
  return std::ranges::any_of(plan.stages,
                             [&](const Stage& stage) { return plan.devices[static_cast<size_t>(stage.device)].name == device; });
}

}  // namespace

// What the threads and the streams share. It outlives the streams.
class ClusterWatch::Watching {
 public:
  explicit Watching(Options options) : options_(std::move(options)) {
    threads_.emplace_back([this] { ShowAlways(); });
  }

  void Open(Cluster cluster) {
    const absl::MutexLock lock(&mutex_);
    cluster_ = std::move(cluster);
    devices_.resize(cluster_.devices.size());
    for (size_t i = 0; i < devices_.size(); ++i) threads_.emplace_back([this, i, of = cluster_.devices[i]] { AskAlways(i, of); });
  }

  void Close() {
    {
      const absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  ClusterFacts Facts() {
    const absl::MutexLock lock(&mutex_);
    scrape_until_ = absl::Now() + options_.scrape_for;
    return Compose(options_.now());
  }

  std::string Json() {
    const absl::MutexLock lock(&mutex_);
    look_until_ = absl::Now() + options_.look_for;
    if (IsFresh()) return *json_;
    return ClusterJson(Compose(options_.now()));
  }

  // Returns the number of the snapshot before the first one that the stream shows.
  int64_t Begin(EventSource* source, std::shared_ptr<HttpAnswer> answer) {
    const absl::MutexLock lock(&mutex_);
    streams_.emplace_back(source, std::move(answer));
    if (IsFresh()) return number_ - 1;
    begun_ = true;
    return number_;
  }

  void End(EventSource* source) {
    const absl::MutexLock lock(&mutex_);
    std::erase_if(streams_, [source](const auto& stream) { return stream.first == source; });
  }

  // Appends the newest snapshot, if it is newer than `sent`.
  void Pull(int64_t& sent, std::string& out) {
    std::shared_ptr<const std::string> event;
    {
      const absl::MutexLock lock(&mutex_);
      if (number_ > sent) event = event_, sent = number_;
    }
    if (event != nullptr) out += *event;
  }

 private:
  struct Asked {
    bool was_asked = false;
    absl::Time at;  // of the answer
    absl::Status status;
    DeviceHistory history;
  };

  bool IsFresh() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return absl::Now() - made_ < 2 * options_.every; }
  bool IsWatched() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !streams_.empty() || absl::Now() < look_until_; }
  bool IsLookedAt() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return IsWatched() || absl::Now() < scrape_until_; }
  bool WatchedOrStopping() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || IsWatched(); }
  bool LookedAtOrStopping() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || IsLookedAt(); }
  bool BegunOrStopping() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || begun_; }

  // ---- Threads of the devices

  void AskAlways(size_t device, const Device& of) {
    bool spans = false;
    Ask(device, of, spans);  // so that who looks first sees something
    while (true) {
      {
        const absl::MutexLock lock(&mutex_);
        if (!IsLookedAt()) spans = false;
        mutex_.Await(absl::Condition(this, &Watching::LookedAtOrStopping));
        if (stopping_) return;
        if (IsWatched() && !spans) traces_.Forget(of.name);
        spans = IsWatched();
      }
      Ask(device, of, spans);
      const absl::MutexLock lock(&mutex_);
      if (spans) {
        mutex_.AwaitWithTimeout(absl::Condition(&stopping_), options_.every);
      } else {
        mutex_.AwaitWithTimeout(absl::Condition(this, &Watching::WatchedOrStopping), options_.scraped);
      }
    }
  }

  void Ask(size_t device, const Device& of, bool spans) {
    const absl::StatusOr<DeviceStatistics> statistics = of.statistics();
    {
      const absl::MutexLock lock(&mutex_);
      Asked& asked = devices_[device];
      asked.was_asked = true;
      asked.at = absl::Now();
      asked.status = statistics.status();
      if (statistics.ok()) asked.history.Add(*statistics, absl::Now());
    }
    for (int i = 0; spans && statistics.ok() && i < kMostAnswers; ++i) {
      const double sent_ms = SteadyMs();
      const absl::StatusOr<TraceChunk> chunk = of.trace({.most = kSpansAtOnce});
      const double came_ms = SteadyMs();
      if (!chunk.ok()) return;
      const absl::MutexLock lock(&mutex_);
      traces_.Add(of.name, sent_ms, came_ms, *chunk);
      if (std::ssize(chunk->spans) < kSpansAtOnce) return;
    }
  }

  // ---- The thread of the snapshots

  void ShowAlways() {
    while (true) {
      {
        const absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(this, &Watching::WatchedOrStopping));
        if (stopping_) return;
        begun_ = false;
      }
      Show();
      const absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(this, &Watching::BegunOrStopping), options_.every);
    }
  }

  void Show() {
    const Now now = options_.now();
    Predict(now.plan);
    ClusterFacts facts;
    StepTraces traces;
    {
      const absl::MutexLock lock(&mutex_);
      facts = Compose(now);
      traces = traces_;
    }
    // Takes milliseconds, so without the lock.
    if (now.plan != nullptr) {
      if (std::optional<StepTraces::Step> step = traces.Newest(*now.plan)) facts.step = step->step, facts.spans = std::move(step->spans);
    }
    auto json = std::make_shared<const std::string>(ClusterJson(facts));
    auto event = std::make_shared<const std::string>(ClusterEvent(*json));
    std::vector<std::shared_ptr<HttpAnswer>> answers;
    {
      const absl::MutexLock lock(&mutex_);
      json_ = std::move(json), event_ = std::move(event);
      made_ = absl::Now();
      ++number_;
      for (const auto& [source, answer] : streams_) answers.push_back(answer);
    }
    for (const std::shared_ptr<HttpAnswer>& answer : answers) answer->Wake();
  }

  // Once for each plan: takes longer than everything else.
  void Predict(const std::shared_ptr<const Plan>& plan) {
    {
      const absl::MutexLock lock(&mutex_);
      if (predicted_plan_ == plan) return;
    }
    std::vector<SpanFacts> predicted = plan != nullptr ? PredictedStep(*plan) : std::vector<SpanFacts>{};
    const absl::MutexLock lock(&mutex_);
    predicted_plan_ = plan, predicted_ = std::move(predicted);
  }

  // ---- Facts

  // Without measured spans.
  ClusterFacts Compose(const Now& now) const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    ClusterFacts facts{.name = cluster_.name,
                       .model = cluster_.model,
                       .progress = now.progress,
                       .measured_ms_per_token = now.measured_ms_per_token,
                       .tokens_per_second = now.tokens_per_second,
                       .running = now.running,
                       .waiting = now.waiting,
                       .recoveries = now.recoveries,
                       .plan_changes = now.plan_changes,
                       .kv_pages_cached = now.kv_pages_cached};
    for (size_t i = 0; i < devices_.size(); ++i) facts.devices.push_back(Describe(i, now.plan.get()));
    if (now.plan == nullptr) return facts;
    const Plan& plan = *now.plan;
    facts.plan = {.epoch = plan.epoch,
                  .stages = std::ssize(plan.stages),
                  .ms_per_token = now.predicted_ms_per_token,
                  .ttft_ms = plan.predicted.ttft_ms};
    facts.links = LinksOf(plan);
    for (LinkFacts& link : facts.links) Measure(plan, link);
    if (predicted_plan_ == now.plan) facts.predicted = predicted_;
    return facts;
  }

  DeviceFacts Describe(size_t device, const Plan* plan) const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    const Device& of = cluster_.devices[device];
    const Asked& asked = devices_[device];
    DeviceFacts facts{.name = of.name, .address = of.address, .backend = of.backend, .totals = asked.history.totals()};
    if (plan != nullptr) DescribeByPlan(*plan, facts);
    if (!of.numerics_id.empty()) facts.numerics_id = of.numerics_id;
    const bool answers = asked.was_asked && asked.status.ok();
    if (asked.was_asked && (absl::IsUnavailable(asked.status) || absl::IsDeadlineExceeded(asked.status))) {
      facts.state = DeviceFacts::State::kLost;
    } else if (plan != nullptr && HasItsPart(asked, *plan, of.name)) {
      facts.state = DeviceFacts::State::kOk;
    }
    if (!answers) return facts;
    const DeviceStatistics& newest = *asked.history.newest();
    facts.resident = newest.resident;
    facts.kv_pages = newest.kv_pages, facts.kv_pages_free = newest.kv_pages_free;
    if (facts.experts && newest.epoch == plan->epoch) facts.experts->measured_hit_share = newest.decode_hit_share();
    facts.disk_bytes_per_second = asked.history.disk_bytes_per_second();
    return facts;
  }

  // A plan that is in use is on all its devices. An answer tells more only if it is new.
  bool HasItsPart(const Asked& asked, const Plan& plan, const std::string& device) const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    if (!asked.was_asked || absl::Now() - asked.at > options_.trusted) return true;
    return asked.status.ok() && (!HasStage(plan, device) || asked.history.newest()->epoch == plan.epoch);
  }

  void Measure(const Plan& plan, LinkFacts& link) const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    if (cluster_.planned_rate) link.planned_bytes_per_second = cluster_.planned_rate(plan, link.from, link.to);
    const auto from = std::ranges::find(cluster_.devices, link.from, &Device::name);
    if (from == cluster_.devices.end()) return;
    const Asked& asked = devices_[static_cast<size_t>(from - cluster_.devices.begin())];
    link.sent = asked.history.sent_to(link.to);
    if (!asked.history.newest()) return;
    const auto rate = std::ranges::find(asked.history.newest()->links, link.to, &LinkRate::peer);
    if (rate == asked.history.newest()->links.end()) return;
    link.measured_bytes_per_second = rate->bytes_per_second, link.age_ms = rate->age_ms;
  }

  const Options options_;
  std::vector<std::thread> threads_;  // of the owner
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;  // a stream, since the last snapshot
  absl::Time look_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Time scrape_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  Cluster cluster_ ABSL_GUARDED_BY(mutex_);
  std::vector<Asked> devices_ ABSL_GUARDED_BY(mutex_);  // as cluster_.devices
  StepTraces traces_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<EventSource*, std::shared_ptr<HttpAnswer>>> streams_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Plan> predicted_plan_ ABSL_GUARDED_BY(mutex_);
  std::vector<SpanFacts> predicted_ ABSL_GUARDED_BY(mutex_);  // of that plan
  // The newest snapshot.
  int64_t number_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time made_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::shared_ptr<const std::string> json_ ABSL_GUARDED_BY(mutex_), event_ ABSL_GUARDED_BY(mutex_);
};

class ClusterWatch::EventSource final : public BodySource {
 public:
  EventSource(std::shared_ptr<Watching> watching, std::shared_ptr<HttpAnswer> answer)
      : watching_(std::move(watching)), sent_(watching_->Begin(this, std::move(answer))) {}
  ~EventSource() override { watching_->End(this); }

  bool Pull(std::string& out) override {
    watching_->Pull(sent_, out);
    return false;
  }
  void OnSilence(std::string& out) override { out += ": keep-alive\n\n"; }

 private:
  const std::shared_ptr<Watching> watching_;
  int64_t sent_;  // number of the last snapshot
};

ClusterWatch::ClusterWatch(Options options) : watching_(std::make_shared<Watching>(std::move(options))) {}

ClusterWatch::~ClusterWatch() {
  Close();
}

void ClusterWatch::Open(Cluster cluster) {
  watching_->Open(std::move(cluster));
}

void ClusterWatch::Close() {
  watching_->Close();
}

ClusterFacts ClusterWatch::Facts() {
  return watching_->Facts();
}

std::string ClusterWatch::Json() {
  return watching_->Json();
}

std::unique_ptr<BodySource> ClusterWatch::Events(std::shared_ptr<HttpAnswer> answer) {
  return std::make_unique<EventSource>(watching_, std::move(answer));
}

}  // namespace lime
