#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/sampling/logits_hash.h"
#include "coordinator/cli/model_files.h"
#include "coordinator/cli/output_flag.h"
#include "coordinator/cli/user_text.h"
#include "coordinator/commands/commands.h"
#include "coordinator/planning/calibrations.h"
#include "coordinator/planning/routes.h"
#include "coordinator/reports/progress.h"
#include "daemon/calibration/mask_run.h"
#include "daemon/engine/call_limits.h"
#include "daemon/engine/process_memory.h"
#include "nlohmann/json.hpp"
#include "planner/demand/calibration.h"

namespace lime::cli {
namespace {

constexpr int64_t kUsualContext = 512, kMostTokens = 1 << 20;
constexpr int64_t kMostMasks = 256;

struct CalibrateFlags {
  std::string model;
  std::string text_file;
  OutputFlag out{.kind = OutputKind::kCalibration};
  std::string numerics = "auto";
  int64_t tokens = 4096, context = 0, masks = 32;
  int threads = 0;
  bool json = false;
};

absl::Status CheckFlags(const CalibrateFlags& flags, const ModelSpec& spec) {
  if (flags.tokens < 2 || flags.tokens > kMostTokens)
    return WrongCall(absl::StrCat("--tokens ", flags.tokens, " is outside 2 to ", kMostTokens));
  if (flags.context != 0 && (flags.context < 2 || flags.context > spec.config.max_positions))
    return WrongCall(absl::StrCat("--context ", flags.context, " is outside 2 to the model's ", spec.config.max_positions));
  if (flags.masks < 1 || flags.masks > kMostMasks) return WrongCall(absl::StrCat("--masks ", flags.masks, " is outside 1 to ", kMostMasks));
  if (flags.threads < 0 || flags.threads > kMostThreads)
    return WrongCall(absl::StrCat("--threads ", flags.threads, " is outside 0 to ", kMostThreads));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> ReadIds(const CalibrateFlags& flags, const ModelFiles& files) {
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadUserText("--text-file", flags.text_file, kMaxTextBytes));
  LIME_ASSIGN_OR_RETURN(std::vector<int32_t> ids, files.tokenizer->Encode(text, {.add_special = false}));
  if (ids.size() < 2) return WrongCall(absl::StrCat("--text-file ", flags.text_file, " holds less than 2 tokens"));
  ids.resize(std::min(ids.size(), static_cast<size_t>(flags.tokens)));
  return ids;
}

// Of each layer whose MLP may be sparse.
std::vector<int64_t> NeuronsOf(const ModelSpec& spec) {
  std::vector<int64_t> neurons;
  for (const LayerConfig& layer : spec.config.layers) {
    if (MakesZeros(spec.config.activation) && !layer.experts) neurons.push_back(layer.intermediate_size);
  }
  return neurons;
}

nlohmann::json CalibrationJson(const Calibration& calibration, const CalibrateFlags& flags, double seconds) {
  nlohmann::json layers = nlohmann::json::array();
  for (const LayerCalibration& layer : calibration.layers) {
    nlohmann::json batches = nlohmann::json::array(), active = nlohmann::json::array();
    for (const BatchShares& shares : layer.batches) batches.push_back(shares.batch), active.push_back(shares.active);
    layers.push_back({{"layer", layer.layer},
                      {"neurons", layer.neurons},
                      {"batches", std::move(batches)},
                      {"active", std::move(active)},
                      {"unions", layer.unions},
                      {"fresh", layer.fresh},
                      {"rows_needed", layer.rows_needed},
                      {"neurons_per_read", layer.neurons_per_read},
                      {"path_neurons_per_read", layer.path_neurons_per_read}});
  }
  return {{"calibration", flags.out.path}, {"tokens", calibration.tokens}, {"context", calibration.context},
          {"masks", calibration.masks},    {"layers", std::move(layers)},  {"seconds", seconds}};
}

void PrintTable(const Calibration& calibration, double seconds) {
  const auto percent = [](double share) { return absl::StrFormat("%.1f %%", 100 * share); };
  const std::string in_window = absl::StrCat("in ", calibration.masks, " tokens");
  const int32_t most = calibration.layers.front().batches.back().batch;
  absl::PrintF("%5s %8s %8s %13s %8s %12s %10s %8s %15s\n", "layer", "neurons", "active", in_window, "new", "rows needed",
               absl::StrCat("batch of ", most), "a read", "a read, ordered");
  for (const LayerCalibration& layer : calibration.layers) {
    absl::PrintF("%5d %8d %8s %13s %8s %12d %10s %8.2f %15.2f\n", layer.layer, layer.neurons, percent(layer.batches.front().active),
                 percent(layer.unions.back()), percent(layer.fresh), layer.rows_needed, percent(layer.batches.back().active),
                 layer.neurons_per_read, layer.path_neurons_per_read);
  }
  absl::PrintF(
      "%d tokens in sequences of up to %d, %.1f s; shares of a layer's neurons: active for a token, in any of %d tokens, new with\n"
      "a window of these, and active for any of %d sequences; a read: new neurons side by side, as numbered and as LIME orders them\n",
      calibration.tokens, calibration.context, seconds, calibration.masks, most);
}

absl::Status Calibrate(CalibrateFlags& flags) {
  LIME_RETURN_IF_ERROR(CheckModelFolder(flags.model));
  if (flags.out.path.empty()) flags.out.path = CalibrationFile(flags.model);
  LIME_RETURN_IF_ERROR(flags.out.Check());
  LIME_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::Open(flags.model));
  LIME_RETURN_IF_ERROR(CheckFlags(flags, files.spec));
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(flags.model));
  LIME_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ReadIds(flags, files));
  const GracefulStop graceful;
  const int64_t context = flags.context > 0 ? flags.context : std::min(kUsualContext, files.spec.config.max_positions);
  std::vector<std::vector<int32_t>> sequences = CutIntoWindows(ids, files.bos(), context);
  // A short rest would shorten the steps that all sequences share.
  if (sequences.size() > 1 && std::ssize(sequences.back()) < context / 2) sequences.pop_back();
  Calibration calibration{.model = RouteKey(files.spec),
                          .text_xxh3 = HashText(XXH3_64bits(ids.data(), ids.size() * sizeof(int32_t))),
                          .context = static_cast<int32_t>(context),
                          .masks = static_cast<int32_t>(std::min<int64_t>(flags.masks, context))};
  for (const std::vector<int32_t>& sequence : sequences) calibration.tokens += std::ssize(sequence);
  LIME_RETURN_IF_ERROR(OfUser(CheckCalibrationBytes(NeuronsOf(files.spec), {.masks = calibration.masks})));
  const absl::Time begin = absl::Now();
  ProgressLine progress("Calibrating");
  const MaskRunOptions run{.num_threads = flags.threads > 0 ? flags.threads : UsableCores(),
                           .numerics = flags.numerics,
                           .progress = [&](double share) { progress.UpdateShare(share); },
                           .cancelled = &Interrupted()};
  LIME_RETURN_IF_ERROR(
      OfUser(RunForMasks(checkpoint, files.spec, sequences, run, [&](int32_t layer, int32_t neurons, auto masks) -> absl::Status {
        LIME_ASSIGN_OR_RETURN(LayerCalibration of_layer, CalibrateLayer(layer, masks, {.neurons = neurons, .masks = calibration.masks}));
        calibration.layers.push_back(std::move(of_layer));
        return absl::OkStatus();
      })));
  progress.Finish();
  LIME_RETURN_IF_ERROR(flags.out.Write(EncodeCalibration(calibration)));
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  if (flags.json) return Answered(CalibrationJson(calibration, flags, seconds), /*as_json=*/true);
  PrintTable(calibration, seconds);
  absl::PrintF("%s: `lime prepare --bundles --calibration` orders new bundles with it\n", flags.out.path);
  return absl::OkStatus();
}

}  // namespace

void AddCalibrateCommand(Commands& commands) {
  const auto [command, flags] =
      commands.Add<CalibrateFlags>("calibrate", "Learn which neurons of a ReLU model text activates",
                                   "Example: lime calibrate opt-6.7b.store --text-file book.txt\n"
                                   "`lime prepare --bundles` orders bundles with what it learns. It trains no predictors of neurons.",
                                   Calibrate);
  command.Add("model,--model,-m", &flags.model, "Folder of a checkpoint or a store").Required();
  command.Add("--text-file", &flags.text_file, "Text that the model reads; - is stdin").Required();
  flags.out.AddTo(command, "--out,-o", "File to write; without it calibration.json in the folder of the model");
  command.Add("--tokens", &flags.tokens, "Tokens of the text that are read, from its beginning").Shown();
  command.Add("--context", &flags.context, "Tokens of a sequence; without it 512, or as many as the model has positions");
  command.Add("--masks", &flags.masks, "Tokens whose neurons are counted together").Shown();
  command.Add("--threads", &flags.threads, "Threads that compute; 0 is all cores").Shown();
  command.Add("--numerics", &flags.numerics, "Order of sums: auto or portable").Shown();
  command.Add("--json", &flags.json, "Print one JSON object");
}

}  // namespace lime::cli
