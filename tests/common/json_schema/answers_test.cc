// Schemas with texts that are answers and texts that are none, byte for byte.
#include "tests/common/json_schema/answers.h"

#include <gmock/gmock.h>

#include <vector>

namespace lime::json_schema {
namespace {

struct AnswerCase {
  std::string schema;
  std::vector<std::string> answers;
  std::vector<std::string> others;
};

void Check(const std::vector<AnswerCase>& cases) {
  for (const AnswerCase& c : cases) {
    for (const std::string& text : c.answers) EXPECT_EQ(Try(c.schema, text), "complete") << c.schema << "\n" << text;
    for (const std::string& text : c.others) EXPECT_NE(Try(c.schema, text), "complete") << c.schema << "\n" << text;
    EXPECT_EQ(Error(c.schema), "") << c.schema;
  }
}

TEST(JsonAnswersTest, TypesAreThoseOfTheSchema) {
  Check({
      {R"({"type": "null"})", {"null"}, {"", "nul", "nulll", " null", "null ", "0", "\"null\""}},
      {R"({"type": "boolean"})", {"true", "false"}, {"t", "True", "1", "truefalse"}},
      {R"({"type": "integer"})",
       {"0", "-1", "7", "123456789012345678"},
       {"", "-", "-0", "01", "1.0", "1e3", "+1", "1234567890123456789", "1 "}},
      {R"({"type": "number"})",
       {"0", "-0", "-1.5", "1e5", "1E+05", "0.10", "123456789012345.123456789012345"},
       {"", ".5", "1.", "1e", "1e123", "01", "NaN", "1.2.3", "--1"}},
      {R"({"type": "string"})",
       {R"("")", R"("a")", R"("é€😀")", R"("\"\\\/\b\f\n\r\t\u00e9\uD83D\uDe00")", "\"\x7f\""},
       {"\"", "a", R"("a)", "\"a\nb\"", R"("\x")", R"("\u12")", R"("a"b")", R"("\u12g4")"}},
      {R"({"type": ["string", "null", "integer"]})", {R"("a")", "null", "5"}, {"true", "5.5", "[]"}},
      {R"({"type": ["integer", "number"]})", {"5", "5.5"}, {"null"}},
      {"{}",
       {"null", "true", "1", R"("x")", "[]", "{}", R"([1, {"a": [null]}])", R"({"b": {}, "a": 1})"},
       {"", "[", "{", "[1,]", R"({"a"})", R"({1: 2})", "[1 2]"}},
  });
}

TEST(JsonAnswersTest, StringsAreWellFormed) {
  const std::string any = R"({"type": "string"})";
  Check({{any,
          {"\"\xC3\xA9\"", "\"\xED\x9F\xBF\"", "\"\xEE\x80\x80\"", "\"\xF4\x8F\xBF\xBF\"", R"("\uD800\uDC00")", R"("\uDBFF\uDFFF")"},
          {"\"\x80\"", "\"\xC0\xAF\"", "\"\xC3\"", "\"\xE0\x80\x80\"", "\"\xED\xA0\x80\"", "\"\xF0\x80\x80\x80\"", "\"\xF4\x90\x80\x80\"",
           "\"\xFF\"", R"("\uD800")", R"("\uDC00")", R"("\uD800\uD800")", R"("\uD800x")", R"("\uDFFF\uD800")"}}});
  EXPECT_EQ(Try(any, R"("\uD800")"), "refused at 7");
  EXPECT_EQ(Try(any, R"("\uDC)"), "refused at 4");
  EXPECT_EQ(Try(any, "\"\xED\xA0"), "refused at 2");
}

TEST(JsonAnswersTest, BlanksAreASpaceOrALineFeedAndTwenty) {
  const std::string object = R"({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}})";
  const std::string twenty(20, ' ');
  Check({{object,
          {R"({"a":[1,2]})", R"({ "a" : [ 1 , 2 ] })", "{\n" + twenty + "\"a\":\n[\n1\n,\n 2\n]\n}", "{ }", "{\n}"},
          {R"({  "a":[1]})", "{\n" + twenty + " \"a\":[1]}", "{ \n\"a\":[1]}", "{\t\"a\":[1]}", "{\r\n}", " {}", "{} ", "{\n\n}"}}});
}

TEST(JsonAnswersTest, LengthsCountCharacters) {
  Check({
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("ab")", R"("é€😀")", R"("\n\uD83D\uDE00")"},
       {R"("")", R"("a")", R"("😀")", R"("abcd")", R"("é€😀\n")"}},
      {R"({"type": "string", "maxLength": 0})", {R"("")"}, {R"("a")"}},
      {R"({"type": "string", "minLength": 3})", {R"("abc")", R"("abcdefghijkl")"}, {R"("ab")"}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^é*$"})",
       {R"("éé")", R"("ééé")"},
       {R"("é")", R"("éééé")", R"("aa")"}},
  });
}

TEST(JsonAnswersTest, PatternsMatchAnywhere) {
  Check({
      {R"({"type": "string", "pattern": "b+"})", {R"("b")", R"("abbc")", R"("a\nb")", R"("éb\"")"}, {R"("")", R"("ac")"}},
      {R"({"type": "string", "pattern": "^a|c$"})", {R"("ab")", R"("bc")", R"("a")"}, {R"("ba")", R"("cb")", R"("")"}},
      {R"({"type": "string", "pattern": "^(?:[a-cé]|\\d{2,3}){1,2}$"})",
       {R"("a")", R"("éb")", R"("12")", R"("123a")", R"("123456")"},
       {R"("")", R"("1")", R"("1234567")", R"("abc")"}},
      {R"({"type": "string", "pattern": "^[^\"\\\\]?$"})", {R"("")", R"("x")", R"("😀")", R"("\n")"}, {R"("\"")", R"("\\")", R"("xx")"}},
      {R"({"type": "string", "pattern": "^.$"})", {R"("x")", R"("\"")", R"("\u0000")"}, {R"("\n")", "\"\xE2\x80\xA8\""}},
      {R"({"type": "string", "pattern": "^\\w+\\s\\S\\D\\W$"})", {R"("ab_9 xy-")"}, {R"("ab_9 x1-")", R"("é xy-")"}},
      {R"({"type": "string", "pattern": "^\\u00e9\\x41\\u{1F600}\\.$"})", {R"("éA😀.")"}, {R"("éA😀x")"}},
      {R"({"type": "string", "pattern": "^a{0}b{2}c{1,}$"})", {R"("bbc")", R"("bbccc")"}, {R"("abbc")", R"("bb")"}},
      {R"({"type": "string", "pattern": "a$|^$"})", {R"("")", R"("ba")"}, {R"("ab")"}},
      {R"({"type": "string", "pattern": "^(a*)*b$"})", {R"("b")", R"("aaab")"}, {R"("aa")"}},
      {R"({"type": "string", "pattern": ""})", {R"("")", R"("xyz")"}, {}},
  });
}

TEST(JsonAnswersTest, FormatsFollowTheCalendar) {
  Check({
      {R"({"type": "string", "format": "date"})",
       {R"("2024-02-29")", R"("2000-02-29")", R"("1999-12-31")"},
       {R"("2023-02-29")", R"("1900-02-29")", R"("2024-04-31")", R"("2024-13-01")", R"("0000-01-01")", R"("24-01-01")"}},
      {R"({"type": "string", "format": "time"})",
       {R"("23:59:59Z")", R"("00:00:00.123+05:30")"},
       {R"("24:00:00Z")", R"("23:59:60Z")", R"("12:00:00")"}},
      {R"({"type": "string", "format": "date-time"})",
       {R"("2024-07-26T09:30:00Z")", R"("2024-07-26T09:30:00.5-08:00")"},
       {R"("2024-07-26 09:30:00Z")", R"("2024-07-26")"}},
      {R"({"type": "string", "format": "uuid"})",
       {R"("123e4567-e89b-12D3-a456-426614174000")"},
       {R"("123e4567e89b12d3a456426614174000")", R"("123e4567-e89b-12d3-a456-42661417400g")"}},
  });
}

TEST(JsonAnswersTest, RangesAreExact) {
  Check({
      {R"({"type": "integer", "minimum": 3, "maximum": 120})",
       {"3", "9", "10", "99", "100", "120"},
       {"2", "121", "-3", "03", "1000", "3.0"}},
      {R"({"type": "integer", "minimum": -12, "exclusiveMaximum": 1})", {"-12", "-1", "0", "-9", "-10"}, {"-13", "1", "-0", "-99"}},
      {R"({"type": "integer", "exclusiveMinimum": 9})", {"10", "11", "99", "123456789012345678"}, {"9", "0", "-10"}},
      {R"({"type": "number", "minimum": 0, "maximum": 1})", {"0", "1", "0.5", "0.0", "1.0", "1.00"}, {"1.01", "-0.1", "2", "1e-1", "-0"}},
      {R"({"type": "number", "exclusiveMinimum": -1.5, "exclusiveMaximum": 2.25})",
       {"-1.49", "-1", "0", "2.2499", "2.24", "2"},
       {"-1.5", "-1.50", "-1.500", "2.25", "2.250", "-1.51", "3"}},
      {R"({"type": "number", "minimum": 2.25, "maximum": 2.25})", {"2.25", "2.250"}, {"2", "2.2", "2.26", "2.2500001"}},
      {R"({"type": "number", "minimum": -1.5, "maximum": -0.5})", {"-1.5", "-1", "-0.5", "-0.75"}, {"-0.4", "-1.6", "0", "-2"}},
      {R"({"type": "integer", "maximum": 9007199254740991, "minimum": -9007199254740991})",
       {"9007199254740991", "-9007199254740991"},
       {"9007199254740992", "-9007199254740992"}},
      {R"({"type": "integer", "maximum": 9223372036854775807})", {"9223372036854775807", "-1"}, {"9223372036854775808"}},
      {R"({"type": "integer", "multipleOf": 7, "minimum": 0})", {"0", "7", "49", "700"}, {"1", "8", "-7"}},
      {R"({"type": "number", "multipleOf": 5})", {"5", "-10", "0"}, {"5.0", "7"}},
      {R"({"type": "number", "minimum": 1e-3, "maximum": 1E2})", {"0.001", "100", "50.5"}, {"0.0009", "100.1"}},
      {R"({"minimum": 5})", {"5"}, {"4", "\"a\"", "null"}},
  });
}

TEST(JsonAnswersTest, ObjectsHaveTheirPropertiesInOrder) {
  const std::string object =
      R"({"type": "object", "properties": {"a": {"type": "integer"}, "ab": {"type": "null"}, "c": {}}, "required": ["ab"]})";
  Check({
      {object,
       {R"({"a":1,"ab":null,"c":2})", R"({"ab":null})", R"({"a":1,"ab":null})", R"({"ab":null,"c":{"x":[]}})"},
       {"{}", R"({"a":1})", R"({"ab":null,"a":1})", R"({"ab":null,"ab":null})", R"({"ab":null,"x":1})", R"({"ab":null,})",
        R"({"c":1,"ab":null})", R"({"\u0061b":null})"}},
      {R"({"type": "object"})", {"{}"}, {R"({"a":1})"}},
      {R"({"type": "object", "properties": {}, "additionalProperties": false})", {"{}"}, {R"({"a":1})"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "é\"": {"type": "null"}}, "additionalProperties": {"type": "boolean"}})",
       {"{}", R"({"a":1})", R"({"b":true})", R"({"a":1,"é\"":null,"b":true,"aa":false,"":true,"é":true})"},
       {R"({"b":1})", R"({"a":true})", R"({"b":true,"a":1})", R"({"é\"":true})", R"({"b":true,"\u0061":true})"}},
      {R"({"type": "object", "additionalProperties": true, "required": ["x", "y"]})",
       {R"({"x":1,"y":2})", R"({"x":1,"y":2,"z":3})"},
       {R"({"x":1})", R"({"z":1,"x":1,"y":2})", R"({"x":1,"z":3,"y":2})"}},
      {R"({"properties": {"a": {"type": "integer"}}})", {"{}", R"({"a":1})"}, {"1", "\"a\"", R"({"b":1})"}},
      {R"({"type": "object", "properties": {"a": false, "b": {"type": "null"}}, "additionalProperties": true})",
       {"{}", R"({"b":null})", R"({"c":1})"},
       {R"({"a":1})"}},
  });
}

TEST(JsonAnswersTest, ListsHaveTheirItems) {
  Check({
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
       {"[1]", "[1,2,3]", "[1, 2]"},
       {"[]", "[1,2,3,4]", "[\"a\"]", "[1,]"}},
      {R"({"type": "array"})", {"[]", "[1,\"a\",[],{}]"}, {"[1"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false})",
       {"[]", "[1]", R"([1,"a"])"},
       {R"(["a"])", R"([1,"a",2])"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": {"type": "null"}, "minItems": 3})",
       {R"([1,"a",null])", R"([1,"a",null,null])"},
       {R"([1,"a"])", R"([1,"a",1])"}},
      {R"({"type": "array", "items": false})", {"[]"}, {"[1]"}},
      {R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"}},
      {R"({"type": "array", "items": {"type": "array", "items": {"type": "null"}, "minItems": 2}, "minItems": 2})",
       {"[[null,null],[null,null,null]]"},
       {"[[null,null]]", "[[null],[null,null]]"}},
  });
}

TEST(JsonAnswersTest, ConstantsAreAnyJson) {
  Check({
      {R"({"enum": ["a", "ab", 1, 10, null, true, [1, {"x": "y"}], {"k": [], "j": 2}]})",
       {R"("a")", R"("ab")", "1", "10", "null", "true", R"([1, {"x": "y"}])", R"({"k":[],"j":2})"},
       {R"("b")", "11", "false", "[1]", R"({"j":2,"k":[]})", R"({"k":[]})", R"([1,{"x":"z"}])"}},
      {R"({"const": "q\"\\\n\u0001é"})", {R"("q\"\\\n\u0001é")"}, {R"("q")"}},
      {R"({"const": -1.5})", {"-1.5"}, {"-1", "1.5", "-1.50"}},
      {R"({"type": "string", "enum": ["a", 1, null]})", {R"("a")"}, {"1", "null"}},
      {R"({"type": ["string", "null"], "enum": ["a", 1, null]})", {R"("a")", "null"}, {"1"}},
      {R"({"enum": [1, 5, 10, "aaa", "b"], "maximum": 5, "type": ["integer", "string"], "maxLength": 2})",
       {"1", "5", R"("b")"},
       {"10", R"("aaa")"}},
      {R"({"const": {"a": 1, "b": 2}, "type": "object", "properties": {"a": {"type": "integer"}}})", {R"({"a":1,"b":2})"}, {R"({"a":1})"}},
      {R"({"const": []})", {"[]"}, {"[1]"}},
  });
}

TEST(JsonAnswersTest, BranchesMayBeginAlike) {
  const std::string pets =
      R"({"type": "object", "properties": {"kind": {"const": "KIND"}, "PART": {"type": "integer"}}, "required": ["kind", "PART"]})";
  const auto pet = [&](const std::string& kind, const std::string& part) {
    std::string text = pets;
    text.replace(text.find("KIND"), 4, kind);
    for (size_t at = text.find("PART"); at != std::string::npos; at = text.find("PART")) text.replace(at, 4, part);
    return text;
  };
  for (const std::string keyword : {"anyOf", "oneOf"}) {
    Check({{R"({")" + keyword + R"(": [)" + pet("cat", "lives") + "," + pet("cow", "milk") + R"(, {"type": "null"}]})",
            {R"({"kind":"cat","lives":9})", R"({"kind":"cow","milk":1})", "null"},
            {R"({"kind":"cat","milk":9})", R"({"kind":"cow","lives":1})", R"({"kind":"c","lives":1})", "[]"}}});
  }
  Check({
      {R"({"anyOf": [{"type": "string", "maxLength": 2}, {"type": "string", "pattern": "^x+$"}]})",
       {R"("ab")", R"("xxxx")", R"("")"},
       {R"("abc")", R"("xxxy")"}},
      {R"({"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "array", "items": {"type": "string"}}]})",
       {"[]", "[1,2]", R"(["a","b"])"},
       {R"([1,"a"])"}},
      {R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})",
       {R"({"a":null})", R"({"b":null})", R"({"a":null,"b":null})"},
       {"{}"}},
      {R"({"oneOf": [{"const": 1}, {"const": 2}, {"type": "string"}]})", {"1", "2", R"("a")"}, {"3"}},
      {R"({"oneOf": [{"enum": ["a", "b"]}, {"type": "string", "minLength": 2}]})", {R"("a")", R"("cc")"}, {R"("c")"}},
  });
}

TEST(JsonAnswersTest, AllOfJoinsObjects) {
  Check({
      {R"({"allOf": [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]},
                     {"type": "object", "properties": {"b": {"type": "null"}, "a": {"type": "integer", "maximum": 3}}}]})",
       {R"({"a":1})", R"({"a":3,"b":null})"},
       {"{}", R"({"a":4})", R"({"a":0})", R"({"b":null})", R"({"b":null,"a":1})", R"({"a":1,"c":1})"}},
      {R"({"allOf": [{"$ref": "#/$defs/name"}], "description": "of a person", "default": "x", "$defs": {"name": {"type": "string", "minLength": 1}}})",
       {R"("a")"},
       {R"("")", "1"}},
      {R"({"$ref": "#/$defs/a", "properties": {"c": {"type": "null"}}, "$defs": {"a": {"type": "object", "properties": {"b": {"type": "null"}}}}})",
       {R"({"c":null,"b":null})", "{}"},
       {R"({"d":null})"}},
      {R"({"allOf": [{"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "integer"}}, {"type": "object", "properties": {"b": {"type": ["integer", "null"]}}}]})",
       {R"({"a":null,"b":1,"c":2})"},
       {R"({"b":null})", R"({"c":null})"}},
      {R"({"allOf": [{"type": "string", "minLength": 2}, {"type": "string", "maxLength": 3}, {"pattern": "^a"}]})",
       {R"("ab")", R"("abc")"},
       {R"("a")", R"("abcd")", R"("ba")"}},
  });
}

TEST(JsonAnswersTest, ReferencesMayBeRecursive) {
  const std::string tree =
      R"({"type": "object", "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#"}}}, "required": ["v"]})";
  const std::string list =
      R"({"$ref": "#/definitions/a~1b~0c", "definitions": {"a/b~c": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"next": {"$ref": "#/definitions/a~1b~0c"}}, "required": ["next"]}]}}})";
  Check({{tree, {R"({"v":1})", R"({"v":1,"kids":[{"v":2,"kids":[]},{"v":3}]})"}, {R"({"v":1,"kids":[{"kids":[]}]})"}},
         {list, {"null", R"({"next":{"next":null}})"}, {"{}", R"({"next":{}})"}}});
}

TEST(JsonAnswersTest, BracketsAreAtMost64Deep) {
  const std::string lists = R"({"type": "array", "items": {"$ref": "#"}})";
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(Try(lists, nested(64)), "complete");
  EXPECT_EQ(Try(lists, nested(65)), "refused at 64");
  // Where a member needs brackets of its own, the one that holds it has to be less deep.
  const std::string pairs = R"({"type": "object", "properties": {"p": {"type": "array", "items": {"$ref": "#"}, "minItems": 1}}})";
  std::string text;
  for (int i = 0; i < 31; ++i) text += R"({"p":[)";
  EXPECT_EQ(Try(pairs, text), "begins");
  EXPECT_EQ(Try(pairs, text + R"({"p":[)"), "refused at " + std::to_string(text.size() + 1));
  EXPECT_EQ(Try(pairs, text + "{"), "begins");
}

TEST(JsonAnswersTest, AnyObjectNeedsNoSchema) {
  const GrammarPtr any = CompileAnswer(std::nullopt).value();
  EXPECT_EQ(Try(any, R"({"a": [1, {"a": null}], "a": 2})"), "complete");
  EXPECT_EQ(Try(any, "{}"), "complete");
  EXPECT_EQ(Try(any, "[]"), "refused at 0");
}

TEST(JsonAnswersTest, LeastBytesAreThoseOfTheShortestAnswer) {
  const auto least = [](const std::string& schema) { return CompileAnswer(schema).value()->LeastBytes(); };
  EXPECT_EQ(least(R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "required": ["b"]})"), 10);
  EXPECT_EQ(least(R"({"type": "array", "items": {"type": "string", "minLength": 3}, "minItems": 2})"), 13);
  EXPECT_EQ(least(R"({"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "integer"}, "minItems": 4})"), 12);
  EXPECT_EQ(least(R"({"type": "string", "format": "date"})"), 12);
  EXPECT_EQ(least(R"({"anyOf": [{"type": "null"}, {"type": "object"}]})"), 2);
  Matcher matcher(CompileAnswer(R"({"type": "string", "minLength": 3})").value());
  std::vector<int32_t> seen;
  for (const std::string text : {"\"", "\xC3", "\xA9", "\\", "u", "d", "8", "00\\", "u", "dc00", "x", "yy", "\""}) {
    EXPECT_TRUE(matcher.Advance(text));
    seen.push_back(matcher.LeastBytes());
  }
  EXPECT_EQ(seen, (std::vector<int32_t>{4, 4, 3, 3, 6, 5, 10, 7, 6, 2, 1, 1, 0}));
}

}  // namespace
}  // namespace lime::json_schema
