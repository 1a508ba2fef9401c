#include "common/answer_masks/vocabulary_bytes.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace lime::json_schema {
namespace {

constexpr uint64_t kUses = 4;
constexpr int kMostShift = 21;  // a length below 2^26

void AppendNumber(uint64_t number, std::string& bytes) {
  for (; number >= 0x80; number >>= 7) bytes.push_back(static_cast<char>(number | 0x80));
  bytes.push_back(static_cast<char>(number));
}

std::optional<uint64_t> ReadNumber(std::string_view& bytes) {
  uint64_t number = 0;
  for (int shift = 0; shift <= kMostShift && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    number |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return number;
  }
  return std::nullopt;
}

}  // namespace

std::string VocabularyBytes(const Vocabulary& vocabulary) {
  std::string bytes;
  for (size_t i = 0; i < vocabulary.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const TokenUse use = vocabulary.Use(id);
    const bool is_written = use == TokenUse::kText || use == TokenUse::kSpecial;
    const std::string_view text = is_written ? vocabulary.Bytes(id) : std::string_view();
    const bool is_too_long = text.size() > Vocabulary::kMaxTokenBytes;  // never written either
    AppendNumber((is_too_long ? 0 : text.size()) * kUses + static_cast<uint64_t>(use), bytes);
    if (!is_too_long) bytes.append(text);
  }
  return bytes;
}

absl::StatusOr<VocabularyPtr> ParseVocabularyBytes(std::string_view bytes) {
  std::vector<TokenText> tokens;
  while (!bytes.empty()) {
    const std::optional<uint64_t> number = ReadNumber(bytes);
    if (!number) return Invalid("the vocabulary for masks: the number of token ", tokens.size(), " is cut or too large");
    const uint64_t length = *number / kUses;
    if (length > bytes.size() || length > Vocabulary::kMaxTokenBytes)
      return Invalid("the vocabulary for masks: token ", tokens.size(), " has ", length, " bytes, of ", bytes.size());
    if (tokens.size() == kMaxVocabularyTokens) return Invalid("the vocabulary for masks has more than ", kMaxVocabularyTokens, " tokens");
    tokens.push_back({.bytes = std::string(bytes.substr(0, length)), .use = static_cast<TokenUse>(*number % kUses)});
    bytes.remove_prefix(length);
  }
  return std::make_shared<const Vocabulary>(tokens);
}

}  // namespace lime::json_schema
