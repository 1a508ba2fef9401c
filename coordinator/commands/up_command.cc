#include <algorithm>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "coordinator/cli/default_cluster.h"
#include "coordinator/commands/commands.h"
#include "coordinator/devices/cluster_file.h"
#include "coordinator/devices/device_checks.h"
#include "coordinator/devices/limed_call.h"
#include "nlohmann/json.hpp"

namespace lime::cli {
namespace {

using nlohmann::json;

constexpr absl::Duration kUpPatience = absl::Seconds(10);  // for a daemon that listens
constexpr absl::Duration kGlance = absl::Seconds(2);       // for one that may not run
constexpr absl::Duration kLookAgain = absl::Seconds(1);    // for one that probably does not run

struct UpFlags {
  std::string cluster;
  bool restart = false;
  bool insecure = false;
  bool json = false;
};

// The result for one device.
struct DeviceOutcome {
  std::string state;  // "started", "running", "restarted"; "ended", "not_running"
  std::string said;   // a line for users
  std::vector<SettingDifference> differences;
  std::string warning;  // it runs, but not as the file says
};
using Outcomes = std::vector<absl::StatusOr<DeviceOutcome>>;

absl::StatusOr<std::vector<LimedCall>> CallsOf(const ClusterFile& file, bool insecure) {
  std::vector<LimedCall> calls;
  for (const ClusterConfig::Device& device : file.config.devices) {
    LIME_ASSIGN_OR_RETURN(LimedCall call, LimedCall::For(file, device, insecure));
    calls.push_back(std::move(call));
  }
  return calls;
}

std::vector<std::string> DeviceNames(const std::vector<LimedCall>& calls) {
  std::vector<std::string> names(calls.size());
  std::ranges::transform(calls, names.begin(), &LimedCall::name);
  return names;
}

json OutcomeJson(const std::string& name, const absl::StatusOr<DeviceOutcome>& outcome) {
  json object = {{"name", name}, {"state", outcome.ok() ? outcome->state : "failed"}};
  if (!outcome.ok()) {
    object["problem"] = std::string(outcome.status().message());
    return object;
  }
  object["differences"] = json::array();
  for (const SettingDifference& difference : outcome->differences)
    object["differences"].push_back(
        {{"setting", difference.setting}, {"runs_with", difference.runs_with}, {"file_says", difference.file_says}});
  return object;
}

// Prints the line of each device, in order. Returns the first error, in order.
absl::Status PrintOutcomes(const ClusterFile& file, const std::vector<std::string>& names, const Outcomes& outcomes, bool as_json) {
  absl::Status first;
  json answer = {{"cluster", file.Name()}, {"cluster_file", file.path}, {"devices", json::array()}};
  for (size_t i = 0; i < outcomes.size(); ++i) {
    first.Update(outcomes[i].status());
    answer["devices"].push_back(OutcomeJson(names[i], outcomes[i]));
    if (!outcomes[i].ok()) continue;
    if (!as_json) std::cout << outcomes[i]->said << "\n";
  }
  std::cout << std::flush;
  for (const absl::StatusOr<DeviceOutcome>& outcome : outcomes) {
    if (outcome.ok() && !outcome->warning.empty()) std::fprintf(stderr, "lime: %s\n", outcome->warning.c_str());
  }
  return Answered(answer, as_json, first);
}

// ---- Up

class Starter {
 public:
  Starter(const LimedCall& call, const DeviceClient& client, bool restart) : call_(call), client_(client), restart_(restart) {}

  absl::StatusOr<DeviceOutcome> Run() const {
    if (!call_.is_remote() && !IsOfThisMachine(call_.listen())) return Elsewhere();
    const absl::StatusOr<std::string> said = RunToEnd(call_.Start());
    if (!said.ok()) return OtherThatAnswers(said.status());
    const bool ran = said->find("runs already") != std::string::npos;
    const absl::StatusOr<DeviceHealth> health = ran ? client_.Health(kUpPatience) : client_.AwaitHealth(kUpPatience);
    if (!health.ok()) return absl::UnavailableError(absl::StrCat(health.status().message(), ". It said: ", *said, ran ? kEdited : ""));
    return ran ? Compare(*health, *said) : DeviceOutcome{.state = "started", .said = *said, .warning = Expiry(*health)};
  }

 private:
  // A warning about keys that expire soon; empty: none.
  std::string Expiry(const DeviceHealth& health) const {
    return absl::StrJoin(ExpiryNotices({}, {{call_.name(), &health}}, std::time(nullptr)), "; ");
  }

  static constexpr std::string_view kSpeaker = "limed: ";
  static constexpr char kEdited[] = ". If its address was edited meanwhile, `lime down` and `lime up` start it again";

  absl::Status NotUp(const std::string& why) const {
    return absl::UnavailableError(absl::StrCat("device \"", call_.name(), "\" is not up: ", why));
  }
  // limed has failed, or refuses the settings of the file.
  absl::Status NotUp(const absl::Status& failed) const {
    std::string_view said(failed.message().data(), failed.message().size());
    if (!absl::IsInvalidArgument(failed)) return NotUp(std::string(said));
    if (said.starts_with(kSpeaker)) said.remove_prefix(kSpeaker.size());
    return call_.InFile(said);
  }

  // The device is not on this machine, and `lime up` has no ssh to it: a user or a service starts
  // it.
  absl::StatusOr<DeviceOutcome> Elsewhere() const {
    const absl::StatusOr<DeviceHealth> health = client_.Health(kGlance);
    if (health.ok()) return Compare(*health, RunsAlready(*health));
    const std::string host = call_.listen().substr(0, call_.listen().rfind(':'));
    return NotUp(absl::StrCat(host, " is not an address of this machine, and nobody answers there as \"", call_.name(),
                              "\"; add ssh = \"USER@", host, "\" to it (", call_.where(), "), or start limed there"));
  }

  // The port may be in use by the same device, started in another way.
  absl::StatusOr<DeviceOutcome> OtherThatAnswers(const absl::Status& failed) const {
    const absl::StatusOr<DeviceHealth> health = client_.Health(kLookAgain);
    if (!health.ok()) return NotUp(failed);
    return Compare(*health, RunsAlready(*health));
  }

  std::string RunsAlready(const DeviceHealth& health) const {
    // `lime up` started it, but its files cannot be found: HOME has changed.
    if (health.settings && IsStartedByUp(*health.settings, call_.Wanted()))
      return absl::StrCat("device ", call_.name(), " runs already at ", client_.address(), "; process ", health.settings->process);
    const std::string who =
        health.settings && !health.settings->user.empty()
            ? absl::StrCat("; ", health.settings->user, " started it by other means, as process ", health.settings->process)
            : "; it was started by other means";
    return absl::StrCat("device ", call_.name(), " runs already at ", client_.address(), who);
  }

  absl::StatusOr<DeviceOutcome> Compare(const DeviceHealth& health, const std::string& said) const {
    DeviceOutcome outcome{
        .state = "running", .said = said, .differences = DifferencesOf(health, call_.Wanted()), .warning = Expiry(health)};
    if (outcome.differences.empty()) return outcome;
    const auto warn = [&outcome](const std::string& sentence) {
      outcome.warning = outcome.warning.empty() ? sentence : absl::StrCat(sentence, "; ", outcome.warning);
    };
    const std::string what = absl::StrCat("device \"", call_.name(), "\" runs with ", Sentence(outcome.differences));
    if (!IsStartedByUp(*health.settings, call_.Wanted())) {
      warn(absl::StrCat(what, "; `lime up` did not start it: restart it there"));
    } else if (!restart_) {
      warn(absl::StrCat(what, "; `lime up --restart` starts it again"));
    } else if (health.used_by) {
      return absl::FailedPreconditionError(absl::StrCat(what, ", but LIME does not restart it while it runs ", health.model, " for ",
                                                        health.used_by->Who(), "; wait for its end"));
    } else {
      return Restart();
    }
    return outcome;
  }

  absl::StatusOr<DeviceOutcome> Restart() const {
    if (const absl::StatusOr<std::string> ended = RunToEnd(call_.Stop()); !ended.ok()) return NotUp(ended.status());
    const absl::StatusOr<std::string> said = RunToEnd(call_.Start());
    if (!said.ok()) return NotUp(said.status());
    const absl::StatusOr<DeviceHealth> health = client_.AwaitHealth(kUpPatience);
    if (!health.ok()) return absl::UnavailableError(absl::StrCat(health.status().message(), ". It said: ", *said));
    return DeviceOutcome{.state = "restarted", .said = absl::StrCat(*said, "; started again")};
  }

  const LimedCall& call_;
  const DeviceClient& client_;
  const bool restart_;
};

// `lime up` starts the programs that the file names, so a file found by default must belong to this
// user.
absl::StatusOr<ClusterFile> OpenToStart(const UpFlags& flags) {
  if (!flags.cluster.empty()) return ClusterFile::Open(flags.cluster, flags.insecure);
  LIME_ASSIGN_OR_RETURN(const std::string path, ClusterFileOr(flags.cluster));
  return ClusterFile::OpenOwn(path, flags.insecure);
}

absl::Status Up(const UpFlags& flags) {
  LIME_ASSIGN_OR_RETURN(const ClusterFile file, OpenToStart(flags));
  LIME_ASSIGN_OR_RETURN(const std::vector<LimedCall> calls, CallsOf(file, flags.insecure));
  const auto clients = file.Clients();
  for (const std::string& notice : ExpiryNotices(file.keys, {}, std::time(nullptr))) std::fprintf(stderr, "lime: %s\n", notice.c_str());
  const Outcomes outcomes = AskAll(calls.size(), [&](size_t i) { return Starter(calls[i], *clients[i], flags.restart).Run(); });
  return PrintOutcomes(file, DeviceNames(calls), outcomes, flags.json);
}

// ---- Down

std::string HowToEnd(const DeviceHealth& health) {
  if (!health.settings) return "end it where it was started";
  const DaemonSettings& settings = *health.settings;
  const std::string process = absl::StrCat(settings.user.empty() ? "its user" : settings.user, " runs it as process ", settings.process);
  if (!settings.cluster.empty())
    return absl::StrCat(process, ", started by `lime up` for cluster \"", settings.cluster,
                        "\": `lime down` with that cluster's file ends it");
  return absl::StrCat(process, "; end it there with `kill ", settings.process, "`, or `systemctl stop limed` if it is a service");
}

constexpr std::string_view kNotRunning = "does not run";

// Asks the device's limed to end, if this machine can reach it.
absl::StatusOr<std::string> AskToEnd(const LimedCall& call) {
  // Without ssh, limed on this machine can only end daemons of this machine.
  const bool here = call.is_remote() || IsOfThisMachine(call.listen());
  return here ? RunToEnd(call.Stop()) : absl::StrCat("device ", call.name(), " ", std::string(kNotRunning));
}

// Ends daemons that were started from the file and that the file does not name any more.
void EndOthers(const std::vector<LimedCall>& calls, std::vector<std::string>& names, Outcomes& outcomes) {
  std::set<std::vector<std::string>> machines;
  for (const LimedCall& call : calls) machines.insert(call.StopAll());
  for (const std::vector<std::string>& words : machines) {
    const absl::StatusOr<std::string> said = RunToEnd(words);
    if (!said.ok()) continue;  // an older release, or errors that its devices have reported
    const std::vector<std::string> lines = absl::StrSplit(*said, '\n', absl::SkipEmpty());
    for (const std::string& line : lines) {
      const std::vector<std::string> parts = absl::StrSplit(line, ' ');
      names.push_back(parts.size() > 1 ? parts[1] : "");
      outcomes.push_back(DeviceOutcome{.state = "ended", .said = absl::StrCat(std::string(line), "; this file had started it")});
    }
  }
}

// The result for a device, after all have been asked.
absl::StatusOr<DeviceOutcome> LookAfterEnd(const LimedCall& call, const DeviceClient& client, const absl::StatusOr<std::string>& said) {
  if (!said.ok()) return absl::UnavailableError(absl::StrCat("device \"", call.name(), "\" is not down: ", said.status().message()));
  if (said->find(kNotRunning) == std::string::npos) return DeviceOutcome{.state = "ended", .said = *said};
  const absl::StatusOr<DeviceHealth> health = client.Health(kLookAgain);
  if (health.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("device \"", call.name(), "\" still answers at ", client.address(),
                                                      ": this `lime up` did not start it; ", HowToEnd(*health)));
  }
  const Diagnosis diagnosis = DiagnosisOf(health.status());
  if (diagnosis.fault != Fault::kWrongName && diagnosis.fault != Fault::kOtherRelease)
    return DeviceOutcome{.state = "not_running", .said = *said};
  return absl::FailedPreconditionError(absl::StrCat("a limed still answers at ", client.address(), ", the address of device \"",
                                                    call.name(), "\": ", diagnosis.what, "; end it where it was started"));
}

absl::Status Down(const UpFlags& flags) {
  LIME_ASSIGN_OR_RETURN(const std::string path, ClusterFileOr(flags.cluster));
  // `lime down` runs the programs that the file names, so a file found by default must belong to
  // this user.
  LIME_ASSIGN_OR_RETURN(const ClusterFile file, flags.cluster.empty() ? ClusterFile::OpenOwn(path, /*insecure=*/true, /*distinct=*/false)
                                                                      : ClusterFile::Open(path, /*insecure=*/true, /*distinct=*/false));
  LIME_ASSIGN_OR_RETURN(const std::vector<LimedCall> calls, CallsOf(file, /*insecure=*/true));
  const auto clients = file.Clients();
  const auto asked = AskAll(calls.size(), [&](size_t i) { return AskToEnd(calls[i]); });
  std::vector<std::string> others;
  Outcomes others_ended;
  EndOthers(calls, others, others_ended);
  Outcomes outcomes = AskAll(calls.size(), [&](size_t i) { return LookAfterEnd(calls[i], *clients[i], asked[i]); });
  std::vector<std::string> names = DeviceNames(calls);
  names.insert(names.end(), others.begin(), others.end());
  outcomes.insert(outcomes.end(), others_ended.begin(), others_ended.end());
  return PrintOutcomes(file, names, outcomes, flags.json);
}

}  // namespace

void AddUpCommand(Commands& commands) {
  const auto [command, flags] = commands.Add<UpFlags>(
      "up", "Start limed on every device of a cluster, here and over ssh",
      "Example: lime up --cluster shelf.toml\n"
      "A device with ssh = \"USER@HOST\" in the file is started on that machine, with the program that limed = \"PATH\" names, or else\n"
      "with the limed on its PATH. All other devices are started on this machine. A device that runs already stays; a warning says if\n"
      "its settings differ from the file. The log and the process number of each device are in ~/.local/state/lime/CLUSTER on its\n"
      "machine.",
      Up);
  AddClusterFlag(command, flags.cluster);
  command.Add("--restart", &flags.restart,
              "Restart devices that `lime up` started with other settings than the file has now, if nobody uses them");
  command.Add("--insecure", &flags.insecure, "Let anyone who reaches the devices use them, if the file names no keys");
  command.Add("--json", &flags.json, "Print one JSON object and nothing else on stdout");
}

void AddDownCommand(Commands& commands) {
  const auto [command, flags] = commands.Add<UpFlags>(
      "down", "End the devices that `lime up` started, and nothing else",
      "Example: lime down --cluster shelf.toml\nA device that was started by other means keeps running, and the answer says how to end it.",
      Down);
  AddClusterFlag(command, flags.cluster);
  command.Add("--json", &flags.json, "Print one JSON object and nothing else on stdout");
}

}  // namespace lime::cli
