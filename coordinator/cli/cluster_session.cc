#include "coordinator/cli/cluster_session.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/cli/command.h"
#include "coordinator/cli/plan_inputs.h"
#include "coordinator/cli/progress.h"
#include "coordinator/cluster/cluster_config.h"
#include "coordinator/rpc/cluster_run.h"
#include "coordinator/text/detokenizer.h"
#include "coordinator/text/stop_strings.h"
#include "daemon/engine/process_memory.h"
#include "daemon/weights/files.h"
#include "daemon/weights/model_digest.h"
#include "planner/batches.h"
#include "planner/plan/cluster_plan_json.h"

namespace lime::cli {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr double kPlanningMs = 3000;
constexpr char kCoordinatorName[] = "coordinator";  // of its own keys

double Milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

// What `lime plan` answers without further flags.
absl::StatusOr<Plan> PlanNow(const ClusterSession::Options& options) {
  PlanInputFlags flags;
  flags.cluster = options.cluster;
  flags.model = options.model;
  flags.tokens = options.context;
  flags.sequences = options.sequences;
  flags.prompt_tokens = options.prompt_tokens;
  LIME_ASSIGN_OR_RETURN(const PlanInputs inputs, ReadPlanInputs(flags));
  LIME_ASSIGN_OR_RETURN(const PlanProblem problem, MakePlanProblem(inputs.spec, inputs.devices, inputs.request));
  SearchOptions search;
  search.granularity = Granularity::kWholeBlock;
  search.time_limit_ms = kPlanningMs;
  search.elapsed_ms = [begin = Clock::now()] { return Milliseconds(Clock::now() - begin); };
  LIME_ASSIGN_OR_RETURN(const BatchedPlan best, PlanBatches(Strategy::kLime, problem.instance, search));
  if (!best.found.feasible) {
    return absl::ResourceExhaustedError(absl::StrCat(inputs.request.model_name, " does not fit on the devices of ", options.cluster, ": ",
                                                     best.found.reason, "; `lime plan --cluster` tells what would make it fit"));
  }
  PlanChoice choice = {.stages = best.found.plan,
                       .microbatches = std::max(1, best.microbatches),
                       .batch = best.batch,
                       .lower_bound_ms = best.lower_bound_ms};
  if (problem.first_token) choice.first_token = FirstTokenPredictor(*problem.first_token).Predict(best.found.plan);
  return MakePlan(problem, choice);
}

absl::StatusOr<Plan> ReadPlan(const std::string& path) {
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxWirePlanBytes));
  return ParsePlan(text, path);
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
    client.devices.push_back({.name = device.name, .address = device.address, .weights = device.weights, .model = model});
  return client;
}

// One prompt on its way to text.
struct Stream {
  Stream(const Tokenizer& tokenizer, const std::vector<std::string>& stops) : detokenizer(tokenizer), stop_strings(stops) {}

  StreamingDetokenizer detokenizer;
  StopStrings stop_strings;
  Generated result;
  Clock::time_point first_token, last_token;
};

class ClusterGenerator {
 public:
  ClusterGenerator(ClusterClient& client, const Tokenizer& tokenizer, const GenerateOptions& options)
      : run_(client, OrderWriter::For(client.plan())), tokenizer_(tokenizer), options_(options) {}

  absl::Status Add(const std::vector<int32_t>& prompt) {
    Request request{.prompt = prompt, .max_new_tokens = options_.max_new_tokens, .end_tokens = options_.end_tokens};
    const auto id = run_.Add(std::move(request), {.params = options_.sampling, .hash_logits = options_.hash_logits});
    if (!id.ok()) return id.status();
    auto stream = std::make_unique<Stream>(tokenizer_, options_.stop_strings);
    stream->result.prompt_tokens = static_cast<int64_t>(prompt.size());
    for (const int32_t token : prompt) stream->detokenizer.Push(token);  // the text goes on where the prompt ends
    streams_.push_back(std::move(stream));
    return absl::OkStatus();
  }

  absl::StatusOr<GenerateSummary> Run() {
    start_ = Clock::now();
    LIME_RETURN_IF_ERROR(run_.Run([this](const ClusterRun::Token& token) { return TakeToken(token); }, options_.cancel));
    return Summary();
  }

 private:
  bool TakeToken(const ClusterRun::Token& token) {
    Stream& stream = *streams_[static_cast<size_t>(token.request)];
    stream.last_token = Clock::now();
    if (stream.result.token_ids.empty()) stream.first_token = stream.last_token;
    stream.result.token_ids.push_back(token.token);
    stream.result.logits_hash = token.logits_hash;
    if (options_.keep_times)
      stream.result.token_times.push_back(std::chrono::duration<double>(stream.last_token.time_since_epoch()).count());
    if (token.reason != FinishReason::kEndToken) Emit(token.request, stream.detokenizer.Push(token.token));
    const bool stopped = token.reason == FinishReason::kNone && stream.stop_strings.stopped();
    if (stopped || token.reason != FinishReason::kNone) Close(token.request, stopped ? FinishReason::kStopped : token.reason);
    return !stopped;
  }

  void Emit(RequestId id, std::string_view text) { Deliver(id, streams_[static_cast<size_t>(id)]->stop_strings.Push(text)); }

  void Deliver(RequestId id, std::string_view text) {
    if (text.empty()) return;
    streams_[static_cast<size_t>(id)]->result.text.append(text);
    if (options_.on_text) options_.on_text(static_cast<size_t>(id), text);
  }

  // Hands out what was held back, and settles the figures.
  void Close(RequestId id, FinishReason reason) {
    Stream& stream = *streams_[static_cast<size_t>(id)];
    if (!stream.stop_strings.stopped()) {
      Emit(id, stream.detokenizer.Finish());
      Deliver(id, stream.stop_strings.Finish());
    }
    Generated& result = stream.result;
    result.finish = reason;
    if (result.token_ids.empty()) return;
    result.ttft_ms = Milliseconds(stream.first_token - start_);
    const int64_t later = static_cast<int64_t>(result.token_ids.size()) - 1;
    result.ms_per_token = later > 0 ? Milliseconds(stream.last_token - stream.first_token) / static_cast<double>(later) : 0;
  }

  // All tokens after the first of all, over the time from then on.
  GenerateSummary Summary() {
    GenerateSummary summary;
    summary.interrupted = options_.cancel != nullptr && options_.cancel->load();
    Clock::time_point first = Clock::time_point::max(), last = start_;
    int64_t tokens = 0, longest = 0;
    for (size_t i = 0; i < streams_.size(); ++i) {
      Stream& stream = *streams_[i];
      if (stream.result.finish == FinishReason::kNone) Close(static_cast<RequestId>(i), FinishReason::kStopped);
      const int64_t count = static_cast<int64_t>(stream.result.token_ids.size());
      if (count > 0) first = std::min(first, stream.first_token), last = std::max(last, stream.last_token);
      tokens += count, longest = std::max(longest, count);
      summary.results.push_back(std::move(stream.result));
    }
    if (tokens == 0) return summary;
    summary.prefill_ms = Milliseconds(first - start_);
    summary.decode_ms = Milliseconds(last - first);
    summary.decode_steps = longest - 1;
    summary.decode_tokens = tokens - static_cast<int64_t>(streams_.size());
    return summary;
  }

  ClusterRun run_;
  const Tokenizer& tokenizer_;
  const GenerateOptions& options_;
  std::vector<std::unique_ptr<Stream>> streams_;  // by request id
  Clock::time_point start_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ClusterSession>> ClusterSession::Open(const Options& options) {
  LIME_ASSIGN_OR_RETURN(const ClusterClient::Options cluster, ReadCluster(options));
  LIME_ASSIGN_OR_RETURN(Plan plan, options.plan.empty() ? PlanNow(options) : ReadPlan(options.plan));
  std::unique_ptr<ClusterSession> session(new ClusterSession);
  LIME_ASSIGN_OR_RETURN(session->client_, ClusterClient::Connect(cluster));
  for (const PlanDevice& device : plan.devices) {
    const auto found = std::ranges::find(cluster.devices, device.name, &ClusterClient::Device::name);
    session->addresses_.push_back(found == cluster.devices.end() ? "" : found->address);
  }
  ProgressLine progress("Loading");
  const Clock::time_point begin = Clock::now();
  LIME_RETURN_IF_ERROR(session->client_->Install(
      std::move(plan), {.progress = [&](Bytes done, Bytes total) { progress.Update(done, total); }, .cancelled = options.cancel}));
  session->install_seconds_ = Milliseconds(Clock::now() - begin) / 1000;
  session->statistics_.resize(session->plan().devices.size());
  return session;
}

absl::StatusOr<GenerateSummary> ClusterSession::Generate(const Tokenizer& tokenizer, const std::vector<std::vector<int32_t>>& prompts,
                                                         const GenerateOptions& options) {
  ClusterGenerator generator(*client_, tokenizer, options);
  for (const std::vector<int32_t>& prompt : prompts) LIME_RETURN_IF_ERROR(generator.Add(prompt));
  absl::StatusOr<GenerateSummary> summary = generator.Run();
  const absl::Status closed = Close();
  LIME_RETURN_IF_ERROR(summary.status());
  LIME_RETURN_IF_ERROR(closed);
  return summary;
}

absl::Status ClusterSession::Close() {
  std::set<int32_t> used;
  for (const Stage& stage : plan().stages) used.insert(stage.device);
  for (const int32_t device : used) {
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
                       {"address", addresses_[i]},
                       {"numerics_id", client_->installed()[i].numerics_id},
                       {"budget_bytes", plan().devices[i].budget},
                       {"peak_rss_bytes", of.peak_resident},
                       {"steps", of.steps},
                       {"bytes_read", of.bytes_read},
                       {"compute_ms", of.compute_ms},
                       {"wait_weights_ms", of.wait_weights_ms},
                       {"wait_input_ms", of.wait_input_ms},
                       {"sent_messages", of.sent_messages},
                       {"sent_bytes", of.sent_bytes}});
  }
  return {
      {"predicted_ms_per_token", predicted_ms_per_token()},
      {"predicted_ttft_ms", plan().predicted.ttft_ms},
      {"peak_rss_bytes", ProcessPeakResidentBytes()},
      {"devices", devices},
      {"plan", {{"epoch", plan().epoch}, {"stages", plan().stages.size()}, {"microbatches", plan().microbatches}, {"batch", plan().batch}}},
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

absl::StatusOr<ClusterClient::Options> DevicesOf(const ClusterSession::Options& options) {
  return ReadCluster(options);
}

absl::StatusOr<Plan> PlanOf(const ClusterSession::Options& options) {
  return options.plan.empty() ? PlanNow(options) : ReadPlan(options.plan);
}

}  // namespace lime::cli
