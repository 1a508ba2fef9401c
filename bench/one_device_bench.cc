// One device, two ways to run a model: the engine with its own loop, and a plan on the stage engine
// by the coordinator's loop. Both are open in one process, and rounds of each go in turn: what
// disturbs the machine disturbs both. Prints one JSON object: medians over the rounds, and the
// median of the rounds' ratios, plan over engine.

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "coordinator/cli/generate.h"
#include "coordinator/cli/score.h"
#include "coordinator/cli/text_stream.h"
#include "coordinator/local/local_device.h"
#include "coordinator/local/local_plan.h"
#include "coordinator/serving/cluster_run.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/process_memory.h"
#include "daemon/stage/engine_stage.h"
#include "daemon/weights/checkpoint.h"
#include "nlohmann/json.hpp"
#include "planner/base/median.h"

namespace lime {
namespace {

using Clock = cli::TextStream::Clock;

constexpr int64_t kChunk = 512;  // of a prompt that is scored

struct Flags {
  std::string model;
  int threads = 2;
  int64_t memory_mb = 0;
  int prompt = 64;
  int64_t tokens = 32;
  int score = 0;
  int64_t logit_rows = kChunk;
  int rounds = 9;
};

struct Sample {
  double prompt_ms = 0;     // to the first token
  double ms_per_token = 0;  // median of the tokens behind it
  double mean_ms = 0;
  double best_ms = 0;  // of them a tenth takes less: what a machine that others use too leaves least to chance
  double cpu_ms = 0;   // of all threads, spinning ones included, for a token
  uint64_t logits_hash = 0;
  std::vector<int32_t> tokens;
};

double CpuMs() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto ms = [](const timeval& time) { return 1e3 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_usec); };
  return ms(usage.ru_utime) + ms(usage.ru_stime);
}

// What a round is of either way. `cpu_ms`: since about the first token.
Sample ToSample(const cli::Generated& result, Clock::time_point begin, double cpu_ms) {
  std::vector<double> steps;
  const std::vector<double>& times = result.token_times;
  for (size_t i = 1; i < times.size(); ++i) steps.push_back(1000 * (times[i] - times[i - 1]));
  std::vector<double> sorted = steps;
  std::ranges::sort(sorted);
  const double begin_s = std::chrono::duration<double>(begin.time_since_epoch()).count();
  return {.prompt_ms = 1000 * (times.front() - begin_s),
          .ms_per_token = Median(steps),
          .mean_ms = 1000 * (times.back() - times.front()) / static_cast<double>(steps.size()),
          .best_ms = sorted[sorted.size() / 10],
          .cpu_ms = cpu_ms / static_cast<double>(steps.size()),
          .logits_hash = result.logits_hash,
          .tokens = result.token_ids};
}

class Bench {
 public:
  explicit Bench(const Flags& flags) : flags_(flags) {}

  absl::Status Open() {
    LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(flags_.model));
    LIME_ASSIGN_OR_RETURN(const ModelSpec spec, checkpoint.BuildModelSpec());
    LIME_ASSIGN_OR_RETURN(tokenizer_, Tokenizer::Load(flags_.model));
    for (int i = 0; i < (flags_.score > 0 ? flags_.score : flags_.prompt); ++i)
      prompt_.push_back(static_cast<int32_t>((7 * i + 3) % std::min<int64_t>(250, spec.config.vocab_size)));
    const auto prompt = std::ssize(prompt_);
    const int64_t context = flags_.score > 0 ? prompt : prompt + flags_.tokens, chunk = flags_.score > 0 ? kChunk : prompt;
    Engine::Options engine{.num_threads = flags_.threads,
                           .loader = LoaderKind::kRead,
                           .max_rows = chunk + 1,
                           .max_logit_rows = flags_.score > 0 ? chunk : 1,
                           .context = context,
                           .memory = Budget()};
    LIME_ASSIGN_OR_RETURN(engine_, Engine::Create(flags_.model, engine));
    LIME_ASSIGN_OR_RETURN(const LocalPlan local, PlanForThisProcess(spec, {.budget = Budget(),
                                                                           .context = context,
                                                                           .prompt_tokens = prompt,
                                                                           .chunk = chunk,
                                                                           .logit_rows = flags_.score > 0 ? flags_.logit_rows : 0,
                                                                           .num_threads = flags_.threads}));
    device_ = std::make_unique<LocalDevice>(
        LocalDevice::Options{.weights = flags_.model, .make_stage = MakeEngineStages({.num_threads = flags_.threads})});
    LIME_RETURN_IF_ERROR(device_->Install(local.plan, {}));
    run_ = std::make_unique<ClusterRun>(*device_);
    return absl::OkStatus();
  }

  absl::StatusOr<nlohmann::ordered_json> Run() {
    std::vector<Sample> engine, plan;
    for (int round = 0; round <= flags_.rounds; ++round) {  // the first warms up, and compares the bits
      LIME_ASSIGN_OR_RETURN(Sample by_engine, ByEngine(round == 0));
      LIME_ASSIGN_OR_RETURN(Sample by_plan, ByPlan(round == 0));
      if (by_plan.tokens != by_engine.tokens || (round == 0 && by_plan.logits_hash != by_engine.logits_hash))
        return absl::InternalError("the two ways give different bits");
      if (round == 0) continue;
      engine.push_back(std::move(by_engine)), plan.push_back(std::move(by_plan));
    }
    nlohmann::ordered_json answer = {
        {"model", flags_.model},
        {"threads", flags_.threads},
        {"memory_mb", flags_.memory_mb},
        {"prompt", flags_.prompt},
        {"tokens", flags_.tokens},
        {"rounds", flags_.rounds},
        {"streamed_bytes", {{"engine", engine_->residency().streamed_bytes}, {"plan", StreamedByPlan()}}},
        {"ring_bytes", {{"engine", engine_->memory().ring}, {"plan", device_->plan().devices[0].memory.ring}}}};
    for (const auto& [name, field] : {std::pair{"ms_per_token", &Sample::ms_per_token}, std::pair{"mean_ms_per_token", &Sample::mean_ms},
                                      std::pair{"best_ms_per_token", &Sample::best_ms}, std::pair{"cpu_ms_per_token", &Sample::cpu_ms},
                                      std::pair{"prompt_ms", &Sample::prompt_ms}}) {
      std::vector<double> of_engine, of_plan, ratios;
      for (size_t i = 0; i < engine.size(); ++i) {
        of_engine.push_back(engine[i].*field), of_plan.push_back(plan[i].*field);
        ratios.push_back(of_plan.back() / of_engine.back());
      }
      answer[name] = {{"engine", Median(of_engine)}, {"plan", Median(of_plan)}, {"ratio", Median(ratios)}};
    }
    LIME_ASSIGN_OR_RETURN(const DeviceStatistics statistics, device_->Statistics(0));
    answer["plan_steps"] = {{"steps", statistics.steps},
                            {"compute_ms", statistics.compute_ms},
                            {"wait_weights_ms", statistics.wait_weights_ms},
                            {"wait_input_ms", statistics.wait_input_ms}};
    return answer;
  }

  // Every logit of a prompt, either way.
  absl::StatusOr<nlohmann::ordered_json> Score() {
    const cli::ScoreOptions options{.chunk = kChunk, .top = 1};
    std::vector<double> engine, plan, ratios;
    for (int round = 0; round <= flags_.rounds; ++round) {
      const Clock::time_point begin = Clock::now();
      cli::Scorer scorer(*engine_, options);
      std::vector<cli::ScoredPosition> positions;
      LIME_RETURN_IF_ERROR(scorer.Score(prompt_, positions));
      const Clock::time_point middle = Clock::now();
      uint64_t hash = 0;
      LIME_RETURN_IF_ERROR(run_->Add({.prompt = prompt_, .max_new_tokens = 0}, {.score_top = 1}).status());
      const auto take = [&](const ClusterRun::Token& token) {
        hash = token.logits_hash;
        return true;
      };
      LIME_RETURN_IF_ERROR(run_->Run(take, nullptr));
      const Clock::time_point end = Clock::now();
      if (round == 0 && hash != scorer.hash()) return absl::InternalError("the two ways give different bits");
      if (round == 0) continue;
      engine.push_back(cli::Milliseconds(middle - begin)), plan.push_back(cli::Milliseconds(end - middle));
      ratios.push_back(plan.back() / engine.back());
    }
    return nlohmann::ordered_json{{"model", flags_.model},
                                  {"threads", flags_.threads},
                                  {"memory_mb", flags_.memory_mb},
                                  {"scored", flags_.score},
                                  {"logit_rows", device_->plan().logit_rows},
                                  {"rounds", flags_.rounds},
                                  {"score_ms", {{"engine", Median(engine)}, {"plan", Median(plan)}, {"ratio", Median(ratios)}}}};
  }

 private:
  // Beside what the process has already.
  Bytes Budget() const { return ProcessResidentBytes() + (flags_.memory_mb > 0 ? flags_.memory_mb * 1'000'000 : 8 * kGiB); }

  Bytes StreamedByPlan() const {
    Bytes bytes = 0;
    for (const PlanPart& part : device_->plan().parts) bytes += part.streamed ? part.bytes : 0;
    return bytes;
  }

  cli::GenerateOptions Options(bool hash) const {
    cli::GenerateOptions options;
    options.max_new_tokens = {flags_.tokens};
    options.chunk = flags_.prompt;
    options.hash_logits = hash;
    options.keep_times = true;
    return options;
  }

  absl::StatusOr<Sample> ByEngine(bool hash) {
    cli::GenerateOptions options = Options(hash);
    double cpu_ms = 0;
    options.before_decoding = [&] { cpu_ms = CpuMs(); };
    const Clock::time_point begin = Clock::now();
    LIME_ASSIGN_OR_RETURN(const cli::GenerateSummary summary, cli::Generate(*engine_, *tokenizer_, {prompt_}, 1, options));
    return ToSample(summary.results.front(), begin, CpuMs() - cpu_ms);
  }

  absl::StatusOr<Sample> ByPlan(bool hash) {
    const cli::GenerateOptions options = Options(hash);
    double cpu_ms = 0;
    const Clock::time_point begin = Clock::now();
    cli::TextStream stream(*tokenizer_, options, 0, prompt_);
    LIME_RETURN_IF_ERROR(run_->Add({.prompt = prompt_, .max_new_tokens = flags_.tokens}, {.hash_logits = hash}).status());
    LIME_RETURN_IF_ERROR(run_->Run(
        [&](const ClusterRun::Token& token) {
          if (stream.result().token_ids.empty()) cpu_ms = CpuMs();
          stream.result().logits_hash = token.logits_hash;
          const FinishReason reason = stream.Take(token.token, token.reason);
          if (reason != FinishReason::kNone) stream.Close(reason, begin);
          return reason == FinishReason::kNone;
        },
        nullptr));
    return ToSample(stream.result(), begin, CpuMs() - cpu_ms);
  }

  const Flags flags_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<int32_t> prompt_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<LocalDevice> device_;
  std::unique_ptr<ClusterRun> run_;
};

absl::Status Run(const Flags& flags) {
  Bench bench(flags);
  LIME_RETURN_IF_ERROR(bench.Open());
  LIME_ASSIGN_OR_RETURN(const nlohmann::ordered_json answer, flags.score > 0 ? bench.Score() : bench.Run());
  std::puts(answer.dump(2).c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace lime

int main(int argc, char** argv) {
  lime::Flags flags;
  CLI::App app("What a plan for one device costs beside the engine of its own");
  app.add_option("--model", flags.model, "Folder of a checkpoint with a tokenizer")->required();
  app.add_option("--threads", flags.threads, "That compute")->capture_default_str();
  app.add_option("--memory-mb", flags.memory_mb, "That each may take beside what the process has; 0: all is resident")
      ->capture_default_str();
  app.add_option("--prompt", flags.prompt, "Tokens of the prompt, in one chunk")->capture_default_str();
  app.add_option("--tokens", flags.tokens, "Generated in a round; at least 2")->capture_default_str();
  app.add_option("--score", flags.score, "Tokens of a prompt that is scored, instead of generating; 0: generates")->capture_default_str();
  app.add_option("--logit-rows", flags.logit_rows, "Of a step, where the plan scores")->capture_default_str();
  app.add_option("--rounds", flags.rounds, "Of each way")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = lime::Run(flags);
  if (!status.ok()) return std::fprintf(stderr, "one_device_bench: %s\n", std::string(status.message()).c_str()), 1;
  return 0;
}
