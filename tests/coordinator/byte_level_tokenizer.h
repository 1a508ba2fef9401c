// A tokenizer whose tokens are bytes, for tests of what comes behind a tokenizer.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "coordinator/text/tokenizer.h"
#include "coordinator/text/unicode/byte_level.h"

namespace lime {

// The bytes as ids 0 to 255, <s> = 256 (BOS, added), </s> = 257, "ab" = 258, "abc" = 259.
inline TokenizerJson ByteLevelJson() {
  TokenizerJson vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[std::string(ByteLevelChar(static_cast<unsigned char>(byte)))] = byte;
  vocab["<s>"] = 256;
  vocab["</s>"] = 257;
  vocab["ab"] = 258;
  vocab["abc"] = 259;
  const TokenizerJson byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  return {{"added_tokens", {{{"id", 256}, {"content", "<s>"}, {"special", true}}, {{"id", 257}, {"content", "</s>"}, {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
            {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {256}}, {"tokens", {"<s>"}}}}}}}},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", "ab c"}}}}};
}

inline std::unique_ptr<Tokenizer> FromJsonOrDie(const TokenizerJson& json) {
  auto tokenizer = Tokenizer::FromJson(json.dump(), "test");
  if (!tokenizer.ok()) ADD_FAILURE() << tokenizer.status();
  return std::move(tokenizer).value();
}

inline std::unique_ptr<Tokenizer> ByteLevelTokenizer() {
  return FromJsonOrDie(ByteLevelJson());
}

}  // namespace lime
