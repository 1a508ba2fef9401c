#include "coordinator/devices/device_checks.h"

#include <algorithm>
#include <ctime>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "coordinator/cluster/units.h"
#include "daemon/inspect/inspect.h"
#include "nlohmann/json.hpp"
#include "planner/base/release.h"
#include "proto/certificate.h"
#include "proto/diagnosis/prober.h"

namespace lime::cli {
namespace {

std::string Renew(const std::string& name) {
  return absl::StrCat("run `lime keys --renew --name ", name, " --out FOLDER` on the machine that has ca.key",
                      name == kCoordinatorName ? "" : "; copy the new keys to the device and start limed again");
}

class DeviceChecks {
 public:
  DeviceChecks(const ClusterFile& file, const ClusterConfig::Device& config, const DeviceClient& client, const DescribedDevice* measured,
               const DeviceCheckOptions& options)
      : file_(file), config_(config), client_(client), measured_(measured), options_(options) {}

  void Run() {
    const absl::StatusOr<DeviceHealth> health = client_.Health(options_.patience);
    if (!health.ok()) return AddFault(DiagnosisOf(health.status()));
    idle_ = health->epoch < 0;
    Add({"reachability", Grade::kOk, absl::StrCat("answers at ", config_.address, file_.keys.empty() ? ", without keys" : ", with keys"),
         ""});
    Add(CheckPort());
    Add(CheckRelease(*health));
    Add(CheckClock(*health, std::time(nullptr)));
    if (health->keys_until > 0) Add(InspectExpiry("its keys", health->keys_until, std::time(nullptr), Renew(config_.name)));
    Add(CheckBudget(*health));
    Add(CheckMeasured());
    AddItsOwn();
  }

  bool idle() const { return idle_; }
  std::vector<Checked> ReleaseRows() { return std::move(rows_); }

 private:
  void Add(Finding finding) { rows_.push_back({config_.name, std::move(finding)}); }
  void AddFault(const Diagnosis& diagnosis) {
    rows_.push_back({config_.name, {"reachability", Grade::kFail, diagnosis.what, diagnosis.remedy}, diagnosis.fault});
  }

  // Tests the port. If keys are refused, the answer also tells whether clocks or releases differ.
  Finding CheckPort() const {
    const std::string port = config_.address.substr(config_.address.rfind(':') + 1);
    if (AskHello(client_.target())) return {"port", Grade::kOk, absl::StrCat("TCP and UDP port ", port, " answer"), ""};
    return {"port", Grade::kWarn, absl::StrCat("UDP port ", port, " does not answer: if keys are refused, LIME cannot read its clock"),
            absl::StrCat("let UDP port ", port, " pass the firewall, as TCP does")};
  }

  Finding CheckBudget(const DeviceHealth& health) const {
    if (config_.memory == 0 || config_.memory == health.memory)
      return {"budget", Grade::kOk, health.memory > 0 ? absl::StrCat("may use ", FormatBytes(health.memory)) : "none is set", ""};
    return {"budget", Grade::kWarn,
            absl::StrCat("limed was started with ", health.memory > 0 ? FormatBytes(health.memory) : "no budget",
                         ", but the cluster's file says ", FormatBytes(config_.memory)),
            absl::StrCat("start it again: `lime down --cluster ", file_.path, "`, then `lime up --cluster ", file_.path, "`")};
  }

  Finding CheckMeasured() const {
    const std::string measure = absl::StrCat("run `lime profile --cluster ", file_.path, "`");
    if (!config_.profile.empty()) return {"profile", Grade::kOk, absl::StrCat("of ", config_.profile), ""};
    if (measured_ == nullptr) return {"profile", Grade::kWarn, "was never measured", measure};
    if (measured_->profile.disk.empty()) return {"profile", Grade::kWarn, "its disk was not measured", measure};
    return {"profile", Grade::kOk, "measured", ""};
  }

  // A device with an older release does not support this call.
  void AddItsOwn() {
    absl::StatusOr<std::vector<Finding>> own = client_.Inspect({.weights = config_.weights, .seconds = options_.disk_seconds});
    if (!own.ok()) return Add({"machine", Grade::kWarn, std::string(own.status().message()), ""});
    for (Finding& finding : *own) Add(std::move(finding));
  }

  const ClusterFile& file_;
  const ClusterConfig::Device& config_;
  const DeviceClient& client_;
  const DescribedDevice* const measured_;  // null: not measured
  const DeviceCheckOptions& options_;
  std::vector<Checked> rows_;
  bool idle_ = false;
};

Checked CheckLink(const DeviceClient& from, const DeviceClient& to, double seconds) {
  const std::string check = absl::StrCat("link to ", to.name());
  const absl::StatusOr<MeasuredLink> link = from.ProbeLink({.peer = to.name(), .address = to.address(), .seconds = seconds});
  if (link.ok())
    return {from.name(),
            {check, Grade::kOk, absl::StrFormat("%s, %.2f ms", FormatBandwidth(link->bytes_per_second), link->latency_ms), ""}};
  return {from.name(),
          {check, Grade::kFail, std::string(link.status().message()),
           absl::StrCat("let ", from.name(), " reach ", to.address(), ": the address must be one that every device can use")}};
}

}  // namespace

Finding CheckRelease(const DeviceHealth& health) {
  const std::string theirs = health.release.empty() ? "unknown" : health.release;
  if (health.release == Release()) return {"release", Grade::kOk, theirs, ""};
  return {"release", Grade::kWarn, absl::StrCat("limed there has release ", theirs, ", but lime here has release ", std::string(Release())),
          "install one release on every machine"};
}

Finding CheckClock(const DeviceHealth& health, std::time_t now) {
  if (health.clock == 0) return {"clock", Grade::kWarn, "the device does not tell its clock", "install one release on every machine"};
  if (std::llabs(health.clock - now) < kClockNotice) return {"clock", Grade::kOk, "agrees with this machine's", ""};
  return {"clock", Grade::kWarn, absl::StrCat(FormatClock(health.clock), ": ", FormatClockApart(health.clock, now)),
          "set the clock that is wrong (`timedatectl set-ntp true`): keys may seem not valid"};
}

std::vector<std::string> ExpiryNotices(const ClusterKeys& own, const std::vector<std::pair<std::string, const DeviceHealth*>>& health,
                                       std::time_t now) {
  std::vector<std::string> notices;
  const auto add = [&](const std::string& what, std::time_t until, const std::string& name) {
    const Finding finding = InspectExpiry(what, until, now, Renew(name));
    if (finding.grade != Grade::kOk) notices.push_back(absl::StrCat(finding.what, "; ", finding.remedy));
  };
  if (!own.empty()) add("the keys of this machine", EndOf(own), kCoordinatorName);
  for (const auto& [name, answer] : health) {
    if (answer != nullptr && answer->keys_until > 0) add(absl::StrCat("the keys of device \"", name, "\""), answer->keys_until, name);
  }
  return notices;
}

std::vector<Checked> CheckDevices(const ClusterFile& file, const DescribedCluster& stored, const DeviceCheckOptions& options) {
  const std::vector<std::unique_ptr<DeviceClient>> clients = file.Clients();
  std::vector<DeviceChecks> checks;
  for (size_t i = 0; i < clients.size(); ++i)
    checks.emplace_back(file, file.config.devices[i], *clients[i], stored.Find(clients[i]->name()), options);
  AtOnce(checks.size(), [&](size_t i) { checks[i].Run(); });
  std::vector<Checked> rows;
  for (size_t i = 0; i < checks.size(); ++i) {
    std::vector<Checked> of = checks[i].ReleaseRows();
    std::ranges::move(of, std::back_inserter(rows));
    for (size_t to = 0; options.link_seconds > 0 && checks[i].idle() && to < checks.size(); ++to) {
      if (to != i && checks[to].idle()) rows.push_back(CheckLink(*clients[i], *clients[to], options.link_seconds));
    }
  }
  return rows;
}

nlohmann::json UsedByJson(const PlanUser& user) {
  const absl::Time since = absl::Now() - absl::Seconds(user.seconds);
  return {{"user", user.coordinator.user},
          {"host", user.coordinator.host},
          {"address", user.address},
          {"seconds", user.seconds},
          {"since", absl::FormatTime(absl::RFC3339_sec, since, absl::UTCTimeZone())}};
}

}  // namespace lime::cli
