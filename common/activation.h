// Messages between the devices of a pipeline. They carry the hidden states of a micro-batch to the
// next stage (with partial logits if devices share the head), its sampled tokens back to the first
// stage, and KV messages between a device and its host.
//
// On the wire: a header of fixed size, then the payload as it is in memory. Both are untrusted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/program.h"

namespace lime {

struct ActivationHeader {
  int64_t epoch = 0;  // of the plan; a message of another epoch is refused
  int64_t step = 0;   // counted from 0 in the epoch
  int32_t stage = 0;  // the sending stage
  int32_t microbatch = 0;
  Payload payload = Payload::kHidden;
  int64_t bytes = 0;  // of the payload
  // Measures the link: a payload of zeros, no step, no stage, no receiver.
  bool probe = false;
  // A message between a device and the host of its KV or its units: no step, no stage.
  bool hosting = false;
  bool answered = false;  // the receiver answers with the time of arrival

  friend bool operator==(const ActivationHeader&, const ActivationHeader&) = default;
};

struct ActivationMessage {
  ActivationHeader header;
  // kHidden: [rows, hidden] in the working dtype. kHeadPartial: daemon/logic/head_partial.h.
  // kToken: SampledToken entries, little-endian.
  std::vector<std::byte> payload;
  // The link sends it after all other messages, even those that were added later. Messages of this
  // kind keep their order. Not on the wire.
  bool may_wait = false;
};

// A token that the device with the head sampled.
struct SampledToken {
  int32_t sequence = 0;  // slot
  int32_t position = 0;  // of the token in its sequence
  int32_t token = 0;

  friend bool operator==(const SampledToken&, const SampledToken&) = default;
};

inline constexpr size_t kActivationHeaderBytes = 48;
// Size of a probe with headers. Fast links use the large one, which costs little more time.
inline constexpr Bytes kProbeBytes = 8 * kKiB, kLargeProbeBytes = 64 * kKiB;
// Limit of one message: 4,096 rows of 16,384 fp32 values.
inline constexpr int64_t kMaxActivationBytes = int64_t{1} << 28;
// Limit of the messages queued for one link.
inline constexpr int64_t kMaxQueuedBytes = int64_t{1} << 30;

std::array<std::byte, kActivationHeaderBytes> Encode(const ActivationHeader& header);
// InvalidArgument if `bytes` do not begin with a valid header: magic number, version, payload kind,
// bounds.
absl::StatusOr<ActivationHeader> ParseActivationHeader(std::span<const std::byte> bytes);

// Uses `memory` of an earlier payload for the result.
std::vector<std::byte> Encode(std::span<const SampledToken> tokens, std::vector<std::byte> memory = {});
// InvalidArgument if `bytes` are not a whole number of tokens, are more tokens than `most`, or have
// a negative number. Uses `memory` of earlier tokens for the result; an error loses it.
absl::StatusOr<std::vector<SampledToken>> ParseSampledTokens(std::span<const std::byte> bytes, size_t most,
                                                             std::vector<SampledToken> memory = {});

// True if the receiver answers a message that travels alone. A small message says nothing about the
// link, and its answer costs more than the message: the answer wakes two devices while one of them
// computes.
constexpr bool IsAnsweredAlone(const ActivationHeader& header) {
  return header.probe || header.bytes >= 64 * 1024;
}
// The same for one of several consecutive messages. Never true for a token id.
constexpr bool IsAnsweredInTrain(const ActivationHeader& header) {
  return header.probe || header.bytes >= 1024;
}

// An answer: the arrival times of the messages that it answers, in order, in microseconds of the
// receiver's steady clock.
inline constexpr size_t kArrivalBytes = 8, kMostArrivals = 4096;  // per answer
std::vector<std::byte> EncodeArrivals(std::span<const int64_t> arrivals_us);
// InvalidArgument if `bytes` are not a whole number of times, if they are no time or more than
// kMostArrivals, or if a value is not a possible time.
absl::StatusOr<std::vector<int64_t>> ParseArrivals(std::span<const std::byte> bytes);

}  // namespace lime
