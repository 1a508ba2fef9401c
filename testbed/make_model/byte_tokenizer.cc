#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "testbed/make_model/make_model.h"

namespace lime {
namespace {

using nlohmann::json;

std::string Utf8(int code_point) {
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xc0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3f))};
}

// The visible character that byte-level tokenizers write for a byte: itself where it is printable
// Latin-1, else the next one from U+0100 on.
std::string ByteCharacter(int byte) {
  const auto printable = [](int b) { return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae; };
  if (printable(byte)) return Utf8(byte);
  int rank = 0;
  for (int b = 0; b < byte; ++b) rank += !printable(b);
  return Utf8(0x100 + rank);
}

json SpecialToken(int id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

}  // namespace

std::string ByteTokenizerJson(int64_t vocab_size) {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[ByteCharacter(byte)] = byte;
  vocab["<s>"] = kByteTokenizerBos;
  vocab["</s>"] = kByteTokenizerEos;
  // Ids beyond are never made from text, and print as words of their own.
  for (int64_t id = kByteTokenizerEos + 1; id < vocab_size; ++id) vocab[absl::StrCat("\u0120w", id)] = id;

  json root;
  root["version"] = "1.0";
  root["truncation"] = nullptr;
  root["padding"] = nullptr;
  root["added_tokens"] = {SpecialToken(kByteTokenizerBos, "<s>"), SpecialToken(kByteTokenizerEos, "</s>")};
  root["normalizer"] = nullptr;
  root["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  root["post_processor"] = nullptr;
  root["decoder"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  root["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"vocab", vocab},
                   {"merges", json::array()}};
  return root.dump(1) + "\n";
}

}  // namespace lime
