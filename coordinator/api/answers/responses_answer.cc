// Answers of /v1/responses: items, each opened, filled and closed, one after another.
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/api/answers/answer_json.h"
#include "coordinator/api/answers/writer_base.h"
#include "planner/base/json_text.h"
#include "planner/base/names.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

using Piece = ChoiceBacklog::Piece;

enum class ItemKind { kReasoning, kMessage, kCall };
constexpr Names<ItemKind, 3> kTypes = {
    {{ItemKind::kReasoning, "reasoning"}, {ItemKind::kMessage, "message"}, {ItemKind::kCall, "function_call"}}};
constexpr Names<ItemKind, 3> kIdPrefixes = {{{ItemKind::kReasoning, "rs_"}, {ItemKind::kMessage, "msg_"}, {ItemKind::kCall, "fc_"}}};
constexpr Names<ItemKind, 3> kDeltas = {{{ItemKind::kReasoning, "response.reasoning_text.delta"},
                                         {ItemKind::kMessage, "response.output_text.delta"},
                                         {ItemKind::kCall, "response.function_call_arguments.delta"}}};
constexpr Names<ItemKind, 3> kDones = {{{ItemKind::kReasoning, "response.reasoning_text.done"},
                                        {ItemKind::kMessage, "response.output_text.done"},
                                        {ItemKind::kCall, "response.function_call_arguments.done"}}};

struct Item {
  ItemKind kind = ItemKind::kMessage;
  std::string id;
  std::string text;                // so far; of a call its arguments
  std::string call_id, name;       // kCall
  std::vector<TokenScore> scores;  // kMessage
};

Json Part(const Item& item, bool is_new) {
  if (item.kind == ItemKind::kReasoning) return {{"type", "reasoning_text"}, {"text", is_new ? "" : item.text}};
  return {{"type", "output_text"},
          {"text", is_new ? "" : item.text},
          {"annotations", Json::array()},
          {"logprobs", is_new ? Json::array() : ScoresJson(item.scores)}};
}

Json ItemJson(const Item& item, std::string_view status, bool is_new) {
  Json json = {{"id", item.id}, {"type", kTypes.Of(item.kind)}, {"status", status}};
  if (item.kind == ItemKind::kCall) {
    json.update({{"call_id", item.call_id}, {"name", item.name}, {"arguments", item.text}});
    return json;
  }
  if (item.kind == ItemKind::kMessage) json["role"] = "assistant";
  if (item.kind == ItemKind::kReasoning) json["summary"] = Json::array();
  json["content"] = is_new ? Json::array() : Json::array({Part(item, false)});
  return json;
}

class ResponsesWriter : public WriterBase {
 public:
  ResponsesWriter(const ApiRequest& request, AnswerHead head)
      : WriterBase(request, std::move(head)),
        streams_(request.stream),
        top_logprobs_(request.top_logprobs.value_or(0)),
        repeated_(request.repeated) {}

  std::string_view KeepAlive() const override { return streams_ ? kSseKeepAlive : " "; }
  std::string_view content_type() const override { return streams_ ? "text/event-stream" : "application/json"; }

 private:
  void WriteWaiting(std::string& out) override;
  void WriteEnd(const AnswerReport& report, std::string& out) override;
  void WriteError(const ApiError& error, std::string& out) override;

  void Begin(std::string& out);
  void WritePiece(const Piece& piece, std::vector<TokenScore>& scores, std::string& out);
  void Open(Item item, std::string& out);
  void Extend(const std::string& text, std::vector<TokenScore> scores, std::string& out);
  void Close(std::string_view status, std::string& out);

  // {"item_id", "output_index", "content_index"} of the open item.
  Json Place() const;
  void Emit(std::string_view type, Json fields, std::string& out);
  Json Response(std::string_view status) const;

  const bool streams_;
  const int32_t top_logprobs_;
  const Json repeated_;
  bool begun_ = false;
  int64_t sequence_ = 0;
  std::optional<Item> open_;
  Json output_ = Json::array();  // items that are closed
};

void ResponsesWriter::WriteWaiting(std::string& out) {
  Begin(out);
  ChoiceBacklog& choice = choices()[0];
  const std::vector<Piece> pieces = choice.TakePieces();
  std::vector<TokenScore> scores;
  if (!pieces.empty() || choice.end()) scores = choice.TakeScores();
  for (const Piece& piece : pieces) WritePiece(piece, scores, out);
  if (open_) std::ranges::move(scores, std::back_inserter(open_->scores));
}

void ResponsesWriter::Begin(std::string& out) {
  if (begun_) return;
  begun_ = true;
  Emit("response.created", {{"response", Response("in_progress")}}, out);
  Emit("response.in_progress", {{"response", Response("in_progress")}}, out);
}

void ResponsesWriter::WritePiece(const Piece& piece, std::vector<TokenScore>& scores, std::string& out) {
  switch (piece.kind) {
    case Piece::Kind::kContent:
      if (!open_ || open_->kind != ItemKind::kMessage) Open({.kind = ItemKind::kMessage}, out);
      return Extend(piece.text, std::exchange(scores, {}), out);
    case Piece::Kind::kReasoning:
      if (!open_ || open_->kind != ItemKind::kReasoning) Open({.kind = ItemKind::kReasoning}, out);
      return Extend(piece.text, {}, out);
    case Piece::Kind::kCallBegin:
      return Open({.kind = ItemKind::kCall, .call_id = piece.text, .name = piece.name}, out);
    case Piece::Kind::kArguments:
      return Extend(piece.text, {}, out);
    case Piece::Kind::kCallEnd:
      return Close("completed", out);
  }
}

void ResponsesWriter::Open(Item item, std::string& out) {
  if (open_) Close("completed", out);
  const std::string_view id = head().id;
  const size_t prefix = id.find('_');
  item.id = absl::StrCat(Text(kIdPrefixes.Of(item.kind)), Text(prefix == std::string_view::npos ? id : id.substr(prefix + 1)), "_",
                         output_.size());
  open_ = std::move(item);
  Emit("response.output_item.added", {{"output_index", output_.size()}, {"item", ItemJson(*open_, "in_progress", true)}}, out);
  if (open_->kind == ItemKind::kCall) return;
  Json part = Place();
  part["part"] = Part(*open_, true);
  Emit("response.content_part.added", std::move(part), out);
}

void ResponsesWriter::Extend(const std::string& text, std::vector<TokenScore> scores, std::string& out) {
  Json delta = Place();
  delta["delta"] = text;
  if (open_->kind == ItemKind::kMessage) delta["logprobs"] = ScoresJson(scores);
  open_->text += text;
  std::ranges::move(scores, std::back_inserter(open_->scores));
  Emit(kDeltas.Of(open_->kind), std::move(delta), out);
}

void ResponsesWriter::Close(std::string_view status, std::string& out) {
  Json done = Place();
  if (open_->kind == ItemKind::kCall) {
    done["name"] = open_->name;
    done["arguments"] = open_->text;
  } else {
    done["text"] = open_->text;
  }
  if (open_->kind == ItemKind::kMessage) done["logprobs"] = ScoresJson(open_->scores);
  Emit(kDones.Of(open_->kind), std::move(done), out);
  if (open_->kind != ItemKind::kCall) {
    Json part = Place();
    part["part"] = Part(*open_, false);
    Emit("response.content_part.done", std::move(part), out);
  }
  Json item = ItemJson(*open_, status, false);
  Emit("response.output_item.done", {{"output_index", output_.size()}, {"item", item}}, out);
  output_.push_back(std::move(item));
  open_.reset();
}

void ResponsesWriter::WriteEnd(const AnswerReport& report, std::string& out) {
  const ChoiceBacklog& choice = choices()[0];
  const bool is_cut = choice.end()->finish == AnswerFinish::kLength;
  const std::string_view status = is_cut ? "incomplete" : "completed";
  if (!open_ && output_.empty()) Open({.kind = ItemKind::kMessage}, out);  // an answer without text
  if (open_) Close(status, out);
  Json response = Response(status);
  if (is_cut) response["incomplete_details"] = Json{{"reason", "max_output_tokens"}};
  response["usage"] = ResponsesUsageJson(report);
  AddOurFields(choice, response);
  response["lime"] = LimeJson(report);
  if (!streams_) return out.append(JsonText(response)), void();
  Emit(is_cut ? "response.incomplete" : "response.completed", {{"response", std::move(response)}}, out);
}

void ResponsesWriter::WriteError(const ApiError& error, std::string& out) {
  if (!streams_) return out.append(OpenAiErrorJson(error)), void();
  if (open_) output_.push_back(ItemJson(*open_, "incomplete", false));
  Json response = Response("failed");
  response["error"] = Json{{"code", error.code}, {"message", error.message}, {"type", error.type}, {"param", nullptr}};
  Emit("response.failed", {{"response", std::move(response)}}, out);
}

Json ResponsesWriter::Place() const {
  Json place = {{"item_id", open_->id}, {"output_index", output_.size()}};
  if (open_->kind != ItemKind::kCall) place["content_index"] = 0;
  return place;
}

void ResponsesWriter::Emit(std::string_view type, Json fields, std::string& out) {
  if (!streams_) return;
  Json event = {{"type", type}, {"sequence_number", sequence_++}};
  for (auto& [key, value] : fields.items()) event[key] = std::move(value);
  AppendSse(event, type, out);
}

Json ResponsesWriter::Response(std::string_view status) const {
  Json response = {{"id", head().id},
                   {"object", "response"},
                   {"created_at", head().created},
                   {"status", status},
                   {"background", false},
                   {"error", nullptr},
                   {"incomplete_details", nullptr},
                   {"model", head().model},
                   {"output", output_},
                   {"previous_response_id", nullptr},
                   {"store", false},
                   {"system_fingerprint", head().fingerprint},
                   {"top_logprobs", top_logprobs_},
                   {"truncation", "disabled"},
                   {"usage", nullptr}};
  for (const auto& [key, value] : repeated_.items()) response[key] = value;
  return response;
}

}  // namespace

std::unique_ptr<AnswerWriter> MakeResponsesWriter(const ApiRequest& request, AnswerHead head) {
  return std::make_unique<ResponsesWriter>(request, std::move(head));
}

}  // namespace lime
