#include "coordinator/cli/model_files.h"

#include <cstdio>

#include "absl/strings/str_format.h"
#include "common/input/model_file.h"
#include "coordinator/cli/command.h"
#include "coordinator/text/encode_prompt.h"
#include "coordinator/text/jinja/chat_template.h"
#include "daemon/machine/files.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/unused_tensors.h"
#include "planner/base/json_text.h"
#include "planner/plan/model/token_ids.h"

namespace lime::cli {
namespace {

using nlohmann::json;

// eos_token_id of generation_config.json: one id or several. Empty if the file or the field is
// missing.
absl::StatusOr<std::vector<int32_t>> GenerationEndTokens(const std::string& dir) {
  const std::string path = dir + "/generation_config.json";
  LIME_ASSIGN_OR_RETURN(const auto text, ReadOptional(path, kMaxJsonBytes));
  if (!text.has_value()) return std::vector<int32_t>();
  LIME_ASSIGN_OR_RETURN(const json root, ParsePythonJsonObject(*text, path));
  return ParseTokenIds(root, "eos_token_id", path);
}

absl::Status MentionUnused(const Checkpoint& checkpoint, const ModelSpec& spec) {
  LIME_ASSIGN_OR_RETURN(const std::vector<std::string> sentences, DescribeUnused(checkpoint, spec));
  for (const std::string& sentence : sentences) absl::FPrintF(stderr, "lime: %s: %s\n", checkpoint.dir(), sentence);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::optional<std::string>> ReadOptional(const std::string& path, Bytes limit) {
  LIME_ASSIGN_OR_RETURN(const bool is_here, FindModelFile(path));
  if (!is_here) return std::nullopt;
  return ReadTextFile(path, limit);
}

absl::Status CheckWeights(const std::string& dir) {
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(dir));
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, checkpoint.BuildModelSpec());
  return MentionUnused(checkpoint, spec);
}

absl::StatusOr<ModelTemplate> ReadModelTemplate(const std::string& dir) {
  const std::string path = dir + "/tokenizer_config.json";
  LIME_ASSIGN_OR_RETURN(const auto file, ReadOptional(dir + "/chat_template.jinja", jinja::kMaxTemplateBytes));
  LIME_ASSIGN_OR_RETURN(const auto text, ReadOptional(path, kMaxJsonBytes));
  json config;
  if (text.has_value()) {
    LIME_ASSIGN_OR_RETURN(config, ParsePythonJsonObject(*text, path));
  }
  auto found = FindModelTemplate(file, config);
  if (!found.ok()) return Invalid(path, ": ", found.status().message());
  return found;
}

absl::StatusOr<ModelFiles> ModelFiles::Open(const std::string& dir, bool with_text) {
  LIME_RETURN_IF_ERROR(CheckModelFolder(dir));
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(dir));
  ModelFiles files;
  LIME_ASSIGN_OR_RETURN(files.spec, checkpoint.BuildModelSpec());
  LIME_RETURN_IF_ERROR(MentionUnused(checkpoint, files.spec));
  if (!with_text) return files;
  LIME_ASSIGN_OR_RETURN(files.tokenizer, Tokenizer::Load(dir));
  LIME_ASSIGN_OR_RETURN(files.end_tokens, GenerationEndTokens(dir));
  if (files.end_tokens.empty()) files.end_tokens = files.spec.config.eos_token_ids;
  if (files.end_tokens.empty() && files.tokenizer->eos_id()) files.end_tokens = {*files.tokenizer->eos_id()};
  return files;
}

std::optional<int32_t> ModelFiles::bos() const {
  return tokenizer->bos_id() ? tokenizer->bos_id() : spec.config.bos_token_id;
}

absl::StatusOr<std::vector<int32_t>> ModelFiles::EncodePrompt(std::string_view text) const {
  return lime::EncodePrompt(*tokenizer, text, bos(), spec.config.vocab_size);
}

}  // namespace lime::cli
