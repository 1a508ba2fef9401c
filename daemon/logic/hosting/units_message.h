// Messages between the device of a stage, the owner, and a device that has some of the stage's
// units on demand, the host (PlanPart::host): rows for which the host computes its units, their
// results, and units that it may read ahead.
//
// On the wire: a header for each kind, little-endian, then raw bytes as in memory. Hostile input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"

namespace lime {

// Owner to host: compute these units for these rows.
struct UnitsQuery {
  int64_t number = 0;  // counted from 0, over all queries of this owner to this host
  int32_t part = 0;
  bool decodes = false;             // no two rows are of one sequence; for statistics
  int32_t per_row = 0;              // units of a row, at most
  std::vector<int32_t> units;       // [rows, per_row]: units of the part, ascending; then -1
  std::span<const std::byte> rows;  // [rows, hidden] in the working dtype: the input of the units

  int64_t num_rows() const { return std::ssize(units) / per_row; }
};

// Host to owner: results of some units of a query. Every unit comes once.
struct UnitsAnswer {
  int64_t number = 0;  // of the query
  std::vector<int32_t> units;
  std::span<const std::byte> results;  // fp32 [rows that have chosen the unit, hidden], unit by unit
};

// Owner to host: the next query about the part will probably name these units. Has no answer.
struct UnitsGuess {
  int32_t part = 0;
  std::vector<int32_t> units;  // of the part, the likeliest first; at most kMaxAheadPlaces
};

using UnitsMessage = std::variant<UnitsQuery, UnitsAnswer, UnitsGuess>;

inline constexpr int64_t kMaxUnitRows = 1 << 16;  // of a query
inline constexpr int32_t kMaxUnitsPerRow = 64;

// Whether the message is about units; else it is about KV (kv_message.h).
bool IsUnitsMessage(std::span<const std::byte> payload);
std::vector<std::byte> Encode(const UnitsMessage& message);
// A view of `payload`: spans point into it and may be unaligned. InvalidArgument for an unknown
// kind, a wrong length, numbers out of bounds, units of a row that do not ascend, a row without
// units, no rows, and rows or results that are not whole.
absl::StatusOr<UnitsMessage> ParseUnitsMessage(std::span<const std::byte> payload);

// Checks that questions about units of a plan, and their answers, fit in messages.
absl::Status CheckUnitsMessages(const Plan& plan, const ModelSpec& spec);
// Memory of a device for the questions and answers of one micro-batch with `rows` rows that it
// exchanges about units: what it keeps, and what is on its way. `owners`, `hosts`: how many devices
// ask it, and how many it asks.
Bytes UnitsMessageBytes(const ModelSpec& spec, int64_t rows, int64_t owners, int64_t hosts);
Bytes UnitsMessageBytes(const Plan& plan, int32_t device, const ModelSpec& spec);

}  // namespace lime
