// What travels between the devices of a pipeline: the hidden states of one micro-batch from one stage to the next, with the logits so far
// where devices share the head, or its sampled tokens back to the first; and between a device and the host of its KV what these two say.
//
// On the wire a header of fixed size, then the payload as it lies in memory. From outside both are hostile.
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
  int64_t epoch = 0;  // of the plan; what belongs to another is refused
  int64_t step = 0;   // counted from 0 in the epoch
  int32_t stage = 0;  // that it comes from
  int32_t microbatch = 0;
  Payload payload = Payload::kHidden;
  int64_t bytes = 0;      // of what follows
  bool probe = false;     // measures the link and is for nobody: a payload of zeros, no step, no stage
  bool kv = false;        // a message of daemon/logic/kv_message.h: no step, no stage
  bool answered = false;  // the receiver says when it has arrived

  friend bool operator==(const ActivationHeader&, const ActivationHeader&) = default;
};

struct ActivationMessage {
  ActivationHeader header;
  // kHidden: [rows, hidden] in the working dtype. kHeadPartial: daemon/logic/head_partial.h. kToken: SampledTokens, little-endian.
  std::vector<std::byte> payload;
  bool may_wait = false;  // for all others on its link, those that come later too; of one link in order. Not on the wire
};

// A token that the device with the head has sampled.
struct SampledToken {
  int32_t sequence = 0;  // slot
  int32_t position = 0;  // that it takes in its sequence
  int32_t token = 0;

  friend bool operator==(const SampledToken&, const SampledToken&) = default;
};

inline constexpr size_t kActivationHeaderBytes = 48;
// Of one probe, headers and all. A large one costs its sender and receiver little more time than a small one, and says less.
inline constexpr Bytes kProbeBytes = 8 * kKiB, kLargeProbeBytes = 64 * kKiB;
// Of one message: 4,096 rows of 16,384 fp32 values.
inline constexpr int64_t kMaxActivationBytes = int64_t{1} << 28;
// Of messages that wait for one link.
inline constexpr int64_t kMaxQueuedBytes = int64_t{1} << 30;

std::array<std::byte, kActivationHeaderBytes> Encode(const ActivationHeader& header);
// InvalidArgument for anything but a header: its magic number, version, payload kind, numbers out of bounds. Reads nothing behind it.
absl::StatusOr<ActivationHeader> ParseActivationHeader(std::span<const std::byte> bytes);

// In the memory of a payload that was used before.
std::vector<std::byte> Encode(std::span<const SampledToken> tokens, std::vector<std::byte> memory = {});
// InvalidArgument where the bytes are no whole number of tokens, more than `most`, or hold a negative number.
// In the memory of tokens that were used before, which an error does not give back.
absl::StatusOr<std::vector<SampledToken>> ParseSampledTokens(std::span<const std::byte> bytes, size_t most,
                                                             std::vector<SampledToken> memory = {});

// Whether a message that passes alone is to be answered. A small one says nothing of a link, and an answer costs more than itself: it wakes
// both devices while one of them computes.
constexpr bool TellsAlone(const ActivationHeader& header) {
  return header.probe || header.bytes >= 64 * 1024;
}
// Likewise of one of several that follow one another. The id of a token never does.
constexpr bool TellsInTrain(const ActivationHeader& header) {
  return header.probe || header.bytes >= 1024;
}

// What is answered: when each such message arrived, in turn, in microseconds of its steady clock.
inline constexpr size_t kArrivalBytes = 8, kMostArrivals = 4096;  // of one answer
std::vector<std::byte> EncodeArrivals(std::span<const int64_t> arrivals_us);
// InvalidArgument where the bytes are no whole number of times, none, more than kMostArrivals, or no time of a clock.
absl::StatusOr<std::vector<int64_t>> ParseArrivals(std::span<const std::byte> bytes);

}  // namespace lime
