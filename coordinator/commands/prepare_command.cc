#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "coordinator/cli/model_files.h"
#include "coordinator/cli/output_flag.h"
#include "coordinator/commands/commands.h"
#include "coordinator/planning/calibrations.h"
#include "coordinator/reports/progress.h"
#include "coordinator/reports/screen.h"
#include "daemon/calibration/for_each_thread.h"
#include "daemon/engine/process_memory.h"
#include "daemon/machine/files.h"
#include "daemon/stores/block_store.h"
#include "daemon/stores/decider_frames.h"
#include "daemon/weights/predictor_store.h"
#include "nlohmann/json.hpp"

namespace lime::cli {
namespace {

struct PrepareFlags {
  std::string model;
  std::string out;
  std::string calibration;
  bool bundles = false;
  bool overwrite = false;
  bool verify = false;
  bool json = false;
};

// The cost of one pass over a store's bytes.
struct Pass {
  Bytes bytes = 0;
  double seconds = 0;

  std::string Text() const {
    const double rate = seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
    return absl::StrFormat("%s in %.1f s (%s/s)", FormatBytes(bytes), seconds, FormatBytes(static_cast<Bytes>(rate)));
  }
};

// Runs `work` under a progress line and times it.
template <typename Work>
auto Watch(const std::string& label, Pass& pass, const Work& work) {
  ProgressLine line(label);
  LoadOptions watch;
  watch.progress = [&](const LoadProgress& state) {
    pass.bytes = state.done;
    line.Update(state.done, state.total);
  };
  watch.cancelled = &Interrupted();
  const absl::Time begin = absl::Now();
  auto report = work(watch);
  pass.seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  return report;
}

void AddBundles(const std::optional<BundleSummary>& bundles, nlohmann::json& root) {
  if (!bundles) return;
  root.update({{"bundle_layers", bundles->layers}, {"bundle_bytes", bundles->bytes}, {"without_bundles", bundles->without}});
}

void PrintBundles(const std::optional<BundleSummary>& bundles) {
  if (!bundles) return;
  absl::PrintF("bundles: %d layers, %s\n", bundles->layers, FormatBytes(bundles->bytes));
  for (const std::string& why_not : bundles->without) absl::PrintF("%s\n", why_not);
}

// What orders new bundles: the calibration that is named, or that of the store, or, for --bundles alone,
// that of the model's folder.
std::string CalibrationPath(const PrepareFlags& flags) {
  if (!flags.calibration.empty()) return flags.calibration;
  const bool of_store = !flags.bundles || FileExists(CalibrationFile(flags.out));
  return CalibrationFile(of_store ? flags.out : flags.model);
}

absl::StatusOr<std::optional<Calibration>> CalibrationFor(const PrepareFlags& flags) {
  if (!flags.bundles && !HasBundles(flags.out)) return std::nullopt;
  const std::string path = CalibrationPath(flags);
  if (flags.calibration.empty() && !FileExists(path)) return std::nullopt;
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, LoadModelSpec(flags.model));
  return ReadCalibration(path, "", spec);
}

// The frames of the copies that the calibration learned. Without them bundles get no copies, and a sentence
// says so: runs then decide with the deciders themselves.
std::vector<LayerFrame> FramesFor(const PrepareFlags& flags, const std::optional<Calibration>& calibration) {
  if (!calibration || calibration->copies.empty()) return {};
  absl::StatusOr<std::vector<LayerFrame>> frames = ReadFrames(FramesFile(CalibrationPath(flags)), *calibration);
  if (frames.ok()) return *std::move(frames);
  Screen::Say(absl::StrCat("no copies of deciders are written: ", std::string(frames.status().message())));
  return {};
}

std::map<int32_t, std::vector<int32_t>> PlacesOf(const std::optional<Calibration>& calibration) {
  std::map<int32_t, std::vector<int32_t>> places;
  if (!calibration) return places;
  for (const LayerCalibration& layer : calibration->layers) places[layer.layer] = layer.places;
  return places;
}

// A store with bundles gets the predictor of the model, if it has none.
absl::Status CopyPredictor(const PrepareFlags& flags) {
  const std::string from = PredictorPath(flags.model), to = PredictorPath(flags.out);
  if (!flags.bundles || !FileExists(from) || FileExists(to)) return absl::OkStatus();
  std::error_code error;
  std::filesystem::copy_file(from, to, error);
  return error ? ErrnoStatus(error.value(), to, "copy the predictor to") : absl::OkStatus();
}

absl::StatusOr<PrepareReport> Write(const PrepareFlags& flags, nlohmann::json& root) {
  Pass pass;
  LIME_ASSIGN_OR_RETURN(const std::optional<Calibration> calibration, CalibrationFor(flags));
  const OutputFlag copy{.kind = OutputKind::kCalibration, .flag = "--out", .path = CalibrationFile(flags.out)};
  if (calibration && FileExists(copy.path)) LIME_RETURN_IF_ERROR(copy.Check());
  const std::vector<LayerFrame> frames = FramesFor(flags, calibration);
  LIME_ASSIGN_OR_RETURN(const auto copiers, CopiersOf(frames, calibration ? *calibration : Calibration()));
  // Where it orders all bundles of the store, the store gets a copy of it, by which later calls repair it.
  const auto write_copy = [&]() -> absl::Status {
    if (!calibration) return absl::OkStatus();
    if (!frames.empty()) LIME_RETURN_IF_ERROR(WriteFrames(FramesFile(copy.path), frames).status());
    return copy.Write(EncodeCalibration(*calibration));
  };
  LIME_ASSIGN_OR_RETURN(const PrepareReport report, Watch("Preparing", pass, [&](const LoadOptions& watch) {
                          return PrepareBlockStore(flags.model, flags.out,
                                                   {.watch = watch,
                                                    .bundles = flags.bundles,
                                                    .bundle_places = PlacesOf(calibration),
                                                    .decider_copies = copiers,
                                                    .for_each = copiers.empty() ? InTurn : ForEachOnThreads(UsableCores()),
                                                    .first_bundles = write_copy,
                                                    .overwrite = flags.overwrite});
                        }));
  LIME_RETURN_IF_ERROR(CopyPredictor(flags));
  root.update({{"layers", report.layers},
               {"bytes", report.bytes},
               {"files", report.files},
               {"kept_files", report.kept_files},
               {"was_complete", report.was_complete},
               {"written_bytes", pass.bytes},
               {"seconds", pass.seconds}});
  AddBundles(report.bundles, root);
  if (report.bundles) root["decider_copies"] = copiers.size();
  if (flags.json) return report;
  const std::string what =
      absl::StrFormat("%s: %d layers in %d files, %s", flags.out, report.layers, report.files, FormatBytes(report.bytes));
  if (report.was_complete) {
    absl::PrintF("%s; already complete, nothing to do; --verify reads and checks it\n", what);
  } else {
    const std::string kept = report.kept_files > 0 ? absl::StrCat("; kept ", report.kept_files, " files of an earlier call") : "";
    absl::PrintF("%s; wrote %s%s\n", what, pass.Text(), kept);
  }
  PrintBundles(report.bundles);
  if (report.bundles && !copiers.empty()) absl::PrintF("copies of deciders: %d layers\n", copiers.size());
  return report;
}

absl::Status Verify(const std::string& store, bool just_written, bool quiet, nlohmann::json& root) {
  Pass pass;
  LIME_ASSIGN_OR_RETURN(const VerifyReport report,
                        Watch("Verifying", pass, [&](const LoadOptions& watch) { return VerifyBlockStore(store, watch); }));
  root.update({{"layers", report.layers}, {"bytes", report.bytes}, {"files", report.files}, {"verified", true}});
  root["verify_seconds"] = pass.seconds;
  AddBundles(report.bundles, root);
  if (quiet) return absl::OkStatus();
  absl::PrintF("%s: every checksum matches, read %s\n", store, pass.Text());
  if (!just_written) PrintBundles(report.bundles);
  return absl::OkStatus();
}

absl::Status Prepare(const PrepareFlags& flags) {
  if (flags.out.empty() && flags.bundles) return WrongCall("--bundles needs --out STORE, the folder to write");
  if (flags.out.empty() && !flags.verify) {
    return WrongCall("give --out STORE, the folder to write, or --verify to check the store given as MODEL");
  }
  LIME_RETURN_IF_ERROR(CheckModelFolder(flags.model));
  const GracefulStop graceful;  // files stay whole, so the next call can continue
  nlohmann::json root = nlohmann::json::object();
  if (!flags.out.empty()) {
    LIME_RETURN_IF_ERROR(CheckWeights(flags.model));  // later errors are about the output folder
    const absl::Status written = Write(flags, root).status();
    if (absl::IsInvalidArgument(written)) return WrongCall(std::string(written.message()));
    LIME_RETURN_IF_ERROR(written);
  }
  if (flags.verify) LIME_RETURN_IF_ERROR(Verify(flags.out.empty() ? flags.model : flags.out, !flags.out.empty(), flags.json, root));
  return Answered(root, flags.json);
}

}  // namespace

void AddPrepareCommand(Commands& commands) {
  const auto [command, flags] = commands.Add<PrepareFlags>(
      "prepare", "Write the block store that streams fastest",
      "Example: lime prepare Llama-3.2-1B --out Llama-3.2-1B.store --verify\n"
      "An interrupted call continues where it stopped when it is given again. `lime prepare STORE --verify` only checks a store.",
      Prepare);
  command.Add("model,--model,-m", &flags.model, "Folder of a Hugging Face checkpoint").Required();
  command.Add("--out,-o", &flags.out, "Folder of the store");
  command.Add("--bundles", &flags.bundles, "Also write the MLP weights of a ReLU model by neuron, for --sparsity exact");
  command.Add("--calibration", &flags.calibration,
              "File of `lime calibrate`: neurons that are active together lie side by side in new bundles; without it calibration.json in "
              "the folder of the store, or of the model");
  command.Add("--overwrite", &flags.overwrite, "Replace files of the same names that LIME did not write, unless they are weights");
  command.Add("--verify", &flags.verify, "Read the store back from the disk and compare every checksum");
  command.Add("--json", &flags.json, "Print one JSON object");
}

}  // namespace lime::cli
