// Finds and reads the tokenizer's files of a model folder.
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "coordinator/text/sentencepiece.h"
#include "coordinator/text/tokenizer.h"
#include "coordinator/text/tokenizer_json.h"
#include "planner/base/foreign_file.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr uintmax_t kMaxFileBytes = 256 << 20;  // tokenizer.json of a large vocabulary has tens of megabytes

absl::StatusOr<std::string> ReadFile(const std::filesystem::path& path) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return absl::NotFoundError(absl::StrCat(path.string(), ": ", error.message()));
  if (size > kMaxFileBytes)
    return absl::InvalidArgumentError(absl::StrCat(path.string(), " has ", size, " bytes; at most ", kMaxFileBytes));
  std::ifstream file(path, std::ios::binary);
  std::string bytes(size, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(size));
  if (!file) return absl::UnavailableError(absl::StrCat(path.string(), " could not be read to its end"));
  LIME_RETURN_IF_ERROR(RefuseForeignFile(bytes, path.string()));
  return bytes;
}

absl::Status WithName(std::string_view name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(Text(name), ": ", status.message()));
}

absl::StatusOr<std::optional<std::string>> TokenField(const Json& json, std::string_view key) {
  const Json& value = Field(json, key);
  if (value.is_null()) return std::nullopt;
  if (value.is_object()) return RequiredString(value, "content");
  return RequiredString(json, key);
}

absl::StatusOr<std::optional<bool>> OptionalBool(const Json& json, std::string_view key) {
  if (Field(json, key).is_null()) return std::nullopt;
  return BoolField(json, key, false);
}

absl::StatusOr<SpecialTokensConfig> LoadConfig(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return SpecialTokensConfig{};
  LIME_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  LIME_ASSIGN_OR_RETURN(const Json json, ParsePythonJson(bytes, path.string()));
  auto config = ParseSpecialTokensConfig(json);
  if (!config.ok()) return WithName(path.string(), config.status());
  return config;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> FromParsedJson(const Json& json, std::string_view name, const SpecialTokensConfig& config) {
  auto parts = PartsFromJson(json);
  if (!parts.ok()) return WithName(name, parts.status());
  auto tokenizer = Tokenizer::Create(*std::move(parts), config);
  if (!tokenizer.ok()) return WithName(name, tokenizer.status());
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadVocabAndMerges(const std::filesystem::path& folder, const SpecialTokensConfig& config) {
  const std::string name = (folder / "vocab.json").string();
  LIME_ASSIGN_OR_RETURN(const std::string vocab_bytes, ReadFile(name));
  LIME_ASSIGN_OR_RETURN(const std::string merges, ReadFile(folder / "merges.txt"));
  LIME_ASSIGN_OR_RETURN(Json vocab, ParsePythonJson(vocab_bytes, name, kMaxFileBytes));
  Json added = Json::array();
  for (const auto& token : {config.bos_token, config.eos_token}) {
    if (!token.has_value() || !Field(vocab, *token).is_number() || (!added.empty() && added[0]["content"] == *token)) continue;
    added.push_back({{"id", vocab[*token]}, {"content", *token}, {"special", true}});
  }
  Json json = JsonFromVocabAndMerges(std::move(vocab), merges);
  json["added_tokens"] = std::move(added);
  return FromParsedJson(json, name, config);
}

}  // namespace

absl::StatusOr<SpecialTokensConfig> ParseSpecialTokensConfig(const Json& json) {
  SpecialTokensConfig config;
  LIME_ASSIGN_OR_RETURN(config.bos_token, TokenField(json, "bos_token"));
  LIME_ASSIGN_OR_RETURN(config.eos_token, TokenField(json, "eos_token"));
  LIME_ASSIGN_OR_RETURN(config.add_bos_token, OptionalBool(json, "add_bos_token"));
  LIME_ASSIGN_OR_RETURN(config.add_eos_token, OptionalBool(json, "add_eos_token"));
  return config;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(std::string_view json, std::string_view name,
                                                               const SpecialTokensConfig& config) {
  LIME_ASSIGN_OR_RETURN(const Json parsed, ParsePythonJson(json, name, kMaxFileBytes));
  return FromParsedJson(parsed, name, config);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromSentencePiece(std::string_view bytes, std::string_view name,
                                                                        const SpecialTokensConfig& config) {
  SpecialTokensConfig completed = config;
  auto parts = PartsFromSentencePiece(bytes, completed);
  if (!parts.ok()) return WithName(name, parts.status());
  auto tokenizer = Create(*std::move(parts), completed);
  if (!tokenizer.ok()) return WithName(name, tokenizer.status());
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& model_dir) {
  const std::filesystem::path folder(model_dir);
  LIME_ASSIGN_OR_RETURN(const auto config, LoadConfig(folder / "tokenizer_config.json"));
  if (const auto path = folder / "tokenizer.json"; std::filesystem::exists(path)) {
    LIME_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
    return FromJson(bytes, path.string(), config);
  }
  if (const auto path = folder / "tokenizer.model"; std::filesystem::exists(path)) {
    LIME_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
    return FromSentencePiece(bytes, path.string(), config);
  }
  if (std::filesystem::exists(folder / "vocab.json") && std::filesystem::exists(folder / "merges.txt")) {
    return LoadVocabAndMerges(folder, config);
  }
  return absl::NotFoundError(absl::StrCat(model_dir, " holds no tokenizer.json, no tokenizer.model, and no vocab.json with merges.txt"));
}

}  // namespace lime
