// Text around values: forced calls of tools.
#include <gmock/gmock.h>

#include "common/json_schema/answer_format.h"
#include "common/json_schema/token_masks.h"
#include "tests/common/json_schema/answers.h"
#include "tests/common/json_schema/vocabularies.h"

namespace lime::json_schema {
namespace {

using testing::ElementsAre;
using testing::StartsWith;

constexpr const char* kWeather = R"({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})";
constexpr const char* kClock = R"({"type": "object", "properties": {}})";

Framing Call(GrammarBuilder& builder, const std::string& name, const char* schema) {
  return Framing::Sequence(
      {Framing::Text("<call>{\"name\": \"" + name + "\", \"arguments\": "), builder.AddSchema(schema).value(), Framing::Text("}</call>")});
}

TEST(JsonFramingTest, OneOfSeveralCallsIsForced) {
  GrammarBuilder builder;
  const GrammarPtr grammar = builder.Build(Framing::OneOf({Call(builder, "weather", kWeather), Call(builder, "when", kClock)})).value();
  EXPECT_EQ(Try(grammar, R"(<call>{"name": "weather", "arguments": {"city": "Oslo"}}</call>)"), "complete");
  EXPECT_EQ(Try(grammar, R"(<call>{"name": "when", "arguments": {}}</call>)"), "complete");
  EXPECT_EQ(Try(grammar, R"(<call>{"name": "when", "arguments": {"c)"), "refused at 37");
  EXPECT_EQ(Try(grammar, R"(<call>{"name": "wx)"), "refused at 17");
  EXPECT_EQ(Try(grammar, R"({)"), "refused at 0");
  EXPECT_EQ(Try(grammar, R"(<call>{"name": "when", "arguments": {}}</call> )"), "refused at 46");
  EXPECT_EQ(grammar->LeastBytes(), 46);
}

TEST(JsonFramingTest, CallsMayRepeat) {
  GrammarBuilder builder;
  const Framing call =
      Framing::OneOf({Framing::Sequence({Framing::Text("a"), builder.AddSchema(R"({"type": "integer"})").value()}), Framing::Text("b")});
  const GrammarPtr grammar = builder
                                 .Build(Framing::Sequence({Framing::Text("["), Framing::Repeat(call, ", "), Framing::Text("]"),
                                                           Framing::Optional(Framing::Text("!"))}))
                                 .value();
  for (const char* text : {"[a1]", "[b]", "[a1, b, a22]", "[b, b]!"}) EXPECT_EQ(Try(grammar, text), "complete") << text;
  for (const char* text : {"[]", "[a]", "[a1,b]", "[b, ]", "[b]!!"}) EXPECT_NE(Try(grammar, text), "complete") << text;
  const GrammarPtr number = builder.Build(builder.AddSchema(R"({"type": "integer"})").value()).value();
  EXPECT_EQ(Try(number, "12"), "complete");
}

TEST(JsonFramingTest, TextGoesOnUntilItsEnd) {
  GrammarBuilder builder;
  const GrammarPtr grammar = builder.Build(Framing::Sequence({builder.AddTextUntil("</p>"), Framing::Text(".")})).value();
  for (const char* text : {"</p>.", "a {\"b\n</ </p </<</p>.", "\xF0\x9F\x98\x80</p>."}) EXPECT_EQ(Try(grammar, text), "complete") << text;
  for (const char* text : {"a</p>", "a</p></p>.", "\xF0\x9F</p>.", "\xA9</p>.", ""}) EXPECT_NE(Try(grammar, text), "complete") << text;
  const GrammarPtr overlaps = builder.Build(builder.AddTextUntil("abaab")).value();
  for (const char* text : {"abaab", "ababaab", "abaabaab"})
    EXPECT_EQ(Try(overlaps, text), std::string_view(text).size() == 8 ? "refused at 5" : "complete") << text;
}

TEST(JsonFramingTest, ParametersAreRawStringsOrJson) {
  GrammarBuilder builder;
  const std::string schema =
      R"({"type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F", 1]}, "days": {"type": "integer"},
      "code": {"type": "string", "pattern": "^[^x]{2}$"}, "tags": {"$ref": "#/$defs/t"}, "maybe": {"type": ["string", "null"]}}, "required": ["city"],
      "$defs": {"t": {"type": "array", "items": {"type": "string"}}}})";
  const std::vector<Parameter> parameters = builder.AddParameters(schema, "\n</p>").value();
  std::vector<std::string> names;
  std::vector<Framing> parts;
  for (const Parameter& parameter : parameters) {
    names.push_back(parameter.name + (parameter.is_required ? "!" : ""));
    const Framing part = Framing::Sequence({Framing::Text("<p=" + parameter.name + ">\n"), parameter.value});
    parts.push_back(parameter.is_required ? part : Framing::Optional(part));
  }
  EXPECT_THAT(names, ElementsAre("city!", "unit", "days", "code", "tags", "maybe"));
  const GrammarPtr grammar = builder.Build(Framing::Sequence(parts)).value();
  const std::string city = "<p=city>\nNew \"York\"\n</p>";
  for (const std::string text : {"", "<p=unit>\nC\n</p>", "<p=unit>\n1\n</p>", "<p=days>\n3\n</p><p=code>\na\"\n</p>",
                                 "<p=tags>\n[\"a\"]\n</p>", "<p=maybe>\nnull\n</p>", "<p=maybe>\nx\n</p>"})
    EXPECT_EQ(Try(grammar, city + text), "complete") << text;
  for (const std::string text : {"<p=unit>\n\"C\"\n</p>", "<p=unit>\nX\n</p>", "<p=days>\nx\n</p>", "<p=code>\nx1\n</p>",
                                 "<p=code>\n\n1\n</p>", "<p=days>\n3\n</p><p=unit>\nC\n</p>"})
    EXPECT_NE(Try(grammar, city + text), "complete") << text;
  EXPECT_THAT(std::string(builder.AddParameters(R"({"type": "string"})", "x").status().message()),
              StartsWith("#: is not of one kind of object"));
  EXPECT_THAT(std::string(builder.AddParameters(R"({"properties": {"a": {"not": {}}}})", "x").status().message()),
              StartsWith("#/properties/a/not: "));
}

TEST(JsonFramingTest, AFormatIsAGrammarAsText) {
  const auto format = [](const std::string& answer) {
    return R"({"schemas": [{"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}, "required": ["n"]}, {"type": "null"}], "answer": )" +
           answer + "}";
  };
  const auto match = [&](const std::string& answer, const std::string& text) {
    const absl::StatusOr<AnswerFormatPtr> compiled = CompileFormat(format(answer));
    return compiled.ok() ? Try((*compiled)->grammar, text) : std::string(compiled.status().message());
  };
  EXPECT_EQ(match(R"({"sequence": ["<a>", {"value": 0}, {"repeat": {"one_of": ["x", {"value": 1}]}, "between": "; "}, {"optional": "!"}]})",
                  R"(<a>{"n":1}x; null; x!)"),
            "complete");
  EXPECT_EQ(
      match(
          R"({"sequence": [{"parameter": "city", "of": 0, "until": "\n"}, {"parameter": "n", "of": 0, "until": "\n"}, {"until": "."}, {"object": true}]})",
          "Oslo\n12\nab.{}"),
      "complete");
  EXPECT_EQ(match(R"({"value": 2})", ""), "the format of the answer: the number of a schema is wrong");
  EXPECT_EQ(match(R"({"one_of": []})", ""), "the format of the answer: a list of answers is empty, or no list");
  EXPECT_EQ(match(R"({"what": 1})", ""), "the format of the answer: an answer is of no kind");
  EXPECT_EQ(match(R"({"until": ""})", ""), "the format of the answer: until is missing or no text");
  EXPECT_EQ(match(R"({"until": ")" + std::string(257, 'x') + "\"}", ""), "the format of the answer: until is longer than 256 bytes");
  EXPECT_EQ(match(R"({"parameter": "x", "of": 0, "until": "."})", ""), "the format of the answer: there is no such parameter");
  EXPECT_THAT(std::string(CompileFormat(R"({"schemas": [{}, {"not": 1}], "answer": {"value": 1}})").status().message()),
              StartsWith("schema 1 at #/not: "));
  EXPECT_THAT(std::string(CompileFormat("{").status().message()), StartsWith("the format of the answer: is not valid JSON"));
}

TEST(JsonFramingTest, SpecialTokensWriteTextsOutsideOfJsonAlone) {
  const VocabularyPtr vocabulary = SmallVocabulary();
  const auto special = static_cast<size_t>(vocabulary->special_ids()[0]);
  TokenMasks masks(vocabulary);
  std::vector<uint64_t> bits(masks.Words());
  GrammarBuilder builder;
  Matcher matcher(builder
                      .Build(Framing::Sequence(
                          {Framing::Text("<call>"), Framing::OneOf({builder.AddSchema(kWeather).value(), builder.AddTextUntil("!")})}))
                      .value());
  const auto is_allowed = [&] {
    masks.Write(matcher, 1000, bits);
    return (bits[special / 64] >> (special % 64) & 1) != 0;
  };
  EXPECT_TRUE(is_allowed());
  ASSERT_TRUE(matcher.Advance("<call>"));
  EXPECT_FALSE(is_allowed());
  ASSERT_TRUE(matcher.Advance("{\"city\": \""));
  EXPECT_FALSE(is_allowed());
}

TEST(JsonFramingTest, EndTokensComeExactlyWhenTheAnswerIsComplete) {
  const VocabularyPtr vocabulary = SmallVocabulary();
  const auto end = static_cast<size_t>(vocabulary->end_ids()[0]);
  TokenMasks masks(vocabulary);
  std::vector<uint64_t> bits(masks.Words());
  Matcher matcher(CompileAnswer(R"({"type": ["integer", "boolean"]})").value());
  const auto is_allowed = [&] {
    masks.Write(matcher, 1000, bits);
    return (bits[end / 64] >> (end % 64) & 1) != 0;
  };
  EXPECT_FALSE(is_allowed());
  ASSERT_TRUE(matcher.Advance("1"));
  EXPECT_TRUE(is_allowed());
  EXPECT_TRUE((bits['2' / 64] >> ('2' % 64) & 1) != 0);
  ASSERT_TRUE(matcher.Advance("2"));
  EXPECT_TRUE(is_allowed());
  EXPECT_FALSE(matcher.Advance("t"));
  EXPECT_TRUE(matcher.IsComplete());
}

// So an answer behind a thought needs one token more than the answer alone, not eight.
TEST(JsonFramingTest, WhatEndsATextCountsAsOneByteIfItIsAToken) {
  std::vector<TokenText> tokens;
  tokens.reserve(260);
  for (int byte = 0; byte < 256; ++byte) tokens.push_back({std::string(1, static_cast<char>(byte))});
  tokens.push_back({"</think>"});
  tokens.push_back({"</think>1"});
  tokens.push_back({"", TokenUse::kEnd});
  const auto vocabulary = std::make_shared<const Vocabulary>(tokens);
  const char* const text = R"({"schemas": [{"const": 12}], "answer": {"sequence": [{"until": "</think>"}, {"value": 0}]}})";
  EXPECT_EQ(CompileFormat(text, {.writable = vocabulary->single_bytes()}).value()->grammar->LeastBytes(), 10);
  const AnswerFormatPtr format = CompileFormat(text, GrammarOptions::For(*vocabulary)).value();
  EXPECT_EQ(format->grammar->LeastBytes(), 3);
  Matcher matcher(format->grammar);
  ASSERT_TRUE(matcher.Advance("ab</"));
  EXPECT_EQ(matcher.LeastBytes(), 3);
  ASSERT_TRUE(matcher.Advance("\xC3"));
  EXPECT_EQ(matcher.LeastBytes(), 4) << "a character has to end first";
  ASSERT_TRUE(matcher.Advance("\xA9"));
  TokenMasks masks(vocabulary);
  std::vector<uint64_t> bits(masks.Words());
  masks.Write(matcher, 4, bits);
  EXPECT_THAT(bits, ElementsAre(0, 0, 0, 0, 0b11)) << "the tokens 256 and 257";
  masks.Write(matcher, 5, bits);
  EXPECT_NE(bits[1], 0) << "a letter may come";
}

TEST(JsonFramingTest, CachedMasksKeepNoGrammar) {
  TokenMasks masks(SmallVocabulary());
  std::vector<uint64_t> bits(masks.Words());
  std::weak_ptr<const Grammar> grammar;
  {
    Matcher matcher(CompileAnswer(kWeather).value());
    grammar = matcher.grammar();
    ASSERT_TRUE(matcher.Advance("{\"city\": \"O"));
    masks.Write(matcher, 1000, bits);
  }
  EXPECT_TRUE(grammar.expired());
}

}  // namespace
}  // namespace lime::json_schema
