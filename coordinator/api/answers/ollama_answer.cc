// Answers of /api/chat and /api/generate: lines of JSON, or one.
#include <algorithm>
#include <cmath>
#include <utility>

#include "coordinator/api/answers/answer_json.h"
#include "coordinator/api/answers/server_answers.h"
#include "coordinator/api/answers/writer_base.h"
#include "planner/base/json_text.h"

namespace lime {
namespace {

using Piece = ChoiceBacklog::Piece;
using Kind = Piece::Kind;

int64_t Nanoseconds(double ms) {
  constexpr double kMost = 9e12;  // 285 years
  return std::isfinite(ms) ? std::llround(std::clamp(ms, 0.0, kMost) * 1e6) : 0;
}

// Objects where they are JSON, as clients expect; a call that was cut is not.
Json Arguments(const std::string& text) {
  Json arguments = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return arguments.is_object() ? std::move(arguments) : text.empty() ? Json::object() : Json(text);
}

struct Said {
  std::string content, thinking;
  Json calls = Json::array();

  bool empty() const { return content.empty() && thinking.empty() && calls.empty(); }
};

Json Line(bool is_chat, const AnswerHead& head, Said said) {
  Json line = {{"model", head.model}, {"created_at", IsoTime(head.created)}};
  Json message = {{"role", "assistant"}, {"content", said.content}};
  Json& place = is_chat ? message : line;
  if (!is_chat) line["response"] = said.content;
  if (!said.thinking.empty()) place["thinking"] = said.thinking;
  if (!said.calls.empty()) place["tool_calls"] = std::move(said.calls);
  if (is_chat) line["message"] = std::move(message);
  line["done"] = false;
  return line;
}

class OllamaWriter : public WriterBase {
 public:
  OllamaWriter(bool is_chat, const ApiRequest& request, AnswerHead head)
      : WriterBase(request, std::move(head)), is_chat_(is_chat), streams_(request.stream) {}

  // In front of the next line.
  std::string_view KeepAlive() const override { return " "; }
  std::string_view content_type() const override { return streams_ ? "application/x-ndjson" : "application/json"; }

 private:
  void WriteWaiting(std::string& out) override {
    for (Piece& piece : choices()[0].TakePieces()) {
      const bool is_text = piece.kind == Kind::kContent || piece.kind == Kind::kReasoning;
      Say(std::move(piece));
      if (streams_ && is_text) WriteLine(out);
    }
    if (streams_) WriteLine(out);
  }

  void Say(Piece piece) {
    if (piece.kind == Kind::kContent) said_.content += piece.text;
    if (piece.kind == Kind::kReasoning) said_.thinking += piece.text;
    if (piece.kind == Kind::kCallBegin) {
      name_ = std::move(piece.name);
      arguments_.clear();
    }
    if (piece.kind == Kind::kArguments) arguments_ += piece.text;
    if (piece.kind == Kind::kCallEnd) said_.calls.push_back({{"function", {{"name", name_}, {"arguments", Arguments(arguments_)}}}});
  }

  void WriteLine(std::string& out) {
    if (said_.empty()) return;
    out += JsonText(Line(is_chat_, head(), std::exchange(said_, {})));
    out += '\n';
  }

  void WriteEnd(const AnswerReport& report, std::string& out) override {
    Json line = Line(is_chat_, head(), std::exchange(said_, {}));
    line["done"] = true;
    line["done_reason"] = choices()[0].end()->finish == AnswerFinish::kLength ? "length" : "stop";
    line["total_duration"] = Nanoseconds(report.total_ms);
    line["load_duration"] = 0;
    line["prompt_eval_count"] = report.prompt_tokens;
    line["prompt_eval_duration"] = Nanoseconds(report.prompt_ms);
    line["eval_count"] = report.completion_tokens;
    line["eval_duration"] = Nanoseconds(report.generation_ms);
    AddOurFields(choices()[0], line);
    line["lime"] = LimeJson(report);
    out += JsonText(line);
    if (streams_) out += '\n';
  }

  void WriteError(const ApiError& error, std::string& out) override {
    out += OllamaErrorJson(error);
    if (streams_) out += '\n';
  }

  const bool is_chat_, streams_;
  Said said_;                     // and not written
  std::string name_, arguments_;  // of the open call
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeOllamaWriter(Endpoint endpoint, const ApiRequest& request, AnswerHead head) {
  return std::make_unique<OllamaWriter>(endpoint == Endpoint::kOllamaChat, request, std::move(head));
}

std::string OllamaLoadedJson(Endpoint endpoint, const AnswerHead& head) {
  Json line = Line(endpoint == Endpoint::kOllamaChat, head, {});
  line["done"] = true;
  line["done_reason"] = "load";
  return JsonText(line);
}

}  // namespace lime
