#include "kernels/cpu_backend/experts_block.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/row_ops.h"
#include "planner/base/float_bits.h"

namespace lime::cpu {
namespace {

// Experts that share parallel regions, at most.
constexpr size_t kUnitsAtOnce = 32;

bool IsOfExpert(TensorRole role) {
  return role == TensorRole::kGate || role == TensorRole::kUp || role == TensorRole::kGateUp || role == TensorRole::kDown;
}

// Adds up the weights of each chosen expert over all rows, in place, and writes the ids to `units`:
// the largest sum first, the lower id first among equals. Returns their number.
size_t LikeliestUnits(std::span<int32_t> chosen, std::span<float> weights, std::span<int32_t> units) {
  size_t ids = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const auto same =
        static_cast<size_t>(std::find(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(ids), chosen[i]) - chosen.begin());
    if (same < ids) {
      weights[same] += weights[i];
    } else {
      chosen[ids] = chosen[i], weights[ids++] = weights[i];
    }
  }
  const size_t most = std::min(ids, units.size());
  for (size_t i = 0; i < most; ++i) {
    size_t best = i;
    for (size_t j = i + 1; j < ids; ++j) {
      if (weights[j] > weights[best] || (weights[j] == weights[best] && chosen[j] < chosen[best])) best = j;
    }
    std::swap(chosen[i], chosen[best]), std::swap(weights[i], weights[best]);
    units[i] = chosen[i];
  }
  return most;
}

}  // namespace

// ---- Weights

void ExpertsBlock::Bind(const BlockBinder& binder) {
  const int64_t hidden = config_.hidden_size;
  norm_ = binder.ReadNorm(config_);
  router_ = binder.Linear(TensorRole::kRouter, hidden);
  correction_ = binder.Small(TensorRole::kRouterCorrection);
  if (sizes().norms_apart) BindNorms(binder);
  shared_scale_ = binder.Linear(TensorRole::kSharedScale, hidden);
  shared_gate_ = binder.Linear(TensorRole::kSharedGate, hidden);
  shared_up_ = binder.Linear(TensorRole::kSharedUp, hidden);
  shared_down_ = binder.Linear(TensorRole::kSharedDown, sizes().shared_intermediate_size);
  for (int32_t id = 0; id < static_cast<int32_t>(experts_.size()); ++id) {
    Expert& expert = experts_[static_cast<size_t>(id)];
    expert.in = binder.Linear(sizes().alternates ? TensorRole::kGateUp : TensorRole::kGate, hidden, id);
    expert.up = binder.Linear(TensorRole::kUp, hidden, id);
    expert.down = binder.Linear(TensorRole::kDown, sizes().intermediate_size, id);
  }
}

void ExpertsBlock::BindNorms(const BlockBinder& binder) {
  router_norm_ = binder.ReadNorm(config_, TensorRole::kRouterNorm);
  shared_norm_ = binder.ReadNorm(config_, TensorRole::kSharedNorm);
  shared_after_norm_ = binder.ReadNorm(config_, TensorRole::kSharedAfterNorm);
  experts_after_norm_ = binder.ReadNorm(config_, TensorRole::kExpertsAfterNorm);
  after_norm_ = binder.ReadNorm(config_, TensorRole::kAfterNorm);
  expert_scale_ = binder.Small(TensorRole::kExpertScale);
  layer_scale_ = binder.Number(TensorRole::kLayerScale);
}

LinearLayer& ExpertsBlock::linear(TensorRole role) {
  switch (role) {
    case TensorRole::kRouter:
      return router_;
    case TensorRole::kSharedScale:
      return shared_scale_;
    case TensorRole::kSharedGate:
      return shared_gate_;
    case TensorRole::kSharedUp:
      return shared_up_;
    default:
      return shared_down_;
  }
}

const LinearLayer& ExpertsBlock::OfExpert(const Expert& expert, TensorRole role) const {
  return role == TensorRole::kDown ? expert.down : role == TensorRole::kUp ? expert.up : expert.in;
}

bool ExpertsBlock::InMemory(const Expert& expert) const {
  return expert.in.weight.data != nullptr && expert.down.weight.data != nullptr && (sizes().alternates || expert.up.weight.data != nullptr);
}

int64_t ExpertsBlock::FirstRow(TensorRole role) const {
  const int64_t inner = sizes().intermediate_size;
  return role == TensorRole::kDown ? 2 * inner : role == TensorRole::kUp ? inner : 0;
}

// ---- The choice

absl::Status ExpertsBlock::Choose(Workspace& ws) const {
  if (sizes().norms_apart)
    DivideRows(ws.pool, ws.router, ws.rows, router_.outputs, router_.outputs, std::sqrt(static_cast<float>(ws.hidden)));
  if (const int64_t row = ChooseExperts(ws.pool, sizes(), ws.rows, ws.router, correction_, ws.chosen, ws.chosen_weights); row >= 0)
    return absl::InternalError(
        absl::StrCat("router of layer ", layer_, " gives NaN for row ", row, ": weights are damaged, or values exceed the working dtype"));
  if (sizes().norms_apart) {
    WeighApart(ws);
    norm_.Forward(ws, ws.x, ws.rows, ws.normed);
  }
  SetPlaces(ws);
  if (ws.rows > 1) Gather(ws);
  ws.experts.layer = layer_;
  ws.experts.missing = ws.rows * sizes().per_token;
  ws.experts.shared_done = !has_shared();
  return absl::OkStatus();
}

void ExpertsBlock::WeighApart(Workspace& ws) const {
  WithWorkingType(expert_scale_.dtype, [&](auto type) {
    const auto* const scales = static_cast<const decltype(type)*>(expert_scale_.data);
    for (int64_t i = 0; i < ws.rows * sizes().per_token; ++i) ws.chosen_weights[i] *= ToFloat(scales[ws.chosen[i]]);
  });
}

// Sorts the pairs of row and expert by expert, and by row among these.
void ExpertsBlock::SetPlaces(Workspace& ws) const {
  const int64_t pairs = ws.rows * sizes().per_token;
  const int32_t count = static_cast<int32_t>(sizes().count);
  std::fill_n(ws.expert_rows, count, 0);
  for (int64_t i = 0; i < pairs; ++i) ++ws.expert_rows[ws.chosen[i]];
  ws.experts = {};
  int32_t place = 0;
  for (int32_t id = 0; id < count; ++id) {
    ws.first_place[id] = place;
    if (ws.expert_rows[id] > 0) ws.units[ws.experts.num_units++] = id;
    place += std::exchange(ws.expert_rows[id], place);
  }
  ws.first_place[count] = place;
  for (int64_t i = 0; i < pairs; ++i) ws.places[i] = ws.expert_rows[ws.chosen[i]]++;
  std::fill_n(ws.expert_rows, count, 0);
}

void ExpertsBlock::Gather(Workspace& ws) const {
  const int64_t n = sizes().per_token, element = ElementBytes(ws.dtype);
  ParallelRows(ws.pool, ws.rows, n * ws.hidden, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * n; i < end * n; ++i) {
      std::memcpy(ws.narrow + ws.places[i] * ws.narrow_cols * element, ws.normed + i / n * ws.hidden * element,
                  static_cast<size_t>(ws.hidden * element));
    }
  });
}

std::span<const int32_t> ExpertsBlock::ChosenUnits(const Workspace& ws) const {
  if (ws.experts.layer != layer_) return {};
  return {ws.units, static_cast<size_t>(ws.experts.num_units)};
}

// ---- The guess

// The experts' input of the block under way has been normalised. With norms_apart the router has a
// norm of its own, for the residual stream; memory for its result is free once the shared expert is
// computed.
const std::byte* ExpertsBlock::GuessX(Workspace& ws) const {
  if (!sizes().norms_apart) return ws.normed;
  if (!ws.experts.shared_done) return nullptr;
  router_norm_.Forward(ws, ws.x, ws.rows, ws.shared_x);
  return ws.shared_x;
}

size_t ExpertsBlock::GuessUnits(Workspace& ws, std::span<const RowsInMemory> router, std::span<int32_t> units) const {
  const std::byte* const x = ws.rows <= Backend::kMostGuessRows ? GuessX(ws) : nullptr;
  if (x == nullptr) return 0;
  LinearLayer layer = router_;
  int64_t next_row = 0;
  for (const RowsInMemory& rows : router) {
    if (rows.rows.role != TensorRole::kRouter || rows.rows.begin != next_row || rows.rows.end > layer.outputs) return 0;
    layer.PointAt(rows);
    LinearOut(ws, x, ws.rows, {{&layer, ws.router}});  // the products of the block under way are used up
    next_row = rows.rows.end;
  }
  if (next_row != layer.outputs) return 0;
  std::array<int32_t, Backend::kMostGuessRows * kMaxExpertsPerToken> chosen;
  std::array<float, Backend::kMostGuessRows * kMaxExpertsPerToken> weights;
  if (ChooseExperts(ws.pool, sizes(), ws.rows, ws.router, correction_, chosen.data(), weights.data()) >= 0) return 0;
  const auto count = static_cast<size_t>(ws.rows * sizes().per_token);
  return LikeliestUnits({chosen.data(), count}, {weights.data(), count}, units);
}

std::byte* ExpertsBlock::NarrowOf(const Workspace& ws, int32_t id) {
  return ws.narrow + ws.first_place[id] * ws.narrow_cols * ElementBytes(ws.dtype);
}

const std::byte* ExpertsBlock::XOf(const Workspace& ws, int32_t id) {
  return ws.rows == 1 ? ws.normed : NarrowOf(ws, id);
}

// ---- All at once

absl::Status ExpertsBlock::Forward(const StepMemory& memory) {
  Workspace& ws = memory.ws;
  ws.experts = {};
  NormaliseForRouter(ws);  // [tokens, hidden]
  std::array<LinearTask, 4> tasks;
  size_t count = 0;
  tasks[count++] = TaskOf(router_, ws.router, router_.outputs, ws.dtype);  // [tokens, experts]
  if (has_shared() && sizes().norms_apart) {
    shared_norm_.Forward(ws, ws.x, ws.rows, ws.shared_x);
    LinearOut(ws, ws.shared_x, ws.rows, {{&shared_gate_, ws.gate}, {&shared_up_, ws.up}});
  } else if (has_shared()) {  // [tokens, shared_intermediate] twice
    tasks[count++] = TaskOf(shared_gate_, ws.gate, shared_gate_.outputs, ws.dtype);
    tasks[count++] = TaskOf(shared_up_, ws.up, shared_up_.outputs, ws.dtype);
  }
  if (sizes().shared_scale) tasks[count++] = TaskOf(shared_scale_, ws.shared_scale, 1, ws.dtype);  // [tokens]
  Linear(ws.pool, ws.linear, ws.normed, ws.dtype, ws.rows, ws.hidden, {tasks.data(), count});
  LIME_RETURN_IF_ERROR(Choose(ws));
  if (has_shared()) ActivateShared(ws);
  ComputeBound(ws, has_shared());
  ws.experts.shared_done = true;
  AddIfComplete(ws);
  return absl::OkStatus();
}

void ExpertsBlock::NormaliseForRouter(Workspace& ws) const {
  (sizes().norms_apart ? router_norm_ : norm_).Forward(ws, ws.x, ws.rows, ws.normed);
}

void ExpertsBlock::ActivateShared(Workspace& ws) const {
  const int64_t n = sizes().shared_intermediate_size;
  GatedActivation(ws.pool, config_.activation, ws.gate, ws.up, ws.rows, n, n, ws.mixed, ws.dtype, n,
                  static_cast<float>(config_.activation_limit));
}

void ExpertsBlock::Activate(Workspace& ws, const float* wide, int64_t rows, std::byte* narrow) const {
  const int64_t n = sizes().intermediate_size;
  const float limit = static_cast<float>(config_.activation_limit);
  if (sizes().alternates) {
    AlternatingActivation(ws.pool, config_.activation, wide, rows, n, ws.wide_cols, narrow, ws.dtype, ws.narrow_cols, limit);
  } else {
    GatedActivation(ws.pool, config_.activation, wide, wide + n, rows, n, ws.wide_cols, narrow, ws.dtype, ws.narrow_cols, limit);
  }
}

void ExpertsBlock::ComputeBound(Workspace& ws, bool with_shared) const {
  std::array<Unit, kUnitsAtOnce> units;
  size_t count = 0;
  for (const int32_t id : ChosenUnits(ws)) {
    const Expert& expert = experts_[static_cast<size_t>(id)];
    if (!InMemory(expert)) continue;
    units[count++] = {.id = id, .layers = expert};
    ws.expert_rows[id] = static_cast<int32_t>(AllRows());
    if (count < units.size()) continue;
    ComputeUnits(ws, units, std::exchange(with_shared, false));
    count = 0;
  }
  ComputeUnits(ws, {units.data(), count}, with_shared);
}

void ExpertsBlock::ComputeUnits(Workspace& ws, std::span<const Unit> units, bool with_shared) const {
  std::array<LinearTask, 2 * kUnitsAtOnce + 1> tasks;
  std::array<LinearCall, kUnitsAtOnce + 1> calls;
  const size_t matrices = sizes().alternates ? 1 : 2;
  size_t count = 0;
  for (const Unit& unit : units) {  // [rows of the expert, intermediate] twice
    LinearTask* const task = &tasks[matrices * count];
    task[0] = TaskOf(unit.layers.in, WideOf(ws, unit.id), ws.wide_cols, ws.dtype);
    if (matrices == 2) task[1] = TaskOf(unit.layers.up, WideOf(ws, unit.id) + sizes().intermediate_size, ws.wide_cols, ws.dtype);
    calls[count++] = {.x = XOf(ws, unit.id), .tokens = RowsOf(ws, unit.id), .x_stride = XStride(ws), .tasks = {task, matrices}};
  }
  Linear(ws.pool, ws.linear, ws.dtype, {calls.data(), count});
  count = 0;
  if (with_shared) {
    tasks[count] = TaskOf(shared_down_, ws.shared, ws.hidden, ws.dtype);  // [tokens, hidden]
    calls[count] = {.x = ws.mixed, .tokens = ws.rows, .x_stride = sizes().shared_intermediate_size, .tasks = {&tasks[count], 1}};
    ++count;
  }
  for (const Unit& unit : units) {  // [rows of the expert, hidden]
    Activate(ws, WideOf(ws, unit.id), RowsOf(ws, unit.id), NarrowOf(ws, unit.id));
    tasks[count] = TaskOf(unit.layers.down, WideOf(ws, unit.id), ws.wide_cols, ws.dtype);
    calls[count] = {.x = NarrowOf(ws, unit.id), .tokens = RowsOf(ws, unit.id), .x_stride = ws.narrow_cols, .tasks = {&tasks[count], 1}};
    ++count;
    ws.experts.missing -= RowsOf(ws, unit.id);
  }
  Linear(ws.pool, ws.linear, ws.dtype, {calls.data(), count});
}

void ExpertsBlock::AddIfComplete(Workspace& ws) const {
  if (ws.experts.missing > 0 || !ws.experts.shared_done || ws.experts.added) return;
  ws.experts.added = true;
  if (sizes().norms_apart) return AddApart(ws);
  const ExpertOutputs outputs{.rows = ws.rows,
                              .width = ws.hidden,
                              .per_token = sizes().per_token,
                              .outputs = ws.wide,
                              .stride = ws.wide_cols,
                              .places = ws.places,
                              .weights = ws.chosen_weights,
                              .shared = ws.shared,
                              .shared_scale = ws.shared_scale};
  AddExperts(ws.pool, outputs, ws.residual_multiplier, ws.x, ws.dtype);
}

void ExpertsBlock::AddApart(Workspace& ws) const {
  const ExpertOutputs outputs{.rows = ws.rows,
                              .width = ws.hidden,
                              .per_token = sizes().per_token,
                              .outputs = ws.wide,
                              .stride = ws.wide_cols,
                              .places = ws.places,
                              .weights = ws.chosen_weights};
  std::fill_n(ws.added, ws.rows * ws.hidden, 0.0f);
  AddExperts(ws.pool, outputs, 1.0f, ws.added, DType::kF32);
  experts_after_norm_.ForwardFloats(ws, ws.added);
  if (has_shared()) shared_after_norm_.AddToFloats(ws, ws.shared, ws.added);
  after_norm_.AddToX(ws, layer_scale_);
}

// ---- Rows that arrive

absl::Status ExpertsBlock::ForwardRows(const RowsInMemory& rows, const StepMemory& memory) {
  Workspace& ws = memory.ws;
  const TensorRole role = rows.rows.role;
  if (IsOfExpert(role)) return ForwardExpertRows(rows, ws);
  LinearLayer& layer = linear(role);
  layer.PointAt(rows);
  return ForwardSharedRows(layer, role, ws);
}

absl::Status ExpertsBlock::ForwardSharedRows(const LinearLayer& layer, TensorRole role, Workspace& ws) const {
  const bool is_last = layer.row_begin + layer.weight.rows == layer.outputs;
  switch (role) {
    case TensorRole::kRouter:
      if (layer.row_begin == 0) ws.experts = {}, NormaliseForRouter(ws);
      LinearOut(ws, ws.normed, ws.rows, {{&layer, ws.router}});
      if (is_last) LIME_RETURN_IF_ERROR(Choose(ws));
      break;
    case TensorRole::kSharedScale:
      LinearOut(ws, ws.normed, ws.rows, {{&layer, ws.shared_scale}});
      break;
    case TensorRole::kSharedGate:
    case TensorRole::kSharedUp:
      if (sizes().norms_apart && role == TensorRole::kSharedGate && layer.row_begin == 0)
        shared_norm_.Forward(ws, ws.x, ws.rows, ws.shared_x);
      LinearOut(ws, SharedX(ws), ws.rows, {{&layer, role == TensorRole::kSharedGate ? ws.gate : ws.up}});
      break;
    default:
      if (layer.row_begin == 0) ActivateShared(ws);
      LinearOut(ws, ws.mixed, ws.rows, {{&layer, ws.shared}});
      ws.experts.shared_done = is_last;
  }
  if (!is_last || role != (has_shared() ? TensorRole::kSharedDown : TensorRole::kRouter)) return absl::OkStatus();
  ComputeBound(ws, false);
  AddIfComplete(ws);
  return absl::OkStatus();
}

absl::Status ExpertsBlock::ForwardExpertRows(const RowsInMemory& rows, Workspace& ws) const {
  const auto [role, begin, end, id] = rows.rows;
  if (ws.experts.layer != layer_) return absl::InternalError(absl::StrCat("rows of experts of layer ", layer_, " came before its router"));
  if (id < 0 || id >= sizes().count) return absl::InternalError(absl::StrCat("layer ", layer_, " has no expert ", id));
  if (RowsOf(ws, id) == 0) return absl::OkStatus();
  if (FirstRow(role) + begin != ws.expert_rows[id])
    return absl::InternalError(absl::StrCat("rows of expert ", id, " of layer ", layer_, " are out of order: ", ws.expert_rows[id],
                                            " are computed, the next begin at ", FirstRow(role) + begin));
  LinearLayer layer = OfExpert(experts_[static_cast<size_t>(id)], role);
  layer.PointAt(rows);
  const bool is_down = role == TensorRole::kDown;
  if (is_down && begin == 0) Activate(ws, WideOf(ws, id), RowsOf(ws, id), NarrowOf(ws, id));
  const LinearTask task = TaskOf(layer, WideOf(ws, id) + (role == TensorRole::kUp ? sizes().intermediate_size : 0), ws.wide_cols, ws.dtype);
  Linear(ws.pool, ws.linear, is_down ? NarrowOf(ws, id) : XOf(ws, id), ws.dtype, RowsOf(ws, id), is_down ? ws.narrow_cols : XStride(ws),
         {&task, 1});
  ws.expert_rows[id] += static_cast<int32_t>(end - begin);
  if (ws.expert_rows[id] < AllRows()) return absl::OkStatus();
  ws.experts.missing -= RowsOf(ws, id);
  AddIfComplete(ws);
  return absl::OkStatus();
}

bool ExpertsBlock::PointAtAll(std::span<const RowsInMemory> matrices, Expert& of) const {
  const int32_t id = matrices[0].rows.expert;
  of = experts_[static_cast<size_t>(id)];
  LinearLayer* const layers[] = {&of.in, sizes().alternates ? &of.down : &of.up, &of.down};
  const TensorRole roles[] = {sizes().alternates ? TensorRole::kGateUp : TensorRole::kGate,
                              sizes().alternates ? TensorRole::kDown : TensorRole::kUp, TensorRole::kDown};
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (matrices[i].rows != MatrixRows{roles[i], 0, layers[i]->outputs, id}) return false;
    layers[i]->PointAt(matrices[i]);
  }
  return true;
}

bool ExpertsBlock::TakeUnit(const Workspace& ws, std::span<const RowsInMemory>& rows, Unit& unit) const {
  const size_t matrices = MatricesOfUnit();
  if (ws.experts.layer != layer_ || rows.size() < matrices) return false;
  unit.id = rows[0].rows.expert;
  if (unit.id < 0 || unit.id >= sizes().count || RowsOf(ws, unit.id) == 0 || ws.expert_rows[unit.id] != 0) return false;
  if (!PointAtAll(rows.first(matrices), unit.layers)) return false;
  rows = rows.subspan(matrices);
  ws.expert_rows[unit.id] = static_cast<int32_t>(AllRows());
  return true;
}

absl::Status ExpertsBlock::ForwardUnits(std::span<const RowsInMemory> rows, const StepMemory& memory) {
  Workspace& ws = memory.ws;
  std::array<Unit, kUnitsAtOnce> units;
  while (!rows.empty()) {
    size_t count = 0;
    while (count < units.size() && TakeUnit(ws, rows, units[count])) ++count;
    if (count == 0) {
      LIME_RETURN_IF_ERROR(ForwardRows(rows[0], memory));
      rows = rows.subspan(1);
      continue;
    }
    ComputeUnits(ws, {units.data(), count}, false);
    AddIfComplete(ws);
  }
  return absl::OkStatus();
}

}  // namespace lime::cpu
