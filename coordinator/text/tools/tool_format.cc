#include "coordinator/text/tools/tool_format.h"

#include <array>
#include <utility>

#include "coordinator/text/tools/harmony_header.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr std::array<std::pair<std::string_view, ToolSyntax>, 7> kNames = {{
    {"hermes", ToolSyntax::kHermes},
    {"qwen3-coder", ToolSyntax::kQwen3Coder},
    {"llama3", ToolSyntax::kLlama3},
    {"mistral", ToolSyntax::kMistral},
    {"glm", ToolSyntax::kGlm},
    {"minimax", ToolSyntax::kMiniMax},
    {"harmony", ToolSyntax::kHarmony},
}};

bool Holds(std::string_view source, std::string_view text) {
  return source.find(text) != std::string_view::npos;
}

// The order matters: a template for qwen3-coder or glm holds <tool_call> too.
std::optional<ToolSyntax> SyntaxOf(std::string_view source) {
  if (IsHarmonyTemplate(source)) return ToolSyntax::kHarmony;
  if (Holds(source, "<function=")) return ToolSyntax::kQwen3Coder;
  if (Holds(source, "<minimax:tool_call>")) return ToolSyntax::kMiniMax;
  if (Holds(source, "<arg_key>")) return ToolSyntax::kGlm;
  if (Holds(source, "[TOOL_CALLS]")) return ToolSyntax::kMistral;
  if (Holds(source, "<tool_call>")) return ToolSyntax::kHermes;
  const bool has_call = Holds(source, "<|python_tag|>") || Holds(source, "{\"name\":");
  if (Holds(source, "\"parameters\"") && has_call) return ToolSyntax::kLlama3;
  return std::nullopt;
}

}  // namespace

std::string_view ToolSyntaxName(ToolSyntax syntax) {
  for (const auto& [name, known] : kNames) {
    if (known == syntax) return name;
  }
  return "";
}

absl::StatusOr<std::optional<ToolSyntax>> ParseToolFormat(std::string_view value) {
  if (value == "auto") return std::optional<ToolSyntax>();
  for (const auto& [name, syntax] : kNames) {
    if (value == name) return std::optional(syntax);
  }
  return Invalid("--tool-format is \"", Text(value), "\"; it can be auto, hermes, qwen3-coder, llama3, mistral, glm, minimax or harmony");
}

ToolFormat FindToolFormat(std::string_view source, std::optional<ToolSyntax> wanted) {
  const std::optional<ToolSyntax> found = SyntaxOf(source);
  ToolFormat format;
  format.syntax = wanted.value_or(found.value_or(ToolSyntax::kHermes));
  format.stated = !found.has_value();
  format.args_marker = format.syntax == ToolSyntax::kMistral && Holds(source, "[ARGS]");
  return format;
}

bool IsCallMarkup(ToolSyntax syntax, std::string_view text) {
  switch (syntax) {
    case ToolSyntax::kLlama3:
      return text == "<|python_tag|>";
    case ToolSyntax::kMistral:
      return text == "[TOOL_CALLS]" || text == "[ARGS]" || text == "[CALL_ID]";
    case ToolSyntax::kGlm:
      return text == "<tool_call>" || text == "</tool_call>" || text == "<arg_key>" || text == "</arg_key>" || text == "<arg_value>" ||
             text == "</arg_value>";
    case ToolSyntax::kMiniMax:
      return text == "<minimax:tool_call>" || text == "</minimax:tool_call>";
    case ToolSyntax::kHarmony:
      return IsHarmonyMark(text);
    default:
      return text == "<tool_call>" || text == "</tool_call>";
  }
}

std::string NewCallId(ToolSyntax syntax, const std::function<uint64_t()>& random) {
  constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  const bool short_id = syntax == ToolSyntax::kMistral;
  std::string id = short_id ? "" : "call_";
  // Eight letters from each number: the bias of the remainder is below 2^-16.
  const size_t length = id.size() + (short_id ? 9 : 24);
  for (uint64_t bits = 0, used = 0; id.size() < length; ++used, bits /= kLetters.size()) {
    if (used % 8 == 0) bits = random();
    id.push_back(kLetters[bits % kLetters.size()]);
  }
  return id;
}

}  // namespace lime
