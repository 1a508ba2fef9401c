#include "coordinator/cli/cluster_session.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "coordinator/cli/change_search.h"
#include "coordinator/cli/cluster_file.h"
#include "coordinator/cli/cluster_planning.h"
#include "coordinator/cli/command.h"
#include "coordinator/cli/device_checks.h"
#include "coordinator/cli/kv_levels_report.h"
#include "coordinator/cli/plan_inputs.h"
#include "coordinator/cli/plan_rates.h"
#include "coordinator/cli/progress.h"
#include "coordinator/cli/prompt_chunk.h"
#include "coordinator/cli/text_stream.h"
#include "coordinator/cluster/cluster_config.h"
#include "coordinator/rpc/device_client.h"
#include "daemon/engine/process_memory.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/files.h"
#include "daemon/weights/model_digest.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/limits.h"

namespace lime::cli {
namespace {

using Clock = TextStream::Clock;
using nlohmann::json;

constexpr double kPlanningMs = 3000;
constexpr absl::Duration kStatisticsPatience = absl::Milliseconds(500);
constexpr double kMostLinkAgeMs = 10'000;

// Of what `lime plan` is without further flags; for these devices alone, where any are named.
absl::StatusOr<PlanInputs> InputsOf(const ClusterSession::Options& options, const std::set<std::string>& devices) {
  PlanInputFlags flags;
  flags.cluster = options.cluster;
  flags.model = options.model;
  flags.tokens = options.context;
  flags.sequences = options.sequences;
  flags.prompt_tokens = std::min(options.context, std::max(options.prompt_tokens, kLeastPromptChunk));
  flags.no_kv_spill = !options.kv_spill;
  flags.no_kv_lending = !options.kv_lending;
  flags.no_remote_attention = !options.remote_attention;
  if (options.kv_tokens > 0) flags.kv_tokens = std::min(options.context, std::max(options.kv_tokens, flags.prompt_tokens));
  LIME_ASSIGN_OR_RETURN(PlanInputs inputs, ReadPlanInputs(flags));
  if (!devices.empty()) std::erase_if(inputs.devices, [&](const ClusterDevice& device) { return !devices.contains(device.name); });
  return inputs;
}

absl::StatusOr<Plan> PlanNow(const ClusterSession::Options& options, const std::set<std::string>& devices) {
  LIME_ASSIGN_OR_RETURN(PlanInputs inputs, InputsOf(options, devices));
  ElapsedLine progress("Planning");
  return ClusterPlanning({.time_limit_ms = kPlanningMs, .at = [&](const std::string& what) { progress.Say(what); }}, std::move(inputs))
      .Run();
}

absl::StatusOr<Plan> ReadPlan(const ClusterSession::Options& options) {
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(options.plan, kMaxPlanBytes));
  LIME_ASSIGN_OR_RETURN(Plan plan, ParsePlan(text, options.plan));
  if (plan.prefill_chunk > 0) return plan;
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, LoadModelSpec(options.model));
  return WithPromptChunk(std::move(plan), spec, options.prompt_tokens);
}

absl::Status CheckAddresses(const ClusterConfig& config, const ClusterSession::Options& options) {
  for (const ClusterConfig::Device& device : config.devices) {
    const std::string where = absl::StrCat(options.cluster, " line ", device.line, ": device \"", device.name, "\"");
    if (device.address.empty()) return absl::InvalidArgumentError(absl::StrCat(where, " has no address; add address = \"HOST:PORT\""));
    const absl::StatusOr<bool> loopback = IsLoopback(device.address);
    if (!loopback.ok()) return absl::InvalidArgumentError(absl::StrCat(where, ": ", loopback.status().message()));
    if (!*loopback && config.tls.empty() && !options.insecure) {
      return absl::InvalidArgumentError(
          absl::StrCat(where,
                       " is another machine, and [cluster] names no keys: make them with `lime keys` and add tls = \"FOLDER\", or "
                       "give --insecure"));
    }
  }
  return absl::OkStatus();
}

// By which devices that have no weights of their own find what was pushed to them; 0 where all have.
absl::StatusOr<uint64_t> PushedModel(const ClusterConfig& config, const std::string& model) {
  const bool from_store = std::ranges::any_of(config.devices, [](const ClusterConfig::Device& device) { return device.weights.empty(); });
  if (!from_store || model.empty()) return uint64_t{0};
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(model));
  return ModelDigest(checkpoint);
}

absl::StatusOr<ClusterClient::Options> ReadCluster(const ClusterSession::Options& options) {
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(options.cluster, kMaxClusterBytes + 1));
  LIME_ASSIGN_OR_RETURN(const ClusterConfig config, ParseClusterConfig(text, options.cluster));
  LIME_RETURN_IF_ERROR(CheckAddresses(config, options));
  ClusterClient::Options client;
  if (!config.tls.empty()) {
    const std::string folder = (std::filesystem::path(options.cluster).parent_path() / config.tls).string();
    LIME_ASSIGN_OR_RETURN(client.keys, ClusterKeys::Read(folder, kCoordinatorName));
  }
  LIME_ASSIGN_OR_RETURN(const uint64_t model, PushedModel(config, options.model));
  for (const ClusterConfig::Device& device : config.devices)
    client.devices.push_back({.name = device.name,
                              .address = device.address,
                              .weights = device.weights,
                              .model = model,
                              .start = HowToStart(device, options.cluster)});
  return client;
}

void Say(const std::string& sentence) {
  absl::FPrintF(stderr, "lime: %s\n", sentence);
}

// Of keys that expire soon.
void TellExpiry(const ClusterClient::Options& cluster, const std::vector<DeviceHealth>& health) {
  std::vector<std::pair<std::string, const DeviceHealth*>> devices;
  for (size_t i = 0; i < health.size(); ++i) devices.emplace_back(cluster.devices[i].name, &health[i]);
  for (const std::string& notice : ExpiryNotices(cluster.keys, devices, std::time(nullptr))) Say(notice);
}

class ClusterGenerator {
 public:
  ClusterGenerator(std::unique_ptr<ClusterRun> run, const Tokenizer& tokenizer, const GenerateOptions& options)
      : run_(std::move(run)), tokenizer_(tokenizer), options_(options) {}

  absl::Status Add(const std::vector<int32_t>& prompt) {
    Request request{.prompt = prompt, .max_new_tokens = options_.MaxNewTokens(streams_.size()), .end_tokens = options_.end_tokens};
    const auto id = run_->Add(std::move(request), {.params = options_.sampling, .hash_logits = options_.hash_logits});
    if (!id.ok()) return id.status();
    streams_.push_back(std::make_unique<TextStream>(tokenizer_, options_, streams_.size(), prompt));
    return absl::OkStatus();
  }

  absl::StatusOr<GenerateSummary> Run() {
    start_ = Clock::now();
    LIME_RETURN_IF_ERROR(run_->Run([this](const ClusterRun::Token& token) { return TakeToken(token); }, options_.cancel));
    return Summary();
  }

  int64_t recoveries() const { return run_->recoveries(); }
  int64_t changes() const { return run_->changes(); }

 private:
  bool TakeToken(const ClusterRun::Token& token) {
    TextStream& stream = *streams_[static_cast<size_t>(token.request)];
    stream.result().logits_hash = token.logits_hash;
    const FinishReason reason = stream.Take(token.token, token.reason);
    if (reason != FinishReason::kNone) stream.Close(reason, start_);
    return reason == FinishReason::kNone;
  }

  // All tokens after the first of all, over the time from then on.
  GenerateSummary Summary() {
    GenerateSummary summary;
    summary.interrupted = options_.cancel != nullptr && options_.cancel->load();
    Clock::time_point first = Clock::time_point::max(), last = start_;
    int64_t tokens = 0, longest = 0;
    for (size_t i = 0; i < streams_.size(); ++i) {
      TextStream& stream = *streams_[i];
      if (stream.result().finish == FinishReason::kNone) stream.Close(FinishReason::kStopped, start_);
      const int64_t count = static_cast<int64_t>(stream.result().token_ids.size());
      if (count > 0) first = std::min(first, stream.first_token()), last = std::max(last, stream.last_token());
      tokens += count, longest = std::max(longest, count);
      summary.results.push_back(std::move(stream.result()));
    }
    if (tokens == 0) return summary;
    summary.prefill_ms = Milliseconds(first - start_);
    summary.decode_ms = Milliseconds(last - first);
    summary.decode_steps = longest - 1;
    summary.decode_tokens = tokens - static_cast<int64_t>(streams_.size());
    return summary;
  }

  const std::unique_ptr<ClusterRun> run_;
  const Tokenizer& tokenizer_;
  const GenerateOptions& options_;
  std::vector<std::unique_ptr<TextStream>> streams_;  // by request id
  Clock::time_point start_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ClusterSession>> ClusterSession::Open(const Options& options) {
  LIME_ASSIGN_OR_RETURN(const ClusterClient::Options cluster, ReadCluster(options));
  LIME_ASSIGN_OR_RETURN(Plan plan, options.plan.empty() ? PlanNow(options, {}) : ReadPlan(options));
  std::unique_ptr<ClusterSession> session(new ClusterSession(options));
  LIME_ASSIGN_OR_RETURN(session->client_, ClusterClient::Connect(cluster));
  TellExpiry(cluster, session->client_->health());
  for (const ClusterClient::Device& device : cluster.devices) {
    session->addresses_[device.name] = device.address;
    session->asked_.push_back(std::make_shared<DeviceClient>(device.name, device.address, cluster.keys));
  }
  (void)session->WorkOutLevels(plan);
  LIME_RETURN_IF_ERROR(session->Install(plan));
  session->first_ = plan;
  if (options.trace) session->StartTrace(cluster);
  return session;
}

// ---- Another plan where devices and links change

// A plan that is given stays; and what cannot be planned for is not watched.
std::unique_ptr<PlanWatcher> ClusterSession::WatchPlan() {
  if (!options_.replan || !options_.plan.empty() || options_.trace || asked_.size() < 2) return nullptr;
  const auto inputs = InputsOf(options_, {});
  if (!inputs.ok()) return nullptr;
  const auto measure = [this, meter = std::make_shared<RateMeter>()](const Plan& plan, RateAges& ages) {
    ClusterRates rates;
    std::map<RateKey, absl::Time> measured_at;
    for (const std::string& name : DevicesUsed(plan)) {
      const auto device = std::ranges::find(asked_, name, &DeviceClient::name);
      if (device == asked_.end()) continue;
      const absl::StatusOr<DeviceStatistics> answer = (*device)->Statistics(kStatisticsPatience);
      if (!answer.ok()) continue;  // one that is lost is noticed elsewhere
      for (const LinkRate& link : answer->links) {
        if (link.bytes_per_second <= 0 || link.age_ms > kMostLinkAgeMs) continue;
        rates[LinkKey(name, link.peer)] = link.bytes_per_second;
        measured_at[LinkKey(name, link.peer)] = absl::Now() - absl::Milliseconds(link.age_ms);
      }
      meter->Add(plan, name,
                 {.epoch = answer->epoch,
                  .disk_bytes = answer->disk_bytes,
                  .disk_ms = answer->disk_ms,
                  .decode_ms = answer->decode_ms,
                  .planned_decode_ms = answer->planned_decode_ms},
                 rates);
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
  LIME_ASSIGN_OR_RETURN(PlanInputs inputs, InputsOf(options_, {}));
  ChangeSearchOptions options{
      .online = options_.online, .first = &first_, .install_ms = install_seconds_ * 1000, .time_limit_ms = kPlanningMs};
  for (const auto& device : asked_) {
    const absl::StatusOr<DeviceStatistics> answer = device->Statistics(kStatisticsPatience);
    if (answer.ok() && answer->kv_room) options.kv_room[device->name()] = *answer->kv_room;
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

// A device that is lost while it loads is waited for as one is that is lost later; so is one that an earlier coordinator has just left.
absl::Status ClusterSession::Install(const Plan& plan) {
  for (const absl::Time until = absl::Now() + options_.recovery.patience;;) {
    ProgressLine progress("Loading");
    const Clock::time_point begin = Clock::now();
    const absl::Status status = client_->Install(plan, {.progress = [&](Bytes done, Bytes total) { progress.Update(done, total); },
                                                        .cancelled = options_.cancel,
                                                        .trace_spans = options_.trace ? kTraceSpans : 0});
    install_seconds_ = Milliseconds(Clock::now() - begin) / 1000;
    if (!absl::IsUnavailable(status) && !absl::IsAborted(status)) return status;
    Say(absl::StrCat(status.message(), "; waiting for it"));
    do {
      if (absl::Now() > until || (options_.cancel != nullptr && options_.cancel->load())) return status;
      absl::SleepFor(options_.recovery.look);
    } while (!std::ranges::includes(client_->Free(), DevicesUsed(plan)));
  }
}

ClusterRun::Survival ClusterSession::HowToSurvive(PlanWatcher* watcher) const {
  ClusterRun::Survival survival{.recovery = options_.recovery,
                                .plan = [this](const Recovery::Devices& devices) { return PlanNow(options_, devices); },
                                .install = {.cancelled = options_.cancel, .trace_spans = options_.trace ? kTraceSpans : 0},
                                .say = Say};
  if (watcher != nullptr) {
    survival.change = [watcher](const OrderWriter::Left& left) { return watcher->Next(left); };
    survival.in_use = [watcher](const Plan& plan) { watcher->OnPlan(plan); };
  }
  return survival;
}

// Takes a while, but for a plan that has just been searched for, and for the last two that were in use.
std::vector<Residency> ClusterSession::WorkOutLevels(const Plan& plan) {
  const auto is_it = [&](Plan other) {
    other.epoch = plan.epoch;
    return other == plan;
  };
  absl::MutexLock lock(&search_mutex_);
  if (!is_it(levels_of_)) {
    KvLevels levels = is_it(found_) ? found_levels_ : is_it(levels_before_of_) ? levels_before_ : LevelsOf(plan, options_.online);
    levels_before_of_ = std::exchange(levels_of_, plan), levels_before_ = std::exchange(levels_, std::move(levels));
  }
  levels_in_use_.clear();
  for (const KvLevel& level : levels_.levels) levels_in_use_.push_back(level.residency);
  return levels_in_use_;
}

absl::StatusOr<ClusterSession::Scores> ClusterSession::Score(const std::vector<std::vector<int32_t>>& windows,
                                                             const ScoreOptions& options) {
  absl::StatusOr<Scores> scores = ScoreWindows(windows, options);
  const absl::Status closed = Close();
  if (scores.ok() && !closed.ok()) Say(absl::StrCat(closed.message(), "; everything was scored before"));
  return scores;
}

absl::StatusOr<ClusterSession::Scores> ClusterSession::ScoreWindows(const std::vector<std::vector<int32_t>>& windows,
                                                                    const ScoreOptions& options) {
  ClusterRun run(*client_, {}, [this](const Plan& plan) { return WorkOutLevels(plan); });
  Scores scores;
  for (const std::vector<int32_t>& window : windows) {
    const size_t first = scores.positions.size();
    for (const int32_t id : window) scores.positions.push_back({.id = id, .logprob = std::nullopt, .top = {}});
    LIME_ASSIGN_OR_RETURN(const RequestId scored,
                          run.Add({.prompt = window, .max_new_tokens = 0}, {.score_top = static_cast<int32_t>(options.top)}));
    for (const std::vector<int32_t>& companion : options.companions)
      LIME_RETURN_IF_ERROR(run.Add({.prompt = companion, .max_new_tokens = 1}, {}).status());
    size_t at = first;  // whose row comes next
    LIME_RETURN_IF_ERROR(run.Run(
        [&](const ClusterRun::Token& token) {
          if (token.request != scored || token.score == nullptr || at == scores.positions.size()) return true;
          ScoredPosition* const next = at + 1 < scores.positions.size() ? &scores.positions[at + 1] : nullptr;
          TakeScore(*token.score, scores.positions[at++], next);
          scores.logits_hash = token.logits_hash;
          return true;
        },
        options.cancel));
    if (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed)) return absl::CancelledError("interrupted");
    if (at < scores.positions.size()) return absl::InternalError("the devices left out logits that were asked for");
  }
  return scores;
}

absl::StatusOr<GenerateSummary> ClusterSession::Generate(const Tokenizer& tokenizer, const std::vector<std::vector<int32_t>>& prompts,
                                                         const GenerateOptions& options) {
  const std::unique_ptr<PlanWatcher> watcher = WatchPlan();
  ClusterGenerator generator(
      std::make_unique<ClusterRun>(*client_, HowToSurvive(watcher.get()), [this](const Plan& plan) { return WorkOutLevels(plan); }),
      tokenizer, options);
  for (const std::vector<int32_t>& prompt : prompts) LIME_RETURN_IF_ERROR(generator.Add(prompt));
  absl::StatusOr<GenerateSummary> summary = generator.Run();
  recoveries_ = generator.recoveries(), changes_ = generator.changes();
  const absl::Status closed = Close();
  if (summary.ok() && !closed.ok()) Say(absl::StrCat(closed.message(), "; everything was generated before"));
  return summary;
}

absl::Status ClusterSession::Close() {
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
  json devices = json::array();
  for (size_t i = 0; i < statistics_.size(); ++i) {
    const DeviceStatistics& of = statistics_[i];
    if (client_->installed()[i].numerics_id.empty() && of.epoch < 0) continue;
    devices.push_back({{"name", plan().devices[i].name},
                       {"address", addresses_.at(plan().devices[i].name)},
                       {"numerics_id", client_->installed()[i].numerics_id},
                       {"budget_bytes", plan().devices[i].budget},
                       {"peak_rss_bytes", of.peak_resident},
                       {"steps", of.steps},
                       {"bytes_read", of.bytes_read},
                       {"kv_written_bytes", of.kv_written},
                       {"kv_read_bytes", of.kv_read},
                       {"kv_fetched_bytes", of.kv_fetched},
                       {"compute_ms", of.compute_ms},
                       {"wait_weights_ms", of.wait_weights_ms},
                       {"wait_input_ms", of.wait_input_ms},
                       {"residency_changes", of.residency_changes},
                       {"sent_messages", of.sent_messages},
                       {"sent_bytes", of.sent_bytes}});
  }
  return {{"predicted_ms_per_token", predicted_ms_per_token()},
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
            {"kv_levels", ToJson(plan(), levels_)}}},
          {"load", {{"loader", "cluster"}, {"seconds", install_seconds_}}}};
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
  }
  return lines;
}

Bytes ClusterSession::disk_bytes() const {
  Bytes bytes = 0;
  for (const DeviceStatistics& of : statistics_) bytes += of.bytes_read;
  return bytes;
}

// On connections of its own: a device that is slow to tell its spans holds up nothing else.
void ClusterSession::StartTrace(const ClusterClient::Options& cluster) {
  std::vector<TraceCollector::Device> devices;
  for (const ClusterClient::Device& device : cluster.devices) {
    const auto client = std::make_shared<DeviceClient>(device.name, device.address, cluster.keys);
    devices.push_back({device.name, [client](const TraceCall& call) { return client->Trace(call); }});
  }
  collector_ = std::make_unique<TraceCollector>(std::move(devices), TraceCollector::Options());
}

absl::StatusOr<MeasuredTimeline> ClusterSession::TakeTrace() {
  std::vector<std::string> devices, parts;
  for (const PlanDevice& device : plan().devices) devices.push_back(device.name);
  for (int part = 0; part < plan().NumParts(); ++part) parts.push_back(PartName(plan(), part));
  std::vector<DeviceTrace> traces = std::exchange(traces_, {});
  for (const DeviceTrace& trace : traces) {
    if (!trace.status.ok()) Say(absl::StrCat("the trace may lack the last of a device: ", trace.status.message()));
  }
  std::erase_if(traces, [this](const DeviceTrace& trace) { return trace.epoch != plan().epoch; });
  return MergeTraces(std::move(devices), std::move(parts), traces);
}

absl::StatusOr<ClusterClient::Options> DevicesOf(const ClusterSession::Options& options) {
  return ReadCluster(options);
}

absl::StatusOr<Plan> PlanOf(const ClusterSession::Options& options) {
  return options.plan.empty() ? PlanNow(options, {}) : ReadPlan(options);
}

}  // namespace lime::cli
