#include "coordinator/text/subwords/model.h"

#include <algorithm>

#include "planner/base/strings.h"

namespace lime {

constexpr size_t kShownBytes = 40;

bool AppendBytes(std::string_view text, const UnknownPolicy& policy, const Vocab& vocab, std::vector<int32_t>& ids) {
  const auto has_token = [&](char c) { return vocab.ByteToken(static_cast<unsigned char>(c)) >= 0; };
  if (!policy.byte_fallback || !std::all_of(text.begin(), text.end(), has_token)) return false;
  for (const char c : text) ids.push_back(vocab.ByteToken(static_cast<unsigned char>(c)));
  return true;
}

absl::Status NoUnknownToken(std::string_view text, const UnknownPolicy& policy) {
  if (policy.missing.empty()) return absl::OkStatus();
  return Invalid("no piece covers \"", Text(text.substr(0, kShownBytes)), "\", and ", policy.missing);
}

}  // namespace lime
