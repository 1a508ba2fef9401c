#include "coordinator/cli/output_flag.h"

#include <iostream>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/command.h"
#include "coordinator/cli/default_cluster.h"
#include "coordinator/cluster/device_profiles.h"
#include "coordinator/reports/screen.h"
#include "daemon/stores/output_file.h"
#include "planner/base/names.h"
#include "planner/demand/calibration.h"
#include "planner/demand/route_log.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/device/device_profile.h"
#include "planner/sim/timeline.h"

namespace lime::cli {
namespace {

bool IsOurs(OutputKind kind, std::string_view text) {
  switch (kind) {
    case OutputKind::kPlan:
      return ParsePlan(text, "").ok();
    case OutputKind::kTrace:
      return text.starts_with(kTraceBegin);
    case OutputKind::kProfile:
      return ParseDeviceProfile(text, "").ok();
    case OutputKind::kClusterProfiles:
      return ParseDeviceProfiles(text, "").ok();
    case OutputKind::kRoutes:
      return ParseRouteLog(text, "").ok();
    case OutputKind::kCalibration:
      return ParseCalibration(text, "").ok();
  }
  return false;
}

constexpr Names<OutputKind, 6> kOutputNames = {{{OutputKind::kPlan, "a plan"},
                                                {OutputKind::kTrace, "a trace"},
                                                {OutputKind::kProfile, "the profile of a device"},
                                                {OutputKind::kClusterProfiles, "the profiles of a cluster"},
                                                {OutputKind::kRoutes, "routes"},
                                                {OutputKind::kCalibration, "a calibration"}}};

// Files and pipes that the flags of the call name, without its other outputs.
std::vector<std::string> InputsOf(const OutputFlag& out) {
  std::vector<std::string> inputs;
  if (!out.command) return inputs;
  for (const auto& [name, value] : out.command->Values()) {
    if (name != out.flag && name != out.adds_to) inputs.push_back(name == "--cluster" ? ClusterFileMeant(value) : value);
  }
  return inputs;
}

OutputOptions OptionsOf(const OutputFlag& out) {
  return {.overwrite = out.overwrite,
          .is_ours = [kind = out.kind](std::string_view text) { return IsOurs(kind, text); },
          .kind = std::string(kOutputNames.Of(out.kind)),
          .inputs = InputsOf(out),
          .cancelled = &Interrupted(),
          .waits = [path = out.path] { Screen::Say(absl::StrCat("waits until a program reads ", path)); }};
}

}  // namespace

void OutputFlag::AddTo(const CommandFlags& flags, const std::string& names, const std::string& what) {
  flags.Add(names, &path, what);
  flag = names.substr(0, names.find(','));
  command = flags;
  flags.Add("--overwrite", &overwrite, absl::StrCat("Replace the file of ", flag, " even if LIME did not write it"));
}

absl::Status OutputFlag::Check() const {
  if (path.empty()) return absl::OkStatus();
  const absl::Status status = CheckOutput(path, OptionsOf(*this));
  return status.ok() ? status : WrongCall(absl::StrCat(flag, " ", std::string(status.message())));
}

absl::Status OutputFlag::Write(std::string_view text) const {
  if (path.empty()) return absl::OkStatus();
  std::cout << std::flush;  // printed text comes first if the file is stdout
  return WriteOutput(path, text, OptionsOf(*this));
}

}  // namespace lime::cli
