// A recorded route: which units every layer chose, step by step.
//
// A unit is what a layer may choose to read and compute: an expert, or a bundle of neurons. A visit
// is one layer's computation of some rows. It needs the units that any of its rows chose. A step
// has one or more visits, of ascending layers; micro-batches are steps of their own.
//
// The file is binary, and has one form for each log:
//
//   "LIMEROUT" | version 1 | length and text of the model's key | layers | units | per_token | steps
//   each step:   visits; each visit: layer | rows | units | the units
//
// All numbers are unsigned LEB128 in the fewest bytes. Layers of a step and units of a visit are
// stored as the distance to the one before (the first to -1) less 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/status.h"

namespace lime {

// Bounds of a log. They prevent overflow of later products, and bound the memory of a log.
inline constexpr int32_t kMostRouteLayers = 4096;
inline constexpr int32_t kMostRouteUnits = 1 << 17;       // of a layer
inline constexpr int64_t kMostRouteModelUnits = 1 << 23;  // of all layers
inline constexpr int32_t kMostRouteRows = 1 << 20;        // of a visit
inline constexpr int64_t kMostRouteVisits = 1 << 22;      // of a log
inline constexpr int64_t kMostRouteChoices = 1 << 26;     // units of all visits of a log
inline constexpr size_t kMostRouteModelBytes = 256;       // of the model's key
inline constexpr int64_t kMostRouteLogBytes = 256 << 20;  // of a file

// What the routes of one model have in common.
struct RouteShape {
  std::string model;      // key of the model: printable ASCII without spaces
  int32_t layers = 0;     // of the model; some may have no units
  int32_t units = 0;      // of each layer that has any
  int32_t per_token = 0;  // units that a row chooses; 0: the number varies

  friend bool operator==(const RouteShape&, const RouteShape&) = default;
};

// InvalidArgument if a number is outside its bounds.
absl::Status CheckRouteShape(const RouteShape& shape);

// InvalidArgument unless `chosen` ascends and has only units below `units`.
absl::Status CheckAscending(std::span<const int32_t> chosen, int32_t units);

// The same, and `chosen` has at least one unit.
absl::Status CheckChosen(std::span<const int32_t> chosen, int32_t units);

class RouteLog {
 public:
  struct Visit {
    int32_t layer = 0;
    int32_t rows = 0;
    int64_t begin = 0, end = 0;  // its units among those of the log

    friend bool operator==(const Visit&, const Visit&) = default;
  };

  // REQUIRES: CheckRouteShape accepts the shape.
  explicit RouteLog(RouteShape shape);

  // Records a visit of the last step or, with `step` == num_steps(), of another one.
  // InvalidArgument for a visit that breaks a rule above, and ResourceExhausted if the log is full;
  // nothing has changed then.
  absl::Status Add(int64_t step, int32_t layer, int32_t rows, std::span<const int32_t> units);

  const RouteShape& shape() const { return shape_; }
  int64_t num_steps() const { return static_cast<int64_t>(steps_.size()); }
  int64_t num_choices() const { return static_cast<int64_t>(units_.size()); }
  std::span<const Visit> visits() const { return visits_; }      // of all steps
  std::span<const Visit> visits_of(int64_t step) const;          // of one step
  std::span<const int32_t> units_of(const Visit& visit) const {  // ascending
    return std::span(units_).subspan(static_cast<size_t>(visit.begin), static_cast<size_t>(visit.end - visit.begin));
  }

  friend bool operator==(const RouteLog&, const RouteLog&) = default;

 private:
  RouteShape shape_;
  std::vector<int64_t> steps_;  // first visit of each step
  std::vector<Visit> visits_;
  std::vector<int32_t> units_;
};

// The log as a file.
std::string EncodeRouteLog(const RouteLog& log);

// Reads an untrusted file; `name` names it in errors. InvalidArgument if it is not a log in the one
// form that EncodeRouteLog writes.
absl::StatusOr<RouteLog> ParseRouteLog(std::string_view bytes, std::string_view name);

}  // namespace lime
