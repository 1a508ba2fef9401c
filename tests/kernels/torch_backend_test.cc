// The backend "torch" against "cpu": the same logits, within a tolerance, of every family.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/registry/registry.h"
#include "planner/plan/device/backend_names.h"
#include "tests/kernels/random_model.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSequences = 2, kLayers = 2, kPages = kRandomModelContext / 16;
const BackendOptions kOptions{.num_threads = 2,
                              .max_rows = 64,
                              .max_logit_rows = kSequences,
                              .max_sequences = kSequences,
                              .context = kRandomModelContext,
                              .num_kv_pages = kSequences * kLayers * kPages};

class TorchBackendTest : public ::testing::TestWithParam<std::string> {
 protected:
  TorchBackendTest() : spec_(RandomModelSpec(GetParam())), weights_(RandomWeights(spec_)) {}

  // `streams`: attention, MLP and head come in rows.
  std::unique_ptr<Backend> Open(const char* name, bool streams = false) {
    auto backend = OpenBackend(name, spec_, kOptions);
    EXPECT_TRUE(backend.ok()) << backend.status();
    for (size_t i = 0; i < spec_.blocks.size(); ++i) {
      BlockWeights bound;
      for (size_t t = 0; t < spec_.blocks[i].tensors.size(); ++t) {
        const bool away = streams && spec_.blocks[i].id.kind != BlockKind::kEmbedding && !IsPinned(spec_.blocks[i].tensors[t]);
        bound.tensors.push_back(away ? nullptr : weights_[i][t].data.data());
      }
      EXPECT_TRUE((*backend)->BindBlock(spec_.blocks[i], bound).ok());
    }
    for (int32_t sequence = 0; sequence < kSequences; ++sequence) {
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        std::vector<int32_t> pages;
        for (int64_t i = 0; i < kPages; ++i) pages.push_back(static_cast<int32_t>((sequence * kLayers + layer) * kPages + i));
        (*backend)->SetPages(sequence, layer, pages);
      }
    }
    return *std::move(backend);
  }

  // All rows of a block's matrices, in pieces as the disk brings them.
  void ComputeInRows(Backend& backend, const BlockSpec& block, const std::vector<cpu::Array>& weights) {
    for (const BlockPart& piece : CutBlock(block, 4 * kKiB)) {
      for (const MatrixRows& rows : piece.rows) {
        for (size_t t = 0; t < block.tensors.size(); ++t) {
          const TensorSpec& tensor = block.tensors[t];
          if (tensor.role != rows.role || IsPinned(tensor)) continue;
          const int64_t row_bytes = tensor.info.shape[1] * ElementBytes(tensor.info.dtype);
          const absl::Status status =
              backend.ComputeRows(block.id, {.rows = rows, .weight = weights[t].data.data() + rows.begin * row_bytes});
          EXPECT_TRUE(status.ok()) << status;
        }
      }
    }
  }

  std::vector<float> Step(Backend& backend, const MicroBatch& batch, bool streams = false) {
    EXPECT_TRUE(backend.Begin(batch).ok());
    for (size_t i = 0; i < spec_.blocks.size(); ++i) {
      const BlockId id = spec_.blocks[i].id;
      if (streams && id.kind != BlockKind::kEmbedding) {
        ComputeInRows(backend, spec_.blocks[i], weights_[i]);
        continue;
      }
      const absl::Status status = backend.Compute(id);
      EXPECT_TRUE(status.ok()) << status;
    }
    return {backend.Logits().begin(), backend.Logits().end()};
  }

  void ExpectClose(const std::vector<float>& got, const std::vector<float>& expected) {
    ASSERT_EQ(got.size(), expected.size());
    const double tolerance = spec_.working_dtype == DType::kF32 ? 1e-5 : spec_.working_dtype == DType::kF16 ? 4e-3 : 2e-2;
    float largest = 0, difference = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      difference = std::max(difference, std::abs(got[i] - expected[i]));
    }
    EXPECT_LE(difference, tolerance * largest) << "of " << largest;
    RecordProperty("relative_difference", std::to_string(difference / largest));
  }

  // Two prompts in chunks, then steps of both sequences.
  std::vector<MicroBatch> Batches() const {
    std::vector<MicroBatch> batches(7);
    AddRows(0, 0, 60, batches[0]);
    AddRows(1, 0, 30, batches[1]);
    for (int32_t i = 0; i < 5; ++i) AddRows(0, 60 + i, 61 + i, batches[2 + i]), AddRows(1, 30 + i, 31 + i, batches[2 + i]);
    return batches;
  }

  ModelSpec spec_;
  const std::vector<std::vector<cpu::Array>> weights_;
};

TEST_P(TorchBackendTest, LogitsAgreeWithThoseOfTheCpu) {
  const auto ours = Open(kCpuBackend), theirs = Open(kTorchBackend);
  for (const MicroBatch& batch : Batches()) ExpectClose(Step(*theirs, batch), Step(*ours, batch));
}

TEST_P(TorchBackendTest, BlocksThatComeInRowsHaveTheSameLogits) {
  const auto whole = Open(kTorchBackend), streams = Open(kTorchBackend, true);
  for (const MicroBatch& batch : Batches()) {
    const std::vector<float> expected = Step(*whole, batch), got = Step(*streams, batch, true);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-4 * (1 + std::abs(expected[i])));
  }
}

TEST_P(TorchBackendTest, RowsOfTheEmbeddingAreThoseOfTheTable) {
  const auto backend = Open(kTorchBackend);
  MicroBatch batch;
  AddRows(1, 0, 9, batch);
  ASSERT_TRUE(backend->Begin(batch).ok() && backend->Compute({BlockKind::kEmbedding, 0}).ok());
  const std::vector<std::byte> expected(backend->Hidden().begin(), backend->Hidden().end());
  const int64_t row_bytes = spec_.config.hidden_size * ElementBytes(spec_.working_dtype);
  std::vector<std::byte> rows;
  for (const BatchRow& row : batch.rows) {
    const std::byte* const at = weights_[0][0].data.data() + row.token * row_bytes;
    rows.insert(rows.end(), at, at + row_bytes);
  }
  ASSERT_TRUE(backend->Begin(batch).ok());
  ASSERT_TRUE(backend->EmbedRows({.rows = {TensorRole::kTokenEmbedding, 0, 9}, .weight = rows.data()}).ok());
  EXPECT_TRUE(std::ranges::equal(backend->Hidden(), expected));
}

INSTANTIATE_TEST_SUITE_P(Families, TorchBackendTest,
                         ::testing::Values("llama", "qwen3", "opt", "options", "mistral_20", "fatrelu", "drelu"),
                         [](const auto& info) { return info.param; });

TEST(TorchBackendOptionsTest, WhatItDoesNotDoIsRefused) {
  const ModelSpec spec = RandomModelSpec("llama");
  BackendOptions pieces = kOptions, others = kOptions;
  pieces.attends_pieces = true, others.attends_for_others = true;
  for (const BackendOptions& options : {pieces, others}) {
    const auto refused = OpenBackend(kTorchBackend, spec, options);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("only over KV in its own memory"));
  }
  for (const auto& [name, why] : {std::pair("qwen3_5", "does not compute linear attention (layer 0); use --backend cpu"),
                                  std::pair("gates", "does not compute attention with gates; use --backend cpu")}) {
    const ModelSpec other = RandomModelSpec(name);
    const auto refused = OpenBackend(kTorchBackend, other, kOptions);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr(why));
  }
  const auto refused = [&](const auto& change) {
    ModelSpec other = spec;
    change(other.config);
    return std::string(OpenBackend(kTorchBackend, other, kOptions).status().message());
  };
  const std::string begin = "the backend torch does not compute ", end = "; use --backend cpu";
  EXPECT_EQ(refused([](ModelConfig& c) { c.experts.emplace(); }), begin + "experts" + end);
  EXPECT_EQ(refused([](ModelConfig& c) { c.sinks = true; }), begin + "attention with sinks" + end);
  EXPECT_EQ(refused([](ModelConfig& c) { c.after_norms = true; }), begin + "norms after a block" + end);
  EXPECT_EQ(refused([](ModelConfig& c) { c.parallel_halves = true; }), begin + "halves of a layer that read the same input" + end);
  EXPECT_EQ(refused([](ModelConfig& c) { c.score_cap = 50; }), begin + "caps of scores or logits" + end);
  EXPECT_EQ(refused([](ModelConfig& c) { c.logits_cap = 30; }), begin + "caps of scores or logits" + end);
  EXPECT_EQ(refused([](ModelConfig& c) { c.qk_norm_all_heads = true; }), begin + "norms over all heads of q and k" + end);
  EXPECT_EQ(refused([](ModelConfig& c) { c.activation = Activation::kGelu; }), begin + "activations other than SiLU and ReLU" + end);
  EXPECT_EQ(refused([](ModelConfig& c) { c.ropes[0].query_beta = 0.1; }), begin + "queries that grow with the position" + end);
  const auto backend = OpenBackend(kTorchBackend, spec, kOptions);
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ((*backend)->ActivationBytes(), *PlanActivationBytes(kTorchBackend, spec, kOptions));
  MicroBatch batch;
  AddRows(0, 0, 1, batch);
  EXPECT_EQ((*backend)->Begin(batch).code(), absl::StatusCode::kInvalidArgument) << "no page is set";
}

}  // namespace
}  // namespace lime
