#include "coordinator/cli/profile_command.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/cli/command.h"
#include "coordinator/cli/device_profile.h"
#include "daemon/engine/process_memory.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/system_memory.h"

namespace lime::cli {
namespace {

struct ProfileFlags {
  std::string model;
  int threads = 0;
  double seconds = 3;
  bool json = false;
};

absl::Status Profile(const ProfileFlags& flags) {
  if (flags.threads < 0 || flags.threads > 1024) return WrongCall(absl::StrCat("--threads ", flags.threads, " is outside 0 to 1024"));
  if (!(flags.seconds > 0 && flags.seconds <= 600)) return WrongCall(absl::StrCat("--seconds ", flags.seconds, " is outside 0 to 600"));
  const Bytes bytes = std::min(kMeasuredBytes, AvailableMemory() / 2 / kMiB * kMiB);
  if (bytes < kMiB) return absl::ResourceExhaustedError("less than 2 MiB of memory are free; end other programs and profile again");
  DeviceProfile profile = MeasureDevice(flags.threads > 0 ? flags.threads : UsableCores(), flags.seconds, bytes);
  if (!flags.model.empty()) {
    LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(flags.model));
    LIME_RETURN_IF_ERROR(MeasureDisk(checkpoint.files().front().path, flags.seconds / 6, profile));
  }
  LIME_RETURN_IF_ERROR(StoreProfile(profile));
  if (flags.json) {
    std::cout << ProfileJson(profile).dump() << std::endl;
    return absl::OkStatus();
  }
  absl::PrintF("%s, %s, %d threads\nmemory   %7.1f GB/s read\ncompute  %7.0f GFLOP/s fp32\n", profile.cpu, profile.instruction_set,
               profile.threads, profile.read_bytes_per_second / 1e9, profile.flops / 1e9);
  for (const DiskRate& rate : profile.disk) {
    absl::PrintF("disk     %7.2f GB/s, %s reads, %d in flight\n", rate.bytes_per_second / 1e9, FormatBytes(rate.read_bytes), rate.depth);
  }
  absl::PrintF("kept in %s\n", ProfilePath());
  return absl::OkStatus();
}

}  // namespace

void AddProfileCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ProfileFlags>();
  CLI::App* command = app.add_subcommand("profile", "Measure this machine and keep the figures for predictions");
  command->add_option("--model,-m", flags->model, "Also measure the disk that holds this checkpoint");
  command->add_option("--threads", flags->threads, "Compute threads; 0: one for every core this process may use")->capture_default_str();
  command->add_option("--seconds", flags->seconds, "Time for each part")->capture_default_str();
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags, &exit_code] { exit_code = Finish(Profile(*flags)); });
}

}  // namespace lime::cli
