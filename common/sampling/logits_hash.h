// logits_xxh3: XXH3-64 of logits as little-endian fp32, position by position, with an unpadded
// vocabulary.
#pragma once

#define XXH_STATIC_LINKING_ONLY  // access to the fields of a state
#include <xxhash.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"
#include "planner/base/status.h"

namespace lime {

class LogitsHash {
 public:
  LogitsHash() : state_(XXH3_createState(), &XXH3_freeState) { XXH3_64bits_reset(state_.get()); }

  // Adds one position.
  void Add(std::span<const float> logits) {
    static_assert(std::endian::native == std::endian::little, "the hash is over little-endian bytes");
    XXH3_64bits_update(state_.get(), logits.data(), logits.size_bytes());
  }
  uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

  // The complete state, to continue in another process with the same xxHash.
  std::string State() const {
    std::string text(kStateBytes, '\0');
    char* at = text.data();
    const auto put = [&](const auto& field) { std::memcpy(at, &field, sizeof(field)), at += sizeof(field); };
    put(kVersion), put(state_->acc), put(state_->buffer), put(state_->bufferedSize);
    put(uint64_t{state_->nbStripesSoFar}), put(uint64_t{state_->totalLen});
    return text;
  }
  // InvalidArgument for text that State cannot return.
  static absl::StatusOr<LogitsHash> Continue(std::string_view text) {
    LogitsHash hash;
    uint32_t version = 0;
    uint64_t stripes = 0, total = 0;
    if (text.size() != kStateBytes) return absl::InvalidArgumentError("the saved state of a hash has the wrong size");
    const char* at = text.data();
    const auto read = [&](auto& field) { std::memcpy(&field, at, sizeof(field)), at += sizeof(field); };
    read(version), read(hash.state_->acc), read(hash.state_->buffer), read(hash.state_->bufferedSize), read(stripes), read(total);
    hash.state_->nbStripesSoFar = static_cast<size_t>(stripes), hash.state_->totalLen = total;
    if (version != kVersion || hash.state_->bufferedSize > sizeof(hash.state_->buffer) || stripes > hash.state_->nbStripesPerBlock)
      return absl::InvalidArgumentError("the saved state of a hash is not one that this program writes");
    return hash;
  }

 private:
  static constexpr uint32_t kVersion = XXH_VERSION_NUMBER;
  static constexpr size_t kStateBytes = sizeof(kVersion) + sizeof(XXH3_state_t::acc) + sizeof(XXH3_state_t::buffer) +
                                        sizeof(XXH3_state_t::bufferedSize) + 2 * sizeof(uint64_t);

  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

// 16 hexadecimal digits.
inline std::string HashText(uint64_t hash) {
  return absl::StrFormat("%016x", hash);
}

}  // namespace lime
