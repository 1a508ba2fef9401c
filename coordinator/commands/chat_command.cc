#include <unistd.h>

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/sampling/sampler.h"
#include "coordinator/chat/chat_loop.h"
#include "coordinator/chat/conversation.h"
#include "coordinator/chat/remote_chat.h"
#include "coordinator/chat/session_chat.h"
#include "coordinator/chat/terminal.h"
#include "coordinator/cli/url_flags.h"
#include "coordinator/cli/user_text.h"
#include "coordinator/commands/commands.h"
#include "coordinator/reports/screen.h"
#include "coordinator/sessions/placing_flags.h"
#include "nlohmann/json.hpp"

namespace lime::cli {
namespace {

using nlohmann::json;

constexpr Bytes kMaxMessageBytes = 16 * kMiB;

struct ChatFlags : PlacingFlags {
  UrlFlags server;
  std::string system;
  std::optional<int64_t> max_tokens;
  RequestedSampling sampling;
};

absl::Status CheckSampling(const ChatFlags& flags) {
  const RequestedSampling& asked = flags.sampling;
  const SamplingParams usual;
  SamplingParams params;
  params.temperature = asked.temperature.value_or(usual.temperature);
  params.top_p = asked.top_p.value_or(usual.top_p);
  params.top_k = asked.top_k.value_or(usual.top_k);
  if (const absl::Status checked = ValidateSamplingParams(params); !checked.ok()) return WrongCall(std::string(checked.message()));
  if (flags.max_tokens && *flags.max_tokens < 1) return WrongCall(absl::StrCat("--max-tokens ", *flags.max_tokens, " is less than 1"));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ChatBackend>> Open(const ChatFlags& flags) {
  if (!flags.server.given()) return SessionChat::Open(flags);
  LIME_ASSIGN_OR_RETURN(std::unique_ptr<ApiClient> client, flags.server.Open());
  return OfUser(RemoteChat::Open(std::move(client), flags.model.model, &Interrupted()));
}

json ReplyJson(const ChatReply& reply, const ChatBackend& backend) {
  json root = {
      {"model", backend.model()}, {"content", reply.content}, {"finish_reason", reply.finish.empty() ? "interrupted" : reply.finish}};
  if (!reply.reasoning.empty()) root["reasoning_content"] = reply.reasoning;
  if (!reply.has_counts) return root;
  const AnswerReport& report = reply.report;
  root.update({{"prompt_tokens", report.prompt_tokens},
               {"cached_tokens", report.cached_tokens},
               {"completion_tokens", report.completion_tokens},
               {"reasoning_tokens", report.reasoning_tokens},
               {"seed", report.seed},
               {"numerics_id", report.numerics_id},
               {"recoveries", report.recoveries},
               {"plan_changes", report.plan_changes},
               {"ttft_ms", report.ttft_ms},
               {"ms_per_token", report.ms_per_token},
               {"predicted_ms_per_token", report.predicted_ms_per_token}});
  return root;
}

// One question from stdin. The answer alone goes to stdout, or with --json all that is known of it.
absl::Status AnswerOnce(const ChatFlags& flags, Conversation& conversation, std::string question) {
  const GracefulStop graceful;  // the text so far is printed
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<ChatBackend> backend, Open(flags));
  const bool shows = !flags.model.json;
  const ChatPieces pieces{.on_reasoning = [](std::string_view) {},
                          .on_content =
                              [shows](std::string_view text) {
                                if (shows) Screen::Text(text);
                              }};
  LIME_ASSIGN_OR_RETURN(const ChatReply reply, OfUser(backend->Ask(conversation.Ask(std::move(question)), pieces, Interrupted())));
  if (shows) Screen::Text("\n");
  for (const std::string& sentence : {CutSentence(reply, backend->context()), FiguresSentence(reply)}) {
    if (shows && !sentence.empty()) Screen::Say(sentence);
  }
  const absl::Status status = reply.finish.empty() ? absl::CancelledError("interrupted") : absl::OkStatus();
  return Answered(ReplyJson(reply, *backend), flags.model.json, status);
}

absl::Status Talk(const ChatFlags& flags, Conversation& conversation) {
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<ChatBackend> backend, Open(flags));
  Terminal terminal(STDIN_FILENO, /*colours=*/isatty(STDOUT_FILENO) == 1);
  terminal.Say(absl::StrCat(backend->model(), backend->context() > 0 ? absl::StrCat(", ", backend->context(), " positions") : "",
                            "; /help lists what you can type"));
  RunChat(*backend, conversation, terminal);
  return Interrupted() ? absl::CancelledError("interrupted") : absl::OkStatus();
}

absl::Status Chat(ChatFlags& flags) {
  if (!flags.server.given()) LIME_RETURN_IF_ERROR(flags.Check());
  LIME_RETURN_IF_ERROR(CheckSampling(flags));
  ApiRequest defaults;
  defaults.sampling = flags.sampling;
  defaults.max_tokens = flags.max_tokens;
  Conversation conversation(std::move(defaults), flags.system);
  if (isatty(STDIN_FILENO) == 1 && !flags.model.json) return Talk(flags, conversation);
  LIME_ASSIGN_OR_RETURN(std::string question, ReadUserText("stdin", "-", kMaxMessageBytes));
  if (question.ends_with('\n')) question.pop_back();
  if (question.empty()) return WrongCall("stdin holds no message; type one on a terminal, or pipe one in");
  return AnswerOnce(flags, conversation, std::move(question));
}

}  // namespace

void AddChatCommand(Commands& commands) {
  const auto [command, flags] = commands.Add<ChatFlags>(
      "chat", "Talk with a model, loaded here or served elsewhere",
      "Examples: lime chat --model Llama-3.2-1B-Instruct; lime chat --url http://127.0.0.1:5463; echo \"Why is the sky blue?\" | lime chat "
      "--url http://127.0.0.1:5463",
      Chat);
  flags.AddTo(command);
  flags.server.AddTo(command);
  command.Add("--system", &flags.system, "Instructions for the model").FreeText();
  command.Add("--max-tokens,-n", &flags.max_tokens, "Tokens of an answer, at most; without it what the context has left");
  command.Add("--temperature", &flags.sampling.temperature, "0 chooses the likeliest token; without it the model's own default");
  command.Add("--top-k", &flags.sampling.top_k, "Keep the K likeliest tokens; 0 keeps all; without it the model's own default");
  command.Add("--top-p", &flags.sampling.top_p,
              "Keep the likeliest tokens that hold this share of the probability; without it the model's own default");
  command.Add("--seed", &flags.sampling.seed, "Same seed and same words, same answers; without it each answer draws one");
  command.ShowUnder("Answers", {"--system", "--max-tokens", "--json"});
  command.ShowUnder("Sampling", {"--temperature", "--top-k", "--top-p", "--seed"});
  command.ShowUnder("On a server", {"--url", "--api-key", "--tls-ca"});
  PlacingFlags::ShowTitles(command);
}

}  // namespace lime::cli
