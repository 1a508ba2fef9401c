#include "coordinator/devices/daemon_settings.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lime::cli {
namespace {

constexpr char kNothing[] = "nothing";

std::string Shown(const std::string& text) {
  return text.empty() ? kNothing : text;
}

std::string ShownBytes(Bytes bytes) {
  return bytes > 0 ? FormatBytes(bytes) : kNothing;
}

std::string ShownThreads(int32_t threads) {
  return threads > 0 ? absl::StrCat(threads) : "one for every core";
}

const char* ShownSwitch(bool on) {
  return on ? "true" : "false";
}

}  // namespace

bool IsStartedByUp(const DaemonSettings& settings, const DaemonSettings& wanted) {
  return !settings.cluster.empty() && settings.cluster == wanted.cluster;
}

std::vector<SettingDifference> DifferencesOf(const DeviceHealth& health, const ClusterConfig::Device& wanted) {
  std::vector<SettingDifference> differences;
  if (!health.settings) return differences;
  const DaemonSettings& runs = *health.settings;
  const bool all = IsStartedByUp(runs, wanted);
  const auto compare = [&](const char* setting, bool differ, bool said, const std::string& runs_with, const std::string& file_says) {
    if (differ && (all || said)) differences.push_back({.setting = setting, .runs_with = runs_with, .file_says = file_says});
  };
  const bool chooses = wanted.memory == 0 && !wanted.memory_mode.empty();  // then the file says no size
  compare("memory", health.memory != wanted.memory && !chooses, wanted.memory > 0, ShownBytes(health.memory), ShownBytes(wanted.memory));
  compare("threads", runs.threads != wanted.threads, wanted.threads > 0, ShownThreads(runs.threads), ShownThreads(wanted.threads));
  compare("backend", runs.backend != wanted.backend, wanted.backend != kCpuBackend, runs.backend, wanted.backend);
  compare("weights", runs.weights != wanted.weights, !wanted.weights.empty(), Shown(runs.weights), Shown(wanted.weights));
  compare("store", runs.store != wanted.store, !wanted.store.empty(), Shown(runs.store), Shown(wanted.store));
  compare("kv-dir", runs.kv_dir != wanted.kv_dir, !wanted.kv_dir.empty(), Shown(runs.kv_dir), Shown(wanted.kv_dir));
  compare("loader", runs.loader != wanted.loader, wanted.loader != kDaemonLoader, runs.loader, wanted.loader);
  compare("follow-memory", runs.follow_memory != wanted.follow_memory, wanted.follow_memory, ShownSwitch(runs.follow_memory),
          ShownSwitch(wanted.follow_memory));
  compare("memory-mode", runs.memory_mode != wanted.memory_mode, !wanted.memory_mode.empty(), Shown(runs.memory_mode),
          Shown(wanted.memory_mode));
  // The file does not decide where another daemon listens and stores its keys: it answered, with
  // valid keys.
  if (!all) return differences;
  compare("tls", runs.tls != wanted.tls, true, Shown(runs.tls), Shown(wanted.tls));
  compare("listen", runs.listen != wanted.listen, true, Shown(runs.listen), Shown(wanted.listen));
  return differences;
}

std::string Sentence(const std::vector<SettingDifference>& differences) {
  return absl::StrJoin(differences, ", and ", [](std::string* out, const SettingDifference& difference) {
    absl::StrAppend(out,
                    difference.runs_with == kNothing ? absl::StrCat("no ", difference.setting)
                                                     : absl::StrCat(difference.setting, " ", difference.runs_with),
                    " (the file says ", difference.file_says, ")");
  });
}

}  // namespace lime::cli
