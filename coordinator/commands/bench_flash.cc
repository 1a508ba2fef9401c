#include "coordinator/commands/bench_flash.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/flash/flash.h"
#include "coordinator/cli/model_files.h"
#include "coordinator/cli/user_text.h"
#include "coordinator/commands/single_steps.h"
#include "coordinator/reports/progress.h"
#include "coordinator/sessions/local_session.h"
#include "daemon/engine/call_limits.h"
#include "daemon/engine/process_memory.h"
#include "nlohmann/json.hpp"
#include "planner/base/bytes.h"
#include "planner/plan/sparse_parts.h"

namespace lime::cli {
namespace {

using flash::EngineRung;
using flash::FlashOptions;
using flash::FlashReport;

constexpr int64_t kEnginePrompt = 8;  // tokens of the prompt: a chunk reads nearly all neurons

absl::StatusOr<FlashOptions> OptionsOf(const ModelFlags& model, const FlashFlags& flags) {
  FlashOptions options{.store = model.model};
  const std::string masks = flags.masks.value_or("predicted");
  if (masks != "predicted" && masks != "active")
    return WrongCall(absl::StrCat("--masks ", AsTyped(masks), " is unknown; use predicted or active"));
  options.predict = masks == "predicted";
  if (!model.memory.empty()) {
    LIME_ASSIGN_OR_RETURN(options.memory, OfUser(ParseBytes(model.memory)));
  }
  options.window = flags.window.value_or(options.window);
  options.tokens = flags.tokens.value_or(options.tokens);
  options.learn = flags.learn.value_or(options.learn);
  if (flags.text_file) {
    LIME_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::Open(model.model));
    LIME_ASSIGN_OR_RETURN(const std::string text, ReadUserText("--text-file", *flags.text_file, kMaxTextBytes));
    LIME_ASSIGN_OR_RETURN(options.ids, files.tokenizer->Encode(text, {.add_special = false}));
    if (options.ids.empty()) return WrongCall(absl::StrCat("--text-file ", AsTyped(*flags.text_file), " has no tokens"));
    if (const auto most = std::ranges::max(options.ids); most >= files.spec.config.vocab_size)
      return WrongCall(absl::StrCat("--text-file: the tokenizer gives id ", most, ", but the model has ", files.spec.config.vocab_size));
  }
  options.seed = flags.seed.value_or(options.seed);
  options.num_threads = model.threads > 0 ? model.threads : UsableCores();
  options.cancelled = &Interrupted();
  if (flags.quick) {
    options.quick = true;
    options.sweep = {0.8};
  }
  LIME_RETURN_IF_ERROR(OfUser(flash::CheckFlash(options)));
  if (!options.ids.empty()) options.ids.resize(static_cast<size_t>(options.learn + options.warm + options.tokens));
  options.ids.shrink_to_fit();
  return options;
}

// A run of the engine, as `lime run` with these flags.
struct EngineWish {
  std::string name;
  std::string sparsity = "off";
  std::string decider = "dense";
  std::string resident = {};  // as of --resident
  bool limited = false;       // to the memory of the ladder
  int64_t warm = 1;           // steps before those that count
  int64_t steps = 1;
};

class EngineRuns {
 public:
  EngineRuns(const ModelFlags& model, const FlashOptions& options, const FlashReport& report, std::vector<int32_t> ids)
      : model_(model), options_(options), report_(report), ids_(std::move(ids)) {}

  absl::StatusOr<EngineRung> Run(const EngineWish& wish) {
    ModelFlags flags = model_;
    flags.json = true;  // no progress of loading
    flags.sparsity = wish.sparsity, flags.decider = wish.decider;
    flags.resident = wish.resident;
    flags.no_kv_spill = true;
    flags.chunk = kEnginePrompt;
    // A plan with a calibration would leave out neurons that it has not seen.
    if (!wish.limited && wish.sparsity == "exact") flags.neurons = absl::StrCat(kMaxNeurons);
    flags.memory = wish.limited ? absl::StrCat(Memory()) : "";
    flags.window = options_.window;
    EngineRung rung{.name = wish.name, .memory = wish.limited ? Memory() : 0};
    LIME_ASSIGN_OR_RETURN(const flash::DiskCost before, flash::MeasureDisk(options_, disks_measured_++));
    const absl::StatusOr<flash::EngineCounts> counts = Measure(flags, wish);
    // Less memory than a plan needs is a result, too.
    if (absl::IsResourceExhausted(counts.status())) {
      rung.why_not = std::string(counts.status().message());
      return rung;
    }
    LIME_RETURN_IF_ERROR(counts.status());
    // The engine has ended: one that streams reads ahead for a next step.
    LIME_ASSIGN_OR_RETURN(const flash::DiskCost after, flash::MeasureDisk(options_, disks_measured_++));
    EngineRung measured = flash::EngineFigures(*counts, {before, after});
    measured.name = rung.name, measured.memory = rung.memory;
    return measured;
  }

  Bytes Memory() const { return options_.memory > 0 ? options_.memory : report_.shape.weights / 2; }

 private:
  absl::StatusOr<flash::EngineCounts> Measure(const ModelFlags& flags, const EngineWish& wish) {
    const int64_t first = kEnginePrompt + wish.warm, context = first + wish.steps;
    LIME_ASSIGN_OR_RETURN(const std::unique_ptr<LocalSession> session, LocalSession::Open(flags, {.context = context,
                                                                                                  .expected_positions = context,
                                                                                                  .sequences = 1,
                                                                                                  .prompt_tokens = kEnginePrompt,
                                                                                                  .new_tokens = context - kEnginePrompt}));
    SingleSteps steps(session->device());
    LIME_RETURN_IF_ERROR(steps.Open({ids_.begin(), ids_.begin() + context}));
    LIME_RETURN_IF_ERROR(Step(steps, 0, kEnginePrompt));
    for (int64_t at = kEnginePrompt; at < first; ++at) LIME_RETURN_IF_ERROR(Step(steps, at, 1));
    const DeviceStatistics before = session->statistics();
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t at = first; at < context; ++at) LIME_RETURN_IF_ERROR(Step(steps, at, 1));
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    const DeviceStatistics after = session->statistics();
    const Bytes neurons = after.neuron_bytes - before.neuron_bytes;
    return flash::EngineCounts{.steps = wish.steps,
                               .load = {.bursts = after.neuron_visits - before.neuron_visits,
                                        .reads = after.neuron_reads - before.neuron_reads,
                                        .neurons = neurons,
                                        .streamed = after.bytes_read - before.bytes_read - neurons},
                               .neurons = after.neurons_loaded - before.neurons_loaded,
                               .stream_ms = after.disk_ms - before.disk_ms,
                               .neuron_ms = after.neuron_io_ms - before.neuron_io_ms,
                               .whole_ms = ms};
  }

  absl::Status Step(SingleSteps& steps, int64_t first, int64_t rows) {
    MicroBatch batch;
    for (int64_t at = first; at < first + rows; ++at)
      batch.rows.push_back(
          {.token = ids_[static_cast<size_t>(at)], .position = static_cast<int32_t>(at), .wants_logits = at + 1 == first + rows});
    return steps.Step(batch);
  }

  const ModelFlags& model_;
  const FlashOptions& options_;
  const FlashReport& report_;
  const std::vector<int32_t> ids_;
  int disks_measured_ = 0;
};

// Steps of the engine: weights that stream as a whole, then sparse MLPs. The last run, which has
// memory for all neurons, says how long a token computes.
absl::Status RunEngine(const ModelFlags& model, const FlashOptions& options, FlashReport& report) {
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, LoadModelSpec(model.model));
  const std::vector<int32_t> ids = flash::FlashIds(options, spec.config.vocab_size);
  const int64_t whole = std::min(options.whole, options.tokens);
  EngineRuns runs(model, options, report, ids);
  std::vector<EngineRung> rungs;
  std::vector<EngineWish> wishes = {
      EngineWish{.name = "off, all weights streamed", .resident = "0", .steps = whole},
      EngineWish{.name = "off, as much resident as fits", .limited = true, .steps = whole},
      EngineWish{.name = "exact, dense decider", .sparsity = "exact", .limited = true, .warm = options.warm, .steps = options.tokens},
      EngineWish{.name = "exact, memory for all neurons", .sparsity = "exact", .warm = options.warm, .steps = options.tokens}};
  if (report.shape.copies > 0) {
    wishes.insert(wishes.end() - 1, {.name = "exact, certified decider",
                                     .sparsity = "exact",
                                     .decider = "certified",
                                     .limited = true,
                                     .warm = options.warm,
                                     .steps = options.tokens});
  }
  for (const EngineWish& wish : wishes) {
    options.at(absl::StrCat("the engine: ", wish.name));
    LIME_ASSIGN_OR_RETURN(rungs.emplace_back(), runs.Run(wish));
  }
  report.computing_ms = std::max(0.0, rungs.back().whole_ms - rungs.back().io_ms);
  report.engine = std::move(rungs);
  return absl::OkStatus();
}

}  // namespace

void FlashFlags::AddTo(const CommandFlags& command) {
  command.Add("--masks", &masks,
              "flash: neurons that rungs read: predicted, by the predictor of the store, or, without one, the best predictor of a model of "
              "`make_model --planted`; or active, of any "
              "ReLU model");
  command.Add("--text-file", &text_file, "flash: text whose tokens are computed; - is stdin. Without it, random ids");
  command.Add("--window", &window,
              "flash: neurons that none of the last so many tokens needs leave memory; without it memory alone decides");
  command.Add("--tokens", &tokens, "flash: tokens to measure; without it 64");
  command.Add("--learn", &learn, "flash: tokens before them, from which predictor and order of neurons learn; without it 384");
  command.Add("--seed", &seed, "flash: of random ids and offsets");
  command.Add("--no-engine", &no_engine, "flash: leave out the runs of the engine, and with them the time of whole tokens");
  command.Add("--quick", &quick, "flash: few points of the disk and of memory, to try it out");
}

std::string FlashFlags::Given() const {
  if (masks) return "--masks";
  if (text_file) return "--text-file";
  if (window) return "--window";
  if (tokens) return "--tokens";
  if (learn) return "--learn";
  if (seed) return "--seed";
  return no_engine ? "--no-engine" : quick ? "--quick" : "";
}

absl::Status BenchFlash(const ModelFlags& model, const FlashFlags& flags) {
  LIME_RETURN_IF_ERROR(CheckModelFolder(model.model));
  LIME_ASSIGN_OR_RETURN(FlashOptions options, OptionsOf(model, flags));
  const GracefulStop graceful;
  std::optional<ElapsedLine> line("Measuring");
  options.at = [&](const std::string& what) { line->Say(what); };
  LIME_ASSIGN_OR_RETURN(FlashReport report, OfUser(flash::RunFlash(options)));
  if (!flags.no_engine) LIME_RETURN_IF_ERROR(RunEngine(model, options, report));
  line.reset();
  if (!model.json) absl::PrintF("%s", flash::TextOf(report));
  return Answered(flash::JsonOf(report), model.json);
}

}  // namespace lime::cli
