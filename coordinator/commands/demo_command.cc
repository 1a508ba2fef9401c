#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/input/command_line.h"
#include "common/sampling/logits_hash.h"
#include "coordinator/cli/model_files.h"
#include "coordinator/cluster/device_memory.h"
#include "coordinator/cluster/device_profiles.h"
#include "coordinator/commands/commands.h"
#include "coordinator/devices/child_daemons.h"
#include "coordinator/devices/cluster_profile.h"
#include "coordinator/reports/plan_report.h"
#include "coordinator/reports/progress.h"
#include "coordinator/reports/screen.h"
#include "coordinator/reports/text_table.h"
#include "coordinator/rpc/device_client.h"
#include "coordinator/sessions/cluster_session.h"
#include "coordinator/sessions/generate.h"
#include "coordinator/sessions/local_session.h"
#include "daemon/machine/files.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/sim/simulator.h"

namespace lime::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kNames[] = {"anna", "bert", "cleo"};
constexpr int64_t kStoryTokens = 96;
constexpr Bytes kMargin = 16 * kMiB;  // of each daemon: page tables, connections and their threads
// Each device has memory for this share of a third of the model, so disks decide the speed.
constexpr double kShareOfPart = 0.6;
constexpr double kMeasureSeconds = 0.3;
constexpr int kTrials = 3;  // maximum trials of the plan until its prediction holds
constexpr int64_t kTrialTokens = 48;
constexpr double kHolds = 0.15;  // maximum error of a prediction, as a share of the measured time

struct DemoFlags {
  std::string model;
  std::string prompt = "Once upon a time, there was a little";
  bool json = false;
};

// A temporary folder, removed by the destructor.
class ScratchFolder {
 public:
  ScratchFolder() : path_((fs::temp_directory_path() / "lime-demo-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~ScratchFolder() { Remove(); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  void Remove() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
    path_.clear();
  }
  bool empty() const { return path_.empty(); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// The model shipped with LIME: of the build folder, the installation, or the current folder.
absl::StatusOr<std::string> ModelFolder(const std::string& asked) {
  if (!asked.empty()) return asked;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const fs::path& root : {program / "../../..", program / "../share/lime", fs::path(".")}) {
    if (const fs::path folder = root / "models/lime-fables"; fs::exists(folder / "config.json", ignored))
      return folder.lexically_normal().string();
  }
  return WrongCall("demo: the model that LIME ships is not beside this program; name a checkpoint with --model FOLDER");
}

LinkPoint BestLink(const std::vector<DescribedDevice>& devices) {
  LinkPoint best{.bytes_per_second = 0, .latency_ms = std::numeric_limits<double>::infinity()};
  for (const DescribedDevice& device : devices) {
    for (const LinkPoint& link : device.profile.links) {
      best.bytes_per_second = std::max(best.bytes_per_second, link.bytes_per_second);
      best.latency_ms = std::min(best.latency_ms, link.latency_ms);
    }
  }
  return best;
}

// Writes cluster.toml with names, addresses, and budgets so small that every daemon streams.
absl::Status DescribeCluster(const ChildDaemons& daemons, const std::string& model, const ModelSpec& spec, int64_t prompt_tokens,
                             const ScratchFolder& folder) {
  const int64_t context = prompt_tokens + kStoryTokens;
  const Bytes activations = AssumedActivations(spec, prompt_tokens, 1, context) + RingSlack(spec, kPartBytes);
  Bytes all = spec.WeightBytes() + context * spec.KvBytesPerToken();
  for (int64_t layer = 0; layer < spec.config.num_layers(); ++layer) all += spec.StateBytes(layer);
  const Bytes room = static_cast<Bytes>(kShareOfPart * static_cast<double>(all) / std::size(kNames));
  std::string toml = absl::StrCat("[cluster]\nname = \"demo\"\nmodel = \"", fs::absolute(model).string(), "\"\n");
  std::vector<std::unique_ptr<DeviceClient>> devices;
  for (size_t i = 0; i < std::size(kNames); ++i) {
    devices.push_back(std::make_unique<DeviceClient>(kNames[i], daemons.address(i), ClusterKeys{}));
    absl::StrAppend(&toml, "[[device]]\nname = \"", kNames[i], "\"\naddress = \"", daemons.address(i), "\"\n");
  }
  ProgressLine progress("Measuring the daemons");
  LIME_ASSIGN_OR_RETURN(DescribedCluster cluster, MeasureCluster(devices, {.seconds = kMeasureSeconds,
                                                                           .link_seconds = kMeasureSeconds,
                                                                           .progress = [&](double share) { progress.UpdateShare(share); },
                                                                           .cancelled = &Interrupted()}));
  // All devices are on one machine, so differences between them are noise.
  const DeviceProfile machine = cluster.devices.front().profile;
  const LinkPoint way = BestLink(cluster.devices);
  for (DescribedDevice& device : cluster.devices) {
    std::vector<LinkPoint> links = std::move(device.profile.links);
    for (LinkPoint& link : links) link.bytes_per_second = way.bytes_per_second, link.latency_ms = way.latency_ms;
    device.profile = machine;
    device.profile.links = std::move(links);
    device.memory = *device.runtime + kMargin + activations + room;
    device.activations = activations;
    device.margin = kMargin;
  }
  LIME_RETURN_IF_ERROR(WriteTextFile(folder / "demo.toml", toml));
  return WriteTextFile(ProfilesPathOf(folder / "demo.toml"), ToJsonText(cluster));
}

absl::StatusOr<std::unique_ptr<ChildDaemons>> StartDaemons(const std::vector<ChildDaemons::Daemon>& daemons) {
  ProgressLine progress("Starting three daemons on this machine");
  progress.UpdateShare(0);
  return ChildDaemons::Start(daemons);
}

GenerateOptions Options(const ModelFiles& files, bool aloud) {
  GenerateOptions options{.max_new_tokens = {kStoryTokens}, .end_tokens = files.end_tokens, .hash_logits = true};
  options.cancel = &Interrupted();
  if (aloud) options.on_text = [](size_t, std::string_view text) { Screen::Text(text); };
  return options;
}

// The number of messages between different devices for one token.
int NumHops(const Plan& plan) {
  int hops = 0;
  for (size_t i = 0; i < plan.stages.size(); ++i) hops += plan.stages[i].device != plan.stages[(i + 1) % plan.stages.size()].device;
  return hops;
}

// The plan with a hop latency longer by `ms`, and the new prediction.
absl::StatusOr<Plan> WithLongerHops(Plan plan, double ms) {
  plan.decode.lat_ms = std::max(0.0, plan.decode.lat_ms + ms);
  plan.prefill.lat_ms = std::max(0.0, plan.prefill.lat_ms + ms);
  LIME_ASSIGN_OR_RETURN(const auto decode, SimulateDecode(plan, {.timeline = false}));
  plan.predicted.ms_per_step = plan.predicted.ms_per_token = decode.MsPerStep();
  return plan;
}

// Opens a session with a plan whose prediction was tried. Three daemons share the cores, so their
// threads wake up late, and links seem slower than measured. With a small model this is most of the
// time. The time of a few tokens beyond the prediction is added to the hops.
absl::StatusOr<std::unique_ptr<ClusterSession>> OpenAfterTrials(ClusterSession::Options options, const std::string& plan_path,
                                                                const ModelFiles& files, const std::vector<int32_t>& prompt) {
  GenerateOptions trial = Options(files, false);
  trial.max_new_tokens = {kTrialTokens};
  for (int i = 0; i < kTrials; ++i) {
    LIME_ASSIGN_OR_RETURN(const auto session, ClusterSession::Open(options));
    LIME_ASSIGN_OR_RETURN(const GenerateSummary summary, session->Generate(*files.tokenizer, {prompt}, trial));
    if (summary.interrupted) return absl::CancelledError("interrupted");
    const double measured = summary.results.front().ms_per_token, beyond = measured - session->predicted_ms_per_token();
    const int hops = NumHops(session->plan());
    if (hops == 0 || std::abs(beyond) <= kHolds * measured) break;
    LIME_ASSIGN_OR_RETURN(const Plan corrected, WithLongerHops(session->plan(), beyond / hops));
    LIME_RETURN_IF_ERROR(WriteTextFile(plan_path, ToJsonText(corrected)));
    options.plan = plan_path;
  }
  return ClusterSession::Open(options);
}

// The same story in this process, with the whole model.
absl::StatusOr<GenerateSummary> GenerateAlone(const std::string& model, const ModelFiles& files, const std::vector<int32_t>& prompt) {
  ModelFlags flags;
  flags.model = model;
  const int64_t context = static_cast<int64_t>(prompt.size()) + kStoryTokens;
  LIME_ASSIGN_OR_RETURN(const auto session, LocalSession::Open(flags, {.context = context,
                                                                       .expected_positions = kStoryTokens,
                                                                       .prompt_tokens = std::ssize(prompt),
                                                                       .new_tokens = kStoryTokens}));
  return session->Generate(*files.tokenizer, {prompt}, Options(files, false));
}

absl::Status Print(const DemoFlags& flags, const ClusterSession& session, const GenerateSummary& together, const GenerateSummary& alone) {
  const Generated &a = together.results.front(), &b = alone.results.front();
  const double tokens = static_cast<double>(a.token_ids.size());
  const bool same = a.logits_hash == b.logits_hash && a.token_ids == b.token_ids;
  const PredictionReport difference = session.Compare(together);
  if (flags.json) {
    json root = session.Describe();
    root.update({{"text", a.text},
                 {"token_ids", a.token_ids},
                 {"ttft_ms", a.ttft_ms},
                 {"ms_per_token", a.ms_per_token},
                 {"logits_xxh3", HashText(a.logits_hash)},
                 {"prediction", ToJson(difference)},
                 {"one_process", {{"ms_per_token", b.ms_per_token}, {"logits_xxh3", HashText(b.logits_hash)}}}});
    LIME_RETURN_IF_ERROR(Answered(root, /*as_json=*/true));
  } else {
    Screen::Text("\n\n");
    absl::PrintF("%-12s predicted %.2f ms a token, measured %.2f; %s a token from the disk\n%s%s\n", "together",
                 session.predicted_ms_per_token(), a.ms_per_token,
                 FormatBytes(static_cast<Bytes>(static_cast<double>(session.disk_bytes()) / tokens)), session.DeviceLines(),
                 difference.Differs() ? difference.sentence + "\n" : "");
    absl::PrintF(
        "What happened: LIME started three daemons, each with little more memory than a program and its libraries need.\n"
        "They measured themselves. LIME made a plan and tried it, and hidden states of a few hundred bytes went from one\n"
        "daemon to the next, round after round. Each daemon read weights that did not fit from the disk ahead of time,\n"
        "computed with them, and evicted them. The prediction includes that the daemons share the disk and the cores of\n"
        "one machine, and the times of the first tokens. Then this process ran the same prompt alone, with everything in memory: %.2f ms a "
        "token.\n"
        "Hash of all logits: %s over the three daemons, %s in this process. %s\n\nFor your own checkpoint and machines see "
        "docs/getting-started.md.\n",
        b.ms_per_token, HashText(a.logits_hash), HashText(b.logits_hash),
        same ? "All bits are the same." : "THEY DIFFER, which is an error: please report it.");
  }
  return same ? absl::OkStatus() : absl::InternalError("demo: the logits of the cluster and of one process differ");
}

absl::Status Demo(const DemoFlags& flags) {
  LIME_ASSIGN_OR_RETURN(const std::string model, ModelFolder(flags.model));
  LIME_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::Open(model));
  LIME_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, files.EncodePrompt(flags.prompt));
  const GracefulStop graceful;  // Ctrl-C also removes daemons and folder
  ScratchFolder folder;
  if (folder.empty()) return absl::UnavailableError("demo: no folder for temporary files can be made; set TMPDIR");
  std::vector<ChildDaemons::Daemon> daemons;
  for (const char* name : kNames)
    daemons.push_back({.name = name, .arguments = {"--threads", "1", "--model", fs::absolute(model).string()}});
  LIME_ASSIGN_OR_RETURN(const auto children, StartDaemons(daemons));
  const int64_t prompt_tokens = static_cast<int64_t>(prompt.size());
  LIME_RETURN_IF_ERROR(DescribeCluster(*children, model, files.spec, prompt_tokens, folder));
  LIME_ASSIGN_OR_RETURN(const auto session, OpenAfterTrials({.cluster = folder / "demo.toml",
                                                             .model = model,
                                                             .context = prompt_tokens + kStoryTokens,
                                                             .prompt_tokens = prompt_tokens,
                                                             .cancel = &Interrupted()},
                                                            folder / "demo.plan.json", files, prompt));
  folder.Remove();
  if (!flags.json) {
    PlanReport report{.strategy = "lime", .plan = session->plan()};
    LIME_ASSIGN_OR_RETURN(report.uses, UsesOf(report.plan));
    absl::PrintF(
        "LIME runs large language models, losslessly, on the machines you own, however small.\nHere is the small model that it ships "
        "with, %s of weights, on three daemons on this machine. Together they have no room for it:\n\n%s\n",
        FormatBytes(files.spec.WeightBytes()), PlanText(report, OutputColumns()));
    Screen::Text("  " + flags.prompt);
  }
  LIME_ASSIGN_OR_RETURN(const GenerateSummary together, session->Generate(*files.tokenizer, {prompt}, Options(files, !flags.json)));
  if (together.interrupted) return absl::CancelledError("interrupted");
  LIME_ASSIGN_OR_RETURN(const GenerateSummary alone, GenerateAlone(model, files, prompt));
  return Print(flags, *session, together, alone);
}

}  // namespace

void AddDemoCommand(Commands& commands) {
  const auto [command, flags] =
      commands.Add<DemoFlags>("demo", "Let the shipped model tell a story over three daemons and explain what happened", "", Demo);
  command.Add("--model,-m", &flags.model, "Folder of a small checkpoint; without it: the model that LIME ships");
  command.Add("--prompt,-p", &flags.prompt, "How the story begins").FreeText().Shown();
  command.Add("--json", &flags.json, "Print one JSON object and nothing else on stdout");
}

}  // namespace lime::cli
