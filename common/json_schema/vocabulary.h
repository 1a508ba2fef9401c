// The tokens of a model as bytes, in a tree of their beginnings.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/json_schema/dfa/byte_dfa.h"
#include "planner/base/bytes.h"

namespace lime::json_schema {

// Strings with ids, as a tree of bytes, in preorder.
struct TokenTree {
  struct Node {
    uint32_t skip = 0;      // the node behind all nodes below this one
    uint32_t first_id = 0;  // of the tokens that end here; the next node has the end
    uint16_t depth = 0;     // bytes, from 1
    uint16_t deepest = 0;   // of the nodes below this one, and its own
    uint8_t byte = 0;
    // What the bytes of this node and of those below it are: a bit for each group (GroupOf), or
    // kBroken. Only if a character begins here; otherwise kBroken.
    uint64_t groups = 0;
  };
  static constexpr uint64_t kBroken = uint64_t{1} << 63;     // not UTF-8
  static constexpr uint64_t kMultiByte = uint64_t{1} << 62;  // characters of several bytes; the last may be cut
  // Of an ASCII byte: below 62. Bytes that patterns rarely tell apart are in one group.
  static int GroupOf(uint8_t byte);

  // Strings are not empty, and have at most kMaxTokenBytes.
  static TokenTree Of(std::span<const std::pair<std::string_view, int32_t>> tokens);

  std::span<const int32_t> Ids(size_t node) const {
    return std::span(ids).subspan(nodes[node].first_id, nodes[node + 1].first_id - nodes[node].first_id);
  }
  size_t count() const { return nodes.empty() ? 0 : nodes.size() - 1; }  // of nodes
  Bytes memory() const { return static_cast<Bytes>(nodes.capacity() * sizeof(Node) + ids.capacity() * sizeof(int32_t)); }

  // Sets `groups` and `deepest` of all nodes.
  void Summarise();

  std::vector<Node> nodes;  // and one behind them
  std::vector<int32_t> ids;
};

enum class TokenUse : uint8_t {
  kText,     // its bytes may be written anywhere
  kSpecial,  // only where a grammar has its whole text outside of JSON, as "<tool_call>"
  kEnd,      // ends an answer
  kNever,    // padding, the beginning of a text, ...
};

struct TokenText {
  std::string bytes;
  TokenUse use = TokenUse::kText;
};

// Immutable. Empty texts are never written.
class Vocabulary {
 public:
  static constexpr size_t kMaxTokenBytes = 1024;  // longer tokens are never written

  explicit Vocabulary(const std::vector<TokenText>& tokens);

  size_t size() const { return uses_.size(); }
  std::string_view Bytes(int32_t id) const {
    const auto i = static_cast<size_t>(id);
    return std::string_view(bytes_).substr(begins_[i], begins_[i + 1] - begins_[i]);
  }
  TokenUse Use(int32_t id) const { return uses_[static_cast<size_t>(id)]; }
  // Whether a token may write exactly this text anywhere.
  bool HasText(std::string_view text) const;
  const TokenTree& tree() const { return tree_; }
  const std::vector<int32_t>& special_ids() const { return special_ids_; }
  const std::vector<int32_t>& end_ids() const { return end_ids_; }
  size_t longest() const { return longest_; }  // bytes of a token in the tree
  // Bytes that are tokens by themselves, for GrammarOptions.
  const ByteSet& single_bytes() const { return single_bytes_; }
  lime::Bytes memory() const;

 private:
  std::string bytes_;             // of all tokens, by id
  std::vector<uint32_t> begins_;  // of each token, and one behind them
  std::vector<TokenUse> uses_;
  TokenTree tree_;
  std::vector<int32_t> special_ids_, end_ids_;
  size_t longest_ = 0;
  ByteSet single_bytes_;
};

using VocabularyPtr = std::shared_ptr<const Vocabulary>;

}  // namespace lime::json_schema
