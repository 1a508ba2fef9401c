// Hostile files beside a vocab.json: the input is tokenizer_config.json, special_tokens_map.json,
// added_tokens.json and merges.txt, each ended by a byte 1.
#include <cstdlib>

#include "coordinator/text/tokenizer.h"
#include "coordinator/text/tokenizer_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto next = [&input] {
    const std::string_view part = input.substr(0, input.find('\1'));
    input.remove_prefix(std::min(part.size() + 1, input.size()));
    return part;
  };
  const auto json = [&next] { return lime::ParseJson(next(), "fuzz").value_or(lime::TokenizerJson()); };
  lime::TokenizerConfigFiles files;
  files.tokenizer_config = json();
  files.special_tokens_map = json();
  files.added_tokens = json();
  const auto config = lime::ParseTokenizerConfig(files);
  if (!config.ok()) return 0;
  const auto built = lime::JsonFromVocabAndMerges({{"a", 0}, {"b", 1}, {"ab", 2}, {"<s>", 3}, {"</s>", 4}}, next(), *config);
  if (!built.ok()) return 0;
  const auto tokenizer =
      lime::Tokenizer::FromJson(built->dump(-1, ' ', false, lime::TokenizerJson::error_handler_t::replace), "fuzz", *config);
  if (!tokenizer.ok()) return 0;
  const auto ids = (*tokenizer)->Encode("ab<s>");
  for (const int32_t id : ids.value_or(std::vector<int32_t>())) {
    if (id < 0 || id >= (*tokenizer)->vocab_size()) std::abort();
  }
  return 0;
}
