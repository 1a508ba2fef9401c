// Experts that other devices have, and experts that this device has for others.
#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/cpu_backend/experts_block.h"
#include "planner/base/status.h"

namespace lime::cpu {
namespace {

constexpr size_t kUnitsForOthersAtOnce = 32;

}  // namespace

// ---- The device that computes the block

UnitInputs ExpertsBlock::InputsOfUnits(const Workspace& ws) const {
  const auto rows = static_cast<size_t>(ws.rows);
  return {.rows = {ws.normed, rows * static_cast<size_t>(ws.hidden * ElementBytes(ws.dtype))},
          .units = {ws.chosen, rows * static_cast<size_t>(sizes().per_token)}};
}

absl::StatusOr<Bytes> ExpertsBlock::UnitResultBytes(const Workspace& ws, int32_t id) const {
  if (id < 0 || id >= sizes().count || RowsOf(ws, id) == 0) return Invalid("no row has chosen expert ", id, " of layer ", layer_);
  return RowsOf(ws, id) * ws.hidden * static_cast<Bytes>(sizeof(float));
}

absl::Status ExpertsBlock::TakeUnitResult(const Workspace& ws, int32_t id, std::span<const std::byte> result) const {
  LIME_ASSIGN_OR_RETURN(const Bytes bytes, UnitResultBytes(ws, id));
  if (std::ssize(result) != bytes) return Invalid(result.size(), " bytes are the result of expert ", id, ", need ", bytes);
  const int64_t rows = RowsOf(ws, id);
  const auto row_bytes = static_cast<size_t>(ws.hidden) * sizeof(float);
  for (int64_t row = 0; row < rows; ++row)
    std::memcpy(WideOf(ws, id) + row * ws.wide_cols, result.data() + static_cast<size_t>(row) * row_bytes, row_bytes);
  return absl::OkStatus();
}

absl::Status ExpertsBlock::UseUnitResults(Workspace& ws, std::span<const int32_t> units) const {
  for (const int32_t id : units) {
    if (id < 0 || id >= sizes().count || RowsOf(ws, id) == 0 || ws.expert_rows[id] != 0)
      return absl::InternalError(absl::StrCat("the result of expert ", id, " of layer ", layer_, " was not awaited"));
    ws.expert_rows[id] = static_cast<int32_t>(AllRows());
    ws.experts.missing -= RowsOf(ws, id);
  }
  AddIfComplete(ws);
  return absl::OkStatus();
}

// ---- The host

absl::Status ExpertsBlock::ForwardUnitsFor(Workspace& ws, std::span<const std::byte> inputs, std::span<const UnitForRows> units,
                                           std::span<float> results) const {
  const auto row_bytes = static_cast<size_t>(ws.hidden * ElementBytes(ws.dtype));
  const size_t matrices = sizes().alternates ? 1 : 2;  // before kDown
  std::array<LinearTask, 2 * kUnitsForOthersAtOnce> tasks;
  std::array<LinearCall, kUnitsForOthersAtOnce> calls;
  std::array<Expert, kUnitsForOthersAtOnce> experts;
  int64_t place = 0;  // of all units so far
  for (; !units.empty(); units = units.subspan(std::min(units.size(), kUnitsForOthersAtOnce))) {
    const std::span<const UnitForRows> some = units.first(std::min(units.size(), kUnitsForOthersAtOnce));
    const int64_t first = place;
    for (size_t i = 0; i < some.size(); ++i) {  // [rows of the unit, intermediate] twice
      const auto [all, rows] = some[i];
      const int64_t end = place + std::ssize(rows);
      if (all.size() != MatricesOfUnit() || all[0].rows.expert < 0 || all[0].rows.expert >= sizes().count || !PointAtAll(all, experts[i]))
        return Invalid("a unit of layer ", layer_, " has ", all.size(), " ranges of rows, which are not all its matrices");
      if (rows.empty() || end > ws.for_others_rows || end * ws.hidden > std::ssize(results))
        return Invalid(end, " rows of units of layer ", layer_, " are computed for another device, the limit is ", ws.for_others_rows);
      for (int64_t r = 0; r < std::ssize(rows); ++r) {
        const auto from = static_cast<size_t>(rows[static_cast<size_t>(r)]) * row_bytes;
        if (rows[static_cast<size_t>(r)] < 0 || from + row_bytes > inputs.size())
          return Invalid("row ", rows[static_cast<size_t>(r)], " is outside the ", inputs.size() / row_bytes, " rows of another device");
        std::memcpy(ws.narrow_for_others + (place + r) * ws.narrow_cols * ElementBytes(ws.dtype), inputs.data() + from, row_bytes);
      }
      float* const wide = ws.wide_for_others + place * ws.wide_cols;
      LinearTask* const task = &tasks[matrices * i];
      task[0] = TaskOf(experts[i].in, wide, ws.wide_cols, ws.dtype);
      if (matrices == 2) task[1] = TaskOf(experts[i].up, wide + sizes().intermediate_size, ws.wide_cols, ws.dtype);
      calls[i] = {.x = ws.narrow_for_others + place * ws.narrow_cols * ElementBytes(ws.dtype),
                  .tokens = std::ssize(rows),
                  .x_stride = ws.narrow_cols,
                  .tasks = {task, matrices}};
      place = end;
    }
    Linear(ws.pool, ws.linear, ws.dtype, {calls.data(), some.size()});
    int64_t at = first;
    for (size_t i = 0; i < some.size(); at += std::ssize(some[i].rows), ++i) {  // [rows of the unit, hidden]
      std::byte* const narrow = ws.narrow_for_others + at * ws.narrow_cols * ElementBytes(ws.dtype);
      Activate(ws, ws.wide_for_others + at * ws.wide_cols, std::ssize(some[i].rows), narrow);
      tasks[i] = TaskOf(experts[i].down, results.data() + at * ws.hidden, ws.hidden, ws.dtype);
      calls[i] = {.x = narrow, .tokens = std::ssize(some[i].rows), .x_stride = ws.narrow_cols, .tasks = {&tasks[i], 1}};
    }
    Linear(ws.pool, ws.linear, ws.dtype, {calls.data(), some.size()});
  }
  return absl::OkStatus();
}

}  // namespace lime::cpu
