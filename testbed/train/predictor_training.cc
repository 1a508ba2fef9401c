#include "testbed/train/predictor_training.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numbers>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/formats/safetensors.h"
#include "daemon/machine/files.h"
#include "daemon/stores/safetensors_writer.h"
#include "planner/base/status.h"

namespace lime::train {
namespace {

constexpr int64_t kTokensTogether = 2048;  // of a loss over all tokens
constexpr double kRidge = 1e-6;            // of the mean variance: directions with less do not count
constexpr double kWarmUp = 0.05;           // of all steps

// ---- Files

absl::StatusOr<at::Tensor> ReadTensor(const SafetensorsHeader& header, std::string_view name, DType dtype, size_t dimensions,
                                      const std::string& path) {
  const auto found = std::ranges::find(header.tensors, name, &SafetensorsTensor::name);
  if (found == header.tensors.end() || found->info.dtype != dtype || found->info.shape.size() != dimensions)
    return Invalid(path, ": has no tensor ", std::string(name), " of ", dimensions, " dimensions");
  at::Tensor tensor = at::empty(found->info.shape, dtype == DType::kF32 ? at::kFloat : at::kByte);
  LIME_ASSIGN_OR_RETURN(const FileDescriptor file, OpenForReading(path));
  LIME_RETURN_IF_ERROR(ReadExactly(file, path, found->offset, {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()}));
  return tensor;
}

// ---- Training

// [tokens, neurons]: 1 if active.
at::Tensor Unpack(const at::Tensor& masks, int64_t neurons) {
  const int64_t tokens = masks.size(0), row = masks.size(1);
  at::Tensor active = at::empty({tokens, neurons}, at::kFloat);
  const auto* const from = masks.data_ptr<uint8_t>();
  auto* const to = active.data_ptr<float>();
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t i = 0; i < neurons; ++i) to[token * neurons + i] = static_cast<float>(from[token * row + i / 8] >> (i % 8) & 1);
  }
  return active;
}

// By element: what it weighs in the loss, so that the active ones weigh a half together.
at::Tensor Weights(const at::Tensor& active) {
  const double number = active.sum().item<double>(), all = static_cast<double>(active.numel());
  const double of_active = number > 0 ? 0.5 / number : 0, of_others = number < all ? 0.5 / (all - number) : 0;
  return active * (of_active - of_others) + of_others;
}

// Cross entropy of sigmoid(z) by element.
at::Tensor CrossEntropy(const at::Tensor& z, const at::Tensor& active) {
  return at::clamp_min(z, 0) - z * active + at::log1p(at::exp(-at::abs(z)));
}

// The sums over some tokens of the losses of active elements and of the others, and how many these are.
struct LossSums {
  double active = 0, others = 0, number = 0, all = 0;

  double loss() const { return (number > 0 ? 0.5 * active / number : 0) + (all > number ? 0.5 * others / (all - number) : 0); }
};

template <typename OfTokens>
LossSums SumLosses(const PredictorJob& job, int64_t tokens, const OfTokens& z_of) {
  LossSums sums;
  for (int64_t first = 0; first < tokens; first += kTokensTogether) {
    const int64_t count = std::min(kTokensTogether, tokens - first);
    const at::Tensor active = Unpack(job.masks.narrow(0, first, count), job.decider.size(0));
    const at::Tensor loss = CrossEntropy(z_of(job.inputs.narrow(0, first, count)), active);
    const double of_active = (loss * active).sum().template item<double>();
    sums.active += of_active, sums.others += loss.sum().template item<double>() - of_active;
    sums.number += active.sum().template item<double>(), sums.all += static_cast<double>(active.numel());
  }
  return sums;
}

at::Tensor Logits(const TrainedPredictor& predictor, const at::Tensor& inputs) {
  return at::addmm(predictor.c, at::mm(inputs, predictor.a.t()), predictor.b.t());
}

// A parameter, and the moments of Adam.
class Parameter {
 public:
  explicit Parameter(at::Tensor& value)
      : value_(value),
        mean_(at::zeros_like(value)),
        square_(at::zeros_like(value)),
        size_(std::max(1e-6, std::sqrt(value.square().mean().item<double>()))) {}

  void Step(const at::Tensor& gradient, double rate) {
    constexpr double kMean = 0.9, kSquare = 0.999, kEpsilon = 1e-8;
    ++steps_;
    mean_.mul_(kMean).add_(gradient, 1 - kMean);
    square_.mul_(kSquare).addcmul_(gradient, gradient, 1 - kSquare);
    const double mean_scale = 1 / (1 - std::pow(kMean, steps_)), square_scale = 1 / (1 - std::pow(kSquare, steps_));
    value_.addcdiv_(mean_, (square_ * square_scale).sqrt_().add_(kEpsilon * size_), -rate * size_ * mean_scale);
  }

 private:
  at::Tensor& value_;
  at::Tensor mean_, square_;
  const double size_;
  double steps_ = 0;
};

double RateAt(double done, double rate) {
  if (done < kWarmUp) return rate * done / kWarmUp;
  return rate * 0.5 * (1 + std::cos(std::numbers::pi * (done - kWarmUp) / (1 - kWarmUp)));
}

}  // namespace

absl::StatusOr<PredictorJob> ReadPredictorJob(const std::string& path) {
  LIME_ASSIGN_OR_RETURN(const SafetensorsHeader header, ReadSafetensorsHeader(path));
  PredictorJob job;
  LIME_ASSIGN_OR_RETURN(job.inputs, ReadTensor(header, "inputs", DType::kF32, 2, path));
  LIME_ASSIGN_OR_RETURN(job.masks, ReadTensor(header, "masks", DType::kU8, 2, path));
  LIME_ASSIGN_OR_RETURN(job.decider, ReadTensor(header, "decider", DType::kF32, 2, path));
  LIME_ASSIGN_OR_RETURN(job.bias, ReadTensor(header, "bias", DType::kF32, 1, path));
  const int64_t tokens = job.inputs.size(0), cols = job.inputs.size(1), neurons = job.decider.size(0);
  const bool agree = tokens > 0 && cols > 0 && neurons > 0 && job.masks.size(0) == tokens && job.masks.size(1) == (neurons + 7) / 8 &&
                     job.decider.size(1) == cols && job.bias.size(0) == neurons;
  if (!agree) return Invalid(path, ": its tensors do not agree in tokens, columns and neurons");
  return job;
}

// In the axes of the covariance, of unit variance each, inputs have the covariance 1. There the best copy of
// a matrix is its SVD, whose axes are those of G = W'^T W'.
TrainedPredictor StartPredictor(const PredictorJob& job, int64_t rank) {
  const at::Tensor inputs = job.inputs.to(at::kDouble), decider = job.decider.to(at::kDouble);
  const at::Tensor mean = inputs.mean(0), centred = inputs - mean;
  at::Tensor covariance = at::mm(centred.t(), centred) / inputs.size(0);
  covariance += at::eye(covariance.size(0), at::kDouble) * (kRidge * covariance.trace().item<double>() / covariance.size(0) + 1e-30);
  const auto [variances, axes] = at::linalg_eigh(covariance);
  const at::Tensor deviations = variances.clamp_min(1e-30).sqrt();
  const at::Tensor scaled = at::mm(decider, axes) * deviations;
  const auto [gains, directions] = at::linalg_eigh(at::mm(scaled.t(), scaled));
  const at::Tensor kept = directions.narrow(1, directions.size(1) - rank, rank);  // of the largest gains
  const at::Tensor a = at::mm(kept.t() / deviations, axes.t()), b = at::mm(scaled, kept);
  const at::Tensor c = at::mv(decider, mean) + job.bias.to(at::kDouble) - at::mv(b, at::mv(a, mean));
  TrainedPredictor start{.a = a.to(at::kFloat).contiguous(), .b = b.to(at::kFloat).contiguous(), .c = c.to(at::kFloat).contiguous()};
  double best = std::numeric_limits<double>::infinity(), scale = 1;
  const double size =
      std::max(1e-12, Logits(start, job.inputs.narrow(0, 0, std::min(job.inputs.size(0), kTokensTogether))).abs().mean().item<double>());
  for (double tried = 0.125 / size; tried <= 64 / size; tried *= std::numbers::sqrt2) {
    const double loss = SumLosses(job, std::min(job.inputs.size(0), 2 * kTokensTogether), [&](const at::Tensor& some) {
                          return Logits(start, some) * tried;
                        }).loss();
    if (loss < best) best = loss, scale = tried;
  }
  start.b *= scale, start.c *= scale;
  return start;
}

TrainedPredictor TrainPredictor(const PredictorJob& job, const PredictorOptions& options) {
  at::set_num_threads(1);
  TrainedPredictor trained = StartPredictor(job, options.rank);
  const int64_t tokens = job.inputs.size(0), minibatch = std::min(options.minibatch, tokens), steps = options.epochs * (tokens / minibatch);
  Parameter a(trained.a), b(trained.b), c(trained.c);
  std::mt19937_64 random(options.seed);
  std::vector<int64_t> order(static_cast<size_t>(tokens));
  std::iota(order.begin(), order.end(), 0);
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t first = step % (tokens / minibatch) * minibatch;
    if (first == 0) {
      for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random() % (i + 1)]);
    }
    const at::Tensor some = at::from_blob(order.data() + first, {minibatch}, at::kLong);
    const at::Tensor x = job.inputs.index_select(0, some), active = Unpack(job.masks.index_select(0, some), job.decider.size(0));
    const at::Tensor h = at::mm(x, trained.a.t()), z = at::addmm(trained.c, h, trained.b.t());
    const at::Tensor gradient = (at::sigmoid(z) - active) * Weights(active);  // of z
    const at::Tensor of_a = at::mm(at::mm(gradient, trained.b).t(), x);
    const double rate = RateAt((static_cast<double>(step) + 0.5) / static_cast<double>(steps), options.rate);
    b.Step(at::mm(gradient.t(), h), rate), c.Step(gradient.sum(0), rate), a.Step(of_a, rate);
  }
  return trained;
}

double PredictorLoss(const PredictorJob& job, const TrainedPredictor& predictor) {
  return SumLosses(job, job.inputs.size(0), [&](const at::Tensor& some) { return Logits(predictor, some); }).loss();
}

absl::Status WritePredictor(const std::string& path, const TrainedPredictor& predictor) {
  const std::vector<at::Tensor> tensors = {predictor.a.contiguous(), predictor.b.contiguous(), predictor.c.contiguous()};
  std::vector<SafetensorsWriter::Tensor> names;
  std::string data;
  for (size_t i = 0; i < tensors.size(); ++i) {
    names.push_back({.name = std::string(1, static_cast<char>('a' + i)), .shape = tensors[i].sizes().vec()});
    data.append(static_cast<const char*>(tensors[i].data_ptr()), tensors[i].nbytes());
  }
  return WriteTextFile(path, absl::StrCat(SafetensorsHeaderBytes(names, {}), data));
}

}  // namespace lime::train
