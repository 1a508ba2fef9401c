#include "daemon/calibration/predictor_trial.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "daemon/machine/files.h"
#include "daemon/stores/safetensors_writer.h"
#include "kernels/cpu/predict_neurons.h"
#include "planner/base/float_bits.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr int64_t kRowsTogether = 64;

absl::Status CheckInputs(const LayerInputs& inputs, const PredictorShape& shape, int64_t taught) {
  const int64_t tokens = std::ssize(inputs.masks);
  if (std::ssize(inputs.neurons) != shape.neurons || inputs.cols != shape.cols || std::ssize(inputs.inputs) != tokens * inputs.cols)
    return Invalid("predictor: the inputs of layer ", inputs.layer, " are not those of all ", shape.neurons, " neurons");
  if (taught < 1 || taught >= tokens) return Invalid("predictor: ", taught, " of ", tokens, " tokens train, so that none measures");
  return absl::OkStatus();
}

// ---- The job

// By token: a bit for each neuron.
std::vector<uint8_t> PackMasks(std::span<const std::vector<int32_t>> masks, int64_t neurons) {
  const int64_t row = (neurons + 7) / 8;
  std::vector<uint8_t> bits(static_cast<size_t>(row) * masks.size());
  for (size_t token = 0; token < masks.size(); ++token) {
    for (const int32_t neuron : masks[token])
      bits[token * static_cast<size_t>(row) + static_cast<size_t>(neuron / 8)] |= static_cast<uint8_t>(1 << (neuron % 8));
  }
  return bits;
}

absl::Status WriteJob(const std::string& path, const LayerInputs& inputs, int64_t taught) {
  const int64_t neurons = std::ssize(inputs.neurons);
  const std::vector<uint8_t> masks = PackMasks(std::span(inputs.masks).first(static_cast<size_t>(taught)), neurons);
  std::vector<float> bias(inputs.bias.empty() ? std::vector<float>(inputs.neurons.size()) : inputs.bias);
  for (float& value : bias) value -= inputs.threshold;
  LIME_ASSIGN_OR_RETURN(const auto writer,
                        SafetensorsWriter::Create(path, {{.name = "inputs", .shape = {taught, inputs.cols}},
                                                         {.name = "decider", .shape = {neurons, inputs.cols}},
                                                         {.name = "bias", .shape = {neurons}},
                                                         {.name = "masks", .dtype = DType::kU8, .shape = {taught, (neurons + 7) / 8}}}));
  const auto rows = std::span(inputs.inputs).first(static_cast<size_t>(taught * inputs.cols));
  LIME_RETURN_IF_ERROR(writer->Write(0, 0, std::as_bytes(rows)));
  LIME_RETURN_IF_ERROR(writer->Write(1, 0, std::as_bytes(std::span(inputs.decider))));
  LIME_RETURN_IF_ERROR(writer->Write(2, 0, std::as_bytes(std::span(bias))));
  LIME_RETURN_IF_ERROR(writer->Write(3, 0, std::as_bytes(std::span(masks))));
  return writer->Finish();
}

// ---- The result

std::vector<std::byte> ToWorking(std::span<const float> numbers, DType dtype) {
  std::vector<std::byte> bytes(numbers.size() * static_cast<size_t>(ElementBytes(dtype)));
  WithWorkingType(dtype, [&](auto type) {
    using T = decltype(type);
    std::ranges::transform(numbers, reinterpret_cast<T*>(bytes.data()), [](float x) { return FromFloat<T>(x); });
  });
  return bytes;
}

absl::StatusOr<PredictorLayer> ReadTrained(const std::string& path, const PredictorShape& shape) {
  constexpr std::array<std::string_view, 3> kNames{"a", "b", "c"};
  LIME_ASSIGN_OR_RETURN(const SafetensorsHeader header, ReadSafetensorsHeader(path));
  LIME_ASSIGN_OR_RETURN(const FileDescriptor file, OpenForReading(path));
  PredictorLayer layer{.shape = shape};
  for (size_t part = 0; part < kNames.size(); ++part) {
    const std::vector<int64_t> want = PredictorTensorShape(shape, static_cast<PredictorPart>(part));
    const auto tensor = std::ranges::find(header.tensors, kNames[part], &SafetensorsTensor::name);
    if (tensor == header.tensors.end() || tensor->info.dtype != DType::kF32 || tensor->info.shape != want)
      return Invalid(path, ": the trained predictor has no tensor ", Text(kNames[part]), " of rank ", shape.rank);
    std::vector<float> numbers(static_cast<size_t>(tensor->info.bytes) / sizeof(float));
    LIME_RETURN_IF_ERROR(ReadExactly(file, path, tensor->offset, std::as_writable_bytes(std::span(numbers))));
    layer.parts[part] = ToWorking(numbers, shape.dtype);
  }
  layer.parts[static_cast<size_t>(PredictorPart::kThreshold)] = ToWorking(std::array<float, 1>{0}, shape.dtype);
  return layer;
}

void Measure(std::span<const std::vector<int32_t>> active, std::span<const std::vector<int32_t>> predicted, PredictorLayerRecord& record) {
  double both = 0, of_active = 0, of_predicted = 0;
  std::vector<int32_t> common;
  for (size_t token = 0; token < active.size(); ++token) {
    common.clear();
    std::ranges::set_intersection(active[token], predicted[token], std::back_inserter(common));
    both += static_cast<double>(common.size());
    of_active += static_cast<double>(active[token].size()), of_predicted += static_cast<double>(predicted[token].size());
  }
  const double all = static_cast<double>(active.size()) * record.neurons, others = all - of_active;
  record.false_negatives = of_active > 0 ? 1 - both / of_active : 0;
  record.false_positives = others > 0 ? (of_predicted - both) / others : 0;
  record.active = of_active / all, record.predicted = of_predicted / all;
}

}  // namespace

absl::StatusOr<std::vector<std::vector<int32_t>>> PredictedMasks(const LayerInputs& inputs, const PredictorView& view, DType dtype,
                                                                 int num_threads, const std::string& numerics) {
  const cpu::Numerics order = numerics == "portable" || dtype != DType::kBF16 ? cpu::Numerics::kPortable : cpu::Numerics::kAuto;
  cpu::ThreadPool pool(num_threads);
  cpu::LinearWorkspace ws(num_threads, kRowsTogether, std::max(view.cols, view.rank), order);
  std::vector<float> low(static_cast<size_t>(kRowsTogether * view.rank)), z(static_cast<size_t>(kRowsTogether * view.neurons));
  std::vector<std::byte> low_x(low.size() * static_cast<size_t>(ElementBytes(dtype)));
  std::vector<uint8_t> predicted(z.size());
  std::vector<std::vector<int32_t>> masks;
  const int64_t tokens = std::ssize(inputs.masks);
  for (int64_t first = 0; first < tokens; first += kRowsTogether) {
    if (inputs.IsCancelled()) return absl::CancelledError("interrupted");
    const int64_t rows = std::min(kRowsTogether, tokens - first);
    const std::vector<std::byte> x =
        ToWorking(std::span(inputs.inputs).subspan(static_cast<size_t>(first * view.cols), static_cast<size_t>(rows * view.cols)), dtype);
    cpu::PredictNeurons(pool, ws, view, x.data(), dtype, rows, {.low = low.data(), .low_x = low_x.data(), .z = z.data()}, predicted.data());
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<int32_t>& mask = masks.emplace_back();
      for (int64_t i = 0; i < view.neurons; ++i) {
        if (predicted[static_cast<size_t>(row * view.neurons + i)] != 0) mask.push_back(static_cast<int32_t>(i));
      }
    }
  }
  return masks;
}

absl::StatusOr<TriedPredictor> TryPredictor(const LayerInputs& inputs, const PredictorShape& shape, const PredictorTrial& trial) {
  LIME_RETURN_IF_ERROR(CheckInputs(inputs, shape, trial.taught));
  const std::string job = absl::StrCat(trial.folder, "/job.safetensors"), out = absl::StrCat(trial.folder, "/trained.safetensors");
  const absl::Cleanup remove = [&] { ::unlink(job.c_str()), ::unlink(out.c_str()); };
  LIME_RETURN_IF_ERROR(WriteJob(job, inputs, trial.taught));
  LIME_RETURN_IF_ERROR(trial.train(job, out, shape.rank));
  TriedPredictor tried;
  LIME_ASSIGN_OR_RETURN(tried.layer, ReadTrained(out, shape));
  LIME_ASSIGN_OR_RETURN(const PredictorView view, ParsePredictor(shape, tried.layer.bytes(), out));
  LIME_ASSIGN_OR_RETURN(tried.masks, PredictedMasks(inputs, view, shape.dtype, trial.num_threads, trial.numerics));
  tried.record = {.layer = shape.layer,
                  .neurons = static_cast<int32_t>(shape.neurons),
                  .rank = static_cast<int32_t>(shape.rank),
                  .xxh3 = PredictorLayerHash(tried.layer.bytes())};
  const auto first = static_cast<size_t>(trial.taught);
  Measure(std::span(inputs.masks).subspan(first), std::span(tried.masks).subspan(first), tried.record);
  return tried;
}

}  // namespace lime
