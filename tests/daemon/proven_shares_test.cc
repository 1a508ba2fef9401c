// What copies of a decider prove on inputs of a model: never an active neuron, and with concentrated
// inputs nearly all zeros.
#include "daemon/calibration/proven_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <set>
#include <string>

#include "planner/base/random.h"
#include "testbed/make_model/make_model.h"
#include "tests/flash_cases.h"
#include "tests/skips.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

double Normal(Random& random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += random.Uniform();
  return sum;
}

// Inputs near a few directions, and neurons of which about one in ten is active.
LayerInputs Concentrated(int64_t neurons, int64_t cols, int64_t directions, int64_t tokens) {
  Random random(3);
  std::vector<double> axes, at(static_cast<size_t>(directions));
  for (int64_t i = 0; i < directions * cols; ++i) axes.push_back(Normal(random) / std::sqrt(static_cast<double>(cols)));
  LayerInputs inputs{.layer = 4, .cols = cols};
  for (int32_t i = 0; i < neurons; ++i) {
    inputs.neurons.push_back(2 * i);
    inputs.bias.push_back(static_cast<float>(-1.3 * std::sqrt(static_cast<double>(directions)) + 0.3 * Normal(random)));
    for (int64_t k = 0; k < cols; ++k) inputs.decider.push_back(static_cast<float>(Normal(random)));
  }
  for (int64_t token = 0; token < tokens; ++token) {
    for (double& one : at) one = Normal(random);
    for (int64_t k = 0; k < cols; ++k) {
      double value = 0.02 * Normal(random) + 0.1 * static_cast<double>(k % 3);
      for (int64_t j = 0; j < directions; ++j) value += at[static_cast<size_t>(j)] * axes[static_cast<size_t>(j * cols + k)];
      inputs.inputs.push_back(static_cast<float>(value));
    }
    std::vector<int32_t> mask;
    for (int32_t i = 0; i < neurons; ++i) {
      double z = static_cast<double>(inputs.bias[static_cast<size_t>(i)]);
      for (int64_t k = 0; k < cols; ++k)
        z += static_cast<double>(inputs.decider[static_cast<size_t>(i * cols + k)]) *
             static_cast<double>(inputs.inputs[static_cast<size_t>(token * cols + k)]);
      if (z > 0) mask.push_back(2 * i);
    }
    inputs.masks.push_back(mask);
  }
  return inputs;
}

TEST(ProvenSharesTest, MoreBitsAndDirectionsProveMoreUpToAllZeros) {
  const LayerInputs inputs = Concentrated(96, 128, 8, 160);
  const InputFrame frame = FrameOf(inputs, 16);
  EXPECT_EQ(frame.directions.size(), 16u * 128);
  const CopyForm forms[] = {
      {.bits = 4, .directions = 1}, {.bits = 4, .directions = 16}, {.bits = 6, .directions = 16}, {.bits = 8, .directions = 16}};
  const auto shares = MeasureProofs(inputs, frame, forms, 2);
  ASSERT_TRUE(shares.ok()) << shares.status();
  double before = 0;
  for (size_t i = 0; i < shares->size(); ++i) {
    const ProvenShare& share = (*shares)[i];
    EXPECT_EQ(share.bits, forms[i].bits);
    EXPECT_EQ(share.directions, forms[i].directions);
    EXPECT_GT(share.proven, before) << i;
    EXPECT_LE(share.proven, share.zeros);
    EXPECT_EQ(share.zeros, shares->front().zeros);
    before = share.proven;
  }
  EXPECT_GT(shares->back().proven, 0.98 * shares->back().zeros);
}

TEST(ProvenSharesTest, AnyNumberOfThreadsGivesTheSame) {
  LayerInputs inputs = Concentrated(96, 1100, 40, 160);
  const CopyForm forms[] = {{.bits = 5, .directions = 20}, {.bits = 6, .directions = 40}};
  std::vector<double> done;
  inputs.progress = [&](double share) { done.push_back(share); };
  const InputFrame one = FrameOf(inputs, 40);
  const auto shares = MeasureProofs(inputs, one, forms, 1);
  ASSERT_TRUE(shares.ok()) << shares.status();
  EXPECT_THAT(done, ::testing::ElementsAre(0.5, 0.75, 1));
  inputs.num_threads = 5;
  const InputFrame several = FrameOf(inputs, 40);
  EXPECT_EQ(one.mean, several.mean);
  EXPECT_EQ(one.directions, several.directions);
  EXPECT_EQ(*shares, *MeasureProofs(inputs, several, forms, 5));
}

TEST(ProvenSharesTest, CancelledWorkEndsWithoutAProof) {
  LayerInputs inputs = Concentrated(96, 128, 8, 160);
  std::atomic<bool> cancelled = true;
  inputs.cancelled = &cancelled;
  const CopyForm form{.bits = 6, .directions = 8};
  EXPECT_TRUE(absl::IsCancelled(MeasureProofs(inputs, FrameOf(inputs, 8), {&form, 1}, 2).status()));
  cancelled = false;
  EXPECT_TRUE(MeasureProofs(inputs, FrameOf(inputs, 8), {&form, 1}, 2).ok());
}

TEST(ProvenSharesTest, AProofOfAWholeCopyThatAMaskContradictsIsAnError) {
  LayerInputs inputs = Concentrated(40, 64, 4, 40);
  inputs.all_neurons = 40, inputs.all_bias = inputs.bias, inputs.last_inputs = inputs.inputs;
  inputs.row = [&](int64_t neuron, std::span<float> weights) { std::copy_n(inputs.decider.begin() + neuron * 64, 64, weights.begin()); };
  for (std::vector<int32_t>& mask : inputs.masks) {
    for (int32_t& neuron : mask) neuron /= 2;  // all neurons are there
  }
  inputs.last_masks = {inputs.masks};
  const InputFrame frame = FrameOf(inputs, 8);
  const auto unproven = UnprovenMasks(inputs, frame, 8, 1);
  ASSERT_TRUE(unproven.ok()) << unproven.status();
  ASSERT_EQ(unproven->front().size(), 40u);
  const std::atomic<bool> cancelled = true;
  inputs.cancelled = &cancelled;
  EXPECT_TRUE(absl::IsCancelled(UnprovenMasks(inputs, frame, 8, 1).status()));
  inputs.cancelled = nullptr;
  std::vector<int32_t>& mask = inputs.last_masks[0].back();
  mask.clear();
  for (int32_t neuron = 0; neuron < 40; ++neuron) mask.push_back(neuron);
  EXPECT_THAT(std::string(UnprovenMasks(inputs, frame, 8, 1).status().message()), HasSubstr("is active, but is proven to be zero"));
}

TEST(ProvenSharesTest, AProofThatAMaskContradictsIsAnError) {
  LayerInputs inputs = Concentrated(40, 64, 4, 40);
  const InputFrame frame = FrameOf(inputs, 8);
  const CopyForm form{.bits = 8, .directions = 8};
  ASSERT_TRUE(MeasureProofs(inputs, frame, {&form, 1}, 1).ok());
  inputs.masks.back() = inputs.neurons;  // as if a kernel had computed otherwise
  const absl::Status status = MeasureProofs(inputs, frame, {&form, 1}, 1).status();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("of layer 4 is active, but is proven to be zero"));
}

// The inputs that a run gives are those that its masks follow from.
TEST(ProvenSharesTest, ARunGivesInputsWithWhichNoProofIsWrong) {
  for (const std::string family : {"opt", "llama", "falcon", "bamboo"}) {
    for (const std::string numerics : {"auto", "portable"}) {
      SCOPED_TRACE(family + " " + numerics);
      TempDir dir;
      MakeModelOptions options;
      options.config.family = family;
      if (family != "bamboo") options.config.activation = Activation::kRelu;
      ASSERT_TRUE(MakeModel(options, dir.path()).ok());
      const Checkpoint checkpoint = Checkpoint::Open(dir.path()).value();
      const ModelSpec spec = checkpoint.BuildModelSpec().value();
      Random random(1);
      std::vector<std::vector<int32_t>> sequences(2);
      for (auto& sequence : sequences) {
        for (int i = 0; i < 40; ++i) sequence.push_back(random.Below(static_cast<int>(spec.config.vocab_size)));
      }
      std::set<int32_t> layers;
      const auto take_inputs = [&](const LayerInputs& inputs) -> absl::Status {
        layers.insert(inputs.layer);
        EXPECT_EQ(inputs.masks.size(), 80u);
        EXPECT_EQ(std::ssize(inputs.inputs), 80 * inputs.cols);
        EXPECT_EQ(std::ssize(inputs.neurons), spec.config.layer(inputs.layer).intermediate_size);
        const std::vector<CopyForm> forms = UsualCopyForms(inputs.cols);
        LIME_ASSIGN_OR_RETURN(const std::vector<ProvenShare> shares,
                              MeasureProofs(inputs, FrameOf(inputs, forms.back().directions), forms, 1));
        // What a whole copy leaves has every active neuron, and is no larger a share than the sample says.
        EXPECT_EQ(inputs.all_neurons, std::ssize(inputs.neurons));
        EXPECT_EQ(inputs.last_masks.size(), 1u) << "the last quarter is half of the last sequence";
        EXPECT_EQ(inputs.last_masks[0], std::vector(inputs.masks.end() - 20, inputs.masks.end()));
        LIME_ASSIGN_OR_RETURN(const std::vector<SequenceMasks> unproven,
                              UnprovenMasks(inputs, FrameOf(inputs, forms.back().directions), forms.back().bits, 2));
        double computed = 0;
        for (size_t token = 0; token < 20; ++token) {
          EXPECT_TRUE(std::ranges::includes(unproven[0][token], inputs.last_masks[0][token]));
          computed += static_cast<double>(unproven[0][token].size()) / static_cast<double>(20 * inputs.all_neurons);
        }
        EXPECT_NEAR(computed, 1 - shares.back().proven, 1e-9) << "the same tokens, all neurons, and the same copy";
        EXPECT_GT(shares.back().zeros, 0.1);
        EXPECT_GT(shares.back().proven, 0.8 * shares.back().zeros) << "8 bits prove most";
        return absl::OkStatus();
      };
      const absl::Status status = RunForMasks(checkpoint, spec, sequences, {.numerics = numerics, .take_inputs = take_inputs},
                                              [](int32_t, int32_t, auto) { return absl::OkStatus(); });
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(std::ssize(layers), spec.config.num_layers());
    }
  }
}

// Active sets that others have recorded: a copy of any form leaves all of them.
TEST(ProvenSharesTest, NoActiveNeuronOfTheSharedCasesIsProvenZero) {
  LIME_SKIP_WITHOUT_SHARED(FlashCasesPath());
  for (const nlohmann::json& test : FlashCases("active")) {
    SCOPED_TRACE(test["name"].get<std::string>());
    const auto model = SharedDir() / "models" / test["model"].get<std::string>();
    LIME_SKIP_WITHOUT_SHARED(model);
    const Checkpoint checkpoint = Checkpoint::Open(model.string()).value();
    const ModelSpec spec = checkpoint.BuildModelSpec().value();
    const std::vector<std::vector<int32_t>> sequences = {test["ids"].get<std::vector<int32_t>>()};
    const auto active = test["active"].get<std::vector<std::vector<std::vector<int32_t>>>>();
    int64_t proven = 0;
    const auto take_inputs = [&](const LayerInputs& inputs) -> absl::Status {
      LayerInputs of_case = inputs;
      of_case.masks = active[static_cast<size_t>(inputs.layer)];
      EXPECT_EQ(inputs.masks, of_case.masks) << "layer " << inputs.layer;
      const std::vector<CopyForm> forms = UsualCopyForms(inputs.cols);
      LIME_ASSIGN_OR_RETURN(const std::vector<ProvenShare> shares,
                            MeasureProofs(of_case, FrameOf(inputs, forms.back().directions), forms, 1));
      for (const ProvenShare& share : shares) proven += share.proven > 0.1 ? 1 : 0;
      return absl::OkStatus();
    };
    const absl::Status status =
        RunForMasks(checkpoint, spec, sequences, {.take_inputs = take_inputs}, [](int32_t, int32_t, auto) { return absl::OkStatus(); });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_GE(proven, 4 * spec.config.num_layers()) << "some forms prove many";
  }
}

}  // namespace
}  // namespace lime
