#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/input/host_port.h"
#include "coordinator/api/requests/parse_request.h"
#include "coordinator/cli/model_files.h"
#include "coordinator/cli/model_weights.h"
#include "coordinator/cli/served_model_files.h"
#include "coordinator/cli/server_flags.h"
#include "coordinator/cluster_view/cluster_watch.h"
#include "coordinator/commands/commands.h"
#include "coordinator/metrics/server_metrics.h"
#include "coordinator/metrics/server_views.h"
#include "coordinator/reports/screen.h"
#include "coordinator/server/answer_service.h"
#include "coordinator/server/api_server.h"
#include "coordinator/server/served_plan.h"
#include "coordinator/sessions/opened_model.h"
#include "daemon/machine/service_manager.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_text.h"
#include "planner/plan/kv_spill.h"

namespace lime::cli {
namespace {

using nlohmann::json;

constexpr absl::Duration kLastBytes = absl::Seconds(2);  // for answers that are complete, after --drain

struct ServeFlags : PlacingFlags {
  ServerFlags server;
  ServedModelFlags served;
};

// 64 random bits.  Thread: any
uint64_t RandomBits() {
  thread_local std::mt19937_64 random{(uint64_t{std::random_device()()} << 32) ^ std::random_device()()};
  return random();
}

// A line of the log, in one write.
void WriteLogLine(std::string_view line) {
  const std::string text = absl::StrCat(std::string(line), "\n");
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

void Say(const absl::Status& status) {
  Screen::Say(std::string(status.message()));
}

// Serves from the first byte on the socket to the last.
//
// Threads: Run is that of the command. Signals come on a thread of their own.
class ServerRun {
 public:
  ServerRun(const ServeFlags& flags, const ServerSettings& settings)
      : flags_(flags), settings_(settings), signals_([this](int signal) { OnSignal(signal); }) {}  // before all other threads

  absl::Status Run() {
    LIME_RETURN_IF_ERROR(Listen());
    LIME_RETURN_IF_ERROR(Load());
    SayReady();
    absl::Status failure = AwaitEnd();
    End(failure.ok() ? absl::Now() + settings_.drain : absl::InfinitePast());
    return failure;
  }

 private:
  enum class Stage {
    kLoading,  // a signal ends the process
    kServing,  // the first signal drains
    kEnding,   // the next signal ends the process
  };

  void OnSignal(int signal) {
    if (signal == SIGHUP) return Reload();
    const absl::MutexLock lock(&mutex_);
    if (stage_ == Stage::kEnding) EndAtOnce();
    if (stage_ == Stage::kLoading) EndUnserved();
    stage_ = Stage::kEnding;
  }

  // Reads keys and certificates again. What cannot be read stays as it was.
  void Reload() {
    const absl::MutexLock lock(&mutex_);
    if (server_ == nullptr) return;
    const absl::StatusOr<std::vector<std::string>> keys = flags_.server.ReadKeys();
    if (keys.ok()) server_->SetKeys(*keys);
    const absl::Status tls = settings_.http.tls ? server_->ReloadTls() : absl::OkStatus();
    if (keys.ok() && tls.ok()) return Screen::Say("read keys and certificates again");
    Screen::Say(absl::StrCat((keys.ok() ? tls : keys.status()).message(), "; the ones before stay in use"));
  }

  absl::Status Listen() {
    watch_ = std::make_unique<ClusterWatch>(ClusterWatch::Options{.now = [this] { return ShownNow(); }});
    views_.emplace(metrics_, *watch_, [this] {
      const ApiServer* const server = listening_;
      return server != nullptr ? server->connections() : 0;
    });
    absl::StatusOr<std::unique_ptr<ApiServer>> server = ApiServer::Listen({.http = settings_.http,
                                                                           .places = settings_.places,
                                                                           .keys = settings_.keys,
                                                                           .keep_alive = settings_.keep_alive,
                                                                           .random = RandomBits,
                                                                           .log_json = flags_.server.log_json,
                                                                           .log_bodies = flags_.server.log_prompts,
                                                                           .log = WriteLogLine,
                                                                           .observer = &metrics_,
                                                                           .views = &*views_});
    if (!server.ok()) return WrongCall(std::string(server.status().message()));
    const absl::MutexLock lock(&mutex_);
    server_ = *std::move(server);
    listening_ = server_.get();
    return absl::OkStatus();
  }

  // What metrics and the page show of the server itself.  Thread: any
  ClusterWatch::Now ShownNow() const {
    ClusterWatch::Now now{.measured_ms_per_token = metrics_.tokens().MsPerToken(),
                          .tokens_per_second = metrics_.tokens().TokensPerSecond(absl::Now())};
    if (const ApiServer* const server = listening_) now.progress = server->progress();
    int64_t cached_pages = 0;  // of each layer
    if (const Serving* const serving = answering_) {
      cached_pages = serving->cached_pages();
      const Serving::Load load = serving->load();
      now.running = load.running, now.waiting = load.waiting;
      now.recoveries = serving->recoveries(), now.plan_changes = serving->changes();
    }
    if (const std::shared_ptr<const ServedPlan> served = plan_.get()) {
      now.plan = std::shared_ptr<const Plan>(served, &served->plan);
      now.predicted_ms_per_token = served->MsPerToken(now.running);
      for (int device = 0; device < now.plan->NumDevices(); ++device) now.kv_pages_cached += PagesOn(*now.plan, device, cached_pages);
    }
    return now;
  }

  absl::Status Load() {
    LIME_ASSIGN_OR_RETURN(ModelFiles files, ModelFiles::Open(flags_.model.model));
    LIME_ASSIGN_OR_RETURN(const ModelWeights weights, LookAtWeights(flags_.model.model));
    LIME_ASSIGN_OR_RETURN(model_, OpenServedModel(weights, files, flags_.served));
    const auto progress = [server = server_.get()](Bytes done, Bytes total) {
      if (total > 0) server->SetProgress(static_cast<double>(done) / static_cast<double>(total));
    };
    LIME_ASSIGN_OR_RETURN(opened_, OpenedModel::Open({.flags = flags_,
                                                      .spec = files.spec,
                                                      .parallel = flags_.server.parallel,
                                                      .keeps_prompts = settings_.prompt_cache > 0,
                                                      .progress = progress,
                                                      .masks = model_->mask_memory(),
                                                      .vocabulary = model_->vocabulary()->memory()}));
    model_->SetPlan(opened_->context(), opened_->numerics_ids());
    plan_.Set(opened_->Served(opened_->devices().plan()));
    opened_->devices().UseVocabulary(model_->vocabulary());
    serving_ = std::make_unique<Serving>(opened_->devices(), HowToServe());
    answering_ = serving_.get();
    ClusterWatch::Cluster cluster = opened_->Watched();
    cluster.model = model_->id();
    watch_->Open(std::move(cluster));
    service_ =
        std::make_unique<AnswerService>(AnswerService::Options{.model = *model_,
                                                               .serving = *serving_,
                                                               .plan = plan_,
                                                               .observer = server_->observer(),
                                                               .random = RandomBits,
                                                               .queue = flags_.server.queue,
                                                               .max_wait = settings_.max_wait,
                                                               .keep_alive = settings_.keep_alive,
                                                               .on_failure = [this](const absl::Status& status) { OnFailure(status); }});
    return absl::OkStatus();
  }

  Serving::Options HowToServe() {
    Serving::Options options = opened_->HowToServe([this](const Plan& plan) { plan_.Set(opened_->Served(plan)); });
    options.queue = {.most_waiting = flags_.server.queue, .most_together = kMaxAllChoices, .most_wait = settings_.max_wait};
    options.vocabulary = model_->vocabulary();
    options.prompt_cache = settings_.prompt_cache;
    options.pace = settings_.pace;
    return options;
  }

  void OnFailure(const absl::Status& status) {
    if (!opened_->failures_are_final()) return;
    const absl::MutexLock lock(&mutex_);
    failure_.Update(status);
  }

  std::string Url() const {
    return absl::StrCat(settings_.http.tls ? "https://" : "http://", AddressText({.host = server_->host(), .port = server_->port()}));
  }

  void SayReady() {
    if (model_->is_plain()) Screen::Say("the model has no chat template: the texts of messages are joined by line feeds");
    server_->Open(*service_);
    {
      const absl::MutexLock lock(&mutex_);
      stage_ = Stage::kServing;
    }
    const std::shared_ptr<const ServedPlan> plan = plan_.get();
    if (flags_.model.json) {
      std::cout << JsonText(json{{"url", Url()},
                                 {"model", model_->id()},
                                 {"context", opened_->context()},
                                 {"parallel", plan->plan.sequences},
                                 {"predicted_ms_per_token", plan->MsPerToken(1)}});
    } else {
      std::cout << absl::StrFormat("serves %s at %s: %d positions a request, %.2f ms a token predicted", model_->id(), Url(),
                                   opened_->context(), plan->MsPerToken(1));
    }
    std::cout << std::endl;
    NotifyManager("READY=1");
  }

  // Returns the failure after which nothing can be served, or OK after a signal.
  absl::Status AwaitEnd() {
    const absl::MutexLock lock(&mutex_);
    const auto is_over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stage_ == Stage::kEnding || !failure_.ok(); };
    mutex_.Await(absl::Condition(&is_over));
    stage_ = Stage::kEnding;
    return failure_;
  }

  void End(absl::Time deadline) {
    NotifyManager("STOPPING=1");
    const Serving::Load load = serving_->load();
    if (load.running + load.waiting > 0)
      Screen::Say(absl::StrCat("ends; requests that run: ", load.running, ", for at most ", absl::FormatDuration(settings_.drain),
                               "; requests that waited and are refused: ", load.waiting));
    server_->BeginDrain();
    if (const absl::Status drained = serving_->Drain(deadline); !drained.ok()) Say(drained);
    server_->Stop(std::max(deadline, absl::Now() + kLastBytes));
    watch_->Close();
    service_.reset();
    serving_.reset();
    {
      const absl::MutexLock lock(&mutex_);
      server_.reset();
    }
    if (const absl::Status closed = opened_->Close(); !closed.ok()) Say(closed);
  }

  const ServeFlags& flags_;
  const ServerSettings& settings_;
  absl::Mutex mutex_;
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kLoading;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  // In the order in which they are needed. `server_` is set and reset under mutex_, because Reload
  // uses it; all other uses are on the thread of the command.
  std::unique_ptr<ServedModel> model_;
  std::unique_ptr<OpenedModel> opened_;
  PlanInUse plan_;
  std::unique_ptr<Serving> serving_;
  // serving_ and server_, once they are there, for the threads that show them.
  std::atomic<const Serving*> answering_ = nullptr;
  std::atomic<const ApiServer*> listening_ = nullptr;
  ServerMetrics metrics_;
  std::unique_ptr<ClusterWatch> watch_;
  std::optional<WatchedViews> views_;
  std::unique_ptr<AnswerService> service_;
  std::unique_ptr<ApiServer> server_;
  SignalListener signals_;  // goes first
};

absl::Status Serve(ServeFlags& flags) {
  LIME_RETURN_IF_ERROR(flags.Check());
  LIME_ASSIGN_OR_RETURN(const ServerSettings settings, flags.server.Check());
  return ServerRun(flags, settings).Run();
}

}  // namespace

void AddServeCommand(Commands& commands) {
  const auto [command, flags] =
      commands.Add<ServeFlags>("serve", "Serve a model to clients of OpenAI's and Ollama's APIs, with a page",
                               "Example: lime serve --model Llama-3.2-1B-Instruct --port 5463; then open http://127.0.0.1:5463", Serve);
  flags.PlacingFlags::AddTo(command);
  AddRoutesFlag(command, flags.model.routes);
  flags.server.AddTo(command);
  flags.served.AddTo(command);
  command.ShowUnder("Address and keys", {"--host", "--port", "--api-key", "--api-key-file", "--no-auth", "--tls-cert", "--tls-key",
                                         "--cors-origin", "--hostname"});
  command.ShowUnder("Requests", {"--parallel", "--queue", "--max-wait", "--max-body", "--max-connections", "--keep-alive", "--drain",
                                 "--prompt-cache", "--pace"});
  command.ShowUnder("Text", {"--name", "--alias", "--chat-template", "--tool-format", "--reasoning"});
  command.ShowUnder("Logs", {"--log-json", "--log-prompts"});
  PlacingFlags::ShowTitles(command);
}

}  // namespace lime::cli
