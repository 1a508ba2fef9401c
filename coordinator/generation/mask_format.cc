#include "coordinator/generation/mask_format.h"

#include <map>
#include <utility>
#include <vector>

#include "common/json_schema/answer_format.h"
#include "coordinator/text/tools/call_frames.h"
#include "coordinator/text/tools/harmony_header.h"
#include "planner/base/json_text.h"

namespace lime {
namespace {

using Start = ThinkingSplitter::Start;

// Parts of the language of json_schema/answer_format.h.
Json Sequence(std::vector<Json> parts) {
  std::erase(parts, Json(""));
  return {{"sequence", std::move(parts)}};
}
Json OneOf(std::vector<Json> answers) {
  return answers.size() == 1 ? std::move(answers[0]) : Json{{"one_of", std::move(answers)}};
}
Json Optional(Json answer) {
  return {{"optional", std::move(answer)}};
}

class MaskWriter {
 public:
  // A value of the schema, or any object.
  Json Value(const AnswerFormat& format) {
    if (format.kind == AnswerFormat::Kind::kObject) return {{"object", true}};
    // The text is that of a Json, so it can be read.
    return {{"value", AddSchema(Json::parse(format.schema))}};
  }

  Json Calls(const CallFrames& frames) {
    std::vector<Json> alternatives;
    for (const CallFrame& frame : frames.alternatives) alternatives.push_back(Call(frame));
    Json calls = OneOf(std::move(alternatives));
    if (!frames.one_call) calls = {{"repeat", std::move(calls)}, {"between", frames.separator}};
    if (frames.ends_may_lack) return Sequence({Optional(frames.opening), std::move(calls), Optional(frames.closing)});
    return Sequence({frames.opening, std::move(calls), frames.closing});
  }

  // In harmony, calls and values are messages. Where the prompt has opened the final one, a value
  // goes on in it, but a call is the next message.
  static Json CallMessage(Start thinking, Json calls) {
    if (thinking != Start::kHarmonyContent) return calls;
    return Sequence({"<|end|><|start|>assistant", std::move(calls)});
  }
  static Json FinalMessage(Start thinking, Json value) {
    if (thinking != Start::kHarmony) return value;
    return Sequence({"<|channel|>final<|message|>", std::move(value)});
  }

  // The answer behind its thinking, which ends in time as well.
  static Json Behind(Start thinking, Json answer) {
    if (thinking == Start::kOff || thinking == Start::kHarmonyContent) return answer;
    if (thinking == Start::kHarmony) {
      Json thought = Sequence({"<|channel|>analysis<|message|>", {{"until", kHarmonyEnd}}, "<|start|>assistant", answer});
      return OneOf({std::move(thought), std::move(answer)});
    }
    const Json inside = {{"until", kThinkEndTag}};
    if (thinking == Start::kInside) return Sequence({inside, Optional("\n"), Optional("\n"), std::move(answer)});
    Json thought = Sequence({kThinkTag, inside, Optional("\n"), Optional("\n"), answer});
    return OneOf({std::move(thought), std::move(answer)});
  }

  std::string Text(Json answer) && {
    Json format = Json::object();
    if (!schemas_.empty()) format["schemas"] = std::move(schemas_);
    format["answer"] = std::move(answer);
    return JsonText(format);
  }

  // The mask begins at one of the starts.
  std::string Text(Json answer, const std::vector<MaskStart>& starts, Start thinking) && {
    Json format = {{"schemas", std::move(schemas_)}, {"answer", std::move(answer)}, {"starts", Json::array()}};
    for (const MaskStart& start : starts) {
      Json written = {{"text", start.text}};
      if (start.at_start) written["at_start"] = true;
      if (start.any_blanks) written["any_blanks"] = true;
      if (start.frame_bytes > 0) written["frame_bytes"] = start.frame_bytes;
      format["starts"].push_back(std::move(written));
    }
    if (thinking == Start::kInside || thinking == Start::kOpen) format["thinking"] = thinking == Start::kInside ? "inside" : "open";
    return JsonText(format);
  }

 private:
  size_t AddSchema(Json schema) {
    schemas_.push_back(std::move(schema));
    return schemas_.size() - 1;
  }

  // Alternatives of one function have one schema.
  size_t SchemaOf(const ToolFunction& function) {
    const auto [found, is_new] = functions_.try_emplace(&function, schemas_.size());
    return is_new ? AddSchema(function.parameters) : found->second;
  }

  Json Call(const CallFrame& frame) {
    const size_t schema = SchemaOf(*frame.function);
    if (!frame.by_parameter) return Sequence({frame.prefix, {{"value", schema}}, frame.suffix});
    std::vector<Json> parts;
    if (!frame.outer_prefix.empty()) parts.push_back(Optional(frame.outer_prefix));
    parts.push_back(frame.prefix);
    for (const ParameterFrame& parameter : frame.parameters) {
      Json value = {{"parameter", parameter.key}, {"of", schema}, {"until", parameter.suffix}};
      Json written = Sequence({parameter.prefix, std::move(value)});
      parts.push_back(parameter.is_required ? std::move(written) : Optional(std::move(written)));
    }
    parts.push_back(frame.suffix);
    if (!frame.outer_suffix.empty()) parts.push_back(Optional(frame.outer_suffix));
    return Sequence(std::move(parts));
  }

  Json schemas_ = Json::array();
  std::map<const ToolFunction*, size_t> functions_;  // index of the schema
};

bool IsTooLong(const std::string& format) {
  return static_cast<Bytes>(format.size()) > json_schema::kMaxFormatBytes;
}

}  // namespace

ApiResult<std::string> MaskFormat(const ToolRequest& tools, const AnswerFormat& format, const MaskOptions& options) {
  const bool has_value = format.kind != AnswerFormat::Kind::kText;
  const bool may_call = tools.choice.mode != ToolChoice::Mode::kNone;
  if (!has_value && !may_call) return std::string();
  MaskWriter writer;
  std::vector<Json> answers;
  std::vector<MaskStart> starts;
  if (may_call) {
    const absl::StatusOr<CallFrames> frames = FrameCalls(options.tool_format, tools);
    if (!frames.ok()) return InvalidValue(options.tools_param, std::string(frames.status().message()));
    const bool begins = has_value || tools.choice.Forces();  // the mask begins with the answer
    Json calls = writer.Calls(*frames);
    answers.push_back(begins ? MaskWriter::CallMessage(options.thinking, std::move(calls)) : std::move(calls));
    starts = frames->starts;
  }
  if (has_value && !tools.choice.Forces()) answers.push_back(MaskWriter::FinalMessage(options.thinking, writer.Value(format)));
  Json answer = OneOf(std::move(answers));
  const bool waits_for_call = may_call && !has_value && !tools.choice.Forces();
  std::string text = waits_for_call ? std::move(writer).Text(std::move(answer), starts, options.thinking)
                                    : std::move(writer).Text(MaskWriter::Behind(options.thinking, std::move(answer)));
  if (!IsTooLong(text)) return text;
  if (waits_for_call) return std::string();
  return InvalidValue(may_call ? options.tools_param : options.format_param,
                      absl::StrCat("the schemas of an answer have ", text.size(), " bytes, more than ", json_schema::kMaxFormatBytes));
}

}  // namespace lime
