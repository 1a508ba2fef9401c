// Masks of a model that is computed layer by layer are those of a run with one token in each step.
#include "daemon/calibration/mask_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "daemon/weights/weight_store.h"
#include "kernels/registry/registry.h"
#include "planner/base/random.h"
#include "testbed/make_model/make_model.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

using Masks = std::map<int32_t, std::vector<SequenceMasks>>;  // by layer

class MaskRunTest : public testing::Test {
 protected:
  void Make(const MakeModelOptions& options) {
    ASSERT_TRUE(MakeModel(options, dir_.path()).ok());
    checkpoint_ = Checkpoint::Open(dir_.path()).value();
    spec_ = checkpoint_->BuildModelSpec().value();
  }

  absl::StatusOr<Masks> Run(const std::vector<std::vector<int32_t>>& sequences) {
    Masks masks;
    const absl::Status status = RunForMasks(*checkpoint_, *spec_, sequences, {}, [&](int32_t layer, int32_t neurons, auto of_layer) {
      EXPECT_EQ(neurons, spec_->config.layer(layer).intermediate_size);
      masks[layer].assign(of_layer.begin(), of_layer.end());
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return masks;
  }

  // All weights in memory, one token in each step.
  Masks TokenByToken(const std::vector<std::vector<int32_t>>& sequences) {
    const int64_t layers = spec_->config.num_layers();
    const auto backend =
        OpenBackend("cpu", *spec_,
                    {.max_rows = 1, .max_logit_rows = 1, .max_sequences = 1, .context = 256, .num_kv_pages = 16 * layers, .sparse_rows = 1})
            .value();
    const auto store = WeightStore::Open(*checkpoint_, *spec_, {}).value();
    const std::vector<LoadedBlock> loaded = store->LoadAll().value();
    for (const LoadedBlock& block : loaded) {
      BlockWeights weights{.storage = block.storage};
      for (const LoadedTensor& tensor : block.tensors) weights.tensors.push_back(tensor.data);
      EXPECT_TRUE(backend->BindBlock(spec_->block(block.id), weights).ok());
    }
    for (int32_t layer = 0; layer < layers; ++layer) {
      std::vector<int32_t> pages;
      for (int32_t page = 0; page < 16; ++page) pages.push_back(16 * layer + page);
      backend->SetPages(0, layer, pages);
    }
    Masks masks;
    for (size_t sequence = 0; sequence < sequences.size(); ++sequence) {
      for (size_t at = 0; at < sequences[sequence].size(); ++at) {
        EXPECT_TRUE(backend->Begin({.rows = {{.token = sequences[sequence][at], .position = static_cast<int32_t>(at)}}}).ok());
        for (const BlockSpec& block : spec_->blocks) {
          if (block.id.kind == BlockKind::kHead) continue;
          if (block.id.kind == BlockKind::kMlp) {
            const auto active = backend->DecideNeurons(block.id).value();
            masks[block.id.layer].resize(sequences.size());
            masks[block.id.layer][sequence].emplace_back(active.begin(), active.end());
          }
          EXPECT_TRUE(backend->Compute(block.id).ok());
        }
      }
    }
    return masks;
  }

  TempDir dir_;
  std::optional<Checkpoint> checkpoint_;
  std::optional<ModelSpec> spec_;
};

std::vector<std::vector<int32_t>> RandomTokens(std::vector<size_t> lengths, int vocab) {
  Random random(5);
  std::vector<std::vector<int32_t>> sequences;
  for (const size_t length : lengths) {
    std::vector<int32_t>& sequence = sequences.emplace_back(length);
    for (int32_t& id : sequence) id = random.Below(vocab);
  }
  return sequences;
}

TEST_F(MaskRunTest, MasksAreThoseOfARunTokenByToken) {
  for (const std::string family : {"opt", "llama", "falcon", "sparsellama", "bamboo"}) {
    MakeModelOptions options;
    options.config.family = family;
    if (family != "sparsellama") options.config.activation = Activation::kRelu;  // it has FATReLU
    options.config.num_layers = 3;
    Make(options);
    const auto sequences = RandomTokens({150, 1, 70}, 320);  // more than a chunk
    const absl::StatusOr<Masks> masks = Run(sequences);
    ASSERT_TRUE(masks.ok()) << masks.status();
    const auto active = [](const SequenceMasks& of) { return std::ranges::any_of(of, [](const auto& mask) { return !mask.empty(); }); };
    for (const auto& [layer, of_layer] : *masks) EXPECT_TRUE(active(of_layer.front())) << family << " " << layer;
    EXPECT_EQ(*masks, TokenByToken(sequences)) << family;
  }
}

TEST_F(MaskRunTest, AboutThreePercentOfPlantedNeuronsAreActiveInEveryLayer) {
  MakeModelOptions options{.planted_neurons = true};
  options.config = {.family = "opt",
                    .num_layers = 3,
                    .hidden_size = 512,
                    .num_heads = 8,
                    .num_kv_heads = 8,
                    .intermediate_size = 1024,
                    .vocab_size = 400,
                    .max_positions = 160};
  Make(options);
  const absl::StatusOr<Masks> masks = Run(RandomTokens({128, 128}, 400));
  ASSERT_TRUE(masks.ok()) << masks.status();
  for (const auto& [layer, sequences] : *masks) {
    const LayerCalibration calibration = CalibrateLayer(layer, sequences, {.neurons = 1024, .masks = 5}).value();
    EXPECT_NEAR(calibration.batches[0].active, 0.03, 0.01) << layer;
    EXPECT_LT(calibration.fresh, 0.75 * calibration.batches[0].active) << "neurons of recent tokens return, layer " << layer;
  }
}

TEST_F(MaskRunTest, WhatCannotBeCalibratedIsRefused) {
  const auto error = [&](const std::vector<std::vector<int32_t>>& sequences) { return std::string(Run(sequences).status().message()); };
  Make({});
  EXPECT_THAT(error({{1, 2}}), HasSubstr("have neither ReLU nor FATReLU nor dReLU"));
  MakeModelOptions options;
  options.config = {.family = "gemma4",
                    .num_layers = 2,
                    .activation = Activation::kRelu,
                    .sliding_window = 50,
                    .full_attention_interval = 2,
                    .num_experts = 0};
  Make(options);
  ASSERT_GT(spec_->config.layer_inputs, 0);
  EXPECT_THAT(error({{1, 2}}), HasSubstr("its layers have inputs of their own"));
  options.config.num_layers = 4;  // the last two take keys and values
  Make(options);
  spec_->config.layer_inputs = 0;
  EXPECT_THAT(error({{1, 2}}), HasSubstr("its layers share keys and values"));
  options.config = {.family = "opt"};
  Make(options);
  EXPECT_THAT(error({}), HasSubstr("there is no text"));
  EXPECT_THAT(error({{}}), HasSubstr("a sequence of 0 tokens"));
  EXPECT_THAT(error({{320}}), HasSubstr("token id 320"));
  EXPECT_THAT(error({std::vector<int32_t>(513)}), HasSubstr("513 tokens"));
  for (BlockSpec& block : spec_->blocks) {
    if (block.id.kind == BlockKind::kMlp) block.tensors[block.Find(TensorRole::kUp, TensorPart::kWeight).value()].info.shape[0] = 1 << 17;
  }
  EXPECT_THAT(error(std::vector<std::vector<int32_t>>(17, std::vector<int32_t>(512))),
              HasSubstr("may need 4.25 GiB of memory, supported are 4.00 GiB; give --tokens 8176 or less"));
}

TEST_F(MaskRunTest, AnInterruptOrAnErrorEndsTheRun) {
  MakeModelOptions options;
  options.config.family = "opt";
  Make(options);
  const std::atomic<bool> cancelled = true;
  const std::vector<std::vector<int32_t>> sequences = {{1, 2, 3}};
  const auto take = [](int32_t, int32_t, auto) { return absl::DataLossError("enough"); };
  EXPECT_TRUE(absl::IsCancelled(RunForMasks(*checkpoint_, *spec_, sequences, {.cancelled = &cancelled}, take)));
  EXPECT_TRUE(absl::IsDataLoss(RunForMasks(*checkpoint_, *spec_, sequences, {}, take)));
}

}  // namespace
}  // namespace lime
