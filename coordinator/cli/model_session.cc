#include "coordinator/cli/model_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/model_file.h"
#include "coordinator/cli/progress.h"
#include "coordinator/cli/screen.h"
#include "daemon/engine/process_memory.h"
#include "daemon/profile/profile_file.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/files.h"
#include "daemon/weights/system_memory.h"
#include "daemon/weights/unused_tensors.h"
#include "planner/base/json_text.h"
#include "planner/plan/token_ids.h"

namespace lime::cli {
namespace {

using nlohmann::json;

// eos_token_id of generation_config.json: one id or several. None where the file or the field is absent.
absl::StatusOr<std::vector<int32_t>> GenerationEndTokens(const std::string& dir) {
  const std::string path = dir + "/generation_config.json";
  LIME_ASSIGN_OR_RETURN(const bool is_here, FindModelFile(path));
  if (!is_here) return std::vector<int32_t>();
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxJsonBytes));
  LIME_ASSIGN_OR_RETURN(const json root, ParsePythonJsonObject(text, path));
  return ParseTokenIds(root, "eos_token_id", path);
}

absl::Status MentionUnused(const Checkpoint& checkpoint, const ModelSpec& spec) {
  LIME_ASSIGN_OR_RETURN(const std::vector<std::string> sentences, DescribeUnused(checkpoint, spec));
  for (const std::string& sentence : sentences) absl::FPrintF(stderr, "lime: %s: %s\n", checkpoint.dir(), sentence);
  return absl::OkStatus();
}

// The file named, whatever it was measured on; else what this machine has kept, or a quick look at its memory.
absl::StatusOr<DeviceProfile> ProfileFor(const ModelFlags& flags, Bytes budget) {
  if (!flags.profile.empty()) return OfUser(ReadProfile(flags.profile));
  const Bytes allowed = budget > 0 ? budget - ProcessResidentBytes() : AvailableMemory();
  return LoadOrMeasureProfile(flags.threads > 0 ? flags.threads : UsableCores(), std::min(allowed, AvailableMemory()));
}

// A step in which every sequence decodes one token; 0 where nothing is known of this machine.
double PredictStepMs(const Engine& engine, const DeviceProfile& profile, const ModelSession::Shape& shape) {
  const ModelCompute* const measured = profile.FindModel(ModelKey(engine.spec()));
  if (measured == nullptr && profile.read_bytes_per_second <= 0) return 0;
  if (engine.residency().streams()) return engine.residency().ms_per_step + (measured != nullptr ? measured->step_overhead_ms : 0);
  return profile.StepMs(engine.spec(),
                        {.rows = shape.max_sequences, .context = shape.expected_positions, .logit_rows = shape.max_sequences});
}

}  // namespace

absl::Status CheckWeights(const std::string& dir) {
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(dir));
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, checkpoint.BuildModelSpec());
  return MentionUnused(checkpoint, spec);
}

absl::StatusOr<ModelFiles> ModelFiles::Open(const std::string& dir, bool with_text) {
  LIME_RETURN_IF_ERROR(CheckModelFolder(dir));
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(dir));
  ModelFiles files;
  LIME_ASSIGN_OR_RETURN(files.spec, checkpoint.BuildModelSpec());
  LIME_RETURN_IF_ERROR(MentionUnused(checkpoint, files.spec));
  if (!with_text) return files;
  LIME_ASSIGN_OR_RETURN(files.tokenizer, Tokenizer::Load(dir));
  LIME_ASSIGN_OR_RETURN(files.end_tokens, GenerationEndTokens(dir));
  if (files.end_tokens.empty()) files.end_tokens = files.spec.config.eos_token_ids;
  if (files.end_tokens.empty() && files.tokenizer->eos_id()) files.end_tokens = {*files.tokenizer->eos_id()};
  return files;
}

std::optional<int32_t> ModelFiles::bos() const {
  return tokenizer->bos_id() ? tokenizer->bos_id() : spec.config.bos_token_id;
}

absl::StatusOr<std::vector<int32_t>> ModelFiles::EncodePrompt(std::string_view text) const {
  LIME_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer->Encode(text));
  if (ids.empty() && bos()) ids.push_back(*bos());
  if (ids.empty()) return absl::InvalidArgumentError("the prompt is empty and the model has no BOS token to start from; give a prompt");
  for (const int32_t id : ids) {
    if (id >= spec.config.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat("the tokenizer gives id ", id, " and the model has ", spec.config.vocab_size,
                                                     " ids; tokenizer and weights belong to different models"));
    }
  }
  return ids;
}

absl::StatusOr<std::unique_ptr<ModelSession>> ModelSession::Open(const ModelFlags& flags, const Shape& shape) {
  Engine::Options options;
  options.num_threads = flags.threads;
  options.loader = LoaderNamed(flags.loader).value_or(LoaderKind::kAuto);  // ModelFlags refuses all other names
  if (shape.max_rows > 0) {
    options.max_rows = shape.max_rows;
  } else {
    options.max_rows = shape.max_sequences;
    options.work = shape.work;
  }
  options.max_logit_rows = shape.max_logit_rows;
  options.max_sequences = shape.max_sequences;
  options.context = shape.context;
  options.expected_positions = shape.expected_positions;
  options.grow_kv = flags.kv == "grow";
  options.planned_steps = shape.planned_steps;
  options.numerics = flags.numerics;
  options.trace = shape.trace;
  LIME_RETURN_IF_ERROR(flags.residency.Apply(options));
  ProgressLine progress("Loading");
  options.load.progress = [&progress](const LoadProgress& state) { progress.Update(state.done, state.total); };
  options.load.cancelled = &Interrupted();
  options.report = [](const std::string& sentence) { Screen::Say(sentence); };
  std::unique_ptr<ModelSession> session(new ModelSession);
  session->threads_ = flags.threads > 0 ? flags.threads : UsableCores();
  session->has_budget_ = options.memory > 0;
  LIME_ASSIGN_OR_RETURN(session->profile_, ProfileFor(flags, options.memory));
  options.profile = &session->profile_;
  LIME_ASSIGN_OR_RETURN(session->engine_, Engine::Create(flags.model, options));
  session->profile_given_ = !flags.profile.empty();
  session->shape_ = shape;
  session->predicted_ms_ = PredictStepMs(*session->engine_, session->profile_, shape);
  const Engine::DiskRates& disk = session->engine_->disk_rates();
  session->planned_ms_ = disk.planned_ms > 0 && session->predicted_ms_ > 0
                             ? session->predicted_ms_ - session->engine_->residency().ms_per_step + disk.planned_ms
                             : session->predicted_ms_;
  progress.Finish();
  const std::string correction =
      CorrectionText({.source = disk.profiled ? RateSource::kProfile : RateSource::kAssumed, .planned = disk.planned, .seen = disk.seen},
                     session->planned_ms_, session->predicted_ms_);
  if (!correction.empty()) Screen::Say(correction);
  return session;
}

double ModelSession::disk_rate() const {
  const Engine::DiskRates& disk = engine_->disk_rates();
  return disk.seen > 0 ? disk.seen : disk.planned;
}

RateSource ModelSession::disk_rate_source() const {
  const Engine::DiskRates& disk = engine_->disk_rates();
  return disk.seen > 0 ? RateSource::kSeen : disk.profiled ? RateSource::kProfile : RateSource::kAssumed;
}

void ModelSession::CorrectPrediction() {
  if (engine_->LearnDiskRate()) predicted_ms_ = PredictStepMs(*engine_, profile_, shape_);
}

json ModelSession::Describe() const {
  json root = ResidencyJson(*engine_);
  root.update(
      {{"predicted_ms_per_token", predicted_ms_},
       {"peak_rss_bytes", ProcessPeakResidentBytes()},
       {"devices", json::array({{{"name", "local"}, {"backend", engine_->description()}, {"numerics_id", engine_->numerics_id()}}})},
       {"load", {{"loader", engine_->load().loader}, {"bytes", engine_->load().bytes}, {"seconds", engine_->load().seconds}}}});
  return root;
}

std::string ModelSession::LoadLine() const {
  const LoadSummary& load = engine_->load();
  return absl::StrFormat("loaded %s in %.2f s: %s; %s", FormatBytes(load.bytes), load.seconds, load.loader, engine_->description());
}

std::string ModelSession::MemoryLine() const {
  return MemoryText(*engine_);
}

}  // namespace lime::cli
