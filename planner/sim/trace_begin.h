// What tells a trace that LIME wrote from those of other programs.
#pragma once

namespace lime {

// How every text of TraceJson begins.
inline constexpr char kTraceBegin[] = "{\"otherData\": {\"program\": \"lime\"}";

}  // namespace lime
