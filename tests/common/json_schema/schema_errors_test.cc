// Schemas that are refused, with the place of what is wrong.
#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "tests/common/json_schema/answers.h"

namespace lime::json_schema {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(JsonSchemaErrorsTest, OtherKeywordsAreRefusedWithTheirPlace) {
  EXPECT_EQ(Error(R"({"type": "array", "uniqueItems": true})"), "#/uniqueItems: this keyword is not supported; remove it");
  EXPECT_THAT(Error(R"({"type": "object", "properties": {"a/b~": {"not": {}}}})"), StartsWith("#/properties/a~1b~0/not: "));
  EXPECT_THAT(Error(R"({"anyOf": [{}, {"items": {"patternProperties": {}}}]})"), StartsWith("#/anyOf/1/items/patternProperties: "));
  EXPECT_THAT(Error(R"({"prefixItems": [{"if": {}}]})"), StartsWith("#/prefixItems/0/if: "));
  EXPECT_THAT(Error(R"({"$ref": "#/$defs/a", "$defs": {"a": {"additionalProperties": {"minProperties": 1}}}})"),
              StartsWith("#/$defs/a/additionalProperties/minProperties: "));
  EXPECT_EQ(
      Error(
          R"({"$comment": "c", "title": "t", "description": "d", "default": 1, "examples": [], "$schema": "s", "$id": "i", "deprecated": true, "readOnly": true})"),
      "");
}

TEST(JsonSchemaErrorsTest, ValuesOfKeywordsAreChecked) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type": "text"})", "#/type: \"text\" is no type"},
      {R"({"type": []})", "#/type: "},
      {R"({"type": ["string", 1]})", "#/type: 1 is no type"},
      {R"({"minLength": -1})", "#/minLength: "},
      {R"({"maxItems": 1.5})", "#/maxItems: "},
      {R"({"minItems": 9999999})", "#/minItems: is above "},
      {R"({"minimum": "1"})", "#/minimum: is not a number"},
      {R"({"exclusiveMinimum": true})", "#/exclusiveMinimum: is not a number"},
      {R"({"type": "number", "multipleOf": 0.01})", "#/multipleOf: only whole numbers from 1 to "},
      {R"({"multipleOf": 0})", "#/multipleOf: "},
      {R"({"format": "email"})", "#/format: the format \"email\" is not supported"},
      {R"({"pattern": 1})", "#/pattern: is not a string"},
      {R"({"enum": []})", "#/enum: is not a list of values"},
      {R"({"anyOf": []})", "#/anyOf: is not a list of schemas"},
      {R"({"allOf": [1]})", "#/allOf/0: is neither a schema nor true or false"},
      {R"({"properties": {"a": "string"}})", "#/properties/a: is neither a schema nor true or false"},
      {R"({"items": [{}]})", "#/items: is a list; name it prefixItems"},
      {R"({"required": "a"})", "#/required: is not a list of names"},
      {R"({"type": "object", "properties": {"a": {}}, "required": ["b"]})", "#/required: \"b\" is no property; add it to properties"},
      {R"({"$ref": "other.json"})", "#/$ref: only references into this schema (#/...) are supported"},
      {R"({"$ref": "#/$defs/a"})", "#/$ref: there is no #/$defs/a"},
      {R"({"allOf": [{"multipleOf": 2}, {"multipleOf": 3}]})", "#/allOf: two different values of multipleOf"},
      {"[]", "#: "},
      {"{", "#: "},
      {"", "#: "},
  };
  for (const auto& [schema, error] : cases) EXPECT_THAT(Error(schema), StartsWith(error)) << schema;
}

TEST(JsonSchemaErrorsTest, PatternsAreRegular) {
  const std::pair<const char*, const char*> cases[] = {{"(?=a)", "a group that is not regular"},
                                                       {"(a)\\\\1", "an escape that is not supported"},
                                                       {"a\\\\b", "an escape that is not supported"},
                                                       {"(a", "without its \")\""},
                                                       {"a)", "closes nothing"},
                                                       {"[a", "without its \"]\""},
                                                       {"[b-a]", "a range without order"},
                                                       {"*a", "a repeat of nothing"},
                                                       {"a{2,1}", "begins no number of repeats"},
                                                       {"a{1001}", "begins no number of repeats"},
                                                       {"^*", "an anchor that is repeated"},
                                                       {"\\\\p{L}", "not supported"}};
  for (const auto& [pattern, error] : cases) {
    const std::string schema = std::string(R"({"properties": {"a": {"pattern": ")") + pattern + "\"}}}";
    EXPECT_THAT(Error(schema), StartsWith("#/properties/a/pattern: the pattern has ")) << pattern;
    EXPECT_THAT(Error(schema), HasSubstr(error)) << pattern;
  }
}

TEST(JsonSchemaErrorsTest, BranchesOfOneOfMustExcludeEachOther) {
  EXPECT_THAT(Error(R"({"properties": {"x": {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 2}]}}})"),
              StartsWith("#/properties/x/oneOf: branch 1 and one before it may both hold"));
  EXPECT_THAT(Error(R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})"), StartsWith("#/oneOf: branch 1"));
  EXPECT_THAT(Error(R"({"oneOf": [{"const": "a"}, {"type": "null"}, {"type": "string"}]})"), StartsWith("#/oneOf: branch 2"));
  EXPECT_THAT(
      Error(R"({"oneOf": [{"type": "object", "properties": {"k": {"const": 1}}}, {"type": "object", "properties": {"k": {"const": 2}}}]})"),
      StartsWith("#/oneOf: branch 1"));
  EXPECT_THAT(Error(R"({"oneOf": [{"type": "string"}, {"properties": {"a": {}}}]})"), StartsWith("#/oneOf: branch 1"));
  EXPECT_EQ(
      Error(
          R"({"oneOf": [{"type": "object", "properties": {"k": {"const": 1}, "n": {"$ref": "#"}}, "required": ["k"]}, {"type": "object", "properties": {"n": {"$ref": "#"}, "k": {"enum": [2, 3]}}, "required": ["k"]}]})"),
      "");
}

TEST(JsonSchemaErrorsTest, SchemasWithoutAFiniteAnswerAreRefused) {
  const char* const error = "#: no answer of at most 64 levels has an end";
  EXPECT_EQ(Error(R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})"), error);
  EXPECT_EQ(Error(R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})"), error);
  EXPECT_EQ(Error(R"({"type": "integer", "minimum": 2, "maximum": 1})"), error);
  EXPECT_EQ(Error(R"({"type": "string", "minLength": 3, "maxLength": 2})"), error);
  EXPECT_EQ(Error(R"({"type": "string", "pattern": "^a$", "minLength": 2})"), error);
  EXPECT_EQ(Error(R"({"type": "string", "enum": [1, 2]})"), error);
  EXPECT_EQ(Error(R"({"type": "array", "items": false, "minItems": 1})"), error);
  EXPECT_THAT(Error(R"({"$ref": "#"})"), HasSubstr("refers to itself without a value between"));
  EXPECT_THAT(Error(R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})"), HasSubstr("refers to itself without a value between"));
  std::string deep = R"({"type": "null"})";
  std::string defs;
  for (int i = 0; i < 70; ++i)
    defs += (i > 0 ? "," : "") + std::string("\"d") + std::to_string(i) + R"(": {"type": "array", "minItems": 1, "items": )" +
            (i == 69 ? deep : R"({"$ref": "#/$defs/d)" + std::to_string(i + 1) + "\"}") + "}";
  EXPECT_EQ(Error(R"({"$ref": "#/$defs/d0", "$defs": {)" + defs + "}}"), error);
}

TEST(JsonSchemaErrorsTest, SizesAreBounded) {
  EXPECT_THAT(Error(R"({"description": ")" + std::string(70'000, 'x') + "\"}"), HasSubstr("is larger than 65536 bytes"));
  EXPECT_THAT(Error(R"({"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a|b)*a(a|b){14}$"}}})"),
              StartsWith("#/properties/a/pattern: the pattern needs "));
  EXPECT_THAT(Error(R"({"type": "string", "pattern": "^((a{1000}){1000}){1000}$"})"), StartsWith("#/pattern: the pattern needs "));
  EXPECT_THAT(Error(R"({"type": "string", "pattern": "a", "minLength": 100000})"), StartsWith("#/pattern: the string needs "));
  EXPECT_EQ(Error(R"({"type": "string", "maxLength": 100000})"), "");
  const auto nested = [](int levels) {
    std::string schema;
    for (int i = 0; i < levels; ++i) schema += R"({"items": )";
    return schema + "{}" + std::string(static_cast<size_t>(levels), '}');
  };
  EXPECT_EQ(Error(nested(40)), "");
  EXPECT_THAT(Error(nested(80)), HasSubstr("nests more than 64 levels deep"));
}

// "NAME0": schema, "NAME1": schema, ...
std::string Properties(const std::string& name, int count, const std::string& schema) {
  std::string properties;
  for (int i = 0; i < count; ++i) absl::StrAppend(&properties, i > 0 ? "," : "", "\"", name, i, "\":", schema);
  return properties;
}

// An object that has one of the properties NAME0, NAME1, ...
std::string AnyOf(const std::string& name, int count) {
  std::string any;
  for (int i = 0; i < count; ++i)
    absl::StrAppend(&any, i > 0 ? "," : "", R"({"type": "object", "properties": {")", name, i, R"(": {"type": "string"}}})");
  return absl::StrCat(R"({"anyOf": [)", any, "]}");
}

TEST(JsonSchemaErrorsTest, AlternativesThatMultiplyAreBounded) {
  const std::string wide = absl::StrCat(R"({"type": "object", "properties": {)", Properties("p", 500, "{}"), "}}");
  EXPECT_THAT(Error(absl::StrCat(R"({"allOf": [)", AnyOf("a", 16), ",", AnyOf("b", 16), ",", wide, "]}")),
              HasSubstr("have more than 100000 properties"));
  std::string variants;
  for (int i = 0; i < 200; ++i)
    absl::StrAppend(&variants, i > 0 ? "," : "", R"({"properties": {"k": {"const": )", i, R"(}}, "required": ["k"]})");
  EXPECT_EQ(Error(absl::StrCat(R"({"oneOf": [)", variants, "]}")), "");
  EXPECT_THAT(Error(absl::StrCat(R"({"type": "object", "properties": {)", Properties("p", 600, "{}"), R"(}, "oneOf": [)", variants, "]}")),
              HasSubstr("have more than 100000 properties"));
}

TEST(JsonSchemaErrorsTest, SchemasOfOneGrammarShareTheirWork) {
  const std::string costly = R"({"type": "string", "pattern": "^(a|b)*a(a|b){9}$"})";
  EXPECT_EQ(Error(costly), "");
  GrammarBuilder builder;
  absl::Status status;
  for (int i = 0; status.ok() && i < 1000; ++i) status = builder.AddSchema(costly).status();
  EXPECT_THAT(std::string(status.message()), StartsWith("#/pattern: the pattern needs too many states"));
  SchemaWork work;
  status = absl::OkStatus();
  for (int i = 0; status.ok() && i < 1000; ++i) status = CompileAnswer(costly, {.work = &work}).status();
  EXPECT_FALSE(status.ok());
}

TEST(JsonSchemaErrorsTest, TheMemoryOfAGrammarIsBounded) {
  // Each of 20 objects has 1000 properties.
  std::string branches;
  for (int i = 0; i < 20; ++i) absl::StrAppend(&branches, i > 0 ? "," : "", R"({"required": ["property_)", i, "\"]}");
  EXPECT_THAT(
      Error(absl::StrCat(R"({"type": "object", "properties": {)", Properties("property_", 1000, "{}"), R"(}, "anyOf": [)", branches, "]}")),
      HasSubstr("needs more than 4 MiB together with the rest of the schema"));
  const std::string recursive = absl::StrCat(R"({"type": "object", "properties": {)", Properties("p", 1000, R"({"$ref": "#"})"), "}}");
  const absl::StatusOr<GrammarPtr> grammar = CompileAnswer(recursive);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  EXPECT_EQ((*grammar)->values.size(), 1);  // references to one schema are one value
  EXPECT_LE((*grammar)->memory, kMaxGrammarBytes);
  EXPECT_EQ(Try(*grammar, R"({"p7":{"p999":{}},"p8":{}})"), "complete");
}

TEST(JsonSchemaErrorsTest, AVocabularyWithoutNeededBytesIsRefused) {
  ByteSet writable = ByteSet().set();
  writable.reset('t');
  const auto error = [&](const std::string& schema) {
    return std::string(CompileAnswer(schema, {.writable = writable}).status().message());
  };
  EXPECT_THAT(error(R"({"const": "text"})"), HasSubstr("has an end"));
  EXPECT_THAT(error(R"({"properties": {"t": {}}, "required": ["t"]})"), HasSubstr("has an end"));
  EXPECT_EQ(error(R"({"type": "boolean"})"), "");
  const GrammarPtr grammar = CompileAnswer(R"({"properties": {"t": {}, "b": {"type": "boolean"}}})", {.writable = writable}).value();
  EXPECT_EQ(Try(grammar, R"({"b":false})"), "complete");
  EXPECT_EQ(Try(grammar, R"({"b":true})"), "complete");  // by a token that holds the byte
  EXPECT_EQ(Try(grammar, R"({"t)"), "refused at 2");
}

}  // namespace
}  // namespace lime::json_schema
