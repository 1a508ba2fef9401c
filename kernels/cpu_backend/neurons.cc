// An MLP block that computes its active neurons alone.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/linear/linear_bf16.h"
#include "kernels/cpu/predict_neurons.h"
#include "kernels/cpu/zero_prover.h"
#include "kernels/cpu_backend/decoder.h"
#include "planner/base/check.h"
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
    for (int64_t row = 0; row < rows && !active; ++row) active = is_active(x[row * n + i]);
    if (active) ids[count++] = static_cast<int32_t>(i);
  }
  return count;
}

// In which the rows of a dense matrix are added; nothing if it has no proof.
std::optional<SumOrder> OrderOf(const Workspace& ws, const Matrix& matrix) {
  const bool pairs = ws.dtype == DType::kBF16 && matrix.dtype == DType::kBF16;
  if (!pairs || ChooseBf16(ws.numerics) == nullptr) return SumOrder::kPortable;
  // The emulation has the order by definition; not every CPU does.
  return ws.numerics == Numerics::kEmulatedBf16 ? SumOrder::kBf16Dot : kSumOrderNames.Find(NumericsId(ws.numerics));
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
    if (layer == &bound_up_ && !gated()) continue;  // the decider
    if (layer->weight.IsPacked() && layer->weight.scales == nullptr) return refuse("its scales are not in memory");
  }
  const absl::Status columns = CheckColumns(bound_down_.weight);
  return columns.ok() ? columns : refuse(columns.message());
}

absl::Status MlpBlock::BindCopy(const Workspace& ws, const DeciderView& copy, std::shared_ptr<const void> storage) {
  const auto refuse = [&](const auto&... why) { return absl::UnimplementedError(absl::StrCat("the MLP of layer ", layer_, ": ", why...)); };
  const Matrix& decider = bound_decider_.weight;
  if (copy.rows != up_.outputs || copy.cols != ws.hidden)
    return Invalid("the copy of the decider of layer ", layer_, " has ", copy.rows, " rows of ", copy.cols, " columns, need ", up_.outputs,
                   " of ", ws.hidden);
  if (!ws.prover || copy.directions > ws.prover->options().max_directions)
    return refuse("there is no memory for a copy of its decider with ", copy.directions, " directions");
  if (decider.IsPacked()) return refuse("sums of packed weights have no proof");
  if (!OrderOf(ws, decider)) return refuse("sums in the order of this CPU's bf16 dot product have no proof; use --numerics portable");
  copy_ = copy, copy_storage_ = std::move(storage);
  return absl::OkStatus();
}

size_t MlpBlock::ProveNeurons(Workspace& ws, const std::byte* input, int64_t rows) const {
  const ProvenLayer layer{.copy = &*copy_, .order = OrderOf(ws, bound_decider_.weight).value(), .bias = bound_decider_.bias};
  return FindUnproven(ws.pool, *ws.prover, layer, input, ws.dtype, rows, threshold(), ws.neurons);
}

// ---- Predicted neurons

absl::Status MlpBlock::BindPredictor(const Workspace& ws, const PredictorView& predictor, std::shared_ptr<const void> storage) {
  const auto refuse = [&](const auto&... why) { return absl::UnimplementedError(absl::StrCat("the MLP of layer ", layer_, ": ", why...)); };
  if (predictor.neurons != up_.outputs || predictor.cols != ws.hidden || predictor.rank < 1)
    return Invalid("the predictor of layer ", layer_, " has ", predictor.neurons, " neurons, ", predictor.cols, " columns and rank ",
                   predictor.rank, ", need ", up_.outputs, " neurons and ", ws.hidden, " columns");
  if (predictor.rank > std::min(ws.predictor_rank, ws.hidden)) return refuse("there is no memory for a predictor of rank ", predictor.rank);
  if (!MakesZeros(config_.activation) || layer_gate_.outputs > 0) return refuse("it has no ReLU, so nothing predicts its zeros");
  if (bound_decider_.weight.IsPacked()) return refuse("packed weights have no predictor");
  if (copy_) return refuse("it has a copy of its decider");
  predictor_ = predictor, predictor_storage_ = std::move(storage);
  return absl::OkStatus();
}

// The result of the block's first matrix is not there yet, so its memory is free.
void MlpBlock::Predict(Workspace& ws, const std::byte* input) {
  if (ws.predicted_layer == layer_) return;
  const PredictorScratch scratch{.low = ws.low, .low_x = ws.low_x, .z = gated() ? ws.gate : ws.up};
  PredictNeurons(ws.pool, ws.linear, *predictor_, input, ws.dtype, ws.rows, scratch, ws.predicted);
  ws.predicted_layer = layer_;
}

void MlpBlock::KeepPredicted(Workspace& ws, std::span<const int32_t> ids) const {
  LIME_CHECK_EQ(ws.predicted_layer, layer_);
  const int64_t n = up_.outputs, count = ids.empty() ? n : std::ssize(ids);
  WithWorkingType(ws.dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t row = 0; row < ws.rows; ++row) {
      T* const mixed = reinterpret_cast<T*>(ws.mixed) + row * n;
      const uint8_t* const predicted = ws.predicted + row * n;
      for (int64_t i = 0; i < count; ++i) {
        if (predicted[ids.empty() ? i : ids[static_cast<size_t>(i)]] == 0) mixed[i] = T{};
      }
    }
  });
}

absl::StatusOr<std::span<const int32_t>> MlpBlock::DecideNeurons(Workspace& ws) {
  LIME_RETURN_IF_ERROR(CheckSparse(ws));
  NeuronProgress& progress = ws.neuron_progress;
  if (predictor_) {
    ws.predicted_layer = -1;
    Predict(ws, Input(ws));
    progress = {.layer = layer_, .decided = true};
    progress.active = FindColumns(
        ws.predicted, ws.rows, up_.outputs, [](uint8_t predicted) { return predicted != 0; }, ws.neurons);
    BeginColumns(*ws.strips, bound_down_.weight, ws.dtype, ws.rows);
    return std::span<const int32_t>(ws.neurons, progress.active);
  }
  if (copy_) {
    progress = {.layer = layer_, .decided = true, .active = ProveNeurons(ws, Input(ws), ws.rows)};
    BeginColumns(*ws.strips, bound_down_.weight, ws.dtype, ws.rows);
    return std::span<const int32_t>(ws.neurons, progress.active);
  }
  if (bound_decider_.weight.data != nullptr) {
    LinearOut(ws, Input(ws), ws.rows, {{&bound_decider_, gated() ? ws.gate : ws.up}});
  } else if (progress.layer != layer_ || !progress.has_decider || progress.decided) {
    return absl::InternalError(absl::StrCat("the neurons of layer ", layer_, " are to be decided, but rows of their decider are missing"));
  }
  const int64_t n = up_.outputs;
  progress = {.layer = layer_, .decided = true};
  if (gated()) {
    progress.active = FindColumns(
        ws.gate, ws.rows, n, [this](float gate) { return !(gate <= threshold()); }, ws.neurons);
  } else {
    Activate(ws);  // what counts is the activation that is stored
    WithWorkingType(ws.dtype, [&](auto type) {
      const auto* const mixed = reinterpret_cast<const decltype(type)*>(ws.mixed);
      progress.active = FindColumns(
          mixed, ws.rows, n, [](auto x) { return !(ToFloat(x) == 0); }, ws.neurons);
    });
  }
  BeginColumns(*ws.strips, bound_down_.weight, ws.dtype, ws.rows);
  return std::span<const int32_t>(ws.neurons, progress.active);
}

// Of a plain MLP, a result that the activation rounds to zero counts here.
absl::StatusOr<std::span<const int32_t>> MlpBlock::ActiveNeurons(Workspace& ws, int64_t row) {
  if (!MakesZeros(config_.activation) || layer_gate_.outputs > 0 || ws.neurons == nullptr)
    return absl::UnimplementedError(absl::StrCat("the MLP of layer ", layer_, " has no sparse form here"));
  if (row < 0 || row >= ws.rows) return absl::InternalError(absl::StrCat("row ", row, " of a batch of ", ws.rows));
  if (copy_) return std::span<const int32_t>(ws.neurons, ProveNeurons(ws, InputOfRow(ws, row), 1));
  const NeuronProgress& progress = ws.neuron_progress;
  if (!predictor_ && (progress.layer != layer_ || !progress.has_decider || progress.decided))
    return absl::InternalError(absl::StrCat("active neurons of layer ", layer_, " are asked for, but its decider has not streamed"));
  const int64_t n = up_.outputs;
  if (predictor_) {
    if (ws.predicted_layer != layer_) Predict(ws, Input(ws));
    const size_t predicted = FindColumns(
        ws.predicted + row * n, 1, n, [](uint8_t of_row) { return of_row != 0; }, ws.neurons);
    return std::span<const int32_t>(ws.neurons, predicted);
  }
  const float threshold = static_cast<float>(config_.activation_limit);  // 0 but for FATReLU
  const size_t active = FindColumns((gated() ? ws.gate : ws.up) + row * n, 1, n, [&](float z) { return !(z <= threshold); }, ws.neurons);
  return std::span<const int32_t>(ws.neurons, active);
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
    if (neurons[i].down == nullptr || (gated() && neurons[i].up == nullptr) || (brings_decider() && neurons[i].decider == nullptr))
      return absl::InternalError(absl::StrCat("neuron ", neurons[i].neuron, " of layer ", layer_, " came without its weights"));
  }
  return absl::OkStatus();
}

template <typename DataOf>
void MlpBlock::ComputeStrips(Workspace& ws, const LinearLayer& layer, std::span<const NeuronInMemory> neurons, const DataOf& data_of,
                             float* out) const {
  for (size_t i = 0; i < neurons.size(); ++i) ws.up_rows[i] = {.index = neurons[i].neuron, .data = data_of(neurons[i])};
  LinearRows(ws.pool, ws.linear, *ws.strips, InputOfNeurons(ws), ws.dtype, ws.rows, layer.weight, layer.bias, {ws.up_rows, neurons.size()},
             out, up_.outputs);
}

void MlpBlock::ActivateNeurons(Workspace& ws, std::span<const NeuronInMemory> neurons) const {
  if (neurons.empty()) return;
  const int64_t n = up_.outputs;
  const std::span<const int32_t> ids(ws.neurons + ws.neuron_progress.done, neurons.size());
  if (brings_decider()) {
    ComputeStrips(
        ws, bound_decider_, neurons, [](const NeuronInMemory& neuron) { return neuron.decider; }, gated() ? ws.gate : ws.up);
  } else if (gated()) {
    TakeColumns(ws.gate, ws.rows, n, ids);
  } else {
    WithWorkingType(ws.dtype, [&](auto type) { TakeColumns(reinterpret_cast<decltype(type)*>(ws.mixed), ws.rows, n, ids); });
    return;
  }
  if (gated())
    ComputeStrips(
        ws, bound_up_, neurons, [](const NeuronInMemory& neuron) { return neuron.up; }, ws.up);
  GatedActivation(ws.pool, config_.activation, gated() ? ws.gate : ws.up, gated() ? ws.up : nullptr, ws.rows, std::ssize(ids), n, ws.mixed,
                  ws.dtype, n, threshold());
  if (predictor_) KeepPredicted(ws, ids);
}

absl::Status MlpBlock::ForwardNeurons(Workspace& ws, std::span<const NeuronInMemory> neurons) const {
  LIME_RETURN_IF_ERROR(CheckNext(ws, neurons));
  NeuronProgress& progress = ws.neuron_progress;
  for (size_t i = 0; i < neurons.size(); ++i) ws.down_columns[i] = {.index = neurons[i].neuron, .data = neurons[i].down};
  ActivateNeurons(ws, neurons);
  progress.done += neurons.size();
  const bool is_last = progress.done == progress.active;
  AddColumns(ws.pool, *ws.strips, {ws.down_columns, neurons.size()}, ws.mixed, up_.outputs, is_last ? -1 : ws.neurons[progress.done]);
  if (!is_last) return absl::OkStatus();
  const bool has_norm = after_norm_.weight != nullptr;
  FinishColumns(ws.pool, *ws.strips, has_norm ? TaskOf(bound_down_, ws.added, bound_down_.outputs, ws.dtype) : TaskOfX(ws, bound_down_));
  if (has_norm) after_norm_.AddToX(ws, mlp_scale());
  progress.added = true;
  ws.predicted_layer = -1;
  return absl::OkStatus();
}

}  // namespace lime::cpu
