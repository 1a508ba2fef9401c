#include "coordinator/cli/timeline_json.h"

#include "planner/plan/program.h"

namespace lime::cli {

nlohmann::ordered_json EventJson(const Timeline& timeline, const TimelineSpan& span) {
  nlohmann::ordered_json event = {{"device", timeline.devices[span.device]},
                                  {"kind", kSpanKindNames.Of(span.kind)},
                                  {"begin_ms", span.begin_ms},
                                  {"end_ms", span.end_ms},
                                  {"step", span.step}};
  if (span.stage >= 0) event["stage"] = span.stage;
  if (span.microbatch >= 0) event["microbatch"] = span.microbatch;
  if (span.part >= 0) event["part"] = timeline.parts[span.part];
  if (span.part == kEmbeddingPart && span.kind == TimelineSpan::Kind::kCompute) event["part"] = "embedding";
  if (span.peer >= 0) event["peer"] = timeline.devices[span.peer];
  return event;
}

}  // namespace lime::cli
