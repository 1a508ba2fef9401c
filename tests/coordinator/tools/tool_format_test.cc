#include "coordinator/text/tools/tool_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include "absl/strings/ascii.h"
#include "coordinator/text/tools/thinking.h"
#include "nlohmann/json.hpp"
#include "tests/skips.h"

namespace lime {
namespace {

TEST(ToolFormatTest, ATemplatesTextSaysItsSyntax) {
  EXPECT_EQ(FindToolFormat("...<tool_call>...").syntax, ToolSyntax::kHermes);
  EXPECT_EQ(FindToolFormat("<tool_call>\n<function=x>").syntax, ToolSyntax::kQwen3Coder);
  EXPECT_EQ(FindToolFormat("{\"name\": \"parameters\" \"parameters\": [TOOL_CALLS]"), (ToolFormat{.syntax = ToolSyntax::kMistral}));
  EXPECT_TRUE(FindToolFormat("[TOOL_CALLS]...[ARGS]").args_marker);
  EXPECT_EQ(FindToolFormat("<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>").syntax, ToolSyntax::kGlm);
  EXPECT_EQ(FindToolFormat("<|start|>assistant<|channel|>analysis<|message|> <tool_call>").syntax, ToolSyntax::kHarmony);
  EXPECT_EQ(FindToolFormat("'<minimax:tool_call>' <invoke name=\"").syntax, ToolSyntax::kMiniMax);
  EXPECT_EQ(FindToolFormat("'\"parameters\": ' ... {\"name\": function name").syntax, ToolSyntax::kLlama3);
  EXPECT_EQ(FindToolFormat("\"parameters\" <|python_tag|>").syntax, ToolSyntax::kLlama3);
}

TEST(ToolFormatTest, ATemplateWithoutToolsIsHermesAndStated) {
  EXPECT_EQ(FindToolFormat("{{ messages }}"), (ToolFormat{.syntax = ToolSyntax::kHermes, .stated = true}));
  EXPECT_EQ(FindToolFormat(""), (ToolFormat{.syntax = ToolSyntax::kHermes, .stated = true}));
  EXPECT_TRUE(FindToolFormat("\"parameters\"").stated);
  EXPECT_TRUE(FindToolFormat("<|python_tag|>").stated);
}

TEST(ToolFormatTest, TheFlagReplacesTheSyntax) {
  EXPECT_EQ(FindToolFormat("<tool_call>", ToolSyntax::kMistral), (ToolFormat{.syntax = ToolSyntax::kMistral}));
  EXPECT_EQ(FindToolFormat("", ToolSyntax::kLlama3), (ToolFormat{.syntax = ToolSyntax::kLlama3, .stated = true}));
  EXPECT_FALSE(FindToolFormat("[ARGS]", ToolSyntax::kHermes).args_marker);
}

TEST(ToolFormatTest, TheFlagNamesASyntax) {
  EXPECT_EQ(*ParseToolFormat("auto"), std::nullopt);
  for (const ToolSyntax syntax : {ToolSyntax::kHermes, ToolSyntax::kQwen3Coder, ToolSyntax::kLlama3, ToolSyntax::kMistral, ToolSyntax::kGlm,
                                  ToolSyntax::kMiniMax, ToolSyntax::kHarmony}) {
    EXPECT_EQ(*ParseToolFormat(ToolSyntaxName(syntax)), syntax);
  }
  EXPECT_EQ(ParseToolFormat("Hermes").status().message(),
            "--tool-format is \"Hermes\"; it can be auto, hermes, qwen3-coder, llama3, mistral, glm, minimax or harmony");
}

TEST(ToolFormatTest, ModelsTemplatesHaveTheirFormats) {
  struct Model {
    const char* file;
    ToolFormat format;
    bool thinks;
  };
  const std::filesystem::path folder = SharedDir() / "chat-templates";
  LIME_SKIP_WITHOUT_SHARED(folder);
  for (const Model& model : {
           Model{"Qwen-Qwen2.5-7B-Instruct", {ToolSyntax::kHermes}, false},
           Model{"Qwen-Qwen3-0.6B", {ToolSyntax::kHermes}, true},
           Model{"Qwen-QwQ-32B", {ToolSyntax::kHermes}, true},
           Model{"Qwen3-Coder", {ToolSyntax::kQwen3Coder}, false},
           Model{"Qwen3.5-4B", {ToolSyntax::kQwen3Coder}, true},
           Model{"meta-llama-Llama-3.1-8B-Instruct", {ToolSyntax::kLlama3}, false},
           Model{"meta-llama-Llama-3.2-3B-Instruct", {ToolSyntax::kLlama3}, false},
           Model{"meta-llama-Meta-Llama-3-8B-Instruct", {ToolSyntax::kHermes, true}, false},
           Model{"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", {ToolSyntax::kHermes, true}, true},
           Model{"microsoft-Phi-3.5-mini-instruct", {ToolSyntax::kHermes, true}, false},
       }) {
    std::ifstream file(folder / (std::string(model.file) + ".jinja"));
    const std::string source{std::istreambuf_iterator<char>(file), {}};
    ASSERT_FALSE(source.empty()) << model.file;
    EXPECT_EQ(FindToolFormat(source), model.format) << model.file;
    EXPECT_EQ(HasThinkEnd(source), model.thinks) << model.file;
  }
}

TEST(ToolFormatTest, MarkupOfASyntaxIsText) {
  EXPECT_TRUE(IsCallMarkup(ToolSyntax::kHermes, "<tool_call>"));
  EXPECT_FALSE(IsCallMarkup(ToolSyntax::kHermes, "<arg_key>"));
  for (const char* text : {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"})
    EXPECT_TRUE(IsCallMarkup(ToolSyntax::kGlm, text)) << text;
  EXPECT_TRUE(IsCallMarkup(ToolSyntax::kMiniMax, "<minimax:tool_call>"));
  EXPECT_TRUE(IsCallMarkup(ToolSyntax::kMiniMax, "</minimax:tool_call>"));
  EXPECT_FALSE(IsCallMarkup(ToolSyntax::kMiniMax, "<tool_call>"));
}

TEST(CallIdTest, IdsHaveTheFormOfTheSyntax) {
  uint64_t state = 1;
  const auto random = [&state] { return state = state * 6364136223846793005u + 1442695040888963407u; };
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) {
    for (const ToolSyntax syntax : {ToolSyntax::kHermes, ToolSyntax::kMistral}) {
      const std::string id = NewCallId(syntax, random);
      const bool mistral = syntax == ToolSyntax::kMistral;
      EXPECT_TRUE(mistral || id.starts_with("call_")) << id;
      EXPECT_EQ(id.size(), mistral ? 9u : 29u) << id;
      EXPECT_TRUE(std::ranges::all_of(id.substr(mistral ? 0 : 5), absl::ascii_isalnum)) << id;
      EXPECT_TRUE(ids.insert(id).second) << id;
    }
  }
}

TEST(CallIdTest, TheSameNumbersGiveTheSameId) {
  const auto zero = [] { return uint64_t{0}; };
  EXPECT_EQ(NewCallId(ToolSyntax::kLlama3, zero), "call_000000000000000000000000");
  EXPECT_EQ(NewCallId(ToolSyntax::kMistral, zero), "000000000");
}

}  // namespace
}  // namespace lime
