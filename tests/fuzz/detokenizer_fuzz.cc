// Any ids, streamed: pieces are whole characters and join to what Decode gives. The first byte
// chooses the tokenizer.
#include <array>
#include <cstdlib>

#include "coordinator/text/detokenizer.h"
#include "coordinator/text/unicode/byte_level.h"
#include "coordinator/text/unicode/utf8.h"

namespace {

using lime::TokenizerJson;

// 256 byte pieces of either kind, and some text and special tokens behind them.
std::unique_ptr<lime::Tokenizer> Make(bool byte_level, const TokenizerJson& decoder) {
  TokenizerJson vocab;
  for (int byte = 0; byte < 256; ++byte) {
    char fallback[8];
    std::snprintf(fallback, sizeof(fallback), "<0x%02X>", byte);
    vocab[byte_level ? std::string(lime::ByteLevelChar(static_cast<unsigned char>(byte))) : fallback] = byte;
  }
  for (const char* piece : {"\u2581", "\u2581\u2581ab", "ab", "\u20AC"}) vocab[piece] = vocab.size();
  const TokenizerJson special = {{"id", vocab.size()}, {"content", "<s>"}, {"special", true}};
  const TokenizerJson json = {{"added_tokens", {special}},
                              {"decoder", decoder},
                              {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", TokenizerJson::array()}}}};
  auto tokenizer = lime::Tokenizer::FromJson(json.dump(), "fuzz");
  if (!tokenizer.ok()) std::abort();
  return std::move(tokenizer).value();
}

const lime::Tokenizer& Choose(uint8_t which) {
  const TokenizerJson replace = {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}};
  const TokenizerJson strip = {{"type", "Strip"}, {"content", " "}, {"start", 2}, {"stop", 0}};
  static const std::array tokenizers = {
      Make(true, {{"type", "ByteLevel"}}), Make(true, nullptr), Make(false, {{"type", "Metaspace"}, {"replacement", "\u2581"}}),
      Make(false, {{"type", "Sequence"},
                   {"decoders", {replace, TokenizerJson{{"type", "ByteFallback"}}, TokenizerJson{{"type", "Fuse"}}, strip}}})};
  return *tokenizers[which % tokenizers.size()];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const lime::Tokenizer& tokenizer = Choose(data[0] & 3);
  const lime::DecodeOptions options{.skip_special = (data[0] & 4) != 0};
  std::vector<int32_t> ids;
  for (size_t i = 1; i < size; ++i) ids.push_back(data[i] == 0xFF && i + 1 < size ? 250 + data[++i] % 16 : data[i]);
  lime::StreamingDetokenizer detokenizer(tokenizer, options);
  std::string joined;
  for (const int32_t id : ids) {
    const std::string_view piece = detokenizer.Push(id);
    if (!lime::IsUtf8(piece)) std::abort();
    joined.append(piece);
  }
  joined.append(detokenizer.Finish());
  if (joined != tokenizer.Decode(ids, options)) std::abort();
  return 0;
}
