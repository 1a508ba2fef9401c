// Masks of tokens under a JSON schema, and compiling one, against their targets.
//
//   json_schema_bench [--tokenizer=FOLDER] [--rounds=5]
//
// Answers to several schemas are matched token by token (the longest token that fits comes next). A
// mask is new the first time, cached in later rounds. Times are CPU time of one thread. Without a
// folder, the vocabulary is made: 128,256 tokens of words, blanks and punctuation. Prints one JSON
// object.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/json_schema/grammar_builder.h"
#include "common/json_schema/token_masks.h"
#include "coordinator/text/unicode/byte_level.h"
#include "nlohmann/json.hpp"
#include "planner/base/median.h"

namespace lime::json_schema {
namespace {

struct Answer {
  std::string schema;
  std::string text;
};

double Microseconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

double Quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "json_schema_bench: %s\n", message.c_str());
  std::exit(1);
}

VocabularyPtr ReadVocabulary(const std::string& folder) {
  std::ifstream file(folder + "/tokenizer.json");
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) Fail(folder + " has no tokenizer.json");
  std::vector<TokenText> tokens;
  for (const auto& [token, id] : json["model"]["vocab"].items()) {
    tokens.resize(std::max(tokens.size(), id.get<size_t>() + 1), {"", TokenUse::kNever});
    tokens[id.get<size_t>()] = {FromByteLevel(token)};
  }
  tokens.push_back({"", TokenUse::kEnd});
  return std::make_shared<Vocabulary>(tokens);
}

VocabularyPtr MakeVocabulary() {
  constexpr size_t kTokens = 128'256;
  std::mt19937 random(1);
  std::vector<TokenText> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back({std::string(1, static_cast<char>(byte))});
  const std::string_view syllables[] = {"ta", "ri",  "on", "es", "in",       "ver",      "com",         "pre",
                                        "al", "ing", "er", "mo", "\xC3\xA9", "\xD0\xB0", "\xE4\xB8\xAD"};
  const std::string_view ends[] = {"", "", "", "", "", "", "", "\"", ",", "\":", "_", ".", "(", "\n"};
  while (tokens.size() < kTokens - 1) {
    std::string text = random() % 2 == 0 ? " " : "";
    for (uint32_t i = 0; i <= random() % 5; ++i) text += syllables[random() % std::size(syllables)];
    tokens.push_back({text.append(ends[random() % std::size(ends)])});
  }
  for (int i = 0; i < 1110; ++i) tokens[static_cast<size_t>(1000 + i)] = {std::to_string(i)};
  for (size_t i = 0; const std::string_view text :
                     {"{\"", "\":", "\": ", "\": \"", "\", \"", "\"}", "},", "\n", "\n  ", "\n    ", ", ", " \"", " {", " ["})
    tokens[3000 + i++] = {std::string(text)};
  tokens.push_back({"", TokenUse::kEnd});
  return std::make_shared<Vocabulary>(tokens);
}

std::vector<Answer> Answers() {
  const std::string person =
      R"({"type": "object", "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 40}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
      "email": {"type": "string", "pattern": "^[^@ ]+@[^@ ]+\\.[a-z]{2,}$"}, "born": {"type": "string", "format": "date"}, "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 8}},
      "required": ["name", "age"]})";
  const std::string shapes =
      R"({"type": "array", "items": {"anyOf": [{"type": "object", "properties": {"kind": {"const": "circle"}, "radius": {"type": "number", "exclusiveMinimum": 0}}, "required": ["kind", "radius"]},
      {"type": "object", "properties": {"kind": {"const": "square"}, "side": {"type": "number", "exclusiveMinimum": 0}}, "required": ["kind", "side"]},
      {"type": "object", "properties": {"kind": {"const": "group"}, "parts": {"$ref": "#"}}, "required": ["kind", "parts"]}]}})";
  return {
      {person,
       R"({"name": "Ada Lovelace", "age": 36, "email": "ada@example.org", "born": "1815-12-10", "tags": ["mathematics", "computing", "poetry and \"science\""]})"},
      {person, "{\n  \"name\": \"Jos\u00e9\",\n  \"age\": 7,\n  \"tags\": []\n}"},
      {shapes,
       R"([{"kind": "circle", "radius": 2.5}, {"kind": "group", "parts": [{"kind": "square", "side": 0.125}, {"kind": "circle", "radius": 10}]}])"},
      {R"({"type": "object", "additionalProperties": {"type": ["string", "number", "null"]}})",
       R"({"first key": "a value", "second": 12.75, "third": null, "caf\u00e9": "line\nfeed"})"},
      {R"({"type": "object", "properties": {"id": {"type": "string", "format": "uuid"}, "note": {"type": "string"}}, "additionalProperties": true})",
       R"({"id": "123e4567-e89b-12d3-a456-426614174000", "note": "The quick brown fox jumps over the lazy dog.", "more": {"list": [1, 2, [true, false]]}})"},
      {"{}",
       R"({"what": ["ever", 1, {"is": "valid"}], "and": -1.5e10, "then": "some longer text, with commas: and colons, to be matched token by token"})"},
  };
}

// About 8 KiB: objects in objects, enumerations, patterns and ranges.
std::string LargeSchema() {
  nlohmann::ordered_json schema = {{"type", "object"}};
  for (int i = 0; i < 34; ++i) {
    nlohmann::ordered_json part = {{"type", "object"}};
    part["properties"]["identifier"] = {{"type", "string"}, {"pattern", "^[a-z][a-z0-9_]{2,15}$"}};
    part["properties"]["amount"] = {{"type", "number"}, {"minimum", -i}, {"maximum", 1000 * i + 1}};
    part["properties"]["state"] = {{"enum", {"open", "closed", "pending", i}}};
    part["properties"]["when"] = {{"type", "string"}, {"format", "date"}};
    part["required"] = {"identifier"};
    schema["properties"]["part_" + std::to_string(i)] = part;
  }
  return schema.dump();
}

// The longest token that the rest begins with.
class Encoder {
 public:
  explicit Encoder(const Vocabulary& vocabulary) : longest_(vocabulary.longest()) {
    for (size_t id = 0; id < vocabulary.size(); ++id) ids_.emplace(vocabulary.Bytes(static_cast<int32_t>(id)), static_cast<int32_t>(id));
  }
  int32_t First(std::string_view text) const {
    for (size_t length = std::min(longest_, text.size()); length > 0; --length) {
      if (const auto found = ids_.find(text.substr(0, length)); found != ids_.end()) return found->second;
    }
    Fail("the vocabulary lacks a byte");
  }

 private:
  size_t longest_;
  std::unordered_map<std::string_view, int32_t> ids_;
};

// One answer token by token. Appends the time of each mask and of each advance.
void Match(const Answer& answer, const GrammarPtr& grammar, const Vocabulary& vocabulary, const Encoder& encoder, TokenMasks& masks,
           std::vector<double>& mask_times, std::vector<double>& advance_times) {
  Matcher matcher(grammar);
  std::vector<uint64_t> bits(masks.Words());
  std::string_view text = answer.text;
  while (true) {
    const double begin = Microseconds();
    masks.Write(matcher, 100'000, bits);
    mask_times.push_back(Microseconds() - begin);
    if (text.empty()) return;
    const int32_t id = encoder.First(text);
    if ((bits[static_cast<size_t>(id) / 64] >> (id % 64) & 1) == 0) Fail("the mask refuses a token before: " + std::string(text));
    const double before = Microseconds();
    if (!matcher.Advance(vocabulary.Bytes(id))) Fail("the matcher refuses a token before: " + std::string(text));
    advance_times.push_back(Microseconds() - before);
    text.remove_prefix(vocabulary.Bytes(id).size());
  }
}

int Run(const std::string& folder, int rounds) {
  double begin = Microseconds();
  const VocabularyPtr vocabulary = folder.empty() ? MakeVocabulary() : ReadVocabulary(folder);
  const double vocabulary_ms = (Microseconds() - begin) / 1e3;
  const Encoder encoder(*vocabulary);

  std::vector<double> compile_ms;
  const std::string large = LargeSchema();
  for (int i = 0; i < rounds + 4; ++i) {
    begin = Microseconds();
    if (const auto grammar = CompileAnswer(large); !grammar.ok()) Fail(std::string(grammar.status().message()));
    compile_ms.push_back((Microseconds() - begin) / 1e3);
  }

  std::vector<double> fresh, cached, advance;
  size_t tokens = 0;
  for (int round = 0; round < rounds; ++round) {
    for (const Answer& answer : Answers()) {
      const GrammarPtr grammar = CompileAnswer(answer.schema, {.writable = vocabulary->single_bytes()}).value();
      TokenMasks masks(vocabulary);
      Match(answer, grammar, *vocabulary, encoder, masks, fresh, advance);
      Match(answer, grammar, *vocabulary, encoder, masks, cached, advance);
      tokens = fresh.size();
    }
  }
  const nlohmann::ordered_json result = {{"tokens_of_vocabulary", vocabulary->size()},
                                         {"nodes_of_tree", vocabulary->tree().count()},
                                         {"vocabulary_ms", vocabulary_ms},
                                         {"masks", tokens},
                                         {"cached_us_median", Quantile(cached, 0.5)},
                                         {"cached_us_p99", Quantile(cached, 0.99)},
                                         {"cached_us_target", 20},
                                         {"new_us_median", Quantile(fresh, 0.5)},
                                         {"new_us_p99", Quantile(fresh, 0.99)},
                                         {"new_us_largest", Quantile(fresh, 1)},
                                         {"new_us_target", 2000},
                                         {"advance_us_median", Quantile(advance, 0.5)},
                                         {"advance_us_p99", Quantile(advance, 0.99)},
                                         {"schema_bytes", large.size()},
                                         {"compile_ms_first", compile_ms.front()},
                                         {"compile_ms_median", Median(compile_ms)},
                                         {"compile_ms_target", 50}};
  std::puts(result.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace lime::json_schema

int main(int argc, char** argv) {
  std::string folder;
  int rounds = 5;
  CLI::App app("Measures masks of tokens under JSON schemas");
  app.add_option("--tokenizer", folder, "Folder with a byte-level tokenizer.json; otherwise a vocabulary is made");
  app.add_option("--rounds", rounds, "Times that each answer is matched with empty caches")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return lime::json_schema::Run(folder, rounds);
}
