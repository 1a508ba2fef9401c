#include <map>
#include <string>

#include "coordinator/text/tokenizer_config.h"

namespace lime {
namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";

std::map<std::string, TokenizerJson, std::less<>> MakeTable() {
  const TokenizerJson gpt2 = {{"bos_token", kEndOfText}, {"eos_token", kEndOfText}, {"unk_token", kEndOfText}};
  const TokenizerJson qwen = {{"eos_token", kEndOfText}, {"unk_token", kEndOfText}, {"pad_token", kEndOfText}};
  TokenizerJson neox = gpt2;
  neox["pad_token"] = "<|padding|>";
  const TokenizerJson mask = {{"content", "<mask>"}, {"lstrip", true}};
  const TokenizerJson roberta = {{"bos_token", "<s>"}, {"eos_token", "</s>"},  {"unk_token", "<unk>"}, {"sep_token", "</s>"},
                                 {"cls_token", "<s>"}, {"pad_token", "<pad>"}, {"mask_token", mask}};
  return {{"GPT2Tokenizer", gpt2},    {"CodeGenTokenizer", gpt2},    {"GPTNeoXTokenizer", neox}, {"Qwen2Tokenizer", qwen},
          {"Qwen3_5Tokenizer", qwen}, {"RobertaTokenizer", roberta}, {"BartTokenizer", roberta}, {"LongformerTokenizer", roberta}};
}

}  // namespace

const TokenizerJson& TokensOfClass(std::string_view tokenizer_class) {
  static const auto& table = *new std::map<std::string, TokenizerJson, std::less<>>(MakeTable());
  static const TokenizerJson none = TokenizerJson::object();
  const auto found = table.find(tokenizer_class);
  return found == table.end() ? none : found->second;
}

}  // namespace lime
