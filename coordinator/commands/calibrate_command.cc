#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/sampling/logits_hash.h"
#include "coordinator/cli/model_files.h"
#include "coordinator/cli/output_flag.h"
#include "coordinator/cli/user_text.h"
#include "coordinator/commands/commands.h"
#include "coordinator/commands/predictor_training.h"
#include "coordinator/planning/calibrations.h"
#include "coordinator/planning/routes.h"
#include "coordinator/reports/progress.h"
#include "daemon/calibration/for_each_thread.h"
#include "daemon/calibration/mask_run.h"
#include "daemon/calibration/proven_shares.h"
#include "daemon/engine/call_limits.h"
#include "daemon/engine/process_memory.h"
#include "daemon/stores/decider_frames.h"
#include "nlohmann/json.hpp"
#include "planner/demand/calibration.h"
#include "planner/demand/coactivation.h"

namespace lime::cli {
namespace {

constexpr int64_t kUsualContext = 512, kMostTokens = 1 << 20, kUsualTokens = 4096, kUsualTrainedTokens = 1 << 16;
constexpr int64_t kMostMasks = 256;

struct CalibrateFlags {
  std::string model;
  std::string text_file;
  OutputFlag out{.kind = OutputKind::kCalibration};
  std::string numerics = "auto";
  std::string decider = "auto";
  std::string predictor;  // ranks; empty: none is trained
  int64_t seed = 1;
  int64_t tokens = 0, context = 0, masks = 32;
  int threads = 0;
  bool coactivation = false;
  bool json = false;
};

absl::Status CheckFlags(const CalibrateFlags& flags, const ModelSpec& spec) {
  if (flags.tokens < 2 || flags.tokens > kMostTokens)
    return WrongCall(absl::StrCat("--tokens ", flags.tokens, " is outside 2 to ", kMostTokens));
  if (flags.context != 0 && (flags.context < 2 || flags.context > spec.config.max_positions))
    return WrongCall(absl::StrCat("--context ", flags.context, " is outside 2 to the model's ", spec.config.max_positions));
  if (flags.masks < 1 || flags.masks > kMostMasks) return WrongCall(absl::StrCat("--masks ", flags.masks, " is outside 1 to ", kMostMasks));
  if (flags.seed < 0) return WrongCall(absl::StrCat("--seed ", flags.seed, " is negative"));
  if (flags.threads < 0 || flags.threads > kMostThreads)
    return WrongCall(absl::StrCat("--threads ", flags.threads, " is outside 0 to ", kMostThreads));
  return absl::OkStatus();
}

// The bits that --decider asks for; 0: those of the best copy; nullopt: no copy.
absl::StatusOr<std::optional<int>> CopyBitsOf(const CalibrateFlags& flags) {
  if (flags.decider == "auto") return 0;
  if (flags.decider == "dense") return std::nullopt;
  for (const CopyForm& form : UsualCopyForms(1)) {
    if (flags.decider == absl::StrCat(form.bits)) return form.bits;
  }
  return WrongCall(absl::StrCat("--decider ", AsTyped(flags.decider), " is unknown; use auto, dense, 5, 6 or 8"));
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

// Learns copies of deciders while a model runs, layer by layer.
class CopyLearner {
 public:
  // `bits`: as of CopyBitsOf.
  CopyLearner(std::optional<int> bits, int threads, ForEach for_each) : bits_(bits), threads_(threads), for_each_(std::move(for_each)) {}

  absl::Status Take(const LayerInputs& inputs) {
    const std::vector<CopyForm> forms = UsualCopyForms(inputs.cols);
    const InputFrame frame = FrameOf(inputs, forms.back().directions);
    LIME_ASSIGN_OR_RETURN(proofs_, MeasureProofs(inputs, frame, forms, threads_));
    const std::optional<ProvenShare> best = Choose(inputs.cols);
    const bool follows = std::ranges::any_of(inputs.last_masks, [](const SequenceMasks& sequence) { return sequence.size() >= 2; });
    if (!best || best->directions < 1 || !follows) return absl::OkStatus();
    LayerFrame of{.layer = inputs.layer, .frame = FirstDirections(frame, best->directions)};
    LIME_ASSIGN_OR_RETURN(unproven_, UnprovenMasks(inputs, of.frame, best->bits, threads_));
    form_ = best;
    frames_.push_back(std::move(of));
    return absl::OkStatus();
  }

  // What was learned of the layer goes into the calibration, with `of_layer`.
  absl::Status Finish(LayerCalibration of_layer, Calibration& calibration) {
    of_layer.proofs = std::exchange(proofs_, {});
    const std::optional<ProvenShare> form = std::exchange(form_, std::nullopt);
    if (form) {
      CopiedLayer copy{.bits = form->bits, .directions = form->directions};
      LIME_ASSIGN_OR_RETURN(copy.unproven, CalibrateLayer(of_layer.layer, unproven_,
                                                          {.neurons = of_layer.neurons,
                                                           .masks = calibration.masks,
                                                           .ends = [] { return Interrupted().load(); },
                                                           .for_each = for_each_,
                                                           .places = of_layer.places}));
      copy.unproven.places.clear();
      calibration.copies.push_back(std::move(copy));
    }
    calibration.layers.push_back(std::move(of_layer));
    return absl::OkStatus();
  }

  std::span<const LayerFrame> frames() const { return frames_; }

 private:
  std::optional<ProvenShare> Choose(int64_t cols) const {
    if (!bits_) return std::nullopt;
    std::vector<ProvenShare> forms = proofs_;
    if (*bits_ > 0) std::erase_if(forms, [this](const ProvenShare& share) { return share.bits != *bits_; });
    if (*bits_ > 0) return forms.empty() ? std::nullopt : std::optional(forms.front());
    const ProvenShare* const best = BestCopy(forms, cols);
    return best == nullptr ? std::nullopt : std::optional(*best);
  }

  const std::optional<int> bits_;
  const int threads_;
  const ForEach for_each_;
  std::vector<LayerFrame> frames_;
  // Of the layer whose masks come next.
  std::vector<ProvenShare> proofs_;
  std::optional<ProvenShare> form_;
  std::vector<SequenceMasks> unproven_;
};

// Of the layers of a calibration, in their order.
using Coactivations = std::vector<Coactivation>;

nlohmann::json CoactivationJson(const Coactivation& of_layer) {
  nlohmann::json ranks = nlohmann::json::array();
  for (const FriendRank& rank : of_layer.ranks) ranks.push_back({{"rank", rank.rank}, {"mean", rank.mean}, {"neurons", rank.neurons}});
  const FriendReads& reads = of_layer.reads;
  return {{"steps", of_layer.steps},
          {"neuron", of_layer.neuron},
          {"with_neuron", of_layer.with_neuron},
          {"friends", std::move(ranks)},
          {"closest_friends", of_layer.closest_friends},
          {"of_most_active", of_layer.of_most_active},
          {"new_neurons", reads.new_neurons},
          {"bundles_with_friends", reads.bundles},
          {"friends_used", reads.used},
          {"friends_already_there", reads.already_there},
          {"friends_not_needed", reads.not_needed}};
}

void PrintCoactivations(const Calibration& calibration, const Coactivations& coactivations) {
  if (coactivations.empty()) return;
  const auto percent = [](double share) { return absl::StrFormat("%.1f %%", 100 * share); };
  absl::PrintF("\n%5s %12s %12s %12s %10s %12s %9s %13s %11s\n", "layer", "1st friend", "4th friend", "8th friend", "are 1st", "1st is hot",
               "bundles", "copies used", "there, not");
  for (size_t i = 0; i < coactivations.size(); ++i) {
    const Coactivation& of = coactivations[i];
    absl::PrintF("%5d %12s %12s %12s %10d %12s %9s %13s %11s\n", calibration.layers[i].layer, percent(of.ranks[0].mean),
                 percent(of.ranks[1].mean), percent(of.ranks[2].mean), of.closest_friends, percent(of.of_most_active),
                 percent(of.reads.new_neurons > 0 ? of.reads.bundles / of.reads.new_neurons : 1), percent(of.reads.used),
                 absl::StrFormat("%.0f, %.0f %%", 100 * of.reads.already_there, 100 * of.reads.not_needed));
  }
  absl::PrintF(
      "share of a neuron's steps that also have its closest, 4th and 8th closest friend; neurons that are the closest friend of any; "
      "neurons\n"
      "whose closest friend is among the most active hundredth. If each bundle had a copy of the closest friend: bundles read, of those\n"
      "without copies, each with twice the bytes; copies that save a read, whose neuron is there already, and that no token needs\n");
}

nlohmann::json CalibrationJson(const Calibration& calibration, const Coactivations& coactivations, const CalibrateFlags& flags,
                               double seconds) {
  nlohmann::json layers = nlohmann::json::array();
  for (const LayerCalibration& layer : calibration.layers) {
    nlohmann::json batches = nlohmann::json::array(), active = nlohmann::json::array();
    for (const BatchShares& shares : layer.batches) batches.push_back(shares.batch), active.push_back(shares.active);
    nlohmann::json proofs = nlohmann::json::array();
    for (const ProvenShare& share : layer.proofs)
      proofs.push_back({{"bits", share.bits}, {"directions", share.directions}, {"zeros", share.zeros}, {"proven", share.proven}});
    layers.push_back({{"layer", layer.layer},
                      {"neurons", layer.neurons},
                      {"batches", std::move(batches)},
                      {"active", std::move(active)},
                      {"unions", layer.unions},
                      {"fresh", layer.fresh},
                      {"rows_needed", layer.rows_needed},
                      {"neurons_per_read", layer.neurons_per_read},
                      {"path_neurons_per_read", layer.path_neurons_per_read},
                      {"proofs", std::move(proofs)}});
    if (const CopiedLayer* const copy = CopyOfLayer(calibration, layer.layer)) {
      const double unproven = copy->unproven.batches.front().active;
      layers.back()["copy"] = {{"bits", copy->bits}, {"directions", copy->directions}, {"unproven", unproven}};
    }
    if (layers.size() <= coactivations.size()) layers.back()["coactivation"] = CoactivationJson(coactivations[layers.size() - 1]);
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

// Of the zeros of each layer, the share that a copy of its decider proves, and the neurons that are left.
void PrintProofs(const Calibration& calibration) {
  const auto measured = std::ranges::find_if(calibration.layers, [](const LayerCalibration& layer) { return !layer.proofs.empty(); });
  if (measured == calibration.layers.end()) return;
  absl::PrintF("\n%5s %8s", "layer", "zeros");
  for (const ProvenShare& share : measured->proofs) absl::PrintF(" %18s", absl::StrCat(share.bits, " bits, ", share.directions, " dir."));
  absl::PrintF(" %14s\n", "copy");
  for (const LayerCalibration& layer : calibration.layers) {
    if (layer.proofs.empty()) continue;
    absl::PrintF("%5d %6.1f %%", layer.layer, 100 * layer.proofs.front().zeros);
    for (const ProvenShare& share : layer.proofs) {
      const double of_zeros = share.zeros > 0 ? share.proven / share.zeros : 0;
      absl::PrintF(" %18s", absl::StrFormat("%.1f %% (%.1f %%)", 100 * of_zeros, 100 * (1 - share.proven)));
    }
    const CopiedLayer* const copy = CopyOfLayer(calibration, layer.layer);
    absl::PrintF(" %14s\n", copy == nullptr ? "none" : absl::StrCat(copy->bits, " bits, ", copy->directions));
  }
  absl::PrintF(
      "share of the zeros that a copy of the decider in so many bits, with so many main directions of its inputs, proves without the\n"
      "decider; in brackets the neurons that it leaves to be computed; copy: the one that `lime prepare --bundles` writes\n");
}

absl::Status Calibrate(CalibrateFlags& flags) {
  LIME_RETURN_IF_ERROR(CheckModelFolder(flags.model));
  if (flags.out.path.empty()) flags.out.path = CalibrationFile(flags.model);
  LIME_RETURN_IF_ERROR(flags.out.Check());
  LIME_ASSIGN_OR_RETURN(std::optional<int> bits, CopyBitsOf(flags));
  const std::string frames_file = FramesFile(flags.out.path);
  // No file can lie beside a pipe.
  if (std::filesystem::exists(flags.out.path) && !std::filesystem::is_regular_file(flags.out.path)) bits = std::nullopt;
  if (bits) LIME_RETURN_IF_ERROR(OfUser(CheckFramesFile(frames_file)));
  LIME_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::Open(flags.model));
  if (flags.tokens == 0) flags.tokens = flags.predictor.empty() ? kUsualTokens : kUsualTrainedTokens;
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
  const int threads = flags.threads > 0 ? flags.threads : UsableCores();
  const ForEach for_each = ForEachOnThreads(threads);
  std::unique_ptr<PredictorTraining> training;  // null: no predictor is trained
  absl::Status untrained;                       // why not, if one is wanted
  if (!flags.predictor.empty()) {
    absl::StatusOr<std::unique_ptr<PredictorTraining>> created = PredictorTraining::Create(files.spec, {.model = flags.model,
                                                                                                        .ranks = flags.predictor,
                                                                                                        .seed = flags.seed,
                                                                                                        .threads = threads,
                                                                                                        .numerics = flags.numerics,
                                                                                                        .sequences = sequences,
                                                                                                        .for_each = for_each});
    if (!created.ok() && !absl::IsNotFound(created.status())) return created.status();
    untrained = created.status();
    if (created.ok()) training = *std::move(created);
  }
  CopyLearner copies(bits, threads, for_each);
  Coactivations coactivations;
  const auto interrupted = [] { return Interrupted().load(); };
  const auto take_inputs = [&](const LayerInputs& inputs) -> absl::Status {
    if (training == nullptr) return copies.Take(inputs);
    LIME_RETURN_IF_ERROR(training->TakeInputs(inputs));
    return copies.Take(Sampled(inputs, kMostSampledInputs, kMostSampledWeights));
  };
  const MaskRunOptions run{.num_threads = threads,
                           .numerics = flags.numerics,
                           .progress = [&](double share) { progress.UpdateShare(share); },
                           .most_inputs = training != nullptr ? kMostTokens * 2 : kMostSampledInputs,
                           .most_weights = training != nullptr ? std::numeric_limits<int64_t>::max() : kMostSampledWeights,
                           .take_inputs = take_inputs,
                           .cancelled = &Interrupted()};
  LIME_RETURN_IF_ERROR(
      OfUser(RunForMasks(checkpoint, files.spec, sequences, run, [&](int32_t layer, int32_t neurons, auto masks) -> absl::Status {
        LIME_ASSIGN_OR_RETURN(
            LayerCalibration of_layer,
            CalibrateLayer(layer, masks, {.neurons = neurons, .masks = calibration.masks, .ends = interrupted, .for_each = for_each}));
        if (flags.coactivation) {
          LIME_ASSIGN_OR_RETURN(
              Coactivation together,
              MeasureCoactivation(masks, {.neurons = neurons, .masks = calibration.masks, .ends = interrupted, .for_each = for_each}));
          coactivations.push_back(std::move(together));
        }
        if (training != nullptr) LIME_RETURN_IF_ERROR(training->TakeLayer(of_layer));
        return copies.Finish(std::move(of_layer), calibration);
      })));
  progress.Finish();
  if (!copies.frames().empty()) {
    LIME_ASSIGN_OR_RETURN(calibration.frames_xxh3, WriteFrames(frames_file, copies.frames()));
  }
  LIME_RETURN_IF_ERROR(flags.out.Write(EncodeCalibration(calibration)));
  if (training != nullptr) {
    Calibration of_predicted = calibration;
    of_predicted.layers.clear();
    LIME_RETURN_IF_ERROR(OfUser(training->Finish(std::move(of_predicted), calibration.context)));
  }
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  if (flags.json) {
    nlohmann::json root = CalibrationJson(calibration, coactivations, flags, seconds);
    if (training != nullptr) root["predictor"] = training->Json();
    LIME_RETURN_IF_ERROR(Answered(root, /*as_json=*/true));
    return untrained;
  }
  PrintTable(calibration, seconds);
  PrintProofs(calibration);
  PrintCoactivations(calibration, coactivations);
  absl::PrintF("%s: `lime prepare --bundles --calibration` orders new bundles with it%s\n", flags.out.path,
               calibration.copies.empty() ? "" : absl::StrCat(", and adds the copies of deciders that ", frames_file, " describes"));
  if (training != nullptr) training->Print();
  return untrained;
}

}  // namespace

void AddCalibrateCommand(Commands& commands) {
  const auto [command, flags] =
      commands.Add<CalibrateFlags>("calibrate", "Learn which neurons of a ReLU model text activates",
                                   "Example: lime calibrate opt-6.7b.store --text-file book.txt\n"
                                   "`lime prepare --bundles` orders bundles with what it learns, and `lime run` plans with it.",
                                   Calibrate);
  command.Add("model,--model,-m", &flags.model, "Folder of a checkpoint or a store").Required();
  command.Add("--text-file", &flags.text_file, "Text that the model reads; - is stdin").Required();
  flags.out.AddTo(command, "--out,-o", "File to write; without it calibration.json in the folder of the model");
  command.Add(
      "--predictor", &flags.predictor,
      "Also train a predictor of active neurons, for --sparsity predicted: its rank, or the ranks of all layers, such as 128,128,256");
  command.Add("--seed", &flags.seed, "Of the training: one seed gives one predictor").Shown();
  command.Add("--tokens", &flags.tokens,
              "Tokens of the text that are read, from its beginning; without it 4096, or 65536 with --predictor");
  command.Add("--context", &flags.context, "Tokens of a sequence; without it 512, or as many as the model has positions");
  command.Add("--masks", &flags.masks, "Tokens whose neurons are counted together").Shown();
  command
      .Add("--decider", &flags.decider,
           "Copies of deciders to learn: 5, 6 or 8 bits for all layers; auto: of each layer the smallest one that proves nearly as many "
           "neurons to be zero as any; dense: none")
      .Shown();
  command.Add("--coactivation", &flags.coactivation, "Also count which neurons are active together, and print it");
  command.Add("--threads", &flags.threads, "Threads that compute; 0 is all cores").Shown();
  command.Add("--numerics", &flags.numerics, "Order of sums: auto or portable").Shown();
  command.Add("--json", &flags.json, "Print one JSON object");
}

}  // namespace lime::cli
