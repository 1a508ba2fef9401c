// limed: one device of a cluster. It waits for a coordinator, installs a plan, computes its stages.

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/input/command_line.h"
#include "common/input/host_port.h"
#include "daemon/engine/call_limits.h"
#include "daemon/engine/process_memory.h"
#include "daemon/engine/stage_engine.h"
#include "daemon/inspect/inspect.h"
#include "daemon/limed/background.h"
#include "daemon/limed/engine_profiler.h"
#include "daemon/limed/limed_flags.h"
#include "daemon/limed/limed_metrics.h"
#include "daemon/limed/metrics_server.h"
#include "daemon/machine/files.h"
#include "daemon/machine/unreadable_pages.h"
#include "daemon/rpc/device_server.h"
#include "kernels/registry/registry.h"
#include "planner/base/release.h"
#include "proto/certificate.h"
#include "proto/convert/convert.h"
#include "proto/grpc_log.h"

namespace {

constexpr int kDone = 0, kFailed = 1, kWrongCall = 2;

// Blocked in every thread; one thread waits for them. SIGTERM and SIGINT end limed. The others are
// reported in the log; without that they would end the program.
sigset_t HandledSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) sigaddset(&signals, signal);
  return signals;
}

// Waits for the signal that ends limed.
template <typename Log>
int AwaitEnd(const sigset_t& signals, const Log& log) {
  for (int signal = 0;;) {
    if (sigwait(&signals, &signal) != 0) continue;
    if (signal == SIGTERM || signal == SIGINT) return signal;
    log(std::string("continues after a signal (") + strsignal(signal) + "); it reads its settings only at the start, and SIGTERM ends it");
  }
}

// Beyond what limed itself takes, libraries included: a little to install a plan with.
constexpr lime::Bytes kLeastBeside = 32 * lime::kMiB;

absl::Status CheckOwnNeed(const lime::LimedFlags& flags, lime::Bytes memory, lime::Bytes runtime) {
  if (memory == 0 || memory >= runtime + kLeastBeside) return absl::OkStatus();
  return lime::Invalid(flags.Said("memory", flags.memory), " is too small: limed itself needs ", lime::FormatBytes(runtime), "; give ",
                       lime::BudgetAtLeast(runtime + 2 * kLeastBeside), " or more");
}

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "limed: %s\n", std::string(status.message()).c_str());
  return code;
}

// The end of a call that only prints an answer.
int AnswerPrinted() {
  return lime::AnswerWritten() ? kDone : Fail(absl::UnavailableError("the answer cannot be written to stdout"), kFailed);
}

lime::Origin OriginOf(const lime::LimedFlags& flags) {
  const absl::StatusOr<lime::HostPort> listen = lime::ParseAddress(flags.listen);
  return {.file = flags.cluster_file, .listen = listen.ok() ? lime::AddressText(*listen) : flags.listen, .tls = flags.tls};
}

// Ends the daemon in the background if it runs; for `lime down`, if the same file has started it.
int Stop(const lime::LimedFlags& flags) {
  if (const absl::Status named = lime::CheckName(flags); !named.ok()) return Fail(named, kWrongCall);
  const absl::StatusOr<lime::StateFiles> files = lime::StateFilesOf(flags.cluster, flags.name);
  if (!files.ok()) return Fail(files.status(), kWrongCall);
  const std::string other = flags.cluster_file.empty() ? "" : lime::OtherOrigin(*files, OriginOf(flags));
  if (!other.empty()) {
    std::printf("device %s does not run; the device of another cluster of this name stays: %s\n", flags.name.c_str(), other.c_str());
    return AnswerPrinted();
  }
  const absl::StatusOr<pid_t> ended = lime::EndHolder(files->pid);
  if (!ended.ok()) return Fail(ended.status(), kFailed);
  if (*ended > 0)
    std::printf("device %s has ended; it was process %d\n", flags.name.c_str(), static_cast<int>(*ended));
  else
    std::printf("device %s does not run\n", flags.name.c_str());
  return AnswerPrinted();
}

// Prints a line for each daemon that has ended, also for devices that the file no longer names so.
int StopAll(const lime::LimedFlags& flags) {
  absl::Status first;
  for (const lime::StateFiles& files : lime::StartedFrom(flags.cluster_file)) {
    const absl::StatusOr<pid_t> ended = lime::EndHolder(files.pid);
    first.Update(ended.status());
    if (ended.ok() && *ended > 0) std::printf("device %s has ended; it was process %d\n", files.device.c_str(), static_cast<int>(*ended));
  }
  return first.ok() ? AnswerPrinted() : Fail(first, kFailed);
}

int Run(lime::LimedFlags flags) {
  if (flags.stop_all) return StopAll(flags);
  if (flags.stop) return Stop(flags);
  absl::StatusOr<lime::LimedSettings> settings = lime::CheckFlags(flags);
  if (!settings.ok()) return Fail(settings.status(), kWrongCall);
  if (!flags.cluster.empty()) {
    const absl::StatusOr<lime::StateFiles> files = lime::StateFilesOf(flags.cluster, flags.name);
    if (!files.ok()) return Fail(files.status(), kWrongCall);
    const absl::StatusOr<int> ready = lime::GoOnInBackground(*files, flags.name, OriginOf(flags));
    if (!ready.ok()) return Fail(ready.status(), absl::IsInvalidArgument(ready.status()) ? kWrongCall : kFailed);
    if (*ready < 0) return AnswerPrinted();
    flags.ready_fd = *ready;
  }
  if (!settings->compute_cores.empty()) lime::BindToCores(lime::OtherCores(settings->compute_cores));
  std::signal(SIGPIPE, SIG_IGN);
  const sigset_t signals = HandledSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const auto logger = spdlog::stderr_color_mt("limed");
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %^%l%$ %v");
  logger->set_level(spdlog::level::from_str(flags.log_level));
  logger->flush_on(spdlog::level::info);
  lime::GrpcLogTo([logger](std::string_view line) { logger->debug("{}", line); }, logger->should_log(spdlog::level::debug));
  const auto log = [logger, name = flags.name](const std::string& sentence) { logger->info("device {}: {}", name, sentence); };

  if (const absl::Status loaded = lime::LoadBackend(flags.backend); !loaded.ok()) return Fail(loaded, kFailed);
  const lime::Bytes runtime = lime::ProcessResidentBytes();
  if (const absl::Status enough = CheckOwnNeed(flags, settings->memory, runtime); !enough.ok()) return Fail(enough, kWrongCall);
  if (settings->memory_mode) {
    const absl::StatusOr<lime::DerivedBudget> chosen = lime::ChooseMemory(flags.weights, *settings->memory_mode, runtime);
    if (!chosen.ok()) return Fail(chosen.status(), kFailed);
    settings->memory = chosen->budget;
    log("may use " + chosen->text);
  }
  if (const absl::Status made = lime::MakeFolders(flags); !made.ok()) return Fail(made, kFailed);
  flags.listen = settings->listen;
  lime::DeviceServer::Options options;
  options.listen = flags.listen;
  options.health.name = flags.name;
  options.health.memory = settings->memory;
  options.health.runtime = runtime;
  options.health.settings = flags;
  options.health.settings->user = lime::UserName(geteuid());
  options.health.settings->process = getpid();
  options.inspect = [&flags, &settings, runtime](const lime::InspectCall& call) {
    return lime::InspectMachine({.weights = call.weights.empty() ? flags.weights : call.weights,
                                 .store = flags.store,
                                 .kv = flags.kv_dir,
                                 .memory = settings->memory,
                                 .runtime = runtime,
                                 .seconds = call.seconds});
  };
  options.plans.weights = flags.weights;
  options.plans.kv_folder = !flags.kv_dir.empty() ? flags.kv_dir : !flags.weights.empty() ? flags.weights : flags.store;
  options.bulk.store = flags.store;
  options.plans.keys = settings->keys;
  if (flags.no_link_probes) options.plans.link_probes = false;
  options.plans.log = log;
  options.debug = [logger, name = flags.name](const std::string& sentence) { logger->debug("device {}: {}", name, sentence); };
  const lime::EngineSettings engine{.num_threads = settings->threads,
                                    .cores = settings->compute_cores,
                                    .backend = flags.backend,
                                    .numerics = flags.numerics,
                                    .loader = settings->loader,
                                    .kv_dir = flags.kv_dir,
                                    .memory = settings->memory,
                                    .follow_memory = flags.follow_memory,
                                    .pace = settings->pace,
                                    .log = log};
  options.plans.make_stage = lime::MakeEngineStages(engine);
  options.profile = lime::MakeEngineProfiler(engine, flags.weights, flags.store);
  absl::StatusOr<std::unique_ptr<lime::DeviceServer>> server = lime::DeviceServer::Start(options);
  if (!server.ok()) return Fail(server.status(), kFailed);
  std::unique_ptr<lime::MetricsServer> metrics;
  if (settings->metrics) {
    auto serving = lime::MetricsServer::Start(*settings->metrics, [&device = **server] {
      const lime::DeviceServer::Snapshot now = device.Now();
      return lime::LimedMetricsText(now.statistics, now.memory);
    });
    if (!serving.ok()) return Fail(serving.status(), kFailed);
    metrics = *std::move(serving);
    log("answers GET /metrics on port " + std::to_string(metrics->port()) + " of " + settings->metrics->host);
  }
  log("listens on port " + std::to_string((*server)->port()) + " of " + flags.listen.substr(0, flags.listen.rfind(':')) +
      (settings->keys.empty() ? ", without keys" : ", with keys") + "; the process itself uses " + lime::FormatBytes(runtime));
  if (!settings->keys.empty()) {
    const lime::Finding keys = lime::InspectExpiry("its keys", lime::EndOf(settings->keys), std::time(nullptr),
                                                   "run `lime keys --renew --name " + flags.name + "` on the machine that has ca.key");
    if (keys.grade != lime::Grade::kOk) log(keys.what + "; " + keys.remedy);
  }
  lime::ReportReady((*server)->port(), flags.ready_fd);
  const int signal = AwaitEnd(signals, log);
  lime::ReportStopping();
  log(std::string("ends: ") + strsignal(signal));
  metrics.reset();
  server->reset();
  log("has ended");
  return kDone;
}

}  // namespace

int main(int argc, char** argv) try {
  lime::ExitOnUnreadablePages();
  // A file that may not grow further is a write error, like a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  lime::SilenceGrpc();
  CLI::App app("limed runs one device's part of a model that several devices compute together.", "limed");
  app.footer("Example: limed --name orin --listen 192.168.1.10:7001 --memory 26GiB --model /data/llama-70b --tls keys");
  app.set_version_flag("--version", absl::StrCat("limed ", std::string(lime::Release()), ", protocol ", lime::kProtocol));
  lime::LimedFlags flags;
  const lime::CommandFlags command(app);
  flags.AddTo(command);
  std::vector<std::string> words(argv + 1, argv + argc);
  if (const absl::Status checked = lime::CheckWords(app, words); !checked.ok()) return Fail(checked, kWrongCall);
  try {
    std::ranges::reverse(words);  // the order that CLI11 expects
    app.parse(std::move(words));
    if (const absl::Status read = lime::ReadLimedFile(command, flags); !read.ok()) return Fail(read, kWrongCall);
    return Run(flags);
  } catch (const CLI::Success& asked) {  // --help, --version
    app.exit(asked);
    return AnswerPrinted();
  } catch (const CLI::ParseError& error) {
    return Fail(absl::InvalidArgumentError(lime::SentenceOf(app, error)), kWrongCall);
  }
} catch (const std::exception& error) {  // no memory, no thread: errors without a Status
  std::fprintf(stderr, "limed: %s; the machine may be out of memory or threads\n", error.what());
  return kFailed;
}
