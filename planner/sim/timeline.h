// What happened when on every device: for people as text, for tools as a Chrome/Perfetto trace.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lime {

// One stretch of time of one device.
struct TimelineSpan {
  enum class Kind : uint8_t {
    kCompute,      // a part of a micro-batch
    kLoad,         // the disk reads a part
    kSend,         // a message is on the wire; `peer` gets it
    kSendKv,       // lent pages are on the wire
    kWaitWeights,  // nothing computes: the next part is not in the ring yet
    kWaitInput,    // nothing computes: the next micro-batch has not come yet
    kWaitKv,       // nothing computes: lent pages are not back yet
  };
  Kind kind = Kind::kCompute;
  int32_t device = 0;
  double begin_ms = 0;
  double end_ms = 0;
  int32_t step = 0;
  int32_t stage = -1;       // -1 where it does not say
  int32_t microbatch = -1;  // likewise
  int32_t part = -1;        // index in Plan::parts, kEmbeddingPart of program.h with kCompute
  int32_t peer = -1;        // device

  friend bool operator==(const TimelineSpan&, const TimelineSpan&) = default;
};

struct Timeline {
  std::vector<std::string> devices;
  std::vector<std::string> parts;   // names, by part
  std::vector<TimelineSpan> spans;  // by device, then kind, then time
};

// "compute", "load", "send", "send_kv", "wait_weights", "wait_input", "wait_kv".
const char* SpanKindName(TimelineSpan::Kind kind);

// Three lanes for each device - compute, disk, link, the latter where they are used - over `columns` columns of [begin_ms, end_ms): the
// digit of the micro-batch that computes or travels (of the stage, where there is one micro-batch alone), `=` a load, `.` waiting for
// weights, a blank waiting for input. A column shows what filled most of it.
std::string GanttText(const Timeline& timeline, double begin_ms, double end_ms, int columns = 96);

// The trace event format: a process for each device, a thread for each lane; times in microseconds.
std::string TraceJson(const Timeline& timeline);

}  // namespace lime
