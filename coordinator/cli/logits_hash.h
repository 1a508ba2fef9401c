// logits_xxh3: XXH3-64 over logits as little-endian fp32, position by position, unpadded vocabulary.
#pragma once

#include <xxhash.h>

#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/strings/str_format.h"

namespace lime::cli {

class LogitsHash {
 public:
  LogitsHash() : state_(XXH3_createState(), &XXH3_freeState) { XXH3_64bits_reset(state_.get()); }

  // Adds one position.
  void Add(std::span<const float> logits) {
    static_assert(std::endian::native == std::endian::little, "the hash is over little-endian bytes");
    XXH3_64bits_update(state_.get(), logits.data(), logits.size_bytes());
  }
  uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

// 16 hexadecimal digits.
inline std::string HashText(uint64_t hash) {
  return absl::StrFormat("%016x", hash);
}

}  // namespace lime::cli
