#include "coordinator/cli/served_model_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "coordinator/cli/command.h"
#include "coordinator/text/jinja/chat_template.h"
#include "coordinator/text/tools/thinking.h"
#include "coordinator/text/tools/tool_format.h"
#include "daemon/machine/files.h"
#include "daemon/stores/weights_digest.h"
#include "planner/base/json_text.h"
#include "planner/plan/model/model_spec.h"

namespace lime::cli {
namespace {

// Weights of all tensors, each once: what a packed tensor stands for, not its words.
int64_t CountParameters(const ModelSpec& spec) {
  std::set<std::pair<std::string_view, Bytes>> seen;  // by name and offset: a tensor may have rows of several matrices
  int64_t count = 0;
  for (const BlockSpec& block : spec.blocks) {
    for (const TensorSpec& tensor : block.tensors) {
      const bool is_weight = tensor.part == TensorPart::kWeight || tensor.part == TensorPart::kBias;
      if (!is_weight || !seen.emplace(tensor.name, tensor.offset).second) continue;
      const bool is_packed = tensor.part == TensorPart::kWeight && block.Find(tensor.role, TensorPart::kScales, tensor.expert).has_value();
      int64_t values = 1;
      for (const int64_t size : tensor.info.shape) values *= size;
      count +=
          is_packed && spec.config.quantization ? values * 8 * ElementBytes(tensor.info.dtype) / spec.config.quantization->bits : values;
    }
  }
  return count;
}

std::string ParameterSize(int64_t parameters) {
  const auto count = static_cast<double>(parameters);
  if (count >= 1e9) return absl::StrFormat("%.1fB", count / 1e9);
  return count >= 1e6 ? absl::StrFormat("%.1fM", count / 1e6) : absl::StrFormat("%.1fK", count / 1e3);
}

// Seconds of Unix time; 0 if the file cannot be seen.
int64_t ChangedAt(const std::string& path) {
  struct stat seen = {};
  return stat(path.c_str(), &seen) == 0 ? seen.st_mtime : 0;
}

// "Q4", "MXFP4", "FP8", or the dtype of the weights.
std::string QuantizationLevel(const ModelSpec& spec) {
  const std::optional<Quantization>& packed = spec.config.quantization;
  if (!packed) return std::string(DTypeName(spec.working_dtype));
  if (packed->code == WeightCode::kAffine) return absl::StrFormat("Q%d", packed->bits);
  return packed->code == WeightCode::kMxfp4 ? "MXFP4" : "FP8";
}

ListedModel Listed(const ModelWeights& weights, const ServedModelFlags& flags) {
  const ModelSpec& spec = weights.spec;
  const int64_t parameters = CountParameters(spec);
  return {.id = flags.name.empty() ? weights.digest.model : flags.name,
          .created = ChangedAt(weights.folder + "/config.json"),
          .architecture = absl::AsciiStrToLower(spec.config.architecture.substr(0, spec.config.architecture.find("For"))),
          .parameter_size = ParameterSize(parameters),
          .quantization = QuantizationLevel(spec),
          .digest = absl::StrFormat("%064x", WeightsXxh3(weights.digest)),
          .bytes = spec.WeightBytes(),
          .parameters = parameters};
}

absl::StatusOr<ModelTemplate> TemplateOf(const std::string& folder, const std::string& flag) {
  LIME_ASSIGN_OR_RETURN(ModelTemplate found, ReadModelTemplate(folder));
  if (flag == "auto") return found;
  found.source.clear();
  found.with_tools.clear();
  if (flag == "plain") return found;
  absl::StatusOr<std::string> text = ReadNamedText(flag, jinja::kMaxTemplateBytes);
  if (!text.ok()) return WrongCall(absl::StrCat("--chat-template: ", std::string(text.status().message())));
  if (const auto parsed = ChatTemplate::Parse(*text); !parsed.ok())
    return WrongCall(absl::StrCat("--chat-template ", AsTyped(flag), ": ", std::string(parsed.status().message())));
  found.source = *std::move(text);
  return found;
}

absl::StatusOr<SamplingDefaults> DefaultsOf(const std::string& folder) {
  const std::string path = folder + "/generation_config.json";
  LIME_ASSIGN_OR_RETURN(const auto text, ReadOptional(path, kMaxJsonBytes));
  return text ? ParseSamplingDefaults(*text, path) : SamplingDefaults();
}

}  // namespace

void ServedModelFlags::AddTo(const CommandFlags& command) {
  command.Add("--name", &name, "Id of the model for clients; without the flag, the name of its folder");
  command.Add("--alias", &aliases, "Another id of the model; may be given several times").Repeats();
  command.Add("--chat-template", &chat_template, "auto (the model's), plain (the texts of the messages), or a file with a template")
      .Shown();
  command
      .Add("--tool-format", &tool_format,
           "Syntax of calls: auto (by the template), hermes, qwen3-coder, llama3, mistral, glm, minimax or harmony")
      .Shown();
  command.Add("--reasoning", &reasoning, "auto divides the thinking from the answer, off leaves it there").Shown();
}

absl::StatusOr<std::unique_ptr<ServedModel>> OpenServedModel(const ModelWeights& weights, ModelFiles& files,
                                                             const ServedModelFlags& flags) {
  ServedModel::Options options = {.listed = Listed(weights, flags),
                                  .aliases = flags.aliases,
                                  .bos = files.bos(),
                                  .end_tokens = files.end_tokens,
                                  .vocab_size = files.spec.config.vocab_size,
                                  .short_positions = files.spec.config.short_positions()};
  const auto syntax = ParseToolFormat(flags.tool_format);
  if (!syntax.ok()) return WrongCall(std::string(syntax.status().message()));
  const auto reasoning = ParseReasoning(flags.reasoning);
  if (!reasoning.ok()) return WrongCall(std::string(reasoning.status().message()));
  options.syntax = *syntax;
  options.divides_thinking = *reasoning;
  LIME_ASSIGN_OR_RETURN(options.chat_template, TemplateOf(weights.folder, flags.chat_template));
  LIME_ASSIGN_OR_RETURN(options.defaults, DefaultsOf(weights.folder));
  options.tokenizer = std::move(files.tokenizer);
  return ServedModel::Create(std::move(options));
}

}  // namespace lime::cli
