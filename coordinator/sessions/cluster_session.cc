#include "coordinator/sessions/cluster_session.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <iterator>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "coordinator/cli/command.h"
#include "coordinator/devices/cluster_push.h"
#include "coordinator/devices/device_checks.h"
#include "coordinator/planning/change_costs.h"
#include "coordinator/planning/change_search.h"
#include "coordinator/planning/plan_rates.h"
#include "coordinator/reports/kv_levels_report.h"
#include "coordinator/reports/plan_report.h"
#include "coordinator/reports/progress.h"
#include "coordinator/reports/screen.h"
#include "coordinator/reports/sparse_report.h"
#include "coordinator/sessions/cluster_plan.h"
#include "coordinator/sessions/sparse_flags.h"
#include "daemon/engine/process_memory.h"
#include "planner/plan/kv_spill.h"
#include "planner/sim/simulator.h"

namespace lime::cli {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr double kPlanAgainMs = 3000;  // for each search while a plan runs
constexpr absl::Duration kStatisticsPatience = absl::Milliseconds(500);
constexpr double kMostLinkAgeMs = 10'000;

void Say(const std::string& sentence) {
  Screen::Say(sentence);
}

// Sends the blocks that devices lack for the plan, if --push is given. Stored blocks are not read
// back.
absl::Status PushMissing(const ClusterSession::Options& options, const Plan& plan, KnownCluster& cluster) {
  BlockHomes& homes = cluster.holdings.homes;
  if (!options.push || IsAtHome(homes, plan)) return absl::OkStatus();
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<StoreSource> source, OpenPushSource(options.model));
  std::vector<PushedDevice> devices = DevicesOfPlan(cluster.client, plan);
  for (PushedDevice& device : devices) device.whole = !homes.contains(device.at.name);
  LIME_RETURN_IF_ERROR(CheckNeedNoBundles(devices));
  LIME_RETURN_IF_ERROR(PushToAll({.source = *source, .keys = cluster.client.keys, .check = false}, devices));
  for (const PushedDevice& device : devices) {
    if (device.state.missing == 0) continue;
    Say(PushedLine(device));
    std::vector<BlockId>& held = homes[device.at.name];
    std::ranges::copy_if(device.blocks, std::back_inserter(held), [&](BlockId id) { return std::ranges::find(held, id) == held.end(); });
  }
  return absl::OkStatus();
}

// Warns about keys that expire soon.
void SayExpiry(const ClusterClient::Options& cluster, const std::vector<DeviceHealth>& health) {
  std::vector<std::pair<std::string, const DeviceHealth*>> devices;
  for (size_t i = 0; i < health.size(); ++i) devices.emplace_back(cluster.devices[i].name, &health[i]);
  for (const std::string& notice : ExpiryNotices(cluster.keys, devices, std::time(nullptr))) Say(notice);
}

}  // namespace

void ClusterSession::Options::AddTo(const CommandFlags& command) {
  command.Add("--plan", &plan, "With --cluster, the file of `lime plan --out` instead of planning now");
  AddWithoutFlag(command, without);
  command.Add("--push", &push, "With --cluster, first send the devices the blocks of the plan that they lack");
  command.Add("--insecure", &insecure, "With --cluster, talk to other machines without keys");
}

absl::StatusOr<std::unique_ptr<ClusterSession>> ClusterSession::Open(const Options& options) {
  LIME_ASSIGN_OR_RETURN(KnownCluster cluster, KnowCluster(options));
  LIME_ASSIGN_OR_RETURN(const HeldPlan chosen, PlanForCluster(options, cluster, options.push));
  const Plan& plan = chosen.plan;
  if (const std::string sentence = ChoiceSentence(chosen); !sentence.empty()) Say(sentence);
  if (const std::string sentence = NoReadAheadText(plan, options.ahead_places.value_or(0)); !sentence.empty()) Say(sentence);
  if (options.sparse.model.predictor != nullptr) Say(PredictorText(*options.sparse.model.predictor));
  LIME_RETURN_IF_ERROR(PushMissing(options, plan, cluster));
  std::unique_ptr<ClusterSession> session(new ClusterSession(options, std::move(cluster.holdings), chosen.source));
  session->options_.snapshots.count = plan.state_snapshots;  // also for later plans
  session->sparsity_why_ = chosen.sparsity_why;
  LIME_ASSIGN_OR_RETURN(session->client_, ClusterClient::Connect(cluster.client));
  SayExpiry(cluster.client, session->client_->health());
  for (const ClusterClient::Device& device : cluster.client.devices)
    session->asked_[device.name] = std::make_shared<DeviceClient>(device.name, device.address, cluster.client.keys);
  if (auto inputs = InputsOf(session->options_, session->holdings_, {}); inputs.ok())
    session->inputs_ = std::make_shared<PlanInputs>(*std::move(inputs));
  (void)session->WorkOutLevels(plan, options.cancel);
  LIME_RETURN_IF_ERROR(session->Install(plan));
  session->first_ = plan;
  if (options.trace) session->StartTrace(cluster.client);
  if (options.watched) session->DescribeForWatch(cluster.file.Name(), cluster.client);
  return session;
}

// ---- Changes of plans when rates change

// A given plan stays. Without planning inputs nothing is watched.
std::unique_ptr<PlanWatcher> ClusterSession::WatchPlan() {
  if (!options_.replan || !options_.plan.empty() || options_.trace || asked_.size() < 2) return nullptr;
  const auto inputs = InputsOf(options_, holdings_, {});
  if (!inputs.ok()) return nullptr;
  const auto measure = [this, meter = std::make_shared<RateMeter>()](const Plan& plan, RateAges& ages) {
    ClusterRates rates;
    std::map<RateKey, absl::Time> measured_at;
    for (const std::string& name : DevicesUsed(plan)) {
      const absl::StatusOr<DeviceStatistics> answer = asked_.at(name)->Statistics(kStatisticsPatience);
      if (!answer.ok()) continue;  // Recovery handles lost devices
      for (const LinkRate& link : answer->links) {
        if (link.bytes_per_second <= 0 || link.age_ms > kMostLinkAgeMs) continue;
        rates[LinkKey(name, link.peer)] = link.bytes_per_second;
        measured_at[LinkKey(name, link.peer)] = absl::Now() - absl::Milliseconds(link.age_ms);
      }
      meter->Add(plan, name, *answer, rates);
    }
    for (const auto& [key, at] : measured_at) ages[key] = absl::Now() - at;
    return rates;
  };
  return std::make_unique<PlanWatcher>(
      PlanWatcher::Options{.planned = [inputs = *inputs](const Plan& plan) { return PlannedRates(inputs, plan); },
                           .measure = measure,
                           .search = [this](const PlanWatcher::Search& search) { return SearchAgain(search); },
                           .say = Say},
      plan());
}

absl::StatusOr<PlanWatcher::Candidate> ClusterSession::SearchAgain(const PlanWatcher::Search& search) {
  LIME_ASSIGN_OR_RETURN(PlanInputs inputs, InputsOf(options_, holdings_, {}));
  ChangeSearchOptions options{
      .online = options_.online, .first = &first_, .install_ms = install_seconds_ * 1000, .time_limit_ms = kPlanAgainMs};
  for (const auto& [name, device] : asked_) {
    const absl::StatusOr<DeviceStatistics> answer = device->Statistics(kStatisticsPatience);
    if (answer.ok() && answer->kv_room) options.kv_room[name] = *answer->kv_room;
  }
  {
    absl::MutexLock lock(&search_mutex_);
    options.levels = levels_in_use_;
  }
  absl::StatusOr<PlanWatcher::Candidate> found = SearchForChange(std::move(inputs), search, options);
  absl::MutexLock lock(&search_mutex_);
  if (found.ok()) found_ = found->plan, found_levels_ = found->levels;
  return found;
}

// A device that is lost while it loads is waited for, like a device that is lost later. The same
// holds for a device that an earlier coordinator has just left.
absl::Status ClusterSession::Install(const Plan& plan) {
  for (const absl::Time until = absl::Now() + options_.recovery.patience;;) {
    ProgressLine progress("Loading");
    const Clock::time_point begin = Clock::now();
    const auto report = [&](Bytes done, Bytes total) {
      progress.Update(done, total);
      if (options_.progress) options_.progress(done, total);
    };
    Devices::InstallOptions install = HowToInstall();
    install.progress = report, install.cancelled = options_.cancel;
    absl::Status status = client_->Install(plan, install);
    install_seconds_ = std::chrono::duration<double>(Clock::now() - begin).count();
    if (!absl::IsUnavailable(status) && !absl::IsAborted(status)) return status;
    Say(absl::StrCat(status.message(), "; waiting for it"));
    do {
      if (absl::Now() > until || (options_.cancel != nullptr && options_.cancel->load())) return status;
      absl::SleepFor(options_.recovery.look);
    } while (!std::ranges::includes(client_->Free(), DevicesUsed(plan)));
  }
}

Devices::InstallOptions ClusterSession::HowToInstall() const {
  return {.trace_spans = options_.trace || options_.watched ? kTraceSpans : 0, .trace_when_asked = !options_.trace};
}

ClusterRun::Survival ClusterSession::HowToSurvive(std::function<void(const Plan& plan)> in_use) const {
  PlanWatcher* const watcher = watcher_.get();
  ClusterRun::Survival survival{
      .recovery = options_.recovery,
      .plan = [this](const Recovery::Devices& devices, const std::atomic<bool>* cancelled) -> absl::StatusOr<Plan> {
        LIME_ASSIGN_OR_RETURN(PlanInputs inputs, InputsOf(options_, holdings_, devices));
        return SearchNow(cancelled, std::move(inputs));
      },
      .install = HowToInstall(),
      .say = Say};
  if (watcher != nullptr) survival.change = [watcher](const OrderWriter::Remaining& remaining) { return watcher->Next(remaining); };
  survival.takes_over = [](const Plan& before, const Plan& after, int64_t pages) { return TakesOver(before, after, pages); };
  survival.in_use = [watcher, in_use = std::move(in_use)](const Plan& plan) {
    if (watcher != nullptr) watcher->OnPlan(plan);
    if (in_use) in_use(plan);
  };
  return survival;
}

Serving::Options ClusterSession::HowToServe(std::function<void(const Plan& plan)> in_use) {
  watcher_ = WatchPlan();
  return {.survival = HowToSurvive(std::move(in_use)), .levels = LevelsForServing()};
}

// Computing levels takes time. The levels of the last found plan and of the last two plans in use
// are stored.
std::vector<Residency> ClusterSession::WorkOutLevels(const Plan& plan, const std::atomic<bool>* cancelled) {
  const auto is_it = [&](Plan other) {
    other.epoch = plan.epoch;
    return other == plan;
  };
  absl::MutexLock lock(&search_mutex_);
  if (!is_it(levels_of_)) {
    KvLevels levels = is_it(found_)              ? found_levels_
                      : is_it(levels_before_of_) ? levels_before_
                                                 : LevelsOf(plan, options_.online, cancelled);
    if (cancelled != nullptr && cancelled->load()) return {ResidencyOf(plan)};
    levels_before_of_ = std::exchange(levels_of_, plan), levels_before_ = std::exchange(levels_, std::move(levels));
  }
  return levels_in_use_ = ResidenciesOf(levels_);
}

ClusterRun::LevelsOf ClusterSession::LevelsForServing() {
  return [this](const Plan& plan, const std::atomic<bool>* cancelled) { return WorkOutLevels(plan, cancelled); };
}

absl::StatusOr<Scores> ClusterSession::Score(const std::vector<std::vector<int32_t>>& windows, const ScoreOptions& options) {
  Serving serving(*client_, {.levels = LevelsForServing()});
  absl::StatusOr<Scores> scores = ScoreWindows(serving, windows, options);
  (void)serving.Drain(absl::InfinitePast());
  const absl::Status closed = Close();
  if (scores.ok() && !closed.ok()) Say(absl::StrCat(closed.message(), "; everything was scored before"));
  return scores;
}

absl::StatusOr<GenerateSummary> ClusterSession::Generate(const Tokenizer& tokenizer, const std::vector<std::vector<int32_t>>& prompts,
                                                         const GenerateOptions& options) {
  std::thread correcting;  // asks devices while tokens come
  GenerateOptions watched = options;
  watched.on_first_token = [&] {
    if (options.on_first_token) options.on_first_token();
    correcting = std::thread([this, plan = plan()] { CorrectPrediction(plan); });
  };
  Generator generator(*client_, HowToServe(), tokenizer, watched, plan().predicted.ttft_ms / 1000);
  for (const std::vector<int32_t>& prompt : prompts) generator.Add(prompt);
  absl::StatusOr<GenerateSummary> summary = generator.Run();
  if (correcting.joinable()) correcting.join();
  recoveries_ = generator.recoveries(), changes_ = generator.changes();
  const absl::Status closed = Close();
  if (summary.ok() && !closed.ok()) Say(absl::StrCat(closed.message(), "; everything was generated before"));
  return summary;
}

absl::Status ClusterSession::Close() {
  watcher_.reset();
  if (collector_ != nullptr) traces_ = collector_->Finish();
  statistics_.assign(plan().devices.size(), {});
  for (int32_t device = 0; device < plan().NumDevices(); ++device) {
    if (!HasPart(plan(), device)) continue;
    const absl::StatusOr<DeviceStatistics> answer = client_->Statistics(device);
    if (answer.ok()) statistics_[static_cast<size_t>(device)] = *answer;
  }
  return client_->Unload();
}

json ClusterSession::Describe() const {
  absl::MutexLock lock(&search_mutex_);
  json devices = json::array();
  for (size_t i = 0; i < statistics_.size(); ++i) {
    const DeviceStatistics& of = statistics_[i];
    if (client_->installed()[i].numerics_id.empty() && of.epoch < 0) continue;
    devices.push_back(DeviceJson(plan().devices[i], client_->installed()[i], of));
    if (const UnitUse units = UnitUseOf(plan(), static_cast<int32_t>(i)); units.units > 0)
      devices.back()["experts"] = ExpertsJson(units, of);
    devices.back()["address"] = asked_.at(plan().devices[i].name)->address();
  }
  json answer = {{"predicted_ms_per_token", predicted_ms_per_token()},
                 {"predicted_ttft_ms", plan().predicted.ttft_ms},
                 {"peak_rss_bytes", ProcessPeakResidentBytes()},
                 {"devices", devices},
                 {"recoveries", recoveries_},
                 {"plan_changes", changes_},
                 {"plan",
                  {{"epoch", plan().epoch},
                   {"stages", plan().stages.size()},
                   {"microbatches", plan().microbatches},
                   {"batch", plan().batch},
                   {"state_snapshots", plan().state_snapshots},
                   {"source", kSourceNames.Of(source_)},
                   {"kv_levels", ToJson(plan(), levels_)}}},
                 {"load", {{"loader", "cluster"}, {"seconds", install_seconds_}}}};
  AddSparsity(SparseUseOf(plan(), statistics_), answer);
  if (options_.sparse.model.predictor != nullptr) answer["predictor"] = PredictorJson(*options_.sparse.model.predictor);
  if (const std::string why = SparsityWhy(); !why.empty()) answer["sparsity_why"] = why;
  return answer;
}

// Why --sparsity auto has chosen what it has; empty if the call has chosen.
std::string ClusterSession::SparsityWhy() const {
  const SparseInputs& sparse = options_.sparse;
  return sparsity_why_.empty() && sparse.sparsity == SparsityWish::kAuto ? sparse.model.lacks : sparsity_why_;
}

Plan ClusterSession::Stated() const {
  absl::MutexLock lock(&corrected_mutex_);
  return corrected_ && corrected_->epoch == plan().epoch ? *corrected_ : plan();
}

// Corrects disk rates only. Differences in computing are reported at the end.
void ClusterSession::CorrectPrediction(const Plan& plan) {
  constexpr double kLeastDiskMs = 200;
  if (inputs_ == nullptr) return;
  ClusterRates rates;
  for (const std::string& name : DevicesUsed(plan)) {
    const absl::StatusOr<DeviceStatistics> answer = asked_.at(name)->Statistics(kStatisticsPatience);
    if (!answer.ok() || answer->epoch != plan.epoch || answer->disk_ms < kLeastDiskMs) continue;
    const double planned = PlannedLoadMs(plan, name, answer->disk_bytes);
    if (planned > 0) rates[DiskKey(name)] = planned / answer->disk_ms;
  }
  if (rates.empty()) return;
  PlanInputs inputs = *inputs_;
  ApplyRates(rates, inputs);
  Plan corrected = AsItIsNow(inputs, plan, {}, rates);
  const auto simulated = SimulateDecode(corrected, {.timeline = false});
  if (!simulated.ok()) return;
  corrected.predicted.ms_per_step = simulated->MsPerStep();
  corrected.predicted.ms_per_token = corrected.predicted.ms_per_step / std::max(1, corrected.sequences);
  const double before = plan.predicted.ms_per_token, now = corrected.predicted.ms_per_token;
  if (std::abs(now / before - 1) > kPredictionTolerance) {
    const auto slowest = std::ranges::min_element(rates, {}, [](const auto& rate) { return rate.second; });
    Say(absl::StrFormat("%s: %.1f ms a token are predicted instead of %.1f", DescribeRates(slowest->first, 1, slowest->second), now,
                        before));
  }
  absl::MutexLock lock(&corrected_mutex_);
  corrected_ = std::move(corrected);
}

PredictionReport ClusterSession::Compare(const GenerateSummary& summary) const {
  ClusterObservations seen{.steps = static_cast<double>(summary.decode_steps),
                           .decode_seconds = summary.decode_ms / 1000,
                           .step_deviation_ms = summary.step_deviation_ms};
  const ClusterRates planned = inputs_ != nullptr ? PlannedRates(*inputs_, plan()) : ClusterRates{};
  if (inputs_ != nullptr) seen.shared = inputs_->shared;
  for (size_t i = 0; i < statistics_.size(); ++i) {
    const DeviceStatistics& of = statistics_[i];
    if (of.epoch != plan().epoch) continue;
    const std::string& name = plan().devices[i].name;
    seen.devices.push_back({name, of});
    for (const LinkRate& link : of.links) {
      const auto rate = planned.find(LinkKey(name, link.peer));
      if (rate != planned.end() && link.age_ms <= kMostLinkAgeMs)
        seen.links.push_back({name, link.peer, link.bytes_per_second, rate->second});
    }
  }
  const double tokens = static_cast<double>(summary.decode_tokens);
  return ExplainClusterDifference(Stated(), tokens > 0 ? summary.decode_ms / tokens : 0, seen);
}

std::string ClusterSession::DeviceLines() const {
  std::string lines;
  for (size_t i = 0; i < statistics_.size(); ++i) {
    const DeviceStatistics& of = statistics_[i];
    if (of.epoch < 0) continue;
    const double steps = static_cast<double>(std::max<int64_t>(1, of.steps));
    absl::StrAppend(&lines,
                    absl::StrFormat("%-12s peak %s of %s; a step: computed %.2f ms, waited %.2f ms for weights, %.2f ms for input\n",
                                    plan().devices[i].name, FormatBytes(of.peak_resident), FormatBytes(plan().devices[i].budget),
                                    of.compute_ms / steps, of.wait_weights_ms / steps, of.wait_input_ms / steps));
    const std::string experts = UnitUseOf(plan(), static_cast<int32_t>(i)).Text(plan().sequences, of.decode_hit_share());
    if (!experts.empty()) absl::StrAppend(&lines, absl::StrFormat("%-12s %s\n", plan().devices[i].name, experts));
  }
  if (const std::string sparse = SparseUseOf(plan(), statistics_).Text(); !sparse.empty()) absl::StrAppend(&lines, sparse, "\n");
  if (const std::string why = SparsityWhy(); !why.empty() && options_.sparse.model.bundles)
    absl::StrAppend(&lines, "sparsity     ", NameOfSparsity(plan()), ": ", why, "\n");
  return lines;
}

Bytes ClusterSession::disk_bytes() const {
  Bytes bytes = 0;
  for (const DeviceStatistics& of : statistics_) bytes += of.bytes_read;
  return bytes;
}

// Uses connections of its own, so a device that sends its spans slowly delays nothing else.
void ClusterSession::StartTrace(const ClusterClient::Options& cluster) {
  std::vector<TraceCollector::Device> devices;
  for (const ClusterClient::Device& device : cluster.devices) {
    const auto client = std::make_shared<DeviceClient>(device.name, device.address, cluster.keys);
    devices.push_back({device.name, [client](const TraceCall& call) { return client->Trace(call); }});
  }
  collector_ = std::make_unique<TraceCollector>(std::move(devices), TraceCollector::Options());
}

void ClusterSession::DescribeForWatch(const std::string& name, const ClusterClient::Options& cluster) {
  watched_ = {
      .name = name,
      .model = plan().model_name,
      .devices = {},
      .planned_rate = [inputs = inputs_](const Plan& plan, const std::string& from, const std::string& to) -> std::optional<double> {
        const ClusterRates rates = inputs != nullptr ? PlannedRates(*inputs, plan) : ClusterRates{};
        const auto rate = rates.find(LinkKey(from, to));
        return rate != rates.end() ? std::optional<double>(rate->second) : std::nullopt;
      }};
  for (size_t i = 0; i < cluster.devices.size(); ++i) {
    const ClusterClient::Device& device = cluster.devices[i];
    const std::optional<DaemonSettings>& settings = client_->health()[i].settings;
    const int32_t in_plan = DeviceNamed(plan(), device.name);
    watched_.devices.push_back({.name = device.name,
                                .address = device.address,
                                .backend = settings ? settings->backend : "",
                                .numerics_id = in_plan >= 0 ? client_->installed()[static_cast<size_t>(in_plan)].numerics_id : "",
                                .statistics = [client = asked_.at(device.name)] { return client->Statistics(kStatisticsPatience); },
                                .trace = [client = asked_.at(device.name)](const TraceCall& call) { return client->Trace(call); }});
  }
}

absl::StatusOr<MeasuredTimeline> ClusterSession::DrainTrace() {
  std::vector<std::string> devices, parts;
  for (const PlanDevice& device : plan().devices) devices.push_back(device.name);
  for (int part = 0; part < plan().NumParts(); ++part) parts.push_back(PartName(plan(), part));
  std::vector<DeviceTrace> traces = std::exchange(traces_, {});
  for (const DeviceTrace& trace : traces) {
    if (!trace.status.ok()) Say(absl::StrCat("the trace may lack the last spans of a device: ", trace.status.message()));
  }
  std::erase_if(traces, [this](const DeviceTrace& trace) { return trace.epoch != plan().epoch; });
  return MergeTraces(std::move(devices), std::move(parts), traces);
}

}  // namespace lime::cli
