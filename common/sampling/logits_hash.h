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

  // The complete state, at most kMostStateBytes, to continue in another process.
  std::string State() const {
    std::string text(kStateBytes, '\0');
    char* at = text.data();
    const auto put = [&](const auto& field) { std::memcpy(at, &field, sizeof(field)), at += sizeof(field); };
    put(kFormat), put(state_->acc), put(state_->buffer), put(state_->bufferedSize);
    put(uint64_t{state_->nbStripesSoFar}), put(uint64_t{state_->totalLen});
    return text;
  }
  // InvalidArgument for text that State cannot return. A function of the text alone, so that every
  // program decides alike.
  static absl::StatusOr<LogitsHash> Continue(std::string_view text) {
    LogitsHash hash;
    uint32_t format = 0;
    uint64_t stripes = 0, total = 0;
    if (text.size() != kStateBytes) return absl::InvalidArgumentError("the saved state of a hash has the wrong size");
    const char* at = text.data();
    const auto read = [&](auto& field) { std::memcpy(&field, at, sizeof(field)), at += sizeof(field); };
    read(format), read(hash.state_->acc), read(hash.state_->buffer), read(hash.state_->bufferedSize), read(stripes), read(total);
    hash.state_->nbStripesSoFar = static_cast<size_t>(stripes), hash.state_->totalLen = total;
    if (format != kFormat || !AgreeOnLength(hash.state_->bufferedSize, stripes, total, hash.state_->nbStripesPerBlock))
      return absl::InvalidArgumentError("the saved state of a hash is not one that this program writes");
    return hash;
  }

  static constexpr size_t kMostStateBytes = 1024;

 private:
  // XXH_VERSION_NUMBER of the first program that wrote states. The fields and their meaning have been
  // the same in every xxHash since 0.8.0.
  static constexpr uint32_t kFormat = 801;
  static constexpr size_t kStateBytes = sizeof(kFormat) + sizeof(XXH3_state_t::acc) + sizeof(XXH3_state_t::buffer) +
                                        sizeof(XXH3_state_t::bufferedSize) + 2 * sizeof(uint64_t);
  static_assert(sizeof(XXH3_state_t::acc) == 64 && sizeof(XXH3_state_t::buffer) == 256 && sizeof(XXH3_state_t::bufferedSize) == 4,
                "xxHash has other fields now: give kFormat another number");
  static_assert(kStateBytes <= kMostStateBytes);

  // Whole stripes of 64 bytes leave the full buffer when more bytes follow it; `stripes` counts them
  // within a block.
  static bool AgreeOnLength(uint64_t buffered, uint64_t stripes, uint64_t total, uint64_t stripes_per_block) {
    constexpr uint64_t kStripe = 64, kBuffer = sizeof(XXH3_state_t::buffer);
    if (buffered > kBuffer || total < buffered) return false;
    if (total <= kBuffer) return buffered == total && stripes == 0;
    const uint64_t left = total - buffered;
    return buffered > 0 && left % kStripe == 0 && left / kStripe % stripes_per_block == stripes;
  }

  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

// 16 hexadecimal digits.
inline std::string HashText(uint64_t hash) {
  return absl::StrFormat("%016x", hash);
}

}  // namespace lime
