#include "coordinator/commands/predictor_training.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "coordinator/cli/command.h"
#include "coordinator/devices/limed_call.h"
#include "coordinator/planning/routes.h"
#include "coordinator/sessions/local_session.h"
#include "daemon/machine/files.h"
#include "daemon/stores/predictor_writer.h"
#include "daemon/weights/predictor_store.h"
#include "planner/base/strings.h"

namespace lime::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHeldOutShare = 16;                      // every so many-th sequence is held out
constexpr int64_t kMostTrainedInputs = int64_t{1} << 29;  // numbers: 2 GiB

absl::StatusOr<std::string> FindTrainer() {
  std::error_code error;
  const fs::path path = fs::read_symlink("/proc/self/exe", error).parent_path() / kPredictorTrainer;
  if (!error && fs::exists(path, error)) return path.string();
  return absl::NotFoundError(absl::StrCat("no predictor was trained: ", path.string(), " is not there; build the target ",
                                          Text(kPredictorTrainer), ", which needs libtorch, and call again"));
}

// A file of this name is replaced if it is a predictor.
absl::Status CheckOld(const std::string& path) {
  if (!FileExists(path)) return absl::OkStatus();
  const absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(path);
  const std::string record = absl::StrCat(Text(kPredictorPrefix), Text(kPredictorRecordName));
  if (header.ok() && std::ranges::find(header->tensors, record, &SafetensorsTensor::name) != header->tensors.end()) return absl::OkStatus();
  return WrongCall(absl::StrCat(path, " is no predictor that LIME wrote; move it away"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PredictorTraining>> PredictorTraining::Create(const ModelSpec& spec, const Options& options) {
  std::unique_ptr<PredictorTraining> out(new PredictorTraining(spec, options));
  LIME_RETURN_IF_ERROR(out->ReadRanks());
  LIME_RETURN_IF_ERROR(CheckOld(PredictorPath(options.model)));
  const size_t sequences = options.sequences.size(), held_out = std::max<size_t>(1, sequences / kHeldOutShare);
  if (sequences < 2) return WrongCall("--predictor needs a text of at least two sequences, of which one is not trained on; see --context");
  out->taught_sequences_ = sequences - held_out;
  for (size_t i = 0; i < sequences; ++i) {
    const int64_t tokens = std::ssize(options.sequences[i]);
    out->record_.tokens += tokens;
    (i < out->taught_sequences_ ? out->trial_.taught : out->record_.held_out) += tokens;
  }
  if (out->record_.tokens > kMostTrainedInputs / spec.config.hidden_size)
    return WrongCall(absl::StrCat("--predictor keeps what a layer sees of all tokens; give --tokens ",
                                  kMostTrainedInputs / spec.config.hidden_size, " or less"));
  LIME_ASSIGN_OR_RETURN(out->program_, FindTrainer());
  // One name, so that what a killed call has left goes with the next one.
  const std::string folder = (fs::path(options.model) / ".lime_predictor").string();
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  if (::mkdir(folder.c_str(), 0700) != 0) return ErrnoStatus(errno, folder, "make");
  out->trial_.folder = folder, out->trial_.num_threads = options.threads, out->trial_.numerics = options.numerics;
  out->trial_.train = [training = out.get()](const std::string& job, const std::string& result, int64_t rank) {
    return RunToEnd({training->program_, job, result, "--rank", absl::StrCat(rank), "--seed", absl::StrCat(training->options_.seed)},
                    &Interrupted())
        .status();
  };
  return out;
}

PredictorTraining::~PredictorTraining() {
  std::error_code ignored;
  if (!trial_.folder.empty()) fs::remove_all(trial_.folder, ignored);
}

absl::Status PredictorTraining::ReadRanks() {
  LIME_ASSIGN_OR_RETURN(shapes_, OfUser(PredictorShapes(spec_, options_.model)));
  if (shapes_.empty()) return WrongCall("--predictor: no layer has an MLP of dense weights, and only such layers may have a predictor");
  const std::vector<std::string> ranks = absl::StrSplit(options_.ranks, ',');
  if (ranks.size() != 1 && ranks.size() != shapes_.size())
    return WrongCall(absl::StrCat("--predictor has ", ranks.size(), " ranks, need one, or one for each of ", shapes_.size(), " layers"));
  for (size_t i = 0; i < shapes_.size(); ++i) {
    const std::string& rank = ranks[ranks.size() == 1 ? 0 : i];
    const int64_t most = std::min(kMostPredictorRank, shapes_[i].cols);
    if (!absl::SimpleAtoi(rank, &shapes_[i].rank) || shapes_[i].rank < 1 || shapes_[i].rank > most)
      return WrongCall(absl::StrCat("--predictor ", AsTyped(rank), " is not a rank from 1 to ", most));
  }
  return absl::OkStatus();
}

absl::Status PredictorTraining::TakeInputs(const LayerInputs& inputs) {
  masks_.clear();
  const auto shape = std::ranges::find(shapes_, inputs.layer, &PredictorShape::layer);
  if (shape == shapes_.end()) return absl::OkStatus();
  LIME_ASSIGN_OR_RETURN(TriedPredictor tried, TryPredictor(inputs, *shape, trial_));
  layers_.push_back(std::move(tried.layer)), record_.layers.push_back(std::move(tried.record)), masks_ = std::move(tried.masks);
  return absl::OkStatus();
}

// Bundles lie in the order of what is active, whoever predicts it.
absl::Status PredictorTraining::TakeLayer(const LayerCalibration& exact) {
  if (masks_.empty()) return absl::OkStatus();
  std::vector<SequenceMasks> masks;
  auto next = masks_.begin();
  for (const std::vector<int32_t>& sequence : options_.sequences) {
    masks.emplace_back(std::make_move_iterator(next), std::make_move_iterator(next + std::ssize(sequence)));
    next += std::ssize(sequence);
  }
  masks_.clear();
  LIME_ASSIGN_OR_RETURN(LayerCalibration predicted, CalibrateLayer(exact.layer, masks,
                                                                   {.neurons = exact.neurons,
                                                                    .masks = static_cast<int32_t>(exact.unions.size()),
                                                                    .ends = [] { return Interrupted().load(); },
                                                                    .for_each = options_.for_each,
                                                                    .places = exact.places}));
  predicted_.push_back(std::move(predicted));
  return absl::OkStatus();
}

absl::StatusOr<double> PredictorTraining::Perplexity(const std::string& sparsity) const {
  const std::vector<std::vector<int32_t>> windows(options_.sequences.begin() + static_cast<int64_t>(taught_sequences_),
                                                  options_.sequences.end());
  int64_t longest = 0;
  for (const std::vector<int32_t>& window : windows) longest = std::max(longest, std::ssize(window));
  ModelFlags flags{.model = options_.model, .numerics = options_.numerics, .sparsity = sparsity, .threads = options_.threads};
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<LocalSession> session, LocalSession::Open(flags,
                                                                                        {.context = longest,
                                                                                         .prompt_tokens = longest,
                                                                                         .all_prompt_tokens = longest * std::ssize(windows),
                                                                                         .logit_rows = std::min<int64_t>(longest, 64)},
                                                                                        {.says_predictor = false}));
  LIME_ASSIGN_OR_RETURN(const Scores scores, session->Score(windows, {.top = 0, .companions = {}, .cancel = &Interrupted()}));
  return PerplexityOf(scores.positions).value_or(0);
}

absl::Status PredictorTraining::Finish(Calibration calibration, int32_t context) {
  if (layers_.empty())
    return absl::FailedPreconditionError("no predictor was trained: the weights of all layers have numbers that are not finite");
  record_.model = calibration.model, record_.text_xxh3 = calibration.text_xxh3, record_.context = context, record_.seed = options_.seed;
  calibration.layers = std::move(predicted_);
  const std::string path = PredictorPath(options_.model), text = EncodeCalibration(calibration);
  LIME_RETURN_IF_ERROR(WriteTextFile(path, EncodePredictorFile(record_, text, layers_)));
  LIME_ASSIGN_OR_RETURN(record_.exact_perplexity, Perplexity("off"));
  LIME_ASSIGN_OR_RETURN(record_.perplexity, Perplexity("predicted"));
  return WriteTextFile(path, EncodePredictorFile(record_, text, layers_));
}

nlohmann::json PredictorTraining::Json() const {
  nlohmann::json layers = nlohmann::json::array();
  for (const PredictorLayerRecord& layer : record_.layers)
    layers.push_back({{"layer", layer.layer},
                      {"rank", layer.rank},
                      {"false_negatives", layer.false_negatives},
                      {"false_positives", layer.false_positives},
                      {"active", layer.active},
                      {"predicted", layer.predicted}});
  return {{"file", PredictorPath(options_.model)},
          {"xxh3", PredictorHash(record_)},
          {"seed", record_.seed},
          {"held_out", record_.held_out},
          {"perplexity", record_.perplexity},
          {"exact_perplexity", record_.exact_perplexity},
          {"layers", std::move(layers)}};
}

void PredictorTraining::Print() const {
  absl::PrintF("\n%5s %6s %8s %10s %8s %14s\n", "layer", "rank", "active", "predicted", "missed", "named wrongly");
  const auto percent = [](double share) { return absl::StrFormat("%.1f %%", 100 * share); };
  for (const PredictorLayerRecord& layer : record_.layers)
    absl::PrintF("%5d %6d %8s %10s %8s %14s\n", layer.layer, layer.rank, percent(layer.active), percent(layer.predicted),
                 percent(layer.false_negatives), percent(layer.false_positives));
  absl::PrintF(
      "%s: predictor %s, measured on %d tokens that it was not trained on: missed, of the active neurons; named wrongly, of the others.\n"
      "Perplexity %.3f with it, %.3f without. `--sparsity predicted` uses it; results change\n",
      PredictorPath(options_.model), PredictorHash(record_), record_.held_out, record_.perplexity, record_.exact_perplexity);
}

}  // namespace lime::cli
