// Hostile JSON schemas and hostile choices among allowed tokens: a schema, a byte 1, and a byte for
// each choice. Every answer ends in time and is JSON.
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "common/json_schema/grammar_builder.h"
#include "common/json_schema/token_masks.h"
#include "planner/base/json_text.h"
#include "tests/common/json_schema/vocabularies.h"

namespace {

using namespace lime::json_schema;

// The allowed token that `choice` picks; -1 if there is none.
int32_t Pick(const std::vector<uint64_t>& bits, const Vocabulary& vocabulary, uint8_t choice) {
  std::vector<int32_t> allowed;
  for (size_t id = 0; id < vocabulary.size(); ++id) {
    if ((bits[id / 64] >> (id % 64) & 1) != 0) allowed.push_back(static_cast<int32_t>(id));
  }
  return allowed.empty() ? -1 : allowed[choice % allowed.size()];
}

void Walk(const GrammarPtr& grammar, std::string_view choices) {
  static const VocabularyPtr vocabulary = SmallVocabulary();
  TokenMasks masks(vocabulary);
  Matcher matcher(grammar);
  std::vector<uint64_t> bits(masks.Words());
  std::string text;
  const int64_t max_tokens = int64_t{grammar->LeastBytes()} + 2 + static_cast<int64_t>(choices.size());
  for (int64_t i = 0;; ++i) {
    if (i == max_tokens) std::abort();
    masks.Write(matcher, max_tokens - i, bits);
    const int32_t id =
        Pick(bits, *vocabulary, i < static_cast<int64_t>(choices.size()) ? static_cast<uint8_t>(choices[static_cast<size_t>(i)]) : 0);
    if (id < 0) std::abort();
    if (id == vocabulary->end_ids()[0]) break;
    text += vocabulary->Bytes(id);
    if (!matcher.Advance(vocabulary->Bytes(id)) || matcher.LeastBytes() + 1 > max_tokens - i - 1) std::abort();
  }
  if (!matcher.IsComplete() || !lime::ParseJson(text, "answer").ok()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int32_t kLongAnswer = 500;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view schema = input.substr(0, input.find('\1'));
  const auto grammar = CompileAnswer(std::string(schema));
  if (!grammar.ok() && !std::string_view(grammar.status().message().data(), grammar.status().message().size()).starts_with("#"))
    std::abort();
  if (!grammar.ok() || (*grammar)->LeastBytes() > kLongAnswer) return 0;
  Walk(*grammar, input.substr(std::min(schema.size() + 1, input.size())).substr(0, 200));
  return 0;
}
