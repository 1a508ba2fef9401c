#include "coordinator/text/components/charsmap.h"

#include "coordinator/text/unicode/utf8.h"

namespace lime {
namespace {

// The fields of a Darts-clone unit.
bool HasLeaf(uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}
uint32_t Value(uint32_t unit) {
  return unit & 0x7FFFFFFF;
}
uint32_t Label(uint32_t unit) {
  return unit & 0x800000FF;
}
uint32_t Offset(uint32_t unit) {
  return unit >> 10 << ((unit & 0x200) >> 6);
}

uint32_t LittleEndian32(std::string_view bytes) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

}  // namespace

absl::StatusOr<Charsmap> Charsmap::Parse(std::string_view bytes) {
  Charsmap map;
  if (bytes.empty()) return map;
  if (bytes.size() < 4) return absl::InvalidArgumentError("precompiled_charsmap: it is too short for its size field");
  const uint32_t trie_bytes = LittleEndian32(bytes);
  bytes.remove_prefix(4);
  if (trie_bytes > bytes.size() || trie_bytes % 4 != 0 || trie_bytes == 0) {
    return Invalid("precompiled_charsmap: a trie of ", trie_bytes, " bytes does not fit in a blob of ", bytes.size());
  }
  for (size_t at = 0; at < trie_bytes; at += 4) map.units_.push_back(LittleEndian32(bytes.substr(at)));
  map.replacements_ = bytes.substr(trie_bytes);
  if (!IsUtf8(map.replacements_)) return absl::InvalidArgumentError("precompiled_charsmap: replacements are not UTF-8");
  return map;
}

std::string_view Charsmap::Replacement(uint32_t offset) const {
  if (offset >= replacements_.size()) return {};
  const std::string_view rest = std::string_view(replacements_).substr(offset);
  return rest.substr(0, rest.find('\0'));
}

Charsmap::Match Charsmap::LongestPrefix(std::string_view text) const {
  return Find(text, true);
}

Charsmap::Match Charsmap::ShortestPrefix(std::string_view text) const {
  return Find(text, false);
}

Charsmap::Match Charsmap::Find(std::string_view text, bool longest) const {
  Match best;
  if (units_.empty()) return best;
  uint32_t node = Offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    node ^= byte;
    if (node >= units_.size() || Label(units_[node]) != byte) break;
    const uint32_t unit = units_[node];
    node ^= Offset(unit);
    if (HasLeaf(unit) && node < units_.size()) best = {i + 1, Replacement(Value(units_[node]))};
    if (best.length > 0 && !longest) break;
  }
  return best;
}

}  // namespace lime
