#include "kernels/paced_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/plan/model/described_model.h"
#include "tests/kernels/random_experts.h"

namespace lime {
namespace {

using ::testing::Contains;
using ::testing::DoubleNear;
using ::testing::ElementsAre;

// Time passes when somebody computes, sleeps, or says so.
struct FakeTime {
  double now_ms = 100;
  double overshoot_ms = 0;  // of every sleep
  std::vector<double> slept_until;
};

class FakeClock final : public PaceClock {
 public:
  explicit FakeClock(FakeTime& time) : time_(time) {}
  double NowMs() override { return time_.now_ms; }
  void SleepUntilMs(double ms) override {
    time_.slept_until.push_back(ms);
    time_.now_ms = std::max(time_.now_ms, ms) + time_.overshoot_ms;
  }

 private:
  FakeTime& time_;
};

// Takes a millisecond for everything, and notes what it was asked for.
class FakeBackend final : public Backend {
 public:
  FakeBackend(FakeTime& time, std::vector<std::string>& calls) : time_(time), calls_(calls) {}

  std::string numerics_id() const override { return "fake-1"; }
  std::string description() const override { return "fake"; }
  absl::Status BindBlock(const BlockSpec& block, BlockWeights) override {
    return calls_.push_back("bind " + BlockName(block.id)), absl::OkStatus();
  }
  void SetPages(int32_t, int64_t, std::span<const int32_t>) override { calls_.push_back("pages"); }
  std::byte* KvPage(int32_t) override { return nullptr; }
  std::shared_ptr<const std::byte> ShareKv() override { return nullptr; }
  absl::Status ResizeKv(int64_t) override { return absl::OkStatus(); }
  absl::Status Begin(const MicroBatch& batch) override {
    return calls_.push_back("begin " + std::to_string(batch.rows.size())), absl::OkStatus();
  }
  absl::Status Compute(BlockId block) override { return Compute(block.kind == BlockKind::kEmbedding ? "embed" : BlockName(block)); }
  absl::Status ComputeRows(BlockId block, const RowsInMemory&) override { return Compute("rows of " + BlockName(block)); }
  std::span<const int32_t> ChosenUnits(BlockId block) const override {
    return block.kind == BlockKind::kExperts ? std::span<const int32_t>(units_) : std::span<const int32_t>();
  }
  absl::Status ComputeUnits(BlockId block, std::span<const RowsInMemory> rows) override {
    return Compute(std::to_string(rows.size()) + " units of " + BlockName(block));
  }
  absl::Status AttendToPieces(int64_t, int64_t, int64_t, std::span<const std::byte* const>) override { return Compute("pieces"); }
  absl::StatusOr<std::span<const float>> Queries(int64_t layer) override {
    calls_.push_back("queries " + std::to_string(layer));
    return logits_;
  }
  int64_t RecordFloats() const override { return 11; }
  absl::Status AttendFor(std::span<const int32_t> positions, std::span<const float>, std::span<const std::byte* const> pieces,
                         std::span<float>) override {
    return Compute(std::to_string(positions.size()) + " rows for others, pieces " + std::to_string(pieces.size()));
  }
  absl::Status ContinueFromRecords(int64_t layer, std::span<const int32_t>, std::span<const float>) override {
    return calls_.push_back("records " + std::to_string(layer)), absl::OkStatus();
  }
  absl::Status EmbedRows(const RowsInMemory&) override { return Compute("embed rows"); }
  std::span<std::byte> Hidden() override { return hidden_; }
  std::span<float> Logits() override { return logits_; }
  Bytes ActivationBytes() const override { return 7; }
  Bytes KvBytes() const override { return 9; }
  std::span<std::byte> State(int32_t sequence, int64_t layer) override {
    calls_.push_back("state " + std::to_string(sequence) + " " + std::to_string(layer));
    return hidden_;
  }
  Bytes StateBytes() const override { return 5; }

 private:
  absl::Status Compute(const std::string& what) {
    calls_.push_back(what);
    time_.now_ms += 1;
    return what == "mlp 1" ? absl::InternalError("broken") : absl::OkStatus();
  }

  FakeTime& time_;
  std::vector<std::string>& calls_;
  std::vector<std::byte> hidden_{8};
  std::vector<float> logits_{1.0F, 2.0F};
  std::vector<int32_t> units_{1, 4, 6};
};

constexpr char kConfig[] = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "num_hidden_layers": 2,
  "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 128, "intermediate_size": 3584,
  "vocab_size": 16384, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false})";

class PacedBackendTest : public ::testing::Test {
 protected:
  PacedBackendTest() : spec_(DescribeModel(kConfig, "test").value()) {
    profile_.read_bytes_per_second = 1e9;
    profile_.block_overhead_ms = 0.25;
    profile_.flops = 1e12;
    backend_ = PaceBackend(
        std::make_unique<FakeBackend>(time_, calls_), spec_,
        {.profile = profile_, .clock = std::make_unique<FakeClock>(time_), .ended = [this](const PaceReport& r) { report_ = r; }});
  }

  void Begin(int rows, int context) {
    MicroBatch batch;
    for (int i = 0; i < rows; ++i) batch.rows.push_back({.sequence = i, .position = context - 1, .wants_logits = true});
    ASSERT_TRUE(backend_->Begin(batch).ok());
  }
  double Ms(BlockKind kind, int rows, int context) const { return profile_.ComputeMs(spec_, {kind, 0}, rows, context); }
  RowsInMemory Rows(TensorRole role, int64_t begin, int64_t end) const { return {.rows = {role, begin, end}}; }

  FakeTime time_;
  std::vector<std::string> calls_;
  ModelSpec spec_;
  DeviceProfile profile_;
  PaceReport report_;
  std::unique_ptr<Backend> backend_;
};

TEST_F(PacedBackendTest, EveryBlockLastsTheProfiledTimeOfItsRowsAndContext) {
  for (const auto& [rows, context] : {std::pair(1, 100), std::pair(5, 2000), std::pair(16, 17)}) {
    Begin(rows, context);
    const double begin = time_.now_ms;
    ASSERT_TRUE(backend_->Compute({BlockKind::kEmbedding, 0}).ok() && backend_->Compute({BlockKind::kAttention, 0}).ok() &&
                backend_->Compute({BlockKind::kMlp, 0}).ok() && backend_->Compute({BlockKind::kHead, 0}).ok());
    const double expected = std::max(1.0, Ms(BlockKind::kEmbedding, rows, context)) + Ms(BlockKind::kAttention, rows, context) +
                            Ms(BlockKind::kMlp, rows, context) + Ms(BlockKind::kHead, rows, context);
    EXPECT_THAT(time_.now_ms - begin, DoubleNear(expected, 1.0));  // the embedding takes less than the kernels' millisecond: made up for
    EXPECT_GT(expected, 25);
  }
}

TEST_F(PacedBackendTest, RowsLastTheirShareOfTheBlock) {
  Begin(1, 64);
  const double begin = time_.now_ms;
  const BlockId mlp{BlockKind::kMlp, 0};
  ASSERT_TRUE(backend_->ComputeRows(mlp, Rows(TensorRole::kGate, 0, 1792)).ok());
  EXPECT_THAT(time_.now_ms - begin, DoubleNear(Ms(BlockKind::kMlp, 1, 64) / 6, 1e-9));
  ASSERT_TRUE(backend_->ComputeRows(mlp, Rows(TensorRole::kGate, 1792, 3584)).ok());
  ASSERT_TRUE(backend_->ComputeRows(mlp, Rows(TensorRole::kUp, 0, 3584)).ok());
  ASSERT_TRUE(backend_->ComputeRows(mlp, Rows(TensorRole::kDown, 0, 1024)).ok());
  EXPECT_THAT(time_.now_ms - begin, DoubleNear(Ms(BlockKind::kMlp, 1, 64), 1e-9));
}

TEST_F(PacedBackendTest, WhatASleepOvershootsTheNextPartMakesUpFor) {
  time_.overshoot_ms = 0.1;
  Begin(1, 64);
  const double begin = time_.now_ms;
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(backend_->Compute({BlockKind::kMlp, 0}).ok());
  EXPECT_THAT(time_.now_ms - begin, DoubleNear(50 * Ms(BlockKind::kMlp, 1, 64) + 0.1, 1e-6));
}

TEST_F(PacedBackendTest, AfterAPauseTheCountBeginsAnew) {
  Begin(1, 64);
  ASSERT_TRUE(backend_->Compute({BlockKind::kMlp, 0}).ok());
  time_.now_ms += 10 * kPaceHandOverMs;
  const double begin = time_.now_ms;
  ASSERT_TRUE(backend_->Compute({BlockKind::kMlp, 0}).ok());
  EXPECT_THAT(time_.now_ms - begin, DoubleNear(Ms(BlockKind::kMlp, 1, 64), 1e-9));
}

// Attention for another device between two parts of one's own is time that passes for both, and
// takes what it adds to a block.
TEST_F(PacedBackendTest, AttendingForOthersLastsTheTimeOfThesePositions) {
  const std::vector<int32_t> positions(8, 4000);
  const std::vector<const std::byte*> pieces(15, nullptr);
  const auto attend = [&] { return backend_->AttendFor(positions, {}, pieces, {}); };
  const double added = Ms(BlockKind::kAttention, 8, 15 * 256) - Ms(BlockKind::kAttention, 8, 1);
  ASSERT_GT(added, 2);
  const double alone = time_.now_ms;
  ASSERT_TRUE(attend().ok());  // no batch has begun
  EXPECT_THAT(time_.now_ms - alone, DoubleNear(added, 1e-9));

  Begin(1, 64);
  time_.now_ms += 10 * kPaceHandOverMs;
  time_.overshoot_ms = 0.1;
  const double begin = time_.now_ms;
  ASSERT_TRUE(backend_->Compute({BlockKind::kMlp, 0}).ok() && attend().ok() && backend_->Compute({BlockKind::kMlp, 0}).ok());
  EXPECT_THAT(time_.now_ms - begin, DoubleNear(2 * Ms(BlockKind::kMlp, 1, 64) + added + 0.1, 1e-9));
  EXPECT_EQ(calls_.back(), "mlp 0");
  EXPECT_EQ(calls_[calls_.size() - 2], "8 rows for others, pieces 15");
}

TEST_F(PacedBackendTest, AttendingForOthersCountsWhatTheirWindowsSee) {
  ModelSpec windowed = spec_;
  for (LayerConfig& layer : windowed.config.layers) layer.window = 1000;
  const auto backend = PaceBackend(std::make_unique<FakeBackend>(time_, calls_), windowed,
                                   {.profile = profile_, .clock = std::make_unique<FakeClock>(time_)});
  const std::vector<const std::byte*> pieces(15, nullptr);
  const auto extra_ms = [&](std::vector<int32_t> positions) {
    const double begin = time_.now_ms += 10;
    EXPECT_TRUE(backend->AttendFor(positions, {}, pieces, {}).ok());
    return time_.now_ms - begin;
  };
  const auto added = [&](int rows, int seen) {
    return profile_.ComputeMs(windowed, {BlockKind::kAttention, 0}, rows, seen) -
           profile_.ComputeMs(windowed, {BlockKind::kAttention, 0}, rows, 1);
  };
  EXPECT_THAT(extra_ms(std::vector<int32_t>(16, 3900)), DoubleNear(added(16, 3840 - 2901), 1e-9));
  EXPECT_THAT(extra_ms({4900, 5000}), DoubleNear(1, 1e-9)) << "nothing, that the kernels took a millisecond for";
}

TEST_F(PacedBackendTest, AttentionByAHostCostsTheOwnerNoTime) {
  const auto layer_ms = [&](std::vector<int32_t> covered) {
    Begin(2, 4000);
    const double begin = time_.now_ms += 10;
    EXPECT_TRUE(backend_->ContinueFromRecords(0, covered, {}).ok());
    EXPECT_TRUE(backend_->Compute({BlockKind::kAttention, 0}).ok() && backend_->Compute({BlockKind::kMlp, 0}).ok());
    return time_.now_ms - begin;
  };
  const double all = Ms(BlockKind::kAttention, 2, 4000) + Ms(BlockKind::kMlp, 2, 4000);
  EXPECT_THAT(layer_ms({0, 0}), DoubleNear(all, 1e-9));
  EXPECT_THAT(layer_ms({12, 10}), DoubleNear(all - Ms(BlockKind::kAttention, 2, 4000) + Ms(BlockKind::kAttention, 2, 4000 - 2560), 1e-9))
      << "as many as the host has of every sequence";
  EXPECT_THAT(layer_ms({0, 0}), DoubleNear(all, 1e-9)) << "nothing is left over";
}

TEST_F(PacedBackendTest, OnlyComputingSleeps) {
  ASSERT_TRUE(backend_->BindBlock(spec_.blocks[0], {}).ok());
  Begin(1, 64);
  backend_->SetPages(0, 0, {});
  EXPECT_TRUE(time_.slept_until.empty());
  EXPECT_EQ(time_.now_ms, 100);
  EXPECT_THAT(calls_, ElementsAre("bind embedding", "begin 1", "pages"));
  EXPECT_EQ(backend_->numerics_id(), "fake-1");
  EXPECT_EQ(backend_->Queries(1)->size(), 2U);
  EXPECT_TRUE(backend_->ContinueFromRecords(1, std::vector<int32_t>{0}, {}).ok());
  EXPECT_THAT(calls_, ElementsAre("bind embedding", "begin 1", "pages", "queries 1", "records 1"));
  EXPECT_EQ(backend_->RecordFloats(), 11);
  EXPECT_EQ(backend_->Hidden().size(), 8U);
  EXPECT_EQ(backend_->Logits().size(), 2U);
  EXPECT_EQ(backend_->ActivationBytes() + backend_->KvBytes(), 16);
  EXPECT_EQ(backend_->StateBytes(), 5);
  EXPECT_EQ(backend_->State(3, 1).size(), 8U);
  EXPECT_EQ(calls_.back(), "state 3 1");
}

TEST_F(PacedBackendTest, FailuresComeThroughAtOnce) {
  Begin(1, 64);
  EXPECT_EQ(backend_->Compute({BlockKind::kMlp, 1}).message(), "broken");
  EXPECT_TRUE(time_.slept_until.empty());
}

TEST_F(PacedBackendTest, ReportsWhatTheKernelsEndedTooLate) {
  Begin(1, 64);
  ASSERT_TRUE(backend_->Compute({BlockKind::kEmbedding, 0}).ok());  // profiled at 0.25 ms and a little, computed in 1
  ASSERT_TRUE(backend_->Compute({BlockKind::kMlp, 0}).ok());
  const double embedding = Ms(BlockKind::kEmbedding, 1, 64), mlp = Ms(BlockKind::kMlp, 1, 64);
  backend_.reset();
  EXPECT_EQ(report_.parts, 2);
  EXPECT_EQ(report_.late, 1);
  EXPECT_THAT(report_.latest_ms, DoubleNear(1 - embedding, 1e-9));
  EXPECT_THAT(report_.real_ms, DoubleNear(2, 1e-9));
  EXPECT_THAT(report_.paced_ms, DoubleNear(embedding + mlp, 1e-9));
}

TEST(SystemPaceClockTest, APartLastsItsTimeOnTheRealClock) {
  FakeTime time;
  std::vector<std::string> calls;
  const ModelSpec spec = DescribeModel(kConfig, "test").value();
  DeviceProfile profile;
  profile.read_bytes_per_second = 1e9;
  const auto backend = PaceBackend(std::make_unique<FakeBackend>(time, calls), spec, {.profile = profile});
  MicroBatch batch{.rows = {{.position = 3, .wants_logits = true}}};
  ASSERT_TRUE(backend->Begin(batch).ok());
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(backend->Compute({BlockKind::kMlp, 0}).ok());
  const double elapsed_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_GE(elapsed_ms, 5 * profile.ComputeMs(spec, {BlockKind::kMlp, 0}, 1, 4));
}

// The chosen experts take the time of all experts together; the others take none.
TEST(PacedExpertsTest, TheChosenExpertsShareTheTimeOfTheirBlock) {
  const ModelSpec spec = ExpertsSpec({});
  const BlockId block{BlockKind::kExperts, 0};
  FakeTime time;
  std::vector<std::string> calls;
  DeviceProfile profile;
  profile.block_overhead_ms = 100, profile.flops = 1e12, profile.read_bytes_per_second = 1e9;
  const auto backend =
      PaceBackend(std::make_unique<FakeBackend>(time, calls), spec, {.profile = profile, .clock = std::make_unique<FakeClock>(time)});
  EXPECT_THAT(backend->ChosenUnits(block), ElementsAre(1, 4, 6));
  MicroBatch batch;
  batch.rows.push_back({});
  ASSERT_TRUE(backend->Begin(batch).ok());
  const double begin = time.now_ms, all = profile.ComputeMs(spec, block, 1, 1);
  ASSERT_TRUE(backend->ComputeRows(block, {.rows = {TensorRole::kRouter, 0, 12}}).ok());
  const auto expert = [](int32_t id) {
    return std::vector<RowsInMemory>{{.rows = {TensorRole::kGate, 0, kExpertsInner, id}},
                                     {.rows = {TensorRole::kUp, 0, kExpertsInner, id}},
                                     {.rows = {TensorRole::kDown, 0, kExpertsHidden, id}}};
  };
  ASSERT_TRUE(backend->ComputeUnits(block, expert(4)).ok());
  for (const RowsInMemory& rows : expert(1)) ASSERT_TRUE(backend->ComputeRows(block, rows).ok());
  const double before = time.now_ms;
  ASSERT_TRUE(backend->ComputeRows(block, expert(2)[0]).ok());
  EXPECT_LT(time.now_ms - before, 1.5);  // the fake backend's own millisecond
  ASSERT_TRUE(backend->ComputeUnits(block, expert(6)).ok());
  EXPECT_NEAR(time.now_ms - begin, all, 2);
  EXPECT_THAT(calls, Contains("3 units of experts 0"));
}

}  // namespace
}  // namespace lime
