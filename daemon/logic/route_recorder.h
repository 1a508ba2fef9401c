// Records which units the layers of a stage choose. The record becomes a RouteLog afterwards.
//
// Without a record there is no recorder, and its users only look at a null pointer.
// Threads: one at a time; ToLog when nobody records any more.   Owner: who asks for the log.
// Memory: allocated and touched when it is made, never later.
// A visit for which there is no room ends the record: later ones are only counted. So a log is
// always the beginning of the run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/demand/route_log.h"

namespace lime {

class RouteRecorder {
 public:
  // The defaults have room for 5,400 tokens of a model with 48 layers of which each chooses 8 units,
  // in 14 MiB.
  struct Options {
    int64_t visits = int64_t{1} << 18;
    int64_t choices = int64_t{1} << 21;
  };

  RouteRecorder() : RouteRecorder(Options()) {}
  explicit RouteRecorder(const Options& options);

  // The memory of its records.
  Bytes bytes() const { return std::ssize(visits_) * Bytes{sizeof(Visit)} + std::ssize(units_) * Bytes{sizeof(int32_t)}; }

  // A layer has chosen `units` for a micro-batch of `rows` rows. Never blocks or allocates.
  void Add(int64_t step, int32_t microbatch, int32_t layer, int32_t rows, std::span<const int32_t> units);

  int64_t recorded() const { return static_cast<int64_t>(num_visits_); }  // visits
  int64_t lost() const { return lost_; }                                  // visits without room

  // The log of a model: micro-batches are steps of their own, in order. InvalidArgument if a visit
  // does not belong to `shape`, or the shape is invalid.
  absl::StatusOr<RouteLog> ToLog(const RouteShape& shape) const;

 private:
  struct Visit {
    int64_t step = 0;
    int32_t microbatch = 0, layer = 0, rows = 0;
    int32_t units = 0;  // their number
  };

  std::vector<Visit> visits_;   // room; the first num_visits_ are recorded
  std::vector<int32_t> units_;  // the same, of all visits in order
  size_t num_visits_ = 0, num_units_ = 0;
  int64_t lost_ = 0;
};

}  // namespace lime
