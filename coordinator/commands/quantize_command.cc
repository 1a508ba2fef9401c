#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/cli/model_files.h"
#include "coordinator/commands/commands.h"
#include "coordinator/reports/progress.h"
#include "daemon/stores/quantize.h"
#include "nlohmann/json.hpp"

namespace lime::cli {
namespace {

struct QuantizeFlags {
  std::string model;
  std::string out;
  Quantization packing{.bits = 4, .group_size = 64};
  bool overwrite = false;
  bool json = false;
};

// Quantises under a progress line, which is removed at the end.
absl::StatusOr<QuantizeReport> QuantizeWatched(const QuantizeFlags& flags) {
  ProgressLine progress("Quantising");
  const LoadOptions watch{.progress = [&](const LoadProgress& state) { progress.Update(state.done, state.total); },
                          .cancelled = &Interrupted()};
  return QuantizeCheckpoint(flags.model, flags.out, flags.packing, {.watch = watch, .overwrite = flags.overwrite});
}

absl::Status Quantize(const QuantizeFlags& flags) {
  const int bits = flags.packing.bits, group = flags.packing.group_size;
  if (bits != 3 && bits != 4 && bits != 6 && bits != 8) return WrongCall(absl::StrCat("--bits ", bits, " is not one of 3, 4, 6 and 8"));
  if (group != 32 && group != 64 && group != 128) return WrongCall(absl::StrCat("--group-size ", group, " is not one of 32, 64 and 128"));
  LIME_RETURN_IF_ERROR(CheckModelFolder(flags.model));
  LIME_RETURN_IF_ERROR(CheckWeights(flags.model));  // later errors are about the output folder
  const GracefulStop graceful;                      // removes a half-written folder
  const absl::StatusOr<QuantizeReport> written = QuantizeWatched(flags);
  if (absl::IsInvalidArgument(written.status())) return WrongCall(std::string(written.status().message()));
  LIME_RETURN_IF_ERROR(written.status());
  const QuantizeReport& report = *written;
  if (flags.json) {
    return Answered(
        {{"source_bytes", report.source_bytes}, {"bytes", report.bytes}, {"quantized", report.quantized}, {"dense", report.dense}},
        /*as_json=*/true);
  }
  absl::PrintF("%s: %s became %s, %d matrices in groups of %d at %d bits\n", flags.out, FormatBytes(report.source_bytes),
               FormatBytes(report.bytes), report.quantized, group, bits);
  for (const std::string& name : report.dense) absl::PrintF("left dense, because its columns are not a multiple of %d: %s\n", group, name);
  return absl::OkStatus();
}

}  // namespace

void AddQuantizeCommand(Commands& commands) {
  const auto [command, flags] =
      commands.Add<QuantizeFlags>("quantize", "Make an MLX-style affine checkpoint of a dense one",
                                  "Example: lime quantize --model Llama-3.2-1B --out Llama-3.2-1B-4bit --bits 4", Quantize);
  command.Add("--model,-m", &flags.model, "Folder of a bf16, fp16 or fp32 checkpoint").Required();
  command.Add("--out,-o", &flags.out, "Folder to write: a new or empty one, or an earlier copy of the same model").Required();
  command.Add("--bits", &flags.packing.bits, "3, 4, 6 or 8").Shown();
  command.Add("--group-size", &flags.packing.group_size, "Weights that share a scale and a bias: 32, 64 or 128").Shown();
  command.Add("--overwrite", &flags.overwrite, "Replace files of the same names that LIME did not write, unless they are weights");
  command.Add("--json", &flags.json, "Print one JSON object");
}

}  // namespace lime::cli
