#include "common/json_schema/answer_format.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "common/json_schema/matcher.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_text.h"

namespace lime::json_schema {
namespace {

using Json = nlohmann::ordered_json;

class FormatReader {
 public:
  FormatReader(const Json& format, const GrammarOptions& options) : format_(format), builder_(options) {}

  absl::StatusOr<std::shared_ptr<AnswerFormat>> Run() {
    auto read = std::make_shared<AnswerFormat>();
    if (const auto schemas = format_.find("schemas"); schemas != format_.end()) {
      if (!schemas->is_array()) return Wrong("schemas is no list");
      for (const Json& schema : *schemas) schemas_.push_back(JsonText(schema));
    }
    const auto answer = format_.find("answer");
    if (answer == format_.end()) return Wrong("answer is missing");
    LIME_ASSIGN_OR_RETURN(const Framing framing, Read(*answer));
    LIME_ASSIGN_OR_RETURN(read->grammar, builder_.Build(framing));
    LIME_RETURN_IF_ERROR(ReadStarts(*read));
    LIME_RETURN_IF_ERROR(ReadThinking(*read));
    return read;
  }

 private:
  static absl::Status Wrong(const std::string& what) { return Invalid("the format of the answer: ", what); }

  absl::Status ReadStarts(AnswerFormat& read) const {
    const auto starts = format_.find("starts");
    if (starts == format_.end()) return absl::OkStatus();
    if (!starts->is_array() || starts->empty() || starts->size() > kMaxStarts)
      return Wrong(absl::StrCat("starts is no list of 1 to ", kMaxStarts));
    for (const Json& each : *starts) {
      LIME_ASSIGN_OR_RETURN(AnswerStart start, ReadStart(each));
      Matcher matcher(read.grammar);
      if (!matcher.Advance(FrameOf(start))) return Wrong("no answer begins with the frame of a start");
      read.starts.push_back(std::move(start));
    }
    return absl::OkStatus();
  }

  static absl::StatusOr<AnswerStart> ReadStart(const Json& json) {
    if (!json.is_object()) return Wrong("a start is no object");
    AnswerStart start;
    LIME_ASSIGN_OR_RETURN(start.text, ReadText(json, "text"));
    if (const auto at_start = json.find("at_start"); at_start != json.end()) start.at_start = *at_start == true;
    if (const auto any = json.find("any_blanks"); any != json.end() && *any == true) {
      if (!start.at_start) return Wrong("any_blanks needs at_start");
      SqueezedJson squeezed;
      for (const char byte : start.text) squeezed.Push(byte);
      start.squeezed = squeezed.text();
    }
    if (const auto frame = json.find("frame_bytes"); frame != json.end()) {
      if (!frame->is_number_unsigned() || frame->get<uint64_t>() > start.text.size())
        return Wrong("frame_bytes is no number, or more than its text has");
      start.frame_bytes = frame->get<size_t>();
    }
    return start;
  }

  absl::Status ReadThinking(AnswerFormat& read) const {
    const auto thinking = format_.find("thinking");
    if (thinking == format_.end()) return absl::OkStatus();
    if (*thinking != "inside" && *thinking != "open") return Wrong(R"(thinking is neither "inside" nor "open")");
    if (read.starts.empty()) return Wrong("thinking needs starts; without them, the answer includes it");
    read.thinking = *thinking == "inside" ? Thinking::kInside : Thinking::kOpen;
    return absl::OkStatus();
  }

  absl::StatusOr<Framing> Read(const Json& answer) {
    if (answer.is_string()) return Framing::Text(answer.get<std::string>());
    if (answer.contains("value")) return ReadValue(answer["value"]);
    if (answer.contains("object")) return builder_.AddAnyObject();
    if (answer.contains("parameter")) return ReadParameter(answer);
    if (answer.contains("until")) {
      LIME_ASSIGN_OR_RETURN(const std::string stop, ReadText(answer, "until"));
      return builder_.AddTextUntil(stop);
    }
    if (answer.contains("sequence")) {
      LIME_ASSIGN_OR_RETURN(std::vector<Framing> parts, ReadParts(answer["sequence"]));
      return Framing::Sequence(std::move(parts));
    }
    if (answer.contains("one_of")) {
      LIME_ASSIGN_OR_RETURN(std::vector<Framing> parts, ReadParts(answer["one_of"]));
      return Framing::OneOf(std::move(parts));
    }
    if (answer.contains("optional")) {
      LIME_ASSIGN_OR_RETURN(Framing part, Read(answer["optional"]));
      return Framing::Optional(std::move(part));
    }
    if (!answer.contains("repeat")) return Wrong("an answer is of no kind");
    LIME_ASSIGN_OR_RETURN(Framing part, Read(answer["repeat"]));
    return Framing::Repeat(std::move(part), answer.contains("between") && answer["between"].is_string() ? answer["between"] : "");
  }

  absl::StatusOr<std::vector<Framing>> ReadParts(const Json& answers) {
    if (!answers.is_array() || answers.empty()) return Wrong("a list of answers is empty, or no list");
    std::vector<Framing> parts;
    for (const Json& answer : answers) {
      LIME_ASSIGN_OR_RETURN(Framing part, Read(answer));
      parts.push_back(std::move(part));
    }
    return parts;
  }

  static absl::StatusOr<std::string> ReadText(const Json& answer, const char* name) {
    const auto text = answer.find(name);
    if (text == answer.end() || !text->is_string() || text->get_ref<const std::string&>().empty())
      return Wrong(absl::StrCat(name, " is missing or no text"));
    if (text->get_ref<const std::string&>().size() > kMaxStartBytes)
      return Wrong(absl::StrCat(name, " is longer than ", kMaxStartBytes, " bytes"));
    return text->get<std::string>();
  }

  absl::StatusOr<size_t> ReadIndex(const Json& index) const {
    if (!index.is_number_unsigned() || index.get<uint64_t>() >= schemas_.size()) return Wrong("the number of a schema is wrong");
    return index.get<size_t>();
  }

  absl::Status Place(size_t schema, const absl::Status& status) const {
    if (status.ok() || schemas_.size() == 1) return status;
    return Invalid("schema ", schema, " at ", std::string(status.message()));
  }

  absl::StatusOr<Framing> ReadValue(const Json& index) {
    LIME_ASSIGN_OR_RETURN(const size_t schema, ReadIndex(index));
    const auto found = values_.find(schema);
    if (found != values_.end()) return found->second;
    const absl::StatusOr<Framing> value = builder_.AddSchema(schemas_[schema]);
    if (!value.ok()) return Place(schema, value.status());
    return values_.emplace(schema, *value).first->second;
  }

  absl::StatusOr<Framing> ReadParameter(const Json& answer) {
    LIME_ASSIGN_OR_RETURN(const size_t schema, ReadIndex(answer.value("of", Json())));
    LIME_ASSIGN_OR_RETURN(const std::string stop, ReadText(answer, "until"));
    const auto [found, is_new] = parameters_.try_emplace({schema, stop});
    if (is_new) {
      absl::StatusOr<std::vector<Parameter>> parameters = builder_.AddParameters(schemas_[schema], stop);
      if (!parameters.ok()) return Place(schema, parameters.status());
      found->second = *std::move(parameters);
    }
    if (!answer["parameter"].is_string()) return Wrong("parameter is no name");
    const auto parameter = std::ranges::find(found->second, answer["parameter"].get_ref<const std::string&>(), &Parameter::name);
    if (parameter == found->second.end()) return Wrong("there is no such parameter");
    return parameter->value;
  }

  const Json& format_;
  GrammarBuilder builder_;
  std::vector<std::string> schemas_;
  std::map<size_t, Framing> values_;
  std::map<std::pair<size_t, std::string>, std::vector<Parameter>> parameters_;
};

}  // namespace

std::string_view FrameOf(const AnswerStart& start) {
  return std::string_view(start.text).substr(start.text.size() - start.frame_bytes);
}

bool SqueezedJson::Push(char byte) {
  const bool is_blank = byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
  if (is_blank && !in_string_) return false;
  if (byte == '"') in_string_ = !in_string_;  // no start has an escape
  if (text_.size() <= kMaxStartBytes) text_.push_back(byte);
  return true;
}

absl::StatusOr<AnswerFormatPtr> CompileFormat(std::string_view format, const GrammarOptions& options) {
  LIME_ASSIGN_OR_RETURN(const Json json, ParseOrderedJsonObject(format, "the format of the answer", kMaxFormatBytes));
  LIME_ASSIGN_OR_RETURN(const std::shared_ptr<AnswerFormat> read, FormatReader(json, options).Run());
  read->memory = read->grammar->memory + std::ssize(format);  // its text stays beside it
  return read;
}

}  // namespace lime::json_schema
