// A model with linear attention and gated attention on the backend "cpu": its states, and the same
// bits however rows, batches and blocks are divided.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kernels/registry/registry.h"
#include "planner/plan/device/backend_names.h"
#include "tests/kernels/random_model.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSequences = 3, kPages = 8, kPageRows = 16;
constexpr int32_t kLinearLayer = 0, kFullLayer = 1, kSnapshots = 2;

template <typename T>
std::vector<std::byte> BitsOf(std::span<T> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

class LinearAttentionTest : public ::testing::Test {
 protected:
  LinearAttentionTest() : spec_(RandomModelSpec("qwen3_5")), weights_(RandomWeights(spec_)) {}

  static BackendOptions Options(int threads = 1) {
    return {.num_threads = threads,
            .max_rows = 64,
            .max_logit_rows = 64,
            .max_sequences = kSequences,
            .context = kPages * kPageRows,
            .num_kv_pages = kSequences * kPages,
            .state_layers = {kLinearLayer},
            .state_snapshots = kSnapshots};
  }

  // `streams`: all blocks but the embedding come in rows.
  std::unique_ptr<Backend> Open(int threads = 1, bool streams = false) {
    auto backend = OpenBackend(kCpuBackend, spec_, Options(threads));
    EXPECT_TRUE(backend.ok()) << backend.status();
    for (size_t i = 0; i < spec_.blocks.size(); ++i) {
      BlockWeights bound;
      for (size_t t = 0; t < spec_.blocks[i].tensors.size(); ++t) {
        const bool away = streams && spec_.blocks[i].id.kind != BlockKind::kEmbedding && !IsPinned(spec_.blocks[i].tensors[t]);
        bound.tensors.push_back(away ? nullptr : weights_[i][t].data.data());
      }
      EXPECT_TRUE((*backend)->BindBlock(spec_.blocks[i], bound).ok());
    }
    for (int32_t sequence = 0; sequence < kSequences; ++sequence) (*backend)->SetPages(sequence, kFullLayer, Pages(sequence));
    return *std::move(backend);
  }

  static std::vector<int32_t> Pages(int32_t sequence) {
    std::vector<int32_t> pages;
    for (int64_t i = 0; i < kPages; ++i) pages.push_back(static_cast<int32_t>(sequence * kPages + i));
    return pages;
  }

  // The whole block in memory.
  BlockWeights WeightsOf(size_t block) const {
    BlockWeights bound;
    for (const cpu::Array& tensor : weights_[block]) bound.tensors.push_back(tensor.data.data());
    return bound;
  }

  // All rows of a block's matrices, in parts as the disk brings them.
  absl::Status ComputeInRows(Backend& backend, size_t block) {
    for (const BlockPart& part : CutBlock(spec_.blocks[block], 4 * kKiB)) {
      for (const MatrixRows& rows : part.rows) {
        for (size_t t = 0; t < spec_.blocks[block].tensors.size(); ++t) {
          const TensorSpec& tensor = spec_.blocks[block].tensors[t];
          if (tensor.role != rows.role || IsPinned(tensor)) continue;
          const int64_t row_bytes = tensor.info.bytes / tensor.info.shape[0];
          LIME_RETURN_IF_ERROR(backend.ComputeRows(spec_.blocks[block].id,
                                                   {.rows = rows, .weight = weights_[block][t].data.data() + rows.begin * row_bytes}));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status Step(Backend& backend, const MicroBatch& batch, bool streams = false) {
    LIME_RETURN_IF_ERROR(backend.Begin(batch));
    for (size_t i = 0; i < spec_.blocks.size(); ++i) {
      const BlockId id = spec_.blocks[i].id;
      LIME_RETURN_IF_ERROR(streams && id.kind != BlockKind::kEmbedding ? ComputeInRows(backend, i) : backend.Compute(id));
    }
    return absl::OkStatus();
  }

  // The bits of the residual stream and of the logits after a step.
  std::vector<std::byte> BitsAfter(Backend& backend, const MicroBatch& batch, bool streams = false) {
    const absl::Status status = Step(backend, batch, streams);
    EXPECT_TRUE(status.ok()) << status;
    std::vector<std::byte> bits = BitsOf(backend.Hidden());
    const std::vector<std::byte> logits = BitsOf(backend.Logits());
    bits.insert(bits.end(), logits.begin(), logits.end());
    return bits;
  }

  static MicroBatch Rows(int32_t sequence, int32_t begin, int32_t end) {
    MicroBatch batch;
    AddRows(sequence, begin, end, batch);
    return batch;
  }

  ModelSpec spec_;
  std::vector<std::vector<cpu::Array>> weights_;
};

TEST_F(LinearAttentionTest, BlocksThatComeInRowsHaveTheSameBits) {
  const auto whole = Open(), streams = Open(2, true);
  MicroBatch both = Rows(0, 40, 41);
  AddRows(1, 0, 20, both);
  for (const MicroBatch& batch : {Rows(0, 0, 30), Rows(0, 30, 40), both})
    EXPECT_EQ(BitsAfter(*streams, batch, true), BitsAfter(*whole, batch));
}

TEST_F(LinearAttentionTest, ChunksBatchesAndThreadsChangeNoBit) {
  const auto whole = Open();
  ASSERT_TRUE(Step(*whole, Rows(0, 0, 60)).ok());
  const std::vector<std::byte> expected = BitsAfter(*whole, Rows(0, 60, 61));
  for (const int threads : {1, 2, 3, 4}) {
    for (const int32_t chunk : {1, 7, 16, 31}) {
      const auto backend = Open(threads);
      for (int32_t begin = 0; begin < 60; begin += chunk) {
        MicroBatch batch;
        AddRows(2, begin / chunk, begin / chunk + 1, batch);
        AddRows(0, begin, std::min(60, begin + chunk), batch);
        AddRows(1, 0, 1 + begin % 5, batch);
        ASSERT_TRUE(Step(*backend, batch).ok());
      }
      EXPECT_EQ(BitsAfter(*backend, Rows(0, 60, 61)), expected) << threads << " threads, chunks of " << chunk;
    }
  }
}

// Rows of a matrix in another order.
std::vector<std::byte> WithRows(const std::vector<std::byte>& matrix, int64_t row_bytes, const std::vector<int64_t>& order) {
  std::vector<std::byte> rows;
  for (const int64_t row : order) rows.insert(rows.end(), matrix.begin() + row * row_bytes, matrix.begin() + (row + 1) * row_bytes);
  return rows;
}

// The same model with its projections stored by key head, as Qwen3-Next does: for every key head its
// q and k, and its value heads' v and z; in a second matrix their betas and decays.
TEST_F(LinearAttentionTest, ProjectionsByKeyHeadHaveTheSameBits) {
  const std::vector<std::vector<std::byte>> expected = [&] {
    const auto backend = Open();
    return std::vector{BitsAfter(*backend, Rows(0, 0, 30)), BitsAfter(*backend, Rows(0, 30, 33))};
  }();
  LinearAttentionConfig& sizes = *spec_.config.linear_attention;
  const int64_t values = sizes.value_heads / sizes.key_heads, value_rows = values * sizes.value_dim;
  std::vector<int64_t> wide, gates;
  const auto add = [](std::vector<int64_t>& order, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) order.push_back(first + i);
  };
  for (int64_t j = 0; j < sizes.key_heads; ++j) {
    add(wide, j * sizes.key_dim, sizes.key_dim);
    add(wide, sizes.key_cols() + j * sizes.key_dim, sizes.key_dim);
    add(wide, 2 * sizes.key_cols() + j * value_rows, value_rows);
    add(wide, sizes.conv_cols() + j * value_rows, value_rows);
    add(gates, j * values, values);
    add(gates, sizes.value_heads + j * values, values);
  }
  BlockSpec& block = spec_.blocks[1];
  std::vector<cpu::Array>& weights = weights_[1];
  const auto join = [&](TensorRole first, TensorRole second, TensorRole joined, const std::vector<int64_t>& order) {
    const size_t at = *block.Find(first, TensorPart::kWeight), other = *block.Find(second, TensorPart::kWeight);
    TensorInfo& info = block.tensors[at].info;
    const int64_t row_bytes = info.bytes / info.shape[0];
    weights[at].data.insert(weights[at].data.end(), weights[other].data.begin(), weights[other].data.end());
    weights[at].data = WithRows(weights[at].data, row_bytes, order);
    info.shape[0] = std::ssize(order), info.bytes = std::ssize(weights[at].data);
    block.tensors[at].role = joined;
    block.tensors.erase(block.tensors.begin() + static_cast<ptrdiff_t>(other));
    weights.erase(weights.begin() + static_cast<ptrdiff_t>(other));
  };
  join(TensorRole::kQkv, TensorRole::kZ, TensorRole::kQkvz, wide);
  join(TensorRole::kBeta, TensorRole::kDecay, TensorRole::kBetaDecay, gates);
  sizes.by_key_head = true;
  for (const bool streams : {false, true}) {
    const auto backend = Open(2, streams);
    EXPECT_EQ(BitsAfter(*backend, Rows(0, 0, 30), streams), expected[0]);
    EXPECT_EQ(BitsAfter(*backend, Rows(0, 30, 33), streams), expected[1]);
    EXPECT_EQ(backend->ActivationBytes(), *PlanActivationBytes(kCpuBackend, spec_, Options(2)));
  }
}

TEST_F(LinearAttentionTest, AStateThatIsCopiedToAnotherSlotGoesOnWithTheSameBits) {
  const auto backend = Open(), other = Open();
  ASSERT_TRUE(Step(*backend, Rows(0, 0, 50)).ok());
  std::ranges::copy(backend->State(0, kLinearLayer), other->State(2, kLinearLayer).begin());
  for (int64_t i = 0; i < kPages; ++i)
    std::memcpy(other->KvPage(Pages(2)[static_cast<size_t>(i)]), backend->KvPage(Pages(0)[static_cast<size_t>(i)]),
                static_cast<size_t>(spec_.KvPageBytes()));
  MicroBatch moved = Rows(0, 50, 53);
  const std::vector<std::byte> expected = BitsAfter(*backend, moved);
  for (BatchRow& row : moved.rows) row.sequence = 2;
  EXPECT_EQ(BitsAfter(*other, moved), expected);
}

TEST_F(LinearAttentionTest, ASnapshotIsTheStateAfterItsRowAndChangesNoBit) {
  for (const int threads : {1, 3}) {
    for (const bool streams : {false, true}) {
      const auto plain = Open(threads, streams), takes = Open(threads, streams);
      MicroBatch rows = Rows(0, 0, 40);
      AddRows(1, 0, 20, rows);
      const std::vector<std::byte> expected = BitsAfter(*plain, rows, streams);
      rows.rows[15].snapshot = 0, rows.rows[16].snapshot = 1, rows.rows[31].snapshot = 1, rows.rows[59].snapshot = 0;
      EXPECT_EQ(BitsAfter(*takes, rows, streams), expected);
      EXPECT_TRUE(std::ranges::equal(takes->State(0, kLinearLayer), plain->State(0, kLinearLayer)));
      EXPECT_TRUE(std::ranges::equal(takes->Snapshot(1, 0, kLinearLayer), takes->State(1, kLinearLayer))) << "of its last row";
      for (const auto& [snapshot, positions] : {std::pair(0, 16), std::pair(1, 32)}) {
        const auto until = Open(threads, streams);
        ASSERT_TRUE(Step(*until, Rows(0, 0, positions), streams).ok());
        EXPECT_TRUE(std::ranges::equal(takes->Snapshot(0, snapshot, kLinearLayer), until->State(0, kLinearLayer))) << positions;
        std::ranges::copy(takes->Snapshot(0, snapshot, kLinearLayer), takes->State(0, kLinearLayer).begin());
        EXPECT_EQ(BitsAfter(*takes, Rows(0, positions, 40), streams), BitsAfter(*until, Rows(0, positions, 40), streams)) << "it goes on";
        EXPECT_EQ(Step(*takes, Rows(0, positions, 41), streams).code(), absl::StatusCode::kInternal) << "not once more";
      }
    }
  }
}

TEST_F(LinearAttentionTest, ARowOutOfOrderBehindASnapshotIsRefusedAndChangesNothing) {
  const auto backend = Open();
  ASSERT_TRUE(Step(*backend, Rows(1, 0, 10)).ok());
  const std::vector<std::byte> before = BitsOf(backend->State(1, kLinearLayer)), none = BitsOf(backend->Snapshot(1, 0, kLinearLayer));
  MicroBatch batch = Rows(1, 10, 13);
  batch.rows[0].snapshot = 0, batch.rows[2].position = 13;
  EXPECT_EQ(Step(*backend, batch).message(), "the state of sequence slot 1 in layer 0 has 12 positions, the row is at 13");
  batch.rows[1].position = 0;
  EXPECT_EQ(Step(*backend, batch).message(), "the state of sequence slot 1 in layer 0 has 11 positions, the row is at 0");
  EXPECT_EQ(BitsOf(backend->State(1, kLinearLayer)), before);
  EXPECT_EQ(BitsOf(backend->Snapshot(1, 0, kLinearLayer)), none);
  batch = Rows(1, 10, 12);
  batch.rows[1].snapshot = kSnapshots;
  EXPECT_THAT(std::string(backend->Begin(batch).message()), HasSubstr("snapshot 2, the plan has 2 for each sequence slot"));
}

TEST_F(LinearAttentionTest, PositionZeroBeginsWithZeros) {
  const auto fresh = Open(), used = Open();
  ASSERT_TRUE(Step(*used, Rows(0, 0, 33)).ok());
  EXPECT_EQ(BitsAfter(*used, Rows(0, 0, 20)), BitsAfter(*fresh, Rows(0, 0, 20)));
  EXPECT_TRUE(std::ranges::equal(used->State(0, kLinearLayer), fresh->State(0, kLinearLayer)));
}

TEST_F(LinearAttentionTest, ARowThatDoesNotFollowItsStateIsRefusedAndChangesNothing) {
  for (const bool streams : {false, true}) {
    const auto backend = Open(1, streams);
    ASSERT_TRUE(Step(*backend, Rows(1, 0, 10), streams).ok());
    const std::vector<std::byte> before = BitsOf(backend->State(1, kLinearLayer));
    MicroBatch batch = Rows(1, 12, 14);
    const absl::Status late = Step(*backend, batch, streams);
    EXPECT_EQ(late.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(late.message(), "the state of sequence slot 1 in layer 0 has 10 positions, the row is at 12");
    batch.rows[0].position = 10, batch.rows[1].position = 12;
    EXPECT_EQ(Step(*backend, batch, streams).message(), "the state of sequence slot 1 in layer 0 has 11 positions, the row is at 12");
    EXPECT_EQ(Step(*backend, Rows(1, 9, 10), streams).message(),
              "the state of sequence slot 1 in layer 0 has 10 positions, the row is at 9");
    EXPECT_EQ(Step(*backend, Rows(2, 4, 5), streams).message(), "the state of sequence slot 2 in layer 0 has 0 positions, the row is at 4");
    EXPECT_EQ(BitsOf(backend->State(1, kLinearLayer)), before);
    EXPECT_TRUE(Step(*backend, Rows(1, 10, 14), streams).ok());
  }
}

TEST_F(LinearAttentionTest, RowsOfASequenceThatAreNotConsecutiveAreRefused) {
  const auto backend = Open();
  MicroBatch batch = Rows(0, 0, 2);
  AddRows(1, 0, 2, batch);
  AddRows(0, 2, 3, batch);
  const absl::Status status = backend->Begin(batch);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the rows of sequence slot 0 are not consecutive"));
}

TEST_F(LinearAttentionTest, StatesAreCountedAndOnlyWhereTheyAreKept) {
  const auto backend = Open();
  EXPECT_EQ(backend->StateBytes(), kSequences * (1 + kSnapshots) * spec_.StateBytes(kLinearLayer));
  EXPECT_EQ(static_cast<Bytes>(backend->Snapshot(2, 1, kLinearLayer).size()), spec_.StateBytes(kLinearLayer));
  EXPECT_TRUE(backend->Snapshot(2, 1, kFullLayer).empty());
  EXPECT_EQ(static_cast<Bytes>(backend->State(2, kLinearLayer).size()), spec_.StateBytes(kLinearLayer));
  EXPECT_TRUE(backend->State(2, kFullLayer).empty());
  EXPECT_EQ(backend->ActivationBytes(), *PlanActivationBytes(kCpuBackend, spec_, Options()));

  BackendOptions none = Options();
  none.state_layers.clear();
  const auto without = OpenBackend(kCpuBackend, spec_, none);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ((*without)->StateBytes(), 0);
  EXPECT_EQ((*without)->ActivationBytes(), backend->ActivationBytes());
  (*without)->SetPages(0, kFullLayer, Pages(0));
  ASSERT_TRUE((*without)->BindBlock(spec_.blocks[1], WeightsOf(1)).ok() && (*without)->Begin(Rows(0, 0, 1)).ok());
  EXPECT_EQ((*without)->Compute(spec_.blocks[1].id).message(), "sequence slot 0 has no state in layer 0");
}

TEST_F(LinearAttentionTest, AConvolutionThatIsTooWideIsRefused) {
  ModelSpec wide = spec_;
  wide.config.linear_attention->conv_width = 9;
  const absl::Status status = OpenBackend(kCpuBackend, wide, Options()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("width of 9, the backend \"cpu\" computes at most 8"));
}

}  // namespace
}  // namespace lime
