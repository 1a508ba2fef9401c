#include "coordinator/text/encode_prompt.h"

namespace lime {

absl::StatusOr<std::vector<int32_t>> EncodePrompt(const Tokenizer& tokenizer, std::string_view text, std::optional<int32_t> bos,
                                                  int64_t vocab_size) {
  LIME_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer.Encode(text));
  if (ids.empty() && bos) ids.push_back(*bos);
  if (ids.empty()) return absl::InvalidArgumentError("the prompt is empty and the model has no BOS token to start from; give a prompt");
  LIME_RETURN_IF_ERROR(CheckIdsOfModel(ids, vocab_size));
  return ids;
}

absl::Status CheckIdsOfModel(std::span<const int32_t> ids, int64_t vocab_size) {
  for (const int32_t id : ids) {
    if (id < vocab_size) continue;
    return Invalid("the tokenizer gives id ", id, ", but the model has ", vocab_size,
                   " ids; tokenizer and weights belong to different models");
  }
  return absl::OkStatus();
}

}  // namespace lime
