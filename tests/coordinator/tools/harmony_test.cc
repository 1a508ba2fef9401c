// Answers of gpt-oss: messages on channels, and calls in them, cut at every byte.
#include "coordinator/text/tools/harmony_header.h"
#include "coordinator/text/tools/harmony_messages.h"
#include "coordinator/text/tools/harmony_splitter.h"
#include "nlohmann/json.hpp"
#include "tests/coordinator/jinja/render.h"
#include "tests/coordinator/tools/parse_calls.h"

namespace lime {
namespace {

using HarmonyJson = nlohmann::ordered_json;

std::string SplitCut(std::string_view text, const SplitterOptions& options, const Cuts& cuts) {
  std::string reasoning, content;
  const auto splitter = MakeAnswerSplitter(options);
  for (const size_t size : cuts) {
    splitter->Push(text.substr(0, size), reasoning, content);
    text.remove_prefix(std::min(size, text.size()));
  }
  splitter->Push(text, reasoning, content);
  splitter->Finish(reasoning, content);
  return reasoning + "|" + content;
}

// "REASONING|CONTENT", the same for every cut into two and for single bytes.
std::string Divided(std::string_view text, SplitterOptions options = {}) {
  if (options.start == ThinkingStart::kOff) options.start = ThinkingStart::kHarmony;
  const std::string whole = SplitCut(text, options, {});
  EXPECT_EQ(SplitCut(text, options, Cuts(text.size(), 1)), whole) << text;
  for (size_t cut = 1; cut < text.size(); ++cut) EXPECT_EQ(SplitCut(text, options, {cut}), whole) << text << " cut at " << cut;
  return whole;
}

// "REASONING|" and what the parser finds in the content.
std::string Answer(std::string_view text) {
  const std::string divided = Divided(text, {.keeps_calls = true});
  const size_t bar = divided.find('|');
  return divided.substr(0, bar + 1) + Parse(ToolSyntax::kHarmony, divided.substr(bar + 1));
}

constexpr std::string_view kAnalysis = "<|channel|>analysis<|message|>Well.<|end|><|start|>assistant";

std::string Behind(std::string_view text) {
  return std::string(kAnalysis) + std::string(text);
}

TEST(HarmonyHeaderTest, AHeaderHasAChannelAndARecipient) {
  const auto read = [](std::string_view text) {
    const HarmonyHeader header = ReadHarmonyHeader(text);
    return std::string(header.channel) + "," + std::string(header.recipient) + "," + std::string(header.Function());
  };
  EXPECT_EQ(read("<|channel|>final"), "final,,");
  EXPECT_EQ(read("<|channel|>commentary to=functions.f <|constrain|>json"), "commentary,functions.f,f");
  EXPECT_EQ(read("assistant to=functions.a.b<|channel|>commentary json"), "commentary,functions.a.b,a.b");
  EXPECT_EQ(read("assistant<|channel|>analysis to=python code"), "analysis,python,");
  EXPECT_EQ(read("<|channel|>commentary into=functions.f"), "commentary,,");
  EXPECT_EQ(read("<|constrain|>to=functions.f"), ",functions.f,f");
  EXPECT_EQ(read(""), ",,");
}

TEST(HarmonySplitterTest, AnalysisIsReasoningAndFinalIsContent) {
  EXPECT_EQ(Divided(Behind("<|channel|>final<|message|>Hello")), "Well.|Hello");
  EXPECT_EQ(Divided(Behind("<|channel|>final<|message|>Hello<|return|>")), "Well.|Hello");
  EXPECT_EQ(Divided("<|channel|>final<|message|>Hello"), "|Hello");
  EXPECT_EQ(Divided("<|start|>assistant<|channel|>final<|message|>Hello"), "|Hello");
  EXPECT_EQ(Divided("<|channel|>final <|constrain|>json<|message|>{}"), "|{}");
}

TEST(HarmonySplitterTest, MessagesMayAlternate) {
  EXPECT_EQ(Divided(Behind("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>"
                           "<|start|>assistant<|channel|>final<|message|>Yes")),
            "Well.\n\nHm.|I look.\n\nYes");
}

TEST(HarmonySplitterTest, TheNextHeaderEndsAMessage) {
  EXPECT_EQ(Divided("<|channel|>analysis<|message|>Well.<|start|>assistant<|channel|>final<|message|>Yes"), "Well.|Yes");
  EXPECT_EQ(Divided("<|channel|>analysis<|message|>Well.<|channel|>final<|message|>Yes"), "Well.|Yes");
  EXPECT_EQ(Divided("<|channel|>analysis<|message|>Well.<|end|><|channel|>final<|message|>Yes"), "Well.|Yes");
  EXPECT_EQ(Divided("<|channel|>analysis<|message|>Well.<|end|>\n<|start|>assistant<|channel|>final<|message|>Yes"), "Well.|Yes");
}

TEST(HarmonySplitterTest, TextWithoutAHeaderIsContent) {
  for (const std::string text : {"Hello", "<", "<|", "to", "<b>", "t", " tomorrow", "<|chan|>", "<|channel", "<<|x"})
    EXPECT_EQ(Divided(text), "|" + text);
  EXPECT_EQ(Divided(Behind("Hello")).substr(0, 6), "Well.|");
  EXPECT_EQ(Divided("<|channel|>final<|message|>a <|cha b <"), "|a <|cha b <");
  const std::string no_header = "<|channel|>" + std::string(300, 'x');
  EXPECT_EQ(Divided(no_header), "|" + no_header);
}

TEST(HarmonySplitterTest, AHeaderThatBreaksOffIsDropped) {
  EXPECT_EQ(Divided("<|channel|>ana"), "|");
  EXPECT_EQ(Divided("<|channel|>analysis<|message|>Well.<|end|><|start|>assist"), "Well.|");
  EXPECT_EQ(Divided("<|channel|>final<|end|><|start|>assistant<|channel|>final<|message|>Yes"), "|Yes");
}

TEST(HarmonySplitterTest, WithReasoningOffItIsContent) {
  EXPECT_EQ(Divided(Behind("<|channel|>final<|message|>Hello"), {.divides = false}), "|Well.\n\nHello");
}

TEST(HarmonySplitterTest, APromptMayHaveOpenedTheFinalMessage) {
  EXPECT_EQ(Divided("lo<|return|>", {.start = ThinkingStart::kHarmonyContent}), "|lo");
}

TEST(HarmonySplitterTest, WithoutFunctionsACallIsItsArguments) {
  EXPECT_EQ(Divided(Behind("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>")), "Well.|{}");
}

TEST(HarmonySplitterTest, ContentBeginsBehindItsHeader) {
  HarmonySplitter splitter({.start = ThinkingStart::kHarmony});
  std::string reasoning, content;
  const auto is_over = [&](std::string_view text) {
    splitter.Push(text, reasoning, content);
    return splitter.is_over();
  };
  EXPECT_FALSE(is_over("<|channel|>"));
  EXPECT_FALSE(is_over("analysis<|message|>"));
  EXPECT_FALSE(is_over("x<|end|>"));
  EXPECT_FALSE(is_over("<|start|>assistant<|channel|>final"));
  EXPECT_TRUE(is_over("<|message|>"));
  EXPECT_TRUE(is_over("Hi"));
  EXPECT_EQ(content, "Hi");
}

TEST(HarmonyCallsTest, ACallIsAMessageToAFunction) {
  EXPECT_EQ(Answer(Behind("<|channel|>commentary to=functions.add <|constrain|>json<|message|>{\"a\": 1}<|call|>")),
            "Well.|add({\"a\": 1})");
  EXPECT_EQ(Answer(Behind("<|channel|>commentary to=functions.add <|constrain|>json<|message|>{\"a\": 1}")), "Well.|add({\"a\": 1})");
  EXPECT_EQ(Answer(Behind(" to=functions.add<|channel|>commentary json<|message|>{\"a\": \"}<\"}<|call|>")), "Well.|add({\"a\": \"}<\"})");
  EXPECT_EQ(Answer(" to=functions.add<|channel|>commentary<|message|> {} "), "|add({})");
  EXPECT_EQ(Answer("<|channel|>analysis to=functions.add code<|message|>{}<|call|>"), "|add({})");
}

TEST(HarmonyCallsTest, APreambleIsContentAndCallsMayFollowEachOther) {
  EXPECT_EQ(
      Answer(Behind("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
                    "<|constrain|>json<|message|>{}<|call|><|start|>assistant<|channel|>commentary to=functions.g<|message|>{\"b\":[]}")),
      "Well.|'I look.'f({})g({\"b\":[]})");
}

TEST(HarmonyCallsTest, OtherRecipientsAreNoFunctions) {
  EXPECT_EQ(Answer("<|channel|>analysis to=python code<|message|>1+1<|call|>"), "1+1|");
  EXPECT_EQ(Answer("<|channel|>commentary to=browser.search<|message|>{}<|call|>"), "|'{}'");
}

TEST(HarmonyCallsTest, ACallThatBreaksIsIncomplete) {
  EXPECT_EQ(Answer("<|channel|>commentary to=functions.f<|message|>{\"a\": "), "|f({\"a\": !");
  EXPECT_EQ(Answer("<|channel|>commentary to=functions.f<|message|>{\"a\": x}"), "|f({\"a\": !'x}'");
  EXPECT_EQ(Answer("<|channel|>commentary to=functions.f<|message|>{\"a\": <|channel|>final<|message|>Yes"),
            "|f({\"a\": !'<|end|>\n\nYes'");
}

TEST(HarmonyCallsTest, WhatDoesNotParseIsContentAsItCame) {
  for (const std::string text : {
           "<|channel|>commentary to=functions.f<|message|>text",
           "<|channel|>commentary to=functions.f<|message|>",
           "<|channel|>commentary to=functions. <|message|>{}",
           "<|channel|>commentary to=functions.a$b<|message|>{}",
           "<|channel|>commentary to=functions.f",
           "to=functions.f",
           "to=functions.f is a recipient",
           "<|channel|>final<|message|>{}",
       }) {
    EXPECT_EQ(Parse(ToolSyntax::kHarmony, text), "'" + text + "'");
  }
}

TEST(HarmonyCallsTest, RandomMarksLoseNoCut) {
  const std::vector<std::string> parts = {"<|start|>",
                                          "<|channel|>",
                                          "<|message|>",
                                          "<|constrain|>",
                                          "<|end|>",
                                          "<|return|>",
                                          "<|call|>",
                                          "assistant",
                                          "analysis",
                                          "commentary",
                                          "final",
                                          " ",
                                          "\n",
                                          "to=functions.f",
                                          "{\"a\": ",
                                          "}",
                                          "{}",
                                          "<|",
                                          "<",
                                          "text",
                                          "é"};
  for (uint64_t seed = 0; seed < 400; ++seed) {
    uint64_t state = seed * 2654435761u + 1;
    const auto below = [&state](size_t bound) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      return (state >> 33) % bound;
    };
    std::string text;
    for (size_t i = below(14); i > 0; --i) text += parts[below(parts.size())];
    Answer(text);
    Divided(text);
    if (HasFailure()) return;
  }
}

// The shape of gpt-oss's template: what it reads of a message, and what it refuses.
constexpr const char* kHarmonyTemplate = R"({%- set last = namespace(name=none) -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' and 'tool_calls' in m -%}
{%- if m.content and m.thinking -%}{{ raise_exception('both') }}{%- endif -%}
{%- if m.thinking -%}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{%- endif -%}
{%- set last.name = m.tool_calls[0].function.name -%}
<|start|>assistant to=functions.{{ last.name }}<|channel|>commentary json<|message|>{{ m.tool_calls[0].function.arguments | tojson }}<|call|>
{%- elif m.role == 'assistant' -%}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>
{%- elif m.role == 'tool' -%}<|start|>functions.{{ last.name }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>
{%- else -%}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%})";

HarmonyJson History() {
  const HarmonyJson f = {{"id", "1"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", {{"a", 1}}}}}};
  const HarmonyJson g = {{"id", "2"}, {"type", "function"}, {"function", {{"name", "g"}, {"arguments", HarmonyJson::object()}}}};
  return {{"messages",
           {{{"role", "user"}, {"content", "Hi"}},
            {{"role", "assistant"}, {"content", "I look."}, {"reasoning_content", "Well."}, {"tool_calls", {f, g}}},
            {{"role", "tool"}, {"tool_call_id", "2"}, {"content", "two"}},
            {{"role", "tool"}, {"tool_call_id", "1"}, {"content", "one"}},
            {{"role", "assistant"}, {"content", "Done"}, {"reasoning_content", "So."}}}},
          {"add_generation_prompt", true}};
}

TEST(HarmonyMessagesTest, EachCallHasItsMessageAndItsResult) {
  HarmonyJson variables = History();
  AdaptToHarmony(variables);
  EXPECT_EQ(RenderJson(kHarmonyTemplate, variables),
            "<|start|>user<|message|>Hi<|end|>"
            "<|start|>assistant<|channel|>analysis<|message|>Well.\n\nI look.<|end|>"
            "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}<|call|>"
            "<|start|>functions.f to=assistant<|channel|>commentary<|message|>\"one\"<|end|>"
            "<|start|>assistant to=functions.g<|channel|>commentary json<|message|>{}<|call|>"
            "<|start|>functions.g to=assistant<|channel|>commentary<|message|>\"two\"<|end|>"
            "<|start|>assistant<|channel|>final<|message|>Done<|end|><|start|>assistant");
  EXPECT_EQ(variables["messages"].back()["thinking"], "So.");
}

TEST(HarmonyMessagesTest, AMessageHasNoEmptyFieldsBesideItsCall) {
  HarmonyJson variables = History();
  variables["messages"][1]["content"] = nullptr;
  variables["messages"][1].erase("reasoning_content");
  AdaptToHarmony(variables);
  EXPECT_FALSE(variables["messages"][1].contains("content"));
  EXPECT_FALSE(variables["messages"][1].contains("thinking"));
}

TEST(HarmonyMessagesTest, ResultsOfUnknownCallsStayBehindTheLast) {
  HarmonyJson variables = History();
  variables["messages"][2]["tool_call_id"] = "9";
  AdaptToHarmony(variables);
  ASSERT_EQ(variables["messages"].size(), 6u);
  EXPECT_EQ(variables["messages"][4]["content"], "two");
}

TEST(HarmonyMessagesTest, FunctionsHaveADescription) {
  HarmonyJson variables = History();
  variables["tools"] = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  AdaptToHarmony(variables);
  EXPECT_EQ(variables["tools"][0]["function"]["description"], "");
}

// What the template writes of an assistant is what the reader finds in it.
TEST(HarmonyMessagesTest, CallsInTheHistoryAreReadBack) {
  HarmonyJson variables = History();
  variables["messages"].erase(variables["messages"].begin() + 2, variables["messages"].end());
  variables["messages"][1]["tool_calls"].erase(1);
  variables["add_generation_prompt"] = false;
  AdaptToHarmony(variables);
  const std::string prompt = "<|start|>user<|message|>Hi<|end|><|start|>assistant";
  const std::string text = RenderJson(kHarmonyTemplate, variables);
  ASSERT_TRUE(text.starts_with(prompt)) << text;
  EXPECT_EQ(Answer(text.substr(prompt.size())), "Well.\n\nI look.|f({\"a\": 1})");
}

}  // namespace
}  // namespace lime
