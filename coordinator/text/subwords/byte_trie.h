// A set of byte strings. Finds the strings of the set that a text begins with. Used for added
// tokens and pieces.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "absl/container/flat_hash_map.h"

namespace lime {

// Maps strings to values >= 0. Time of a lookup: linear in the bytes that match.
class ByteTrie {
 public:
  // Ignores the empty string. If a key is inserted again, it takes the new value.
  // REQUIRES: value >= 0.
  void Insert(std::string_view key, int32_t value) {
    if (key.empty()) return;
    begins_[static_cast<uint8_t>(key[0])] = true;
    uint32_t node = 0;
    for (const char c : key) {
      const auto [it, added] = edges_.try_emplace(Edge(node, c), num_nodes_);
      if (added) ++num_nodes_;
      node = it->second;
    }
    values_[node] = value;
  }

  bool empty() const { return values_.empty(); }

  // Calls visit(length, value) for every key that `text` begins with, shortest first.
  template <typename Visit>
  void ForEachPrefix(std::string_view text, Visit visit) const {
    if (text.empty() || !begins_[static_cast<uint8_t>(text[0])]) return;
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto edge = edges_.find(Edge(node, text[i]));
      if (edge == edges_.end()) return;
      node = edge->second;
      if (const auto value = values_.find(node); value != values_.end()) visit(i + 1, value->second);
    }
  }

  struct Match {
    size_t length = 0;  // 0: no key begins here
    int32_t value = -1;
  };

  Match LongestPrefix(std::string_view text) const {
    Match best;
    ForEachPrefix(text, [&](size_t length, int32_t value) { best = {length, value}; });
    return best;
  }

 private:
  static uint64_t Edge(uint32_t node, char c) { return uint64_t{node} << 8 | static_cast<uint8_t>(c); }

  std::array<bool, 256> begins_{};
  uint32_t num_nodes_ = 1;
  absl::flat_hash_map<uint64_t, uint32_t> edges_;  // (node, byte) -> node
  absl::flat_hash_map<uint32_t, int32_t> values_;  // node -> value
};

}  // namespace lime
