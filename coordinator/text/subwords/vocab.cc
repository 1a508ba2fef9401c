#include "coordinator/text/subwords/vocab.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "planner/base/strings.h"

namespace lime {

absl::StatusOr<Vocab> Vocab::Create(std::vector<std::pair<std::string, int64_t>>&& pieces) {
  int64_t size = 0;
  for (const auto& [piece, id] : pieces) {
    if (id < 0 || id >= kMaxTokenId) return Invalid("piece \"", piece, "\" has id ", id, ", need 0 to ", kMaxTokenId - 1);
    size = std::max(size, id + 1);
  }
  Vocab vocab;
  vocab.pieces_.resize(size);
  std::vector<bool> used(size);
  for (auto& [piece, id] : pieces) {
    if (used[id]) return Invalid("id ", id, " belongs to \"", vocab.pieces_[id], "\" and to \"", piece, "\"");
    used[id] = true;
    vocab.pieces_[id] = std::move(piece);
  }
  vocab.ids_.reserve(pieces.size());
  for (int64_t id = 0; id < size; ++id) {
    if (!used[id]) continue;
    const auto [it, added] = vocab.ids_.emplace(vocab.pieces_[id], static_cast<int32_t>(id));
    if (!added) return Invalid("piece \"", Text(it->first), "\" has the ids ", it->second, " and ", id);
  }
  vocab.byte_tokens_.resize(256);
  for (int byte = 0; byte < 256; ++byte) vocab.byte_tokens_[byte] = vocab.Find(absl::StrFormat("<0x%02X>", byte));
  return vocab;
}

int ByteOfToken(std::string_view piece) {
  if (piece.size() != 6 || piece.substr(0, 3) != "<0x" || piece[5] != '>') return -1;
  int byte = 0;
  for (const char c : piece.substr(3, 2)) {
    const bool digit = c >= '0' && c <= '9', upper = c >= 'A' && c <= 'F', lower = c >= 'a' && c <= 'f';
    if (!digit && !upper && !lower) return -1;
    byte = byte * 16 + (digit ? c - '0' : (upper ? c - 'A' : c - 'a') + 10);
  }
  return byte;
}

}  // namespace lime
