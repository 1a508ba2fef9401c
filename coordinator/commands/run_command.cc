#include <algorithm>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/input/command_line.h"
#include "common/sampling/logits_hash.h"
#include "coordinator/cli/model_files.h"
#include "coordinator/cli/output_flag.h"
#include "coordinator/cli/url_flags.h"
#include "coordinator/cli/user_text.h"
#include "coordinator/commands/commands.h"
#include "coordinator/planning/routes.h"
#include "coordinator/reports/progress.h"
#include "coordinator/reports/text_table.h"
#include "coordinator/reports/trace_report.h"
#include "coordinator/sessions/cluster_session.h"
#include "coordinator/sessions/generate.h"
#include "coordinator/sessions/local_session.h"
#include "coordinator/sessions/placing_flags.h"
#include "coordinator/sessions/remote_session.h"
#include "daemon/logic/route_recorder.h"
#include "nlohmann/json.hpp"
#include "planner/base/names.h"
#include "planner/base/strings.h"

namespace lime::cli {
namespace {

using nlohmann::json;

constexpr int64_t kDefaultMaxTokens = 128;
constexpr int64_t kFirstTokens = 64;  // --kv grow first reserves KV for so many after the prompt

struct RunFlags : PlacingFlags {
  UrlFlags server;
  std::vector<std::string> prompts;
  std::string prompts_file;
  std::string batch_with;
  GenerateOptions generate;  // without max_new_tokens: not given
  bool ignore_eos = false;
  OutputFlag trace{.kind = OutputKind::kTrace};
  OutputFlag routes{.kind = OutputKind::kRoutes, .flag = "--routes"};  // of lime trace
  bool show_trace = false;                                             // the call is about the trace
  int trace_steps = 2;                                                 // shown steps
  bool traces() const { return show_trace || !trace.path.empty(); }
};

// Reads the prompts, and checks the flags that say what is generated.
absl::Status CheckPrompts(RunFlags& flags) {
  if (const absl::Status sampling = ValidateSamplingParams(flags.generate.sampling); !sampling.ok())
    return WrongCall(std::string(sampling.message()));
  for (const int64_t tokens : flags.generate.max_new_tokens) {
    if (tokens < 1) return WrongCall(absl::StrCat("--max-tokens ", tokens, " is less than 1"));
  }
  LIME_RETURN_IF_ERROR(ReadPrompts(flags.prompts_file, flags.prompts));
  if (const size_t given = flags.generate.max_new_tokens.size(); given > std::max<size_t>(1, flags.prompts.size()))
    return WrongCall(absl::StrCat("--max-tokens has ", given, " numbers for ", flags.prompts.size(), " prompts"));
  if (flags.prompts.empty()) return WrongCall("no prompt; give --prompt TEXT or --prompts-file FILE (an empty prompt starts from BOS)");
  return absl::OkStatus();
}

absl::Status CheckFlags(RunFlags& flags) {
  LIME_RETURN_IF_ERROR(flags.Check());
  LIME_RETURN_IF_ERROR(flags.trace.Check());
  flags.routes.overwrite = flags.trace.overwrite;
  LIME_RETURN_IF_ERROR(flags.routes.Check());
  if (flags.trace_steps < 1 || flags.trace_steps > 4096)
    return WrongCall(absl::StrCat("--steps ", flags.trace_steps, " is outside 1 to 4096"));
  return CheckPrompts(flags);
}

struct RunShape {
  std::vector<std::vector<int32_t>> prompts;  // the answered ones, then their companions
  size_t answered = 0;
  std::vector<int64_t> max_new_tokens;  // see GenerateOptions
  int64_t most_new_tokens = 0;          // maximum of these
  int64_t longest = 0;                  // prompt
  int64_t context = 0;
  int64_t sequences = 0;
};

// The lengths that the sequences may reach, which decides what is reserved.
absl::StatusOr<RunShape> PlanRun(const RunFlags& flags, const ModelFiles& files) {
  RunShape plan;
  for (const std::string& prompt : flags.prompts) {
    LIME_ASSIGN_OR_RETURN(plan.prompts.emplace_back(), files.EncodePrompt(prompt));
  }
  plan.answered = plan.prompts.size();
  LIME_ASSIGN_OR_RETURN(const auto companions, ReadCompanions(flags.batch_with, files.spec.config.vocab_size, kMaxBatch - 1));
  plan.prompts.insert(plan.prompts.end(), companions.begin(), companions.end());
  for (const auto& prompt : plan.prompts) plan.longest = std::max<int64_t>(plan.longest, std::ssize(prompt));
  LIME_ASSIGN_OR_RETURN(const int64_t limit, flags.model.MostPositions(files.spec));
  plan.max_new_tokens = flags.generate.max_new_tokens;
  if (plan.max_new_tokens.empty()) plan.max_new_tokens = {std::min(kDefaultMaxTokens, std::max<int64_t>(1, limit - plan.longest))};
  plan.most_new_tokens = std::ranges::max(plan.max_new_tokens);
  int64_t needed = 0;
  for (size_t i = 0; i < plan.prompts.size(); ++i) {
    const int64_t length = std::ssize(plan.prompts[i]), asked = plan.max_new_tokens[std::min(i, plan.max_new_tokens.size() - 1)];
    if (asked > limit - length) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the request needs ", length, " prompt + ", asked, " new = ", static_cast<uint64_t>(length) + static_cast<uint64_t>(asked),
          " positions, but the ", flags.model.context > 0 ? "--context" : "model's context", " is ", limit, "; shorten the prompt",
          flags.model.context > 0 ? ", lower --max-tokens, or raise --context" : ", or lower --max-tokens"));
    }
    needed = std::max(needed, length + asked);
  }
  plan.context = flags.model.context > 0 ? flags.model.context : needed;
  plan.sequences = std::min<int64_t>(kMaxBatch, static_cast<int64_t>(plan.prompts.size()));
  return plan;
}

constexpr Names<FinishReason, 5> kFinishNames = {{{FinishReason::kNone, "none"},
                                                  {FinishReason::kEndToken, "end_token"},
                                                  {FinishReason::kLength, "length"},
                                                  {FinishReason::kStopped, "stop"},
                                                  {FinishReason::kInterrupted, "interrupted"}}};

json ResultJson(const Generated& result, const RunFlags& flags) {
  json object = {{"text", result.text},
                 {"token_ids", result.token_ids},
                 {"prompt_tokens", result.prompt_tokens},
                 {"completion_tokens", result.token_ids.size()},
                 {"finish_reason", kFinishNames.Of(result.finish)},
                 {"ttft_ms", result.ttft_ms},
                 {"ms_per_token", result.ms_per_token}};
  if (flags.generate.hash_logits) object["logits_xxh3"] = HashText(result.logits_hash);
  if (flags.generate.record_times) object["token_times_s"] = result.token_times;
  return object;
}

// `root`: the report of the devices.
json AnswerJson(json root, const GenerateSummary& summary, const RunFlags& flags) {
  if (summary.results.size() == 1) {
    root.update(ResultJson(summary.results.front(), flags));
  } else {
    root["results"] = json::array();
    for (const Generated& result : summary.results) root["results"].push_back(ResultJson(result, flags));
    root["ms_per_step"] = summary.ms_per_step;
  }
  root["interrupted"] = summary.interrupted;
  return root;
}

json JsonOf(const LocalSession& session, const GenerateSummary& summary, const RunFlags& flags) {
  json root = AnswerJson(session.Describe(), summary, flags);
  root["disk_bytes_per_token"] = summary.decode_tokens > 0 ? summary.use.disk_bytes / summary.decode_tokens : 0;
  root["prediction"] = ToJson(session.Compare(summary));
  root["prediction"]["planned_ms"] = session.planned_ms_per_token();
  return root;
}

json JsonOf(const ClusterSession& session, const GenerateSummary& summary, const RunFlags& flags) {
  json root = AnswerJson(session.Describe(), summary, flags);
  root["disk_bytes_per_token"] = summary.decode_tokens > 0 ? session.disk_bytes() / summary.decode_tokens : 0;
  root["prediction"] = ToJson(session.Compare(summary));
  root["pauses"] = {{"count", summary.pauses}, {"ms", summary.pause_ms}};
  return root;
}

json JsonOf(const RemoteSession& session, const GenerateSummary& summary, const RunFlags& flags) {
  json root = AnswerJson(session.Describe(), summary, flags);
  root["prediction"] = ToJson(session.Compare(summary));
  return root;
}

// What was generated, with its time beside the prediction.
void PrintCounts(const GenerateSummary& summary, double predicted_ms) {
  int64_t prompt_tokens = 0, generated = 0;
  double first = 0;
  for (const Generated& result : summary.results) {
    prompt_tokens += result.prompt_tokens;
    generated += static_cast<int64_t>(result.token_ids.size());
    first = std::max(first, result.ttft_ms);
  }
  absl::FPrintF(stderr, "prompt      %6d tokens, ", prompt_tokens);
  if (generated > 0) {
    absl::FPrintF(stderr, "first token after %.1f ms\n", first);
  } else {
    absl::FPrintF(stderr, "no token yet\n");
  }
  const double per_step = summary.ms_per_step;
  absl::FPrintF(stderr, "generated   %6d tokens", generated);
  if (per_step > 0) {
    absl::FPrintF(stderr, ", %.2f ms per step (predicted %.2f), %.1f tokens/s", per_step, predicted_ms,
                  static_cast<double>(summary.decode_tokens) / summary.decode_ms * 1000);
  }
  absl::FPrintF(stderr, "%s\n", summary.interrupted ? " (interrupted)" : "");
}

void PrintSummary(const LocalSession& session, const GenerateSummary& summary) {
  absl::FPrintF(stderr, "%s\n", session.LoadLine());
  PrintCounts(summary, session.predicted_ms_per_token());
  absl::FPrintF(stderr, "%s\n", session.MemoryLine());
}

// The ids of an answer come at its end, so there are no counts of an interrupted one.
void PrintSummary(const RemoteSession& session, const GenerateSummary& summary) {
  if (!summary.interrupted) PrintCounts(summary, session.predicted_ms_per_token());
}

// The text of one prompt streams; texts of several prompts are printed when all are done. Then the
// hashes of their logits, if asked for.
void PrintTexts(const RunFlags& flags, const GenerateSummary& summary, TextOutput& output) {
  const bool one = summary.results.size() == 1;
  if (one) output.End();
  for (size_t i = 0; i < summary.results.size() && !one; ++i)
    std::cout << "[" << i << "] " << flags.prompts[i] << summary.results[i].text << "\n";
  for (size_t i = 0; i < summary.results.size() && flags.generate.hash_logits; ++i)
    std::cout << (one ? "" : absl::StrCat("[", i, "] ")) << "logits_xxh3 " << HashText(summary.results[i].logits_hash) << "\n";
  std::cout << std::flush;
}

// Options that do not depend on where the model runs: all but max_new_tokens and end_tokens.
// `answered`: how many prompts the answer has.
GenerateOptions MakeOptions(const RunFlags& flags, size_t answered, TextOutput& output) {
  GenerateOptions options = flags.generate;
  options.cancel = &Interrupted();
  options.on_prompt = [&output](double share) { output.Prompt(share); };
  options.on_first_token = [&output] { output.PromptDone(); };
  if (!flags.model.json && answered == 1) {
    options.on_text = [&output](size_t prompt, std::string_view text) {
      if (prompt == 0) output.Text(text);
    };
  }
  return options;
}

// Writes the trace to the answer or the terminal, and to its file.
absl::Status WriteTrace(const RunFlags& flags, const MeasuredTimeline& trace, json& root) {
  if (flags.model.json) root["trace"] = TraceReport(trace, /*events=*/flags.show_trace);
  if (!flags.model.json && flags.show_trace) std::cout << "\n" << TraceText(trace, flags.trace_steps, OutputColumns()) << std::flush;
  if (flags.trace.path.empty()) return absl::OkStatus();
  LIME_RETURN_IF_ERROR(flags.trace.Write(TraceJson(trace.timeline)));
  if (!flags.model.json)
    absl::FPrintF(stderr, "trace in %s: %s; open it at https://ui.perfetto.dev\n", flags.trace.path, TraceSentence(trace));
  return absl::OkStatus();
}

// Prints the end. An interrupted run has failed; its JSON is the answer so far.
absl::Status End(const RunFlags& flags, const GenerateSummary& summary, const json& root, const absl::Status& status) {
  if (summary.interrupted) {
    size_t tokens = 0;
    for (const Generated& result : summary.results) tokens += result.token_ids.size();
    const std::string after = flags.server.given() ? "" : absl::StrCat(" after ", tokens, tokens == 1 ? " token" : " tokens");
    return WithAnswer(absl::CancelledError(absl::StrCat("interrupted", after)), root);
  }
  return Answered(root, flags.model.json, status);
}

void PrintSummary(const ClusterSession& session, const GenerateSummary& summary) {
  double first = 0;
  for (const Generated& result : summary.results) first = std::max(first, result.ttft_ms);
  const int64_t later = summary.decode_tokens;
  absl::FPrintF(stderr, "first token after %.1f ms; then %d tokens, %.2f ms a token (predicted %.2f)%s\n", first, later,
                later > 0 ? summary.decode_ms / static_cast<double>(later) : 0, session.predicted_ms_per_token(),
                summary.interrupted ? " (interrupted)" : "");
  if (summary.pauses > 0)
    absl::FPrintF(stderr, "pauses          %d for recoveries and changes of plans, %.1f s\n", summary.pauses, summary.pause_ms / 1000);
  absl::FPrintF(stderr, "%s", session.DeviceLines());
}

// Prints the texts and the figures, or returns them for --json.
template <typename Session>
json Report(const Session& session, const RunFlags& flags, const GenerateSummary& summary, TextOutput& output) {
  if (flags.model.json) return JsonOf(session, summary, flags);
  PrintTexts(flags, summary, output);
  PrintSummary(session, summary);
  const PredictionReport report = session.Compare(summary);
  if (report.Differs()) absl::FPrintF(stderr, "%s\n", report.sentence);
  return {};
}

// `Session`: a ClusterSession or a LocalSession. `write_more`: writes what the run has recorded beside
// its trace; empty: nothing.
template <typename Session>
absl::Status RunIn(Session& session, const RunFlags& flags, const ModelFiles& files, const RunShape& shape, int64_t prompt_tokens,
                   const std::function<absl::Status()>& write_more = nullptr) {
  const GracefulStop graceful;  // generated text is printed
  TextOutput output(flags.prompts.front(), static_cast<size_t>(prompt_tokens));
  GenerateOptions options = MakeOptions(flags, shape.answered, output);
  options.max_new_tokens = shape.max_new_tokens;
  if (!flags.ignore_eos) options.end_tokens = files.end_tokens;
  LIME_ASSIGN_OR_RETURN(GenerateSummary summary, session.Generate(*files.tokenizer, shape.prompts, options));
  summary.results.resize(shape.answered);
  json root = Report(session, flags, summary, output);
  absl::Status status;
  if (flags.traces()) {
    LIME_ASSIGN_OR_RETURN(const MeasuredTimeline trace, session.DrainTrace());
    status = WriteTrace(flags, trace, root);
    if (write_more) status.Update(write_more());  // the plan is unloaded: nothing is recorded any more
  }
  return End(flags, summary, root, status);
}

absl::Status RunRemotely(RunFlags& flags) {
  LIME_RETURN_IF_ERROR(CheckPrompts(flags));
  if (flags.generate.max_new_tokens.size() > 1)
    return WrongCall("--max-tokens has several numbers, and a server takes one for all prompts; give one number with --url");
  const GracefulStop graceful;  // the text so far is printed
  LIME_ASSIGN_OR_RETURN(std::unique_ptr<ApiClient> client, flags.server.Open());
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<RemoteSession> session,
                        OfUser(RemoteSession::Open(std::move(client), flags.model.model, &Interrupted())));
  TextOutput output(flags.prompts.front(), /*prompt_tokens=*/0);
  GenerateOptions options = MakeOptions(flags, flags.prompts.size(), output);
  if (options.max_new_tokens.empty()) options.max_new_tokens = {kDefaultMaxTokens};
  LIME_ASSIGN_OR_RETURN(const GenerateSummary summary, OfUser(session->Generate(flags.prompts, options, flags.ignore_eos)));
  return End(flags, summary, Report(*session, flags, summary, output), absl::OkStatus());
}

int64_t AllPromptTokens(const RunShape& shape) {
  int64_t tokens = 0;
  for (const auto& prompt : shape.prompts) tokens += std::ssize(prompt);
  return tokens;
}

// Decode steps.
int64_t NewTokens(const RunShape& shape) {
  return shape.most_new_tokens * ((std::ssize(shape.prompts) + shape.sequences - 1) / shape.sequences);
}

absl::Status RunOnCluster(const RunFlags& flags, const ModelFiles& files, const RunShape& shape) {
  LIME_ASSIGN_OR_RETURN(ClusterSession::Options options, flags.ForCluster());
  options.context = shape.context;
  options.sequences = shape.sequences;
  options.prompt_tokens = shape.longest;
  options.sparse.all_prompt_tokens = AllPromptTokens(shape);
  options.sparse.new_tokens = NewTokens(shape);
  options.snapshots = SnapshotsFor(files.spec.config, {.failures = true});
  options.trace = flags.traces();
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<ClusterSession> session, ClusterSession::Open(options));
  return RunIn(*session, flags, files, shape, std::ssize(shape.prompts.front()));
}

// Writes the choices of a run that has ended.
absl::Status WriteRoutes(const RunFlags& flags, const ModelSpec& spec, const RouteRecorder& routes) {
  LIME_ASSIGN_OR_RETURN(const RouteShape shape, RouteShapeOf(spec, flags.model.model));
  LIME_ASSIGN_OR_RETURN(const RouteLog log, routes.ToLog(shape));
  LIME_RETURN_IF_ERROR(flags.routes.Write(EncodeRouteLog(log)));
  if (flags.model.json) return absl::OkStatus();
  const std::string lost = routes.lost() > 0 ? absl::StrCat("; there was no room for the last ", routes.lost(), " choices of layers") : "";
  absl::FPrintF(stderr, "routes in %s: %d steps, %d experts chosen%s; `lime plan --routes` plans with them\n", flags.routes.path,
                log.num_steps(), log.num_choices(), lost);
  return absl::OkStatus();
}

absl::Status RunHere(const RunFlags& flags, const ModelFiles& files, const RunShape& shape) {
  const int64_t prompt_tokens = AllPromptTokens(shape);
  const auto routes = flags.routes.path.empty() ? nullptr : std::make_shared<RouteRecorder>();
  LIME_ASSIGN_OR_RETURN(
      const std::unique_ptr<LocalSession> session,
      LocalSession::Open(flags.model,
                         {.context = shape.context,
                          .kv_tokens = flags.on_cluster.kv_tokens > 0 ? flags.on_cluster.kv_tokens : shape.longest + kFirstTokens,
                          .expected_positions = shape.longest + shape.most_new_tokens / 2,
                          .sequences = static_cast<int32_t>(shape.sequences),
                          .prompt_tokens = shape.longest,
                          .all_prompt_tokens = prompt_tokens,
                          .new_tokens = NewTokens(shape)},
                         {.trace = flags.traces(), .routes = routes, .progress = nullptr}));
  if (routes == nullptr) return RunIn(*session, flags, files, shape, prompt_tokens);
  return RunIn(*session, flags, files, shape, prompt_tokens, [&] { return WriteRoutes(flags, session->spec(), *routes); });
}

absl::Status RunPrompts(RunFlags& flags) {
  if (flags.server.given()) return RunRemotely(flags);
  LIME_RETURN_IF_ERROR(CheckFlags(flags));
  LIME_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::Open(flags.model.model));
  LIME_ASSIGN_OR_RETURN(const RunShape shape, PlanRun(flags, files));
  return flags.model.cluster.empty() ? RunHere(flags, files, shape) : RunOnCluster(flags, files, shape);
}

// Flags of all commands that generate.
void AddFlags(const CommandFlags& command, RunFlags& flags) {
  flags.AddTo(command);
  command
      .Add("--prompt,-p", &flags.prompts,
           "Text to continue; give it several times for a batch; empty starts from BOS, - reads the text from stdin")
      .FreeText()
      .Repeats();
  command.Add("--prompts-file", &flags.prompts_file, "One prompt a line, plain or as a JSON string; - reads stdin");
  command.Add("--batch-with", &flags.batch_with,
              "File of other sequences, which continue in the same steps: a line of ids such as 1,2,3 for each; they change no bit of "
              "the answer");
  command
      .Add("--max-tokens,-n", &flags.generate.max_new_tokens,
           "Tokens to generate, or one number for each prompt, such as 64,32; the last number counts for all further prompts; without "
           "the flag 128, or as many as the context holds")
      .Listed();
  command.Add("--temperature", &flags.generate.sampling.temperature, "0 chooses the likeliest token").Shown();
  command.Add("--top-k", &flags.generate.sampling.top_k, "Keep the K likeliest tokens; 0 keeps all").Shown();
  command.Add("--top-p", &flags.generate.sampling.top_p, "Keep the likeliest tokens that hold this share of the probability").Shown();
  command.Add("--min-p", &flags.generate.sampling.min_p, "Drop tokens below this share of the likeliest one's probability").Shown();
  command.Add("--repetition-penalty", &flags.generate.sampling.repetition_penalty, "Above 1 makes tokens seen before less likely").Shown();
  command.Add("--seed", &flags.generate.sampling.seed, "Same seed, same text").Shown();
  command.Add("--stop", &flags.generate.stop_strings, "End before this text; may be given several times").FreeText().Repeats();
  command.Add("--ignore-eos", &flags.ignore_eos, "Continue after the model's end token");
  command.Add("--hash-logits", &flags.generate.hash_logits, "Hash the logits of every generated position (logits_xxh3)");
  command.Add("--token-times", &flags.generate.record_times,
              "With --json, when each token was sampled: token_times_s, seconds of the steady clock");
  flags.trace.AddTo(command, "--trace", "File for a Chrome/Perfetto trace of the work of every device");
  // The other flags stay under "Options".
  command.ShowUnder("Prompts and answers",
                    {"--prompt", "--prompts-file", "--batch-with", "--max-tokens", "--stop", "--ignore-eos", "--json"});
  command.ShowUnder("Sampling", {"--temperature", "--top-k", "--top-p", "--min-p", "--repetition-penalty", "--seed"});
  PlacingFlags::ShowTitles(command);
  command.ShowUnder("To see what happened", {"--hash-logits", "--token-times", "--trace", "--overwrite"});
}

}  // namespace

void AddRunCommand(Commands& commands) {
  const auto [command, flags] =
      commands.Add<RunFlags>("run", "Generate text from a checkpoint",
                             "Example: lime run --model Llama-3.2-1B --prompt \"The capital of France is\" --max-tokens 32", RunPrompts);
  AddFlags(command, flags);
  AddRoutesFlag(command, flags.model.routes);
  flags.server.AddTo(command);
  command.ShowUnder("On a server", {"--url", "--api-key", "--tls-ca"});
}

void AddTraceCommand(Commands& commands) {
  const auto [command, flags] = commands.Add<RunFlags>(
      "trace", "Run, and show the times of every device and how much of its loading was hidden",
      "Example: lime trace --cluster shelf.toml --model Llama-3.1-8B --prompt \"Once upon a time\" --max-tokens 16 --trace run.json",
      RunPrompts);
  flags.show_trace = true;
  AddFlags(command, flags);
  command.Add("--routes", &flags.routes.path,
              "File for the experts that every layer chooses, if experts are on demand; `lime plan --routes` plans with them");
  flags.routes.command = command;
  command.ShowUnder("To see what happened", {"--routes"});
  command.Add("--steps", &flags.trace_steps, "Number of the last steps to show: 1 to 4096").Shown();
}

}  // namespace lime::cli
