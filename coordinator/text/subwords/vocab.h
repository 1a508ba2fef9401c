// The pieces of a model and their ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "planner/base/status.h"

namespace lime {

// Ids of tokenizers are below this. It bounds the tables that a hostile file can ask for.
inline constexpr int64_t kMaxTokenId = 1 << 21;

// Immutable. Ids may have gaps. No two pieces share an id, and no two ids share a piece.
class Vocab {
 public:
  static absl::StatusOr<Vocab> Create(std::vector<std::pair<std::string, int64_t>>&& pieces);

  Vocab(Vocab&&) = default;
  Vocab& operator=(Vocab&&) = default;

  // The largest id plus one.
  int32_t size() const { return static_cast<int32_t>(pieces_.size()); }

  // The number of pieces.
  int32_t count() const { return static_cast<int32_t>(ids_.size()); }

  // -1 if there is no such piece.
  int32_t Find(std::string_view piece) const {
    const auto it = ids_.find(piece);
    return it == ids_.end() ? -1 : it->second;
  }

  // Empty for an id without a piece.
  std::string_view TokenText(int32_t id) const { return id < 0 || id >= size() ? std::string_view() : pieces_[id]; }

  // The id of <0xE4> for 0xE4, or -1.
  int32_t ByteToken(unsigned char byte) const { return byte_tokens_[byte]; }

 private:
  Vocab() = default;

  std::vector<std::string> pieces_;
  absl::flat_hash_map<std::string_view, int32_t> ids_;  // keys point into pieces_
  std::vector<int32_t> byte_tokens_;
};

// The byte that the piece <0xE4> stands for, or -1 for any other piece.
int ByteOfToken(std::string_view piece);

}  // namespace lime
