// What the program that trains predictors gets and returns, with a program that copies the decider.
#include "daemon/calibration/predictor_trial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/machine/files.h"
#include "daemon/stores/safetensors_writer.h"
#include "daemon/weights/predictor_store.h"
#include "planner/base/random.h"
#include "testbed/make_model/make_model.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kTokens = 80, kTaught = 50;

struct File {
  SafetensorsHeader header;
  std::string bytes;

  template <typename T>
  std::vector<T> Tensor(const std::string& name) const {
    const auto found = std::ranges::find(header.tensors, name, &SafetensorsTensor::name);
    std::vector<T> numbers(static_cast<size_t>(found->info.bytes) / sizeof(T));
    std::memcpy(numbers.data(), bytes.data() + found->offset, static_cast<size_t>(found->info.bytes));
    return numbers;
  }
};

File Open(const std::string& path) {
  return {.header = ReadSafetensorsHeader(path).value(), .bytes = ReadTextFile(path, kGiB).value()};
}

struct Numbers {
  std::vector<float> a, b, c;
  int64_t rank = 0;
};

absl::Status Write(const std::string& path, const Numbers& numbers) {
  std::string data;
  std::vector<SafetensorsWriter::Tensor> tensors;
  const int64_t neurons = std::ssize(numbers.c);
  for (const auto& [name, values] : {std::pair("a", &numbers.a), {"b", &numbers.b}, {"c", &numbers.c}}) {
    std::vector<int64_t> shape = {neurons};
    if (*name == 'a') shape = {numbers.rank, std::ssize(*values) / numbers.rank};
    if (*name == 'b') shape = {neurons, numbers.rank};
    tensors.push_back({.name = name, .shape = shape});
    data.append(reinterpret_cast<const char*>(values->data()), values->size() * sizeof(float));
  }
  return WriteTextFile(path, absl::StrCat(SafetensorsHeaderBytes(tensors, {}), data));
}

// Of rank `cols`: A is 1, B the decider, c its bias.
Numbers DeciderOf(const File& job, int64_t cols) {
  Numbers numbers{.b = job.Tensor<float>("decider"), .c = job.Tensor<float>("bias"), .rank = cols};
  numbers.a.resize(static_cast<size_t>(cols * cols));
  for (int64_t i = 0; i < cols; ++i) numbers.a[static_cast<size_t>(i * cols + i)] = 1;
  return numbers;
}

class PredictorTrialTest : public testing::Test {
 protected:
  // Calls `of_layer` for the inputs of each layer.
  void Run(const MakeModelOptions& options, const std::function<void(const LayerInputs&, const PredictorShape&)>& of_layer) {
    ASSERT_TRUE(MakeModel(options, dir_.path()).ok());
    const Checkpoint checkpoint = Checkpoint::Open(dir_.path()).value();
    const ModelSpec spec = checkpoint.BuildModelSpec().value();
    const std::vector<PredictorShape> shapes = PredictorShapes(spec, dir_.path()).value();
    Random random(1);
    std::vector<std::vector<int32_t>> sequences(2);
    for (auto& sequence : sequences) {
      for (int64_t i = 0; i < kTokens / 2; ++i) sequence.push_back(random.Below(static_cast<int>(spec.config.vocab_size)));
    }
    size_t layers = 0;
    const MaskRunOptions run{
        .most_inputs = kTokens, .most_weights = std::numeric_limits<int64_t>::max(), .take_inputs = [&](const LayerInputs& inputs) {
          PredictorShape shape = shapes[layers++];
          shape.rank = shape.cols;
          of_layer(inputs, shape);
          return absl::OkStatus();
        }};
    const absl::Status status = RunForMasks(checkpoint, spec, sequences, run, [](int32_t, int32_t, auto) { return absl::OkStatus(); });
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(layers, shapes.size());
    EXPECT_GT(layers, 0u);
  }

  PredictorTrial Trial(std::function<absl::Status(const File& job, const std::string& out)> train) {
    return {.taught = kTaught, .folder = dir_.path(), .train = [train](const std::string& job, const std::string& out, int64_t) {
              return train(Open(job), out);
            }};
  }

  TempDir dir_;
};

TEST_F(PredictorTrialTest, ACopyOfTheDeciderMissesNothing) {
  for (const std::string family : {"opt", "llama", "sparsellama"}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(absl::StrCat(family, " ", static_cast<int>(dtype)));
      MakeModelOptions options{.dtype = dtype};
      options.config.family = family;
      if (family != "sparsellama") options.config.activation = Activation::kRelu;
      Run(options, [&](const LayerInputs& inputs, const PredictorShape& shape) {
        const auto tried = TryPredictor(inputs, shape, Trial([&](const File& job, const std::string& out) {
                                          EXPECT_EQ(std::ssize(job.Tensor<float>("inputs")), kTaught * shape.cols);
                                          const std::vector<uint8_t> masks = job.Tensor<uint8_t>("masks");
                                          const int64_t row = std::ssize(masks) / kTaught;
                                          for (int64_t token = 0; token < kTaught; ++token) {
                                            std::vector<int32_t> mask;
                                            for (int32_t i = 0; i < shape.neurons; ++i) {
                                              if (masks[static_cast<size_t>(token * row + i / 8)] >> (i % 8) & 1) mask.push_back(i);
                                            }
                                            EXPECT_EQ(mask, inputs.masks[static_cast<size_t>(token)]);
                                          }
                                          return Write(out, DeciderOf(job, shape.cols));
                                        }));
        ASSERT_TRUE(tried.ok()) << tried.status();
        const PredictorLayerRecord& record = tried->record;
        EXPECT_EQ(record.rank, shape.cols);
        EXPECT_GT(record.active, 0.05);
        EXPECT_LT(record.active, 0.95);
        EXPECT_LE(record.false_negatives, dtype == DType::kF32 ? 0.001 : 0.02) << "but for roundings near zero";
        EXPECT_LE(record.false_positives, dtype == DType::kF32 ? 0.001 : 0.02);
        EXPECT_NEAR(record.predicted, record.active, 0.02);
        EXPECT_EQ(record.xxh3, PredictorLayerHash(tried->layer.bytes()));
        ASSERT_EQ(std::ssize(tried->masks), kTokens);
        if (dtype == DType::kF32) EXPECT_EQ(tried->masks, inputs.masks);
      });
    }
  }
}

TEST_F(PredictorTrialTest, ABiasMovesMissesIntoWhatIsNamedWrongly) {
  MakeModelOptions options{.dtype = DType::kF32};
  options.config.family = "opt", options.config.activation = Activation::kRelu;
  Run(options, [&](const LayerInputs& inputs, const PredictorShape& shape) {
    for (const float bias : {-1e6F, 1e6F}) {
      const auto tried = TryPredictor(inputs, shape, Trial([&](const File& job, const std::string& out) {
                                        Numbers numbers = DeciderOf(job, shape.cols);
                                        for (float& c : numbers.c) c += bias;
                                        return Write(out, numbers);
                                      }));
      ASSERT_TRUE(tried.ok()) << tried.status();
      EXPECT_EQ(tried->record.false_negatives, bias < 0 ? 1 : 0);
      EXPECT_EQ(tried->record.false_positives, bias < 0 ? 0 : 1);
      EXPECT_EQ(tried->record.predicted, bias < 0 ? 0 : 1);
    }
  });
}

TEST_F(PredictorTrialTest, WhatIsNoPredictorIsRefused) {
  MakeModelOptions options;
  options.config.family = "opt", options.config.activation = Activation::kRelu;
  Run(options, [&](const LayerInputs& inputs, const PredictorShape& shape) {
    const auto refused = [&](const std::function<void(Numbers&)>& change) {
      return std::string(TryPredictor(inputs, shape, Trial([&](const File& job, const std::string& out) {
                                        Numbers numbers = DeciderOf(job, shape.cols);
                                        change(numbers);
                                        return Write(out, numbers);
                                      }))
                             .status()
                             .message());
    };
    EXPECT_THAT(refused([](Numbers& numbers) { numbers.c[1] = std::numeric_limits<float>::quiet_NaN(); }), HasSubstr("not finite"));
    EXPECT_THAT(refused([](Numbers& numbers) {
                  numbers.a.resize(numbers.a.size() / 2), numbers.b.resize(numbers.b.size() / 2), numbers.rank /= 2;
                }),
                HasSubstr("no tensor a"));
    EXPECT_FALSE(TryPredictor(inputs, shape, Trial([](const File&, const std::string&) { return absl::InternalError("it failed"); })).ok());
    EXPECT_FALSE(TryPredictor(inputs, shape, Trial([](const File&, const std::string&) { return absl::OkStatus(); })).ok()) << "no file";
    PredictorTrial all = Trial([](const File&, const std::string&) { return absl::OkStatus(); });
    all.taught = kTokens;
    EXPECT_THAT(std::string(TryPredictor(inputs, shape, all).status().message()), HasSubstr("none measures"));
    const LayerInputs sample = Sampled(inputs, kTokens, shape.cols * shape.neurons / 2);
    EXPECT_LT(std::ssize(sample.neurons), shape.neurons);
    EXPECT_THAT(
        std::string(
            TryPredictor(sample, shape, Trial([](const File&, const std::string&) { return absl::OkStatus(); })).status().message()),
        HasSubstr("not those of all"));
  });
  EXPECT_FALSE(FileExists(absl::StrCat(dir_.path(), "/job.safetensors"))) << "it is removed";
}

}  // namespace
}  // namespace lime
