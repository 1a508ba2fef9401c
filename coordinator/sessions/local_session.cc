#include "coordinator/sessions/local_session.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/steady_clock.h"
#include "coordinator/planning/change_search.h"
#include "coordinator/planning/routes.h"
#include "coordinator/reports/kv_levels_report.h"
#include "coordinator/reports/plan_report.h"
#include "coordinator/reports/progress.h"
#include "coordinator/reports/screen.h"
#include "coordinator/reports/sparse_report.h"
#include "coordinator/sessions/sparse_flags.h"
#include "daemon/engine/call_limits.h"
#include "daemon/engine/process_memory.h"
#include "daemon/engine/stage_engine.h"
#include "daemon/machine/system_memory.h"
#include "daemon/profile/cpu_usage.h"
#include "daemon/profile/measure_rates.h"
#include "daemon/profile/profile_file.h"
#include "daemon/weights/checkpoint.h"
#include "planner/one_device.h"
#include "planner/plan/device/backend_names.h"
#include "planner/plan/sparse_parts.h"

namespace lime::cli {
namespace {

using nlohmann::json;

// Minimum reads that tell the disk's rate.
constexpr Bytes kLeastBytes = 32 * kMiB;
constexpr double kLeastSeconds = 0.1;
// Consecutive reads whose rates differ by less count as one rate.
constexpr double kSameBurst = 0.15;
// The disk was the limit if the computation waited for this share of the disk's time.
constexpr double kWaitedShare = 0.25;

constexpr double kLeastCpuSeconds = 0.1;  // the system counts CPU time in ticks of 10 ms

// Capacity for spans: 7 MB. No thread fetches them during the run, so none disturbs the
// measurement.
constexpr int64_t kRunTraceSpans = int64_t{1} << 17;

// The profile of --profile, for any hardware; else the stored one of this machine, or a short
// measurement of its memory.
absl::StatusOr<DeviceProfile> ProfileFor(const ModelFlags& flags, Bytes budget, int threads) {
  if (!flags.profile.empty()) return OfUser(ReadProfile(flags.profile));
  const Bytes allowed = budget > 0 ? budget - ProcessResidentBytes() : AvailableMemory();
  return LoadOrMeasureProfile(threads, std::min(allowed, AvailableMemory()));
}

// A few tens of megabytes may read an eighth too fast: rate limits allow bursts, and disks have
// caches.
bool AreOneRate(const SteadyReads& before, const SteadyReads& now) {
  return before.seconds > 0 && now.seconds > 0 && std::abs(now.bytes_per_second() / before.bytes_per_second() - 1) <= kSameBurst;
}

DecodeUse UseOfProcess(const DeviceStatistics& statistics) {
  return {.cpu = ReadCpuUsage(),
          .disk_bytes = ProcessDiskReadBytes(),
          .streamed_bytes = statistics.disk_bytes,
          .disk_busy_seconds = statistics.disk_ms / 1000};
}

DecodeUse Since(const DecodeUse& before, const DecodeUse& now) {
  return {.cpu = now.cpu - before.cpu,
          .disk_bytes = now.disk_bytes - before.disk_bytes,
          .streamed_bytes = now.streamed_bytes - before.streamed_bytes,
          .disk_busy_seconds = now.disk_busy_seconds - before.disk_busy_seconds};
}

void UsePredictor(const SparseModel& model, LocalPlanRequest& request) {
  if (model.predictor == nullptr) return;
  request.predictor = model.predictor->hash();
  request.copies.clear();  // the predictor decides
  request.predictor_ranks = PredictorRanks(*model.predictor);
}

void LookAtCpu(const CpuUsage& cpu, int threads, PredictionObservations& seen) {
  if (cpu.wall < kLeastCpuSeconds) return;
  seen.wall_seconds = cpu.wall;
  seen.threads = threads;
  seen.cores = static_cast<int>(std::thread::hardware_concurrency());
  seen.other_seconds = std::max(0.0, cpu.busy - cpu.process);
  seen.stolen_seconds = cpu.stolen;
}

}  // namespace

LocalSession::LocalSession(const ModelFlags& flags, ModelSpec spec, const LocalOpening& options)
    : flags_(flags),
      spec_(std::move(spec)),
      trace_spans_(options.trace     ? kRunTraceSpans
                   : options.watched ? kTraceSpans
                                     : 0),
      says_predictor_(options.says_predictor),
      watched_(options.watched),
      routes_(options.routes) {}

absl::StatusOr<std::unique_ptr<LocalSession>> LocalSession::Open(const ModelFlags& flags, const LocalPlanRequest& request,
                                                                 const LocalOpening& options) {
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(flags.model));
  LIME_ASSIGN_OR_RETURN(ModelSpec spec, checkpoint.BuildModelSpec());
  std::unique_ptr<LocalSession> session(new LocalSession(flags, std::move(spec), options));
  LIME_RETURN_IF_ERROR(session->MakePlan(checkpoint, request));
  LIME_RETURN_IF_ERROR(session->Install(request, options));
  return session;
}

absl::Status LocalSession::MakePlan(const Checkpoint& checkpoint, LocalPlanRequest request) {
  threads_ = flags_.threads > 0 ? flags_.threads : UsableCores();
  request.model_name = flags_.model;
  if (flags_.kv != "grow") request.kv_tokens = 0;
  request.chunk = flags_.chunk;
  request.beside += trace_spans_ * static_cast<Bytes>(sizeof(TimelineSpan));
  if (routes_ != nullptr) request.beside += routes_->bytes();
  request.num_threads = threads_;
  request.numerics = flags_.numerics;
  LIME_RETURN_IF_ERROR(flags_.Apply(request));
  if (request.sparsity != SparsityWish::kOff) {
    LIME_ASSIGN_OR_RETURN(sparse_, ReadSparseModel(checkpoint, spec_, request.sparsity));
    request.copies = sparse_.copies;
    UsePredictor(sparse_, request);
    request.neurons = sparse_.neurons, request.calibration = sparse_.calibration, request.bundles_on_path = sparse_.on_path;
  }
  has_budget_ = request.budget > 0;
  if (routes_ != nullptr) LIME_RETURN_IF_ERROR(OfUser(RouteShapeOf(spec_, flags_.model).status()));
  if (!flags_.routes.empty()) {
    LIME_ASSIGN_OR_RETURN(request.routes, ReadRoutes(flags_.routes, spec_, flags_.model));
  }
  LIME_ASSIGN_OR_RETURN(profile_, ProfileFor(flags_, request.budget, threads_));
  request.profile = &profile_;
  ElapsedLine progress("Planning");
  request.at = [&](const std::string& what) { progress.Say(what); };
  LIME_ASSIGN_OR_RETURN(local_, PlanForThisProcess(spec_, request));
  progress.Say("streaming as KV grows");
  levels_ = LevelsOf(local_.plan, kLimeRule);
  summary_ = Summarize(local_.plan);
  predicted_ms_ = summary_.ms_per_step;
  LIME_RETURN_IF_ERROR(CheckRoutes());
  if (sparse_.predictor != nullptr && says_predictor_) Screen::Say(PredictorText(*sparse_.predictor));
  if (const std::string sentence = NoReadAheadText(local_.plan, request.ahead_places); !sentence.empty()) Screen::Say(sentence);
  return absl::OkStatus();
}

absl::Status LocalSession::CheckRoutes() const {
  if (routes_ == nullptr || summary_.units.units > 0) return absl::OkStatus();
  const int64_t most = spec_.config.experts->count;
  return WrongCall(absl::StrCat("--routes records the choices of experts on demand, but this plan ",
                                summary_.streams() ? "streams all experts" : "keeps all experts in memory", "; give --experts N, at most ",
                                most, ", for places for N experts of each layer"));
}

absl::Status LocalSession::Install(const LocalPlanRequest& request, const LocalOpening& options) {
  const int64_t chunks = (std::max(request.prompt_tokens, request.all_prompt_tokens) + local_.plan.prefill_chunk - 1) /
                         std::max<int64_t>(1, local_.plan.prefill_chunk);
  if (!flags_.kv_dir.empty()) LIME_RETURN_IF_ERROR(MakeFolder(flags_.kv_dir));
  device_ = std::make_unique<LocalDevice>(LocalDevice::Options{
      .weights = flags_.model,
      .make_stage = MakeEngineStages({.num_threads = threads_,
                                      .numerics = flags_.numerics,
                                      .loader = LoaderNamed(flags_.loader).value_or(LoaderKind::kAuto),  // all other names were refused
                                      .planned_steps = request.new_tokens + chunks,
                                      .grow_kv = flags_.kv == "grow",
                                      .kv_dir = flags_.kv_dir,
                                      .follow_memory = true,
                                      .routes = routes_}),
      .report = [](const std::string& sentence) { Screen::Say(sentence); }});
  ProgressLine progress("Loading");
  const auto report = [&](Bytes done, Bytes total) {
    progress.Update(done, total);
    if (options.progress) options.progress(done, total);
  };
  LIME_RETURN_IF_ERROR(device_->Install(
      local_.plan, {.progress = report, .cancelled = &Interrupted(), .trace_spans = trace_spans_, .trace_when_asked = watched_}));
  load_ = device_->load();
  read_before_ = statistics().bytes_read;
  ApplyDiskRate(load_.steady);
  progress.Finish();
  const std::string correction = CorrectionText({.source = local_.disk_profiled ? RateSource::kProfile : RateSource::kAssumed,
                                                 .planned = summary_.disk_bytes_per_second,
                                                 .seen = seen_.bytes_per_second()},
                                                planned_ms_per_token(), predicted_ms_);
  if (!correction.empty()) Screen::Say(correction);
  return absl::OkStatus();
}

// ---- The prediction

// Uses the rate if enough was read to tell it.
void LocalSession::ApplyDiskRate(const SteadyReads& reads) {
  if (!summary_.streams() || reads.seconds < kLeastSeconds || reads.bytes < kLeastBytes) return;
  seen_ = reads;
  predicted_ms_ = MsPerStepAt(local_.plan, seen_.bytes_per_second());
}

// Corrects with the weights streamed so far, if they tell the disk's rate: the computation waited
// for the disk, or the disk is faster than planned.
void LocalSession::CorrectPrediction() {
  const DeviceStatistics now = statistics();
  SteadyReads reads{.bytes = now.disk_bytes, .seconds = now.disk_ms / 1000};
  const double known = seen_.seconds > 0 ? seen_.bytes_per_second() : summary_.disk_bytes_per_second;
  if (now.wait_weights_ms < kWaitedShare * now.disk_ms && reads.bytes_per_second() < known) return;
  if (AreOneRate(seen_, reads)) reads = {.bytes = seen_.bytes + reads.bytes, .seconds = seen_.seconds + reads.seconds};
  ApplyDiskRate(reads);
}

PredictionReport LocalSession::Compare(const GenerateSummary& summary) const {
  PredictionObservations seen{.steps = static_cast<double>(summary.decode_steps),
                              .decode_seconds = summary.decode_ms / 1000,
                              .step_deviation_ms = summary.step_deviation_ms,
                              .compute_profiled = profile_.FindModel(ModelKey(spec_)) != nullptr};
  LookAtCpu(summary.use.cpu, threads_, seen);
  if (summary_.streams()) {
    seen.disk_bytes = static_cast<double>(summary.use.streamed_bytes);
    seen.disk_busy_seconds = summary.use.disk_busy_seconds;
    seen.disk_rate_profiled = seen_.seconds > 0 ? seen_.bytes_per_second() : summary_.disk_bytes_per_second;
    seen.disk_rate_source = seen_.seconds > 0 ? RateSource::kSeen : local_.disk_profiled ? RateSource::kProfile : RateSource::kAssumed;
  }
  seen.shed_bytes_per_step = static_cast<double>(statistics().shed);
  PredictionReport report = ExplainDifference(predicted_ms_, summary.ms_per_step, seen);
  const bool open = report.cause == DifferenceCause::kUnknown || report.cause == DifferenceCause::kNotProfiled;
  if (!open || has_budget_) return report;  // threads that lack CPU time also read memory slowly
  seen.memory_rate = MeasureMemory(threads_, AvailableMemory());
  seen.memory_rate_profiled = profile_.read_bytes_per_second;
  seen.memory_rate_source = !flags_.profile.empty() || profile_.flops > 0 ? RateSource::kProfile : RateSource::kSeen;
  return ExplainDifference(predicted_ms_, summary.ms_per_step, seen);
}

// ---- Requests

Serving::Options LocalSession::HowToServe() const {
  if (!GrowsKv(plan())) return {};
  return {.levels = [this](const Plan&, const std::atomic<bool>*) { return ResidenciesOf(levels_); }};
}

ClusterWatch::Cluster LocalSession::Watched() const {
  return {.name = plan().devices.front().name,
          .model = plan().model_name,
          .devices = {{.name = plan().devices.front().name,
                       .address = "",
                       .backend = kCpuBackend,
                       .numerics_id = numerics_id(),
                       .statistics = [this] { return device_->Statistics(0); },
                       .trace = [this](const TraceCall& call) { return device_->DrainTrace(call); }}},
          .planned_rate = nullptr};
}

absl::StatusOr<GenerateSummary> LocalSession::Generate(const Tokenizer& tokenizer, const std::vector<std::vector<int32_t>>& prompts,
                                                       const GenerateOptions& options) {
  std::optional<DecodeUse> before;
  GenerateOptions watched = options;
  watched.on_first_token = [&] {
    if (options.on_first_token) options.on_first_token();
    CorrectPrediction();
    before = UseOfProcess(statistics());
  };
  Generator generator(*device_, HowToServe(), tokenizer, watched, /*expected_prompt_seconds=*/std::nullopt);
  for (const std::vector<int32_t>& prompt : prompts) generator.Add(prompt);
  LIME_ASSIGN_OR_RETURN(GenerateSummary summary, generator.Run());
  if (before) summary.use = Since(*before, UseOfProcess(statistics()));
  return summary;
}

absl::StatusOr<Scores> LocalSession::Score(const std::vector<std::vector<int32_t>>& windows, const ScoreOptions& options) {
  Serving serving(*device_, HowToServe());
  return ScoreWindows(serving, windows, options);
}

// ---- Reports

json LocalSession::Describe() const {
  const DeviceStatistics now = statistics();
  json memory = {{"weights_bytes", summary_.weights},        {"ring_bytes", summary_.ring},       {"kv_bytes", summary_.kv},
                 {"activation_bytes", summary_.activations}, {"runtime_bytes", summary_.runtime}, {"margin_bytes", summary_.margin}};
  if (summary_.state > 0) memory["state_bytes"] = summary_.state;
  if (!local_.budget_text.empty()) memory["budget"] = local_.budget_text;
  json streaming = {{"resident_blocks", summary_.resident_blocks},
                    {"blocks", summary_.blocks},
                    {"streamed_bytes_per_step", summary_.streamed_bytes + now.shed}};
  if (summary_.units.units > 0) streaming["experts"] = ExpertsJson(summary_.units, now);
  if (summary_.streams() || now.shed > 0) {
    streaming["bytes_read"] = now.bytes_read - read_before_;
    streaming["disk_busy_ms"] = now.disk_ms;
    streaming["waited_ms"] = now.wait_weights_ms;
    streaming["given_bytes"] = now.shed;
  }
  json device = DeviceJson(plan().devices.front(), device_->installed().front(), now);
  device["backend"] = load_.backend;
  json answer = {{"predicted_ms_per_token", predicted_ms_},
                 {"peak_rss_bytes", ProcessPeakResidentBytes()},
                 {"devices", json::array({std::move(device)})},
                 {"plan", {{"kv_levels", ToJson(plan(), levels_)}}},
                 {"load", {{"loader", load_.loader}, {"bytes", load_.bytes}, {"seconds", load_.seconds}}},
                 {"memory", std::move(memory)},
                 {"streaming", std::move(streaming)}};
  AddSparsity(SparseUseOf(plan(), {&now, 1}), answer);
  if (sparse_.predictor != nullptr) answer["predictor"] = PredictorJson(*sparse_.predictor);
  if (const std::string why = SparsityWhy(); !why.empty()) answer["sparsity_why"] = why;
  return answer;
}

// Why --sparsity auto has chosen what it has; empty if the call has chosen.
std::string LocalSession::SparsityWhy() const {
  return local_.sparsity_why.empty() && flags_.sparsity == "auto" ? sparse_.lacks : local_.sparsity_why;
}

std::string LocalSession::LoadLine() const {
  return absl::StrFormat("loaded %s in %.2f s: %s; %s", FormatBytes(load_.bytes), load_.seconds, load_.loader, load_.backend);
}

std::string LocalSession::MemoryLine() const {
  const DeviceStatistics now = statistics();
  std::string text = absl::StrCat("memory peak ", FormatBytes(ProcessPeakResidentBytes()), ": weights ", FormatBytes(summary_.weights),
                                  ", KV ", FormatBytes(summary_.kv), ", activations ", FormatBytes(summary_.activations), ", runtime ",
                                  FormatBytes(summary_.runtime));
  if (summary_.state > 0) absl::StrAppend(&text, ", state ", FormatBytes(summary_.state));
  if (summary_.streams()) absl::StrAppend(&text, ", ring ", FormatBytes(summary_.ring));
  if (!local_.budget_text.empty()) absl::StrAppend(&text, "\nbudget      ", local_.budget_text);
  if (now.kv_written > 0)
    absl::StrAppend(&text, "\nKV on disk  ", FormatBytes(now.kv_written), " written, ", FormatBytes(now.kv_read), " read");
  if (summary_.units.units > 0) absl::StrAppend(&text, "\n", summary_.units.Text(plan().sequences, now.decode_hit_share()));
  if (const std::string sparse = SparseUseOf(plan(), {&now, 1}).Text(); !sparse.empty()) absl::StrAppend(&text, "\n", sparse);
  if (const std::string why = SparsityWhy(); !why.empty() && sparse_.bundles)
    absl::StrAppend(&text, "\nsparsity    ", NameOfSparsity(plan()), ": ", why);
  if (!summary_.streams() && now.shed == 0) return text;
  const double rate = now.disk_ms > 0 ? 1000 * static_cast<double>(now.disk_bytes) / now.disk_ms : 0;
  absl::StrAppend(&text, "\nstreamed    ", FormatBytes(summary_.streamed_bytes + now.shed), " a step, ", summary_.resident_blocks, " of ",
                  summary_.blocks, " blocks resident; disk ", FormatBytes(static_cast<Bytes>(rate)), "/s while busy, waited ",
                  absl::StrFormat("%.1f s", now.wait_weights_ms / 1000));
  if (now.shed > 0) absl::StrAppend(&text, "; ", FormatBytes(now.shed), " of them were evicted because other programs needed memory");
  return text;
}

absl::StatusOr<MeasuredTimeline> LocalSession::DrainTrace() {
  const std::string name = plan().devices.front().name;
  std::vector<std::string> parts;
  parts.reserve(plan().NumParts());
  for (int part = 0; part < plan().NumParts(); ++part) parts.push_back(PartName(plan(), part));
  DeviceTrace trace{.device = name};
  while (true) {
    LIME_ASSIGN_OR_RETURN(TraceChunk chunk, device_->DrainTrace({.most = kRunTraceSpans}));
    trace.epoch = chunk.epoch, trace.lost = chunk.lost;
    if (chunk.spans.empty()) break;
    trace.spans.insert(trace.spans.end(), chunk.spans.begin(), chunk.spans.end());
  }
  LIME_RETURN_IF_ERROR(device_->Unload());
  const double now_ms = SteadyMs();
  trace.clock.Add({.sent_ms = now_ms, .received_ms = now_ms, .answered_ms = now_ms, .came_ms = now_ms});
  LIME_ASSIGN_OR_RETURN(MeasuredTimeline measured, MergeTraces({name}, std::move(parts), {std::move(trace)}));
  measured.devices[0].clock_error_ms = 0;  // this process's own clock
  return measured;
}

}  // namespace lime::cli
