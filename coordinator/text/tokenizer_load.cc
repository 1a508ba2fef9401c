// Finds and reads the tokenizer files in a model folder.
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/input/model_file.h"
#include "coordinator/text/tokenizer.h"
#include "coordinator/text/tokenizer_files.h"
#include "planner/base/foreign_file.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

// tokenizer.json of a large vocabulary has tens of megabytes.
constexpr uintmax_t kMaxFileBytes = 256 << 20;

absl::StatusOr<std::string> ReadFile(const std::filesystem::path& path) {
  const auto failed = [&](std::string_view what) {
    return absl::UnavailableError(absl::StrCat(path.string(), ": cannot ", Text(what), ": ", std::strerror(errno)));
  };
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return absl::NotFoundError(absl::StrCat(path.string(), ": ", error.message()));
  if (size > kMaxFileBytes) return Invalid(path.string(), " has ", size, " bytes, the limit is ", kMaxFileBytes);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return failed("open");
  std::string bytes(size, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(size));
  if (!file) return failed("read to its end");
  LIME_RETURN_IF_ERROR(RefuseForeignFile(bytes, path.string()));
  return bytes;
}

absl::Status WithName(std::string_view name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(Text(name), ": ", status.message()));
}

// Null if there is no such file.
absl::StatusOr<TokenizerJson> ReadJson(const std::filesystem::path& path) {
  LIME_ASSIGN_OR_RETURN(const bool is_here, FindModelFile(path.string()));
  if (!is_here) return TokenizerJson();
  LIME_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  return ParsePythonJson(bytes, path.string());
}

// `implied_class`: the class if tokenizer_config.json names none, for files that do not say how
// text is split.
absl::StatusOr<TokenizerConfig> LoadConfig(const std::filesystem::path& folder, std::string implied_class = "") {
  TokenizerConfigFiles files;
  files.implied_class = std::move(implied_class);
  LIME_ASSIGN_OR_RETURN(files.tokenizer_config, ReadJson(folder / "tokenizer_config.json"));
  if (Field(files.tokenizer_config, "added_tokens_decoder").is_null()) {
    LIME_ASSIGN_OR_RETURN(files.special_tokens_map, ReadJson(folder / "special_tokens_map.json"));
    LIME_ASSIGN_OR_RETURN(files.added_tokens, ReadJson(folder / "added_tokens.json"));
  }
  auto config = ParseTokenizerConfig(files);
  if (!config.ok()) return absl::Status(config.status().code(), absl::StrCat((folder / "").string(), config.status().message()));
  return config;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> FromParsedJson(TokenizerJson json, std::string_view name, const TokenizerConfig& config) {
  ApplyFlags(config, json);
  auto parts = PartsFromJson(json);
  if (!parts.ok()) return WithName(name, parts.status());
  auto tokenizer = Tokenizer::Create(*std::move(parts), config);
  if (!tokenizer.ok()) return WithName(name, tokenizer.status());
  return tokenizer;
}

// The configuration for vocab.json with merges.txt. The class says how text is split. If
// tokenizer_config.json names none, it is the class of config.json's model_type, or GPT-2's without
// a model_type.
absl::StatusOr<TokenizerConfig> LoadConfigWithClass(const std::filesystem::path& folder, std::string_view name) {
  LIME_ASSIGN_OR_RETURN(TokenizerConfig config, LoadConfig(folder));
  if (!NamesNoClass(config.tokenizer_class)) return config;
  LIME_ASSIGN_OR_RETURN(const TokenizerJson model, ReadJson(folder / "config.json"));
  const TokenizerJson& type = Field(model, "model_type");
  if (!type.is_string() || type.get_ref<const std::string&>().empty()) return LoadConfig(folder, "GPT2Tokenizer");
  auto implied = ClassOfModelType(type.get_ref<const std::string&>());
  if (!implied.ok()) return WithName(name, implied.status());
  return LoadConfig(folder, *std::move(implied));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadVocabAndMerges(const std::filesystem::path& folder) {
  const std::string name = (folder / "vocab.json").string();
  LIME_ASSIGN_OR_RETURN(const std::string vocab_bytes, ReadFile(name));
  LIME_ASSIGN_OR_RETURN(const std::string merges, ReadFile(folder / "merges.txt"));
  LIME_ASSIGN_OR_RETURN(TokenizerJson vocab, ParsePythonJson(vocab_bytes, name, kMaxFileBytes));
  LIME_ASSIGN_OR_RETURN(const TokenizerConfig config, LoadConfigWithClass(folder, name));
  auto json = JsonFromVocabAndMerges(std::move(vocab), merges, config);
  if (!json.ok()) return WithName(name, json.status());
  return FromParsedJson(*std::move(json), absl::StrCat(name, " with merges.txt"), config);
}

// The error for a folder without supported tokenizer files. It names related files that are there.
absl::Status NoTokenizer(const std::filesystem::path& folder) {
  constexpr std::pair<const char*, const char*> kOthers[] = {{"vocab.json", "without its merges.txt"},
                                                             {"merges.txt", "without its vocab.json"},
                                                             {"tekken.json", "which is Mistral's own format"},
                                                             {"tokenizer.model.v3", "which is Mistral's own name"},
                                                             {"spiece.model", "which is for models like T5"},
                                                             {"sentencepiece.bpe.model", "which is for models like XLM-RoBERTa"},
                                                             {"vocab.txt", "which is WordPiece, for models like BERT"},
                                                             {"qwen.tiktoken", "which is the format of the first Qwen"},
                                                             {"encoder.json", "which is fairseq's name for vocab.json"}};
  std::string others;
  std::error_code ignored;
  for (const auto& [name, what] : kOthers) {
    if (std::filesystem::exists(folder / name, ignored)) absl::StrAppend(&others, others.empty() ? "" : " and ", name, ", ", what);
  }
  return absl::NotFoundError(absl::StrCat(
      folder.string(), ": holds no tokenizer.json, no tokenizer.model, and no vocab.json with merges.txt",
      others.empty() ? "; download the whole folder of the model"
                     : absl::StrCat(", but ", others,
                                    "; download tokenizer.json from a repository for transformers, or convert the tokenizer to it")));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(std::string_view json, std::string_view name,
                                                               const TokenizerConfig& config) {
  LIME_ASSIGN_OR_RETURN(TokenizerJson parsed, ParsePythonJson(json, name, kMaxFileBytes));
  return FromParsedJson(std::move(parsed), name, config);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromSentencePiece(std::string_view bytes, std::string_view name,
                                                                        const TokenizerConfig& config) {
  TokenizerConfig completed = config;
  auto parts = PartsFromSentencePiece(bytes, completed);
  if (!parts.ok()) return WithName(name, parts.status());
  auto tokenizer = Create(*std::move(parts), completed);
  if (!tokenizer.ok()) return WithName(name, tokenizer.status());
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& model_dir) {
  const std::filesystem::path folder(model_dir);
  const auto find = [&](const char* name) { return FindModelFile((folder / name).string()); };
  LIME_ASSIGN_OR_RETURN(const bool has_json, find("tokenizer.json"));
  LIME_ASSIGN_OR_RETURN(const bool has_model, has_json ? false : find("tokenizer.model"));
  if (has_json || has_model) {
    const std::filesystem::path path = folder / (has_json ? "tokenizer.json" : "tokenizer.model");
    LIME_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
    LIME_ASSIGN_OR_RETURN(const TokenizerConfig config, LoadConfig(folder));
    return has_json ? FromJson(bytes, path.string(), config) : FromSentencePiece(bytes, path.string(), config);
  }
  LIME_ASSIGN_OR_RETURN(const bool has_vocab, find("vocab.json"));
  LIME_ASSIGN_OR_RETURN(const bool has_merges, find("merges.txt"));
  if (has_vocab && has_merges) return LoadVocabAndMerges(folder);
  return NoTokenizer(folder);
}

}  // namespace lime
