// Hostile formats and vocabularies: a format, a byte 1, and the bytes of a vocabulary; or these two
// and bytes of generated tokens. A format that is accepted is followed to its end, cut anywhere. A
// vocabulary that is accepted returns as it is.
#include <cstdlib>
#include <string>
#include <string_view>

#include "common/answer_masks/answer_follower.h"
#include "common/answer_masks/vocabulary_bytes.h"

namespace {

using namespace lime::json_schema;

void ReadVocabulary(std::string_view bytes) {
  const absl::StatusOr<VocabularyPtr> read = ParseVocabularyBytes(bytes);
  if (!read.ok()) return;
  const std::string written = VocabularyBytes(**read);
  const absl::StatusOr<VocabularyPtr> again = ParseVocabularyBytes(written);
  if (!again.ok() || VocabularyBytes(**again) != written) std::abort();
}

// Tokens of 1 to 8 bytes.
void Follow(const AnswerFormatPtr& format, std::string_view text) {
  AnswerFollower follower(format);
  bool began = false;
  while (!text.empty()) {
    const std::string_view token = text.substr(0, 1 + static_cast<uint8_t>(text[0]) % 8);
    text.remove_prefix(token.size());
    follower.Push(token);
    const Matcher* const matcher = follower.matcher();
    if (matcher != nullptr && matcher->LeastBytes() >= kEndless) std::abort();
    if (began && matcher == nullptr) break;  // lost for good
    began = matcher != nullptr;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view format = input.substr(0, input.find('\1'));
  const std::string_view rest = input.substr(std::min(format.size() + 1, input.size()));
  ReadVocabulary(rest);
  const absl::StatusOr<AnswerFormatPtr> compiled = CompileFormat(format);
  if (compiled.ok()) Follow(*compiled, rest);
  return 0;
}
