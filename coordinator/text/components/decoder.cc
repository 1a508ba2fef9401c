#include "coordinator/text/components/decoder.h"

#include "absl/strings/str_cat.h"
#include "coordinator/text/components/normalizer.h"
#include "coordinator/text/subwords/vocab.h"
#include "coordinator/text/unicode/byte_level.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

using Result = absl::StatusOr<std::string>;

std::string StripBoth(std::string_view rest, std::string_view content, int64_t start, int64_t stop) {
  for (; start > 0 && rest.starts_with(content); --start) rest.remove_prefix(content.size());
  for (; stop > 0 && rest.ends_with(content); --stop) rest.remove_suffix(content.size());
  return std::string(rest);
}

absl::Status NotPerToken(std::string_view type) {
  return absl::UnimplementedError(absl::StrCat(
      "decoder \"", Text(type),
      "\" after \"Fuse\" or \"ByteLevel\" is not supported: text could not be printed token by token; supported there is Strip "
      "with stop 0"));
}

}  // namespace

absl::Status Decoder::AppendMetaspace(const TokenizerJson& json) {
  LIME_ASSIGN_OR_RETURN(const std::string mark, StringField(json, "replacement", "\u2581"));
  LIME_ASSIGN_OR_RETURN(const bool add_prefix_space, BoolField(json, "add_prefix_space", true));
  LIME_ASSIGN_OR_RETURN(const std::string scheme, StringField(json, "prepend_scheme", add_prefix_space ? "always" : "never"));
  const bool drops_first = scheme != "never";
  first_differs_ = first_differs_ || drops_first;
  steps_.push_back([mark, drops_first](const std::string& bytes, bool first) -> Result {
    return ReplaceLiteral(bytes, mark, first && drops_first ? "" : " ");
  });
  return absl::OkStatus();
}

absl::Status Decoder::AppendStrip(const TokenizerJson& json) {
  LIME_ASSIGN_OR_RETURN(const std::string content, RequiredString(json, "content"));
  LIME_ASSIGN_OR_RETURN(const int64_t start, IntField(json, "start", 0));
  LIME_ASSIGN_OR_RETURN(const int64_t stop, IntField(json, "stop", 0));
  if (content.empty() || start < 0 || stop < 0) return absl::InvalidArgumentError("decoder \"Strip\" has no content or negative counts");
  if (!fused_) {
    steps_.push_back([=](const std::string& bytes, bool) -> Result { return StripBoth(bytes, content, start, stop); });
    return absl::OkStatus();
  }
  if (stop != 0 || strip_.count != 0) return NotPerToken("Strip");
  strip_ = {content, start};
  return absl::OkStatus();
}

absl::Status Decoder::Append(const TokenizerJson& json) {
  LIME_ASSIGN_OR_RETURN(const std::string type, ComponentType(json));
  if (type == "Sequence") {
    for (const TokenizerJson& part : Field(json, "decoders")) LIME_RETURN_IF_ERROR(Append(part));
    return absl::OkStatus();
  }
  if (type == "Strip") return AppendStrip(json);
  if (fused_ && type != "Fuse") return NotPerToken(type);
  if (type == "Fuse") {
    fused_ = true;
  } else if (type == "ByteLevel") {
    steps_.push_back([](const std::string& bytes, bool) -> Result { return FromByteLevel(bytes); });
    fused_ = true;  // ByteLevel joins the tokens that it decodes
  } else if (type == "ByteFallback") {
    replaces_by_byte_ = true;
    steps_.push_back([](const std::string& bytes, bool) -> Result {
      const int byte = ByteOfToken(bytes);
      return byte < 0 ? bytes : std::string(1, static_cast<char>(byte));
    });
  } else if (type == "Replace") {
    LIME_ASSIGN_OR_RETURN(auto pattern, ParsePattern(json));
    LIME_ASSIGN_OR_RETURN(auto content, RequiredString(json, "content"));
    steps_.push_back([pattern, content](const std::string& bytes, bool) { return ReplaceAll(pattern, content, bytes); });
  } else if (type == "Metaspace") {
    return AppendMetaspace(json);
  } else {
    return absl::UnimplementedError(absl::StrCat(
        "decoder \"", type, "\" is not supported; supported are ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace and Sequence"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Decoder> Decoder::Parse(const TokenizerJson& json) {
  Decoder decoder;
  if (json.is_null()) {
    decoder.first_differs_ = true;
    decoder.steps_.push_back([](const std::string& bytes, bool first) -> Result { return first ? bytes : " " + bytes; });
    return decoder;
  }
  LIME_RETURN_IF_ERROR(decoder.Append(json));
  return decoder;
}

absl::StatusOr<std::string> Decoder::TokenBytes(std::string_view piece, bool first) const {
  std::string bytes(piece);
  for (const Step& step : steps_) {
    LIME_ASSIGN_OR_RETURN(bytes, step(bytes, first));
  }
  return bytes;
}

absl::StatusOr<ByteTable> ByteTable::Create(const Decoder& decoder, bool first, int32_t size,
                                            const std::function<std::string_view(int32_t)>& piece) {
  ByteTable table;
  table.begins_.reserve(size + 1);
  table.begins_.push_back(0);
  for (int32_t id = 0; id < size; ++id) {
    if (!piece(id).empty()) {
      LIME_ASSIGN_OR_RETURN(const std::string bytes, decoder.TokenBytes(piece(id), first));
      LIME_RETURN_IF_ERROR(CheckTextSize(table.bytes_.size() + bytes.size()));
      table.bytes_.append(bytes);
    }
    table.begins_.push_back(static_cast<uint32_t>(table.bytes_.size()));
  }
  return table;
}

}  // namespace lime
