#include "common/json_schema/vocabulary.h"

#include <algorithm>

namespace lime::json_schema {
namespace {

size_t CommonBytes(std::string_view a, std::string_view b) {
  const size_t most = std::min(a.size(), b.size());
  size_t bytes = 0;
  while (bytes < most && a[bytes] == b[bytes]) ++bytes;
  return bytes;
}

constexpr size_t kKeyBytes = 7;

// Orders strings of at most kKeyBytes bytes, and longer ones by their first bytes: these bytes, then
// the length.
uint64_t SortKey(std::string_view bytes) {
  uint64_t key = 0;
  for (size_t i = 0; i < kKeyBytes; ++i) key = key << 8 | (i < bytes.size() ? static_cast<uint8_t>(bytes[i]) : 0u);
  return key << 8 | std::min(bytes.size(), kKeyBytes + 1);
}

struct SortedToken {
  uint64_t key = 0;
  std::string_view bytes;
  int32_t id = 0;
};

// Most tokens and ends of tokens are short, so the key alone orders them.
bool IsBefore(const SortedToken& a, const SortedToken& b) {
  if (a.key != b.key) return a.key < b.key;
  if (a.bytes.size() > kKeyBytes && a.bytes != b.bytes) return a.bytes < b.bytes;
  return a.id < b.id;
}

}  // namespace

TokenTree TokenTree::Of(std::span<const std::pair<std::string_view, int32_t>> tokens) {
  std::vector<SortedToken> sorted;
  sorted.reserve(tokens.size());
  for (const auto& [bytes, id] : tokens) sorted.push_back({.key = SortKey(bytes), .bytes = bytes, .id = id});
  std::ranges::sort(sorted, IsBefore);
  TokenTree tree;
  tree.ids.reserve(tokens.size());
  std::vector<uint32_t> open;  // the nodes of the token before
  const auto close_to = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back()) tree.nodes[open.back()].skip = static_cast<uint32_t>(tree.nodes.size());
  };
  std::string_view before;
  for (const auto& [key, bytes, id] : sorted) {
    close_to(CommonBytes(before, bytes));
    for (size_t depth = open.size(); depth < bytes.size(); ++depth) {
      open.push_back(static_cast<uint32_t>(tree.nodes.size()));
      tree.nodes.push_back({.first_id = static_cast<uint32_t>(tree.ids.size()),
                            .depth = static_cast<uint16_t>(depth + 1),
                            .byte = static_cast<uint8_t>(bytes[depth])});
    }
    tree.ids.push_back(id);
    before = bytes;
  }
  close_to(0);
  tree.nodes.push_back({.first_id = static_cast<uint32_t>(tree.ids.size())});
  return tree;
}

int TokenTree::GroupOf(uint8_t byte) {
  constexpr int kDigits = 0, kHexLetters = 1, kLetters = 2, kHexCapitals = 3, kCapitals = 4, kControls = 5, kFirstSingle = 6;
  if (byte >= '0' && byte <= '9') return kDigits;
  if (byte >= 'a' && byte <= 'z') return byte <= 'f' ? kHexLetters : kLetters;
  if (byte >= 'A' && byte <= 'Z') return byte <= 'F' ? kHexCapitals : kCapitals;
  if (byte < ' ' || byte == 0x7F) return kControls;
  // The 33 others, from the space to the tilde.
  const int below = byte - ' ' - (byte > '9' ? 10 : 0) - (byte > 'Z' ? 26 : 0) - (byte > 'z' ? 26 : 0);
  return kFirstSingle + below;
}

void TokenTree::Summarise() {
  std::vector<uint8_t> missing(1);  // by depth: bytes of the character that are still missing; kBad
  constexpr uint8_t kBad = 255;
  for (size_t i = 0; i < count(); ++i) {
    Node& node = nodes[i];
    missing.resize(node.depth + size_t{1});
    const uint8_t before = missing[node.depth - 1u], byte = node.byte;
    const bool continues = (byte & 0xC0) == 0x80;
    uint8_t after = kBad;
    if (before == 0 && byte < 0x80) after = 0;
    if (before == 0 && byte >= 0xC2 && byte <= 0xF4) after = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
    if (before != 0 && before != kBad && continues) after = static_cast<uint8_t>(before - 1);
    missing[node.depth] = after;
    node.deepest = node.depth;
    node.groups = after == kBad ? kBroken : byte < 0x80 ? uint64_t{1} << GroupOf(byte) : kMultiByte;
    // Second bytes that UTF-8 does not allow after these.
    if (byte == 0xE0 || byte == 0xED || byte == 0xF0 || byte == 0xF4) node.groups |= kBroken;
  }
  std::vector<size_t> open;
  const auto close = [&] {
    const Node& last = nodes[open.back()];
    open.pop_back();
    if (open.empty()) return;
    nodes[open.back()].groups |= last.groups;
    nodes[open.back()].deepest = std::max(nodes[open.back()].deepest, last.deepest);
  };
  for (size_t i = 0; i < count(); ++i) {
    while (!open.empty() && nodes[open.back()].skip <= i) close();
    open.push_back(i);
  }
  while (!open.empty()) close();
  for (size_t i = 0; i < count(); ++i) {
    if ((nodes[i].byte & 0xC0) == 0x80) nodes[i].groups |= kBroken;  // inside of a character, or no UTF-8
  }
}

Vocabulary::Vocabulary(const std::vector<TokenText>& tokens) {
  size_t total = 0;
  for (const TokenText& token : tokens) total += token.bytes.size();
  bytes_.reserve(total);
  begins_.reserve(tokens.size() + 1);
  uses_.reserve(tokens.size());
  begins_.push_back(0);
  for (const TokenText& token : tokens) {
    bytes_ += token.bytes;
    begins_.push_back(static_cast<uint32_t>(bytes_.size()));
    uses_.push_back(token.use);
  }
  std::vector<std::pair<std::string_view, int32_t>> texts;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string_view bytes = Bytes(id);
    const TokenUse use = Use(id);
    if (use == TokenUse::kEnd) end_ids_.push_back(id);
    if (bytes.empty() || bytes.size() > kMaxTokenBytes) continue;
    if (use == TokenUse::kSpecial) special_ids_.push_back(id);
    if (use != TokenUse::kText) continue;
    texts.emplace_back(bytes, id);
    longest_ = std::max(longest_, bytes.size());
    if (bytes.size() == 1) single_bytes_.set(static_cast<uint8_t>(bytes[0]));
  }
  tree_ = TokenTree::Of(texts);
  tree_.nodes.shrink_to_fit();
  tree_.Summarise();
}

bool Vocabulary::HasText(std::string_view text) const {
  size_t at = 0, end = tree_.count();
  for (size_t i = 0; i < text.size(); ++i) {
    while (at < end && tree_.nodes[at].byte != static_cast<uint8_t>(text[i])) at = tree_.nodes[at].skip;
    if (at >= end) return false;
    if (i + 1 == text.size()) return !tree_.Ids(at).empty();
    end = tree_.nodes[at++].skip;
  }
  return false;
}

lime::Bytes Vocabulary::memory() const {
  const size_t ids = special_ids_.capacity() + end_ids_.capacity();
  return static_cast<lime::Bytes>(sizeof(*this) + bytes_.capacity() + begins_.capacity() * sizeof(uint32_t) + uses_.capacity() +
                                  ids * sizeof(int32_t)) +
         tree_.memory();
}

}  // namespace lime::json_schema
