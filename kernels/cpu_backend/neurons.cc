// An MLP block that computes its active neurons alone.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/cpu_backend/decoder.h"
#include "planner/base/float_bits.h"
#include "planner/base/status.h"

namespace lime::cpu {
namespace {

// Moves column ids[i] of every row to column i. ids[i] >= i, so no column is overwritten before it
// has been moved.
template <typename T>
void TakeColumns(T* rows, int64_t count, int64_t stride, std::span<const int32_t> ids) {
  for (T* row = rows; row < rows + count * stride; row += stride) {
    for (size_t i = 0; i < ids.size(); ++i) row[i] = row[ids[i]];
  }
}

// Ids of the columns [0, n) with is_active(x) in some row of x: [rows, n]. Returns their number.
template <typename T, typename IsActive>
size_t FindColumns(const T* x, int64_t rows, int64_t n, IsActive&& is_active, int32_t* ids) {
  size_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    bool active = false;
    for (int64_t row = 0; row < rows && !active; ++row) active = is_active(ToFloat(x[row * n + i]));
    if (active) ids[count++] = static_cast<int32_t>(i);
  }
  return count;
}

}  // namespace

absl::Status MlpBlock::CheckSparse(const Workspace& ws) const {
  const auto refuse = [&](const auto&... why) { return absl::UnimplementedError(absl::StrCat("the MLP of layer ", layer_, ": ", why...)); };
  if (ws.rows > ws.sparse_rows || !ws.strips)
    return refuse("a batch of ", ws.rows, " rows, but sparse MLPs have memory for ", ws.sparse_rows);
  if (!MakesZeros(config_.activation)) return refuse("it has no ReLU, so no neuron is zero");
  if (layer_gate_.outputs > 0) return refuse("its layer has inputs of its own, which have no sparse form");
  if (gated() && bound_up_.weight.IsPacked() && bound_up_.weight.dtype != DType::kU32)
    return refuse("there is no kernel for single rows of mxfp4 or FP8");
  for (const LinearLayer* layer : {&bound_up_, &bound_down_}) {
    if (layer->weight.IsPacked() && layer->weight.scales == nullptr) return refuse("its scales are not in memory");
  }
  const absl::Status columns = CheckColumns(bound_down_.weight, ws.dtype, ws.numerics);
  return columns.ok() ? columns : refuse(columns.message());
}

absl::StatusOr<std::span<const int32_t>> MlpBlock::DecideNeurons(Workspace& ws) {
  LIME_RETURN_IF_ERROR(CheckSparse(ws));
  NeuronProgress& progress = ws.neuron_progress;
  if (bound_decider_.weight.data != nullptr) {
    LinearOut(ws, Input(ws), ws.rows, {{&bound_decider_, gated() ? ws.gate : ws.up}});
  } else if (progress.layer != layer_ || !progress.has_decider || progress.decided) {
    return absl::InternalError(absl::StrCat("the neurons of layer ", layer_, " are to be decided, but rows of their decider are missing"));
  }
  const int64_t n = up_.outputs;
  progress = {.layer = layer_, .decided = true};
  if (gated()) {
    const float threshold = static_cast<float>(config_.activation_limit);  // 0 but for FATReLU
    progress.active = FindColumns(
        ws.gate, ws.rows, n, [&](float gate) { return !(gate <= threshold); }, ws.neurons);
  } else {
    Activate(ws);  // what counts is the activation that is stored
    WithWorkingType(ws.dtype, [&](auto type) {
      const auto* const mixed = reinterpret_cast<const decltype(type)*>(ws.mixed);
      progress.active = FindColumns(
          mixed, ws.rows, n, [](float x) { return !(x == 0); }, ws.neurons);
    });
  }
  BeginColumns(*ws.strips, bound_down_.weight, ws.dtype, ws.rows);
  return std::span<const int32_t>(ws.neurons, progress.active);
}

absl::Status MlpBlock::CheckNext(const Workspace& ws, std::span<const NeuronInMemory> neurons) const {
  const NeuronProgress& progress = ws.neuron_progress;
  if (progress.layer != layer_ || !progress.decided || progress.added)
    return absl::InternalError(
        absl::StrCat("neurons of layer ", layer_, " are to be computed, but they are not decided, or already added"));
  if (neurons.size() > progress.active - progress.done)
    return absl::InternalError(
        absl::StrCat(neurons.size(), " neurons came for layer ", layer_, ", but it lacks ", progress.active - progress.done));
  for (size_t i = 0; i < neurons.size(); ++i) {
    if (neurons[i].neuron != ws.neurons[progress.done + i])
      return absl::InternalError(absl::StrCat("neuron ", neurons[i].neuron, " of layer ", layer_, " came, but neuron ",
                                              ws.neurons[progress.done + i], " is next"));
    if (neurons[i].down == nullptr || (gated() && neurons[i].up == nullptr))
      return absl::InternalError(absl::StrCat("neuron ", neurons[i].neuron, " of layer ", layer_, " came without its weights"));
  }
  return absl::OkStatus();
}

void MlpBlock::ActivateNeurons(Workspace& ws, std::span<const int32_t> ids) const {
  if (ids.empty()) return;
  const int64_t n = up_.outputs;
  if (!gated()) {
    WithWorkingType(ws.dtype, [&](auto type) { TakeColumns(reinterpret_cast<decltype(type)*>(ws.mixed), ws.rows, n, ids); });
    return;
  }
  const std::byte* const input = config_.parallel_halves ? ws.mlp_input() : ws.normed;
  LinearRows(ws.pool, ws.linear, *ws.strips, input, ws.dtype, ws.rows, bound_up_.weight, bound_up_.bias, {ws.up_rows, ids.size()}, ws.up,
             n);
  TakeColumns(ws.gate, ws.rows, n, ids);
  GatedActivation(ws.pool, config_.activation, ws.gate, ws.up, ws.rows, std::ssize(ids), n, ws.mixed, ws.dtype, n,
                  static_cast<float>(config_.activation_limit));
}

absl::Status MlpBlock::ForwardNeurons(Workspace& ws, std::span<const NeuronInMemory> neurons) const {
  LIME_RETURN_IF_ERROR(CheckNext(ws, neurons));
  NeuronProgress& progress = ws.neuron_progress;
  for (size_t i = 0; i < neurons.size(); ++i) {
    ws.up_rows[i] = {.index = neurons[i].neuron, .data = neurons[i].up};
    ws.down_columns[i] = {.index = neurons[i].neuron, .data = neurons[i].down};
  }
  ActivateNeurons(ws, {ws.neurons + progress.done, neurons.size()});
  progress.done += neurons.size();
  const bool is_last = progress.done == progress.active;
  AddColumns(ws.pool, *ws.strips, {ws.down_columns, neurons.size()}, ws.mixed, up_.outputs, is_last ? -1 : ws.neurons[progress.done]);
  if (!is_last) return absl::OkStatus();
  const bool has_norm = after_norm_.weight != nullptr;
  FinishColumns(ws.pool, *ws.strips, has_norm ? TaskOf(bound_down_, ws.added, bound_down_.outputs, ws.dtype) : TaskOfX(ws, bound_down_));
  if (has_norm) after_norm_.AddToX(ws, mlp_scale());
  progress.added = true;
  return absl::OkStatus();
}

}  // namespace lime::cpu
