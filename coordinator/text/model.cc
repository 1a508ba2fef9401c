#include "coordinator/text/model.h"

#include <algorithm>

namespace lime {

void AppendUnknown(std::string_view text, const UnknownPolicy& policy, const Vocab& vocab, size_t& unknown_end, std::vector<int32_t>& ids) {
  const auto has_token = [&](char c) { return vocab.ByteToken(static_cast<unsigned char>(c)) >= 0; };
  if (policy.byte_fallback && std::all_of(text.begin(), text.end(), has_token)) {
    for (const char c : text) ids.push_back(vocab.ByteToken(static_cast<unsigned char>(c)));
    return;
  }
  if (policy.unk_id < 0 || (policy.fuse_unk && unknown_end == ids.size())) return;
  ids.push_back(policy.unk_id);
  unknown_end = ids.size();
}

}  // namespace lime
