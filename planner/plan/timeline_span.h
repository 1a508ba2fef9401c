// A time span of one device, either simulated or measured.
#pragma once

#include <cstdint>

namespace lime {

struct TimelineSpan {
  enum class Kind : uint8_t {
    kCompute,      // computes a part for a micro-batch
    kLoad,         // the disk reads a part
    kSend,         // a message is on the wire to `peer`
    kAttendFor,    // attends for `peer` to KV that this device hosts
    kWaitWeights,  // idle: the next part is not in the ring yet
    kWaitInput,    // idle: the next micro-batch has not arrived yet
    kWaitKv,       // idle: the host of KV has not answered yet
    kReceive,      // measured only: a message of `peer` waits for its stage
    kComputeFor,   // computes units of a part for `peer`
    kWaitHost,     // idle: the host of a part's units has not answered yet
  };
  static constexpr int kKinds = 10;

  Kind kind = Kind::kCompute;
  int32_t device = 0;
  double begin_ms = 0;
  double end_ms = 0;
  int32_t step = 0;
  int32_t stage = -1;       // -1: unknown; for a message: the sending stage
  int32_t microbatch = -1;  // -1: unknown
  int32_t part = -1;        // index in Plan::parts; kCompute may have kEmbeddingPart
  int32_t peer = -1;        // device

  friend bool operator==(const TimelineSpan&, const TimelineSpan&) = default;
};

}  // namespace lime
