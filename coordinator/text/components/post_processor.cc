#include "coordinator/text/components/post_processor.h"

#include "absl/strings/str_cat.h"
#include "coordinator/text/subwords/vocab.h"
#include "planner/base/json_text.h"

namespace lime {
namespace {

constexpr size_t kMaxTemplateIds = 64;

absl::StatusOr<int32_t> ParseId(const TokenizerJson& json) {
  if (!json.is_number_unsigned() || json.get<uint64_t>() >= static_cast<uint64_t>(kMaxTokenId)) {
    return Invalid("post_processor: ", JsonText(json), " is not a token id");
  }
  return json.get<int32_t>();
}

// Parses [content, id], the form of tokens in BertProcessing and RobertaProcessing.
absl::StatusOr<int32_t> ParsePair(const TokenizerJson& json) {
  if (!json.is_array() || json.size() != 2) return absl::InvalidArgumentError("post_processor: \"cls\" and \"sep\" must be [token, id]");
  return ParseId(json[1]);
}

absl::Status AppendSpecial(const TokenizerJson& item, const TokenizerJson& special_tokens, std::vector<int32_t>& ids) {
  LIME_ASSIGN_OR_RETURN(const std::string name, RequiredString(item, "id"));
  const TokenizerJson& token = Field(Field(special_tokens, name), "ids");
  if (!token.is_array() || token.empty()) return Invalid("post_processor: special token \"", name, "\" has no ids");
  for (const TokenizerJson& entry : token) {
    LIME_ASSIGN_OR_RETURN(const int32_t id, ParseId(entry));
    ids.push_back(id);
  }
  if (ids.size() > kMaxTemplateIds) return Invalid("post_processor adds more than ", kMaxTemplateIds, " ids");
  return absl::OkStatus();
}

absl::Status AppendTemplate(const TokenizerJson& json, PostProcessor& result) {
  bool behind_text = false;
  for (const TokenizerJson& item : Field(json, "single")) {
    if (const TokenizerJson& special = Field(item, "SpecialToken"); special.is_object()) {
      LIME_RETURN_IF_ERROR(AppendSpecial(special, Field(json, "special_tokens"), behind_text ? result.suffix : result.prefix));
    } else if (Field(item, "Sequence").is_object() && !behind_text) {
      behind_text = true;
    } else {
      return absl::InvalidArgumentError("post_processor: a \"single\" template needs SpecialToken entries around one Sequence");
    }
  }
  if (!behind_text) return absl::InvalidArgumentError("post_processor: the \"single\" template has no Sequence");
  return absl::OkStatus();
}

absl::Status Append(const TokenizerJson& json, PostProcessor& result) {
  LIME_ASSIGN_OR_RETURN(const std::string type, ComponentType(json));
  // ByteLevel trims offsets, which LIME does not use.
  if (type.empty() || type == "ByteLevel") return absl::OkStatus();
  if (type == "Sequence") {
    for (const TokenizerJson& part : Field(json, "processors")) LIME_RETURN_IF_ERROR(Append(part, result));
    return absl::OkStatus();
  }
  if (!result.prefix.empty() || !result.suffix.empty()) {
    return absl::UnimplementedError(absl::StrCat("post_processor: a Sequence with \"", type,
                                                 "\" after another processor that adds tokens is not supported; one such processor is"));
  }
  if (type == "TemplateProcessing") return AppendTemplate(json, result);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    LIME_ASSIGN_OR_RETURN(const int32_t cls, ParsePair(Field(json, "cls")));
    LIME_ASSIGN_OR_RETURN(const int32_t sep, ParsePair(Field(json, "sep")));
    result.prefix.push_back(cls);
    result.suffix.push_back(sep);
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat("post_processor \"", type,
                                               "\" is not supported; supported are TemplateProcessing, ByteLevel, BertProcessing, "
                                               "RobertaProcessing and Sequence"));
}

}  // namespace

absl::StatusOr<PostProcessor> ParsePostProcessor(const TokenizerJson& json) {
  PostProcessor result;
  LIME_RETURN_IF_ERROR(Append(json, result));
  return result;
}

}  // namespace lime
