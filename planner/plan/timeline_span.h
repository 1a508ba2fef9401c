// One stretch of time of one device: as the simulator computes it, and as a device measures it.
#pragma once

#include <cstdint>

namespace lime {

struct TimelineSpan {
  enum class Kind : uint8_t {
    kCompute,      // a part of a micro-batch
    kLoad,         // the disk reads a part
    kSend,         // a message is on the wire; `peer` gets it
    kAttendFor,    // attention to KV that this device hosts, for `peer`
    kWaitWeights,  // nothing computes: the next part is not in the ring yet
    kWaitInput,    // nothing computes: the next micro-batch has not come yet
    kWaitKv,       // nothing computes: the host of KV has not answered yet
    kReceive,      // measured only: a message of `peer` is here, until the stage has taken it
  };
  static constexpr int kKinds = 8;

  Kind kind = Kind::kCompute;
  int32_t device = 0;
  double begin_ms = 0;
  double end_ms = 0;
  int32_t step = 0;
  int32_t stage = -1;       // -1 where it does not say; of a message the one that sends it
  int32_t microbatch = -1;  // likewise
  int32_t part = -1;        // index in Plan::parts, kEmbeddingPart of program.h with kCompute
  int32_t peer = -1;        // device

  friend bool operator==(const TimelineSpan&, const TimelineSpan&) = default;
};

}  // namespace lime
