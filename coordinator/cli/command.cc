#include "coordinator/cli/command.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lime::cli {
namespace {

constexpr char kWrongCallMark[] = "lime/wrong-call";

std::atomic<bool> interrupted{false};

void OnInterrupt(int signal) {
  if (interrupted.exchange(true)) _exit(128 + signal);
}

}  // namespace

absl::Status WrongCall(std::string message) {
  absl::Status status = absl::InvalidArgumentError(std::move(message));
  status.SetPayload(kWrongCallMark, absl::Cord("1"));
  return status;
}

absl::Status CheckOutputFile(const std::string& flag, const std::string& path) {
  namespace fs = std::filesystem;
  if (path.empty()) return absl::OkStatus();
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  std::error_code ignored;
  const char* wrong = nullptr;
  if (fs::is_directory(path, ignored)) {
    wrong = "is a folder; name a file in it";
  } else if (!fs::is_directory(folder, ignored)) {
    wrong = "lies in a folder that is not there; make it first";
  } else if (access(fs::exists(path, ignored) ? path.c_str() : folder.c_str(), W_OK) != 0) {
    wrong = "may not be written; choose another place, or change its permissions";
  }
  return wrong == nullptr ? absl::OkStatus() : absl::FailedPreconditionError(absl::StrCat(flag, " ", path, ": ", wrong));
}

int Finish(const absl::Status& status) {
  if (status.ok()) return kDone;
  std::fprintf(stderr, "lime: %s\n", std::string(status.message()).c_str());
  return status.GetPayload(kWrongCallMark) ? kWrongCall : kFailed;
}

const std::atomic<bool>& Interrupted() {
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_handler = OnInterrupt;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    return true;
  }();
  (void)installed;
  return interrupted;
}

void AddWithoutFlag(CLI::App& app, std::vector<std::string>& without) {
  app.add_option("--without", without, "With --cluster, a device to leave out; may be given several times")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
}

void ModelFlags::AddTo(CLI::App& app) {
  app.add_option("--model,-m", model, "Folder of a Hugging Face checkpoint; with --cluster, without it the one that the file names");
  app.add_option("--threads", threads, "Compute threads; 0: one for every core this process may use")->capture_default_str();
  app.add_option("--loader", loader, "How weights reach memory: read (direct reads), mmap (zero copy) or auto")->capture_default_str();
  app.add_option("--context", context, "Positions of KV cache reserved for each sequence; 0: as many as the call needs");
  app.add_option("--kv", kv, "Memory of the KV cache: reserve all of it up front, or let it grow as it is written")->capture_default_str();
  app.add_option("--chunk", chunk, "Tokens of a prompt computed in one step; 0: chosen for the machine");
  residency.AddTo(app);
  app.add_option("--profile", profile, "File of `lime profile --out` to predict from, instead of the figures kept for this machine");
  app.add_option("--numerics", numerics, "auto, or portable: the one order of reduction that every CPU implements")->capture_default_str();
  app.add_option("--cluster,-c", cluster, "cluster.toml: run on its devices instead of this one (`run`, `score`)");
  app.add_flag("--json", json, "Print one JSON object and nothing else on stdout");
}

absl::Status ModelFlags::Check(bool on_cluster) const {
  if (!cluster.empty() && !on_cluster)
    return WrongCall("--cluster: this command runs on one device only; `lime run` and `lime score` take it");
  if (model.empty()) return WrongCall("--model is required: the folder of a Hugging Face checkpoint");
  if (loader != "auto" && loader != "read" && loader != "mmap")
    return WrongCall(absl::StrCat("--loader ", loader, " is unknown; use auto, read or mmap"));
  if (kv != "reserve" && kv != "grow") return WrongCall(absl::StrCat("--kv ", kv, " is unknown; use reserve or grow"));
  if (numerics != "auto" && numerics != "portable")
    return WrongCall(absl::StrCat("--numerics ", numerics, " is unknown; use auto or portable"));
  if (threads < 0 || threads > 1024) return WrongCall(absl::StrCat("--threads ", threads, " is outside 0 to 1024"));
  if (context < 0) return WrongCall(absl::StrCat("--context ", context, " is negative"));
  if (chunk < 0 || chunk > 65536) return WrongCall(absl::StrCat("--chunk ", chunk, " is outside 0 to 65536"));
  return absl::OkStatus();
}

}  // namespace lime::cli
