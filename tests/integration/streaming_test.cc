// A plan of which everything streams, over disks that fail, and budgets that are too small.
// (Whatever streams gives the same bits: streaming_bits_test; so it does while memory comes and
// goes: stage_pressure_test.)

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "coordinator/local/local_plan.h"
#include "daemon/engine/stage_engine.h"
#include "daemon/stores/block_store.h"
#include "daemon/weights/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testbed/make_model/make_model.h"
#include "tests/daemon/weights/faulty_device.h"
#include "tests/integration/models.h"
#include "tests/integration/stage/stage_cluster.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

// ---- Faults

// The stage of a plan for one device, through a ring of two parts.
class Streaming {
 public:
  explicit Streaming(const std::string& model, StageEngine::Options options = {},
                     const RunShape& shape = {.threads = 1, .resident = 0, .ring_parts = 2}) {
    const auto checkpoint = Checkpoint::Open(model);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    const auto spec = checkpoint->BuildModelSpec();
    EXPECT_TRUE(spec.ok()) << spec.status();
    const auto plan = PlanForThisProcess(*spec, RequestFor(model, shape, /*context=*/16));
    EXPECT_TRUE(plan.ok()) << plan.status();
    options.weights = model, options.plan = plan->plan;
    options.num_threads = 1;
    options.sampler = &sampler_;
    options.peers.step_ended = [this](int64_t) {
      absl::MutexLock lock(&mutex_);
      ++ended_;
    };
    options.peers.failed = [this](const absl::Status& status) {
      absl::MutexLock lock(&mutex_);
      status_.Update(status);
    };
    auto engine = StageEngine::Install(std::move(options));
    EXPECT_TRUE(engine.ok()) << engine.status();
    if (engine.ok()) engine_ = *std::move(engine);
  }

  // A sequence of one token, and what becomes of it. Where reading ahead has failed, that.
  absl::Status Step(int32_t token = 5) {
    const BatchRow row{.token = token, .wants_logits = true};
    LIME_RETURN_IF_ERROR(SendOrder(AdmitOrder{.positions = 4, .prompt = {token}}));
    LIME_RETURN_IF_ERROR(SendOrder(StepOrder{{MicroBatch{{row}}}}));
    {
      absl::MutexLock lock(&mutex_);
      const auto done = [this, steps = ended_ + 1]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return ended_ == steps || !status_.ok(); };
      EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&done), absl::Seconds(60))) << "the step does not end";
      if (!status_.ok()) return status_;
    }
    return SendOrder(RetireOrder{});
  }
  DeviceStatistics stats() const { return engine_->stats(); }

 private:
  absl::Status SendOrder(decltype(Order::what) what) {
    if (engine_ == nullptr) return absl::FailedPreconditionError("no plan is installed");
    return engine_->OnOrder({.number = next_order_++, .what = std::move(what)});
  }

  absl::Mutex mutex_;
  int64_t ended_ ABSL_GUARDED_BY(mutex_) = 0;  // steps
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  int64_t next_order_ = 0;
  GreedySampler sampler_;
  std::unique_ptr<StageEngine> engine_;  // last: what it tells goes to the others
};

TEST(StreamingTest, AReadThatFailsOnceIsRepeatedAndOneThatKeepsFailingFailsThePlanWithASentence) {
  std::atomic<int> failures = 0;
  StageEngine::Options options;
  options.wrap_device = [&](std::unique_ptr<BlockDevice> device) -> std::unique_ptr<BlockDevice> {
    return std::make_unique<FaultyDevice>(std::move(device), [&](const FaultyDevice::Read&) {
      return failures.load() > 0 && failures-- > 0 ? FaultyDevice::Fault{.error = EIO} : FaultyDevice::Fault{};
    });
  };
  {
    Streaming streaming(ShippedModel("lime-fables"), options);
    EXPECT_TRUE(streaming.Step().ok());
    failures = 2;
    EXPECT_TRUE(streaming.Step().ok()) << "repeated";
    EXPECT_LE(failures, 0);
    failures = 1 << 30;
    const absl::Status failed = streaming.Step();
    EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(failed.message()), HasSubstr("model.safetensors"));
    EXPECT_THAT(std::string(failed.message()), HasSubstr("offset"));
    EXPECT_THAT(std::string(failed.message()), HasSubstr("Input/output error"));
  }
  failures = 0;
  EXPECT_TRUE(Streaming(ShippedModel("lime-fables"), options).Step().ok()) << "the plan can be installed again";
}

// Two of eight experts have a place, so a step reads some.
TEST(StreamingTest, AnExpertThatCannotBeReadFailsThePlanWithASentence) {
  const TempDir dir;
  MakeModelOptions model;
  model.config.family = "qwen3_moe";
  ASSERT_TRUE(MakeModel(model, dir.path()).ok());
  std::atomic<int> failures = 0;
  StageEngine::Options options;
  options.wrap_device = [&](std::unique_ptr<BlockDevice> device) -> std::unique_ptr<BlockDevice> {
    return std::make_unique<FaultyDevice>(std::move(device), [&](const FaultyDevice::Read&) {
      return failures.load() > 0 && failures-- > 0 ? FaultyDevice::Fault{.error = EIO} : FaultyDevice::Fault{};
    });
  };
  Streaming streaming(dir.path(), options, {.threads = 1, .unit_places = 2});
  for (int32_t token = 0; token < 8; ++token) EXPECT_TRUE(streaming.Step(token).ok());
  failures = 2;
  for (int32_t token = 0; token < 8; ++token) EXPECT_TRUE(streaming.Step(token).ok()) << "repeated";
  EXPECT_LE(failures, 0);
  failures = 1 << 30;
  absl::Status failed;
  for (int32_t token = 0; token < 8 && failed.ok(); ++token) failed = streaming.Step(token);
  EXPECT_EQ(failed.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("could not be read, twice: experts "));
  EXPECT_THAT(std::string(failed.message()), HasSubstr("model.safetensors"));
  EXPECT_THAT(std::string(failed.message()), HasSubstr("Input/output error"));
}

TEST(StreamingTest, ExpertsAreReadAheadIfThePlanSaysSo) {
  const TempDir dir;
  MakeModelOptions model;
  model.config.family = "qwen3_moe";
  ASSERT_TRUE(MakeModel(model, dir.path()).ok());
  for (const int32_t ahead : {0, 3}) {
    Streaming streaming(dir.path(), {}, {.threads = 1, .unit_places = 4, .ahead_places = ahead});
    for (int32_t token = 0; token < 20; ++token) EXPECT_TRUE(streaming.Step(token).ok());
    const DeviceStatistics stats = streaming.stats();
    EXPECT_EQ(stats.units_suggested > 0, ahead > 0);
    EXPECT_LE(stats.units_read_ahead, stats.units_suggested);
    EXPECT_LE(stats.read_ahead_used, stats.units_read_ahead);
    EXPECT_EQ(stats.read_ahead_wasted > 0, stats.read_ahead_used < stats.units_read_ahead);
  }
}

void FlipBit(const std::string& file, int64_t offset) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(offset);
  const char byte = static_cast<char>(stream.get() ^ 4);
  stream.seekp(offset);
  stream.put(byte);
}

TEST(StreamingTest, AFlippedBitInAPreparedStoreFailsThePlanWithASentence) {
  TempDir dir;
  ASSERT_TRUE(PrepareBlockStore(ShippedModel("lime-fables"), dir / "store").ok());
  EXPECT_TRUE(Streaming(dir / "store").Step().ok());
  const std::string file = dir / "store/layer_0002.safetensors";
  FlipBit(file, static_cast<std::streamoff>(std::filesystem::file_size(file) / 2));
  const absl::Status failed = Streaming(dir / "store").Step();
  EXPECT_EQ(failed.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("layer_0002.safetensors: "));
  EXPECT_THAT(std::string(failed.message()), HasSubstr(" 2, "));
  EXPECT_THAT(std::string(failed.message()), HasSubstr("checksum"));
}

TEST(StreamingTest, AFlippedBitInARowOfTheEmbeddingFailsThePlanThatReadsItWithASentence) {
  TempDir dir;
  ASSERT_TRUE(PrepareBlockStore(ShippedModel("lime-fables"), dir / "store").ok());
  const auto checkpoint = Checkpoint::Open(dir / "store");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const TensorLocation& table = checkpoint->location("model.embed_tokens.weight");
  const Bytes row_bytes = table.bytes / checkpoint->index().find("model.embed_tokens.weight")->second.shape[0];
  FlipBit(checkpoint->files()[static_cast<size_t>(table.file)].path, table.offset + 17 * row_bytes);
  const absl::Status failed = Streaming(dir / "store").Step(17);
  EXPECT_EQ(failed.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("non_layer.safetensors: embedding, row of token 17, "));
}

// Reads that are held back while it is shut.
class Gate {
 public:
  void Shut() {
    absl::MutexLock lock(&mutex_);
    shut_ = true;
  }
  void Open() {
    std::vector<std::function<void()>> held;
    {
      absl::MutexLock lock(&mutex_);
      shut_ = false;
      held.swap(held_);
    }
    for (const std::function<void()>& read : held) read();
  }
  // Whether it is shut: it is called when the gate opens.
  bool Hold(std::function<void()> read) {
    absl::MutexLock lock(&mutex_);
    if (shut_) held_.push_back(std::move(read));
    return shut_;
  }

 private:
  absl::Mutex mutex_;
  bool shut_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> held_ ABSL_GUARDED_BY(mutex_);
};

// Whose reads of so many bytes and more go through a gate.
class GatedDevice : public FaultyDevice {
 public:
  GatedDevice(std::unique_ptr<BlockDevice> device, Gate& gate, Bytes least)
      : FaultyDevice(std::move(device), [](const Read&) { return Fault{}; }), gate_(gate), least_(least) {}
  void StartRead(int channel, int file, int64_t offset, std::byte* destination, Bytes bytes, Completion done) override {
    const auto read = [=, this] { FaultyDevice::StartRead(channel, file, offset, destination, bytes, done); };
    if (bytes < least_ || !gate_.Hold([this, read] { Post(read); })) read();
  }

 private:
  Gate& gate_;
  const Bytes least_;
};

// Rows of the embedding are read in the smallest of reads. Where reading ahead has come to when the
// disk stalls says which part is waited for.
TEST(StreamingTest, ADiskThatStallsIsReportedWhileItStalls) {
  using ::testing::Matcher;
  const Matcher<std::string> rows = HasSubstr("waiting for rows of the embedding");
  const Matcher<std::string> part =
      ::testing::AnyOf(HasSubstr("waiting for attention "), HasSubstr("waiting for mlp "), HasSubstr("waiting for head"));
  for (const auto& [least, what] : {std::pair(Bytes{0}, rows), std::pair(16 * kKiB, part)}) {
    SCOPED_TRACE(absl::StrCat("reads of ", least, " bytes and more"));
    Gate gate;
    absl::Mutex mutex;
    std::vector<std::string> sentences;
    StageEngine::Options options;
    options.wrap_device = [&, least = least](std::unique_ptr<BlockDevice> device) -> std::unique_ptr<BlockDevice> {
      return std::make_unique<GatedDevice>(std::move(device), gate, least);
    };
    options.report = [&](const std::string& sentence) {
      {
        absl::MutexLock lock(&mutex);
        sentences.push_back(sentence);
      }
      gate.Open();
    };
    Streaming streaming(ShippedModel("lime-fables"), options);
    EXPECT_TRUE(streaming.Step().ok());
    {
      absl::MutexLock lock(&mutex);
      EXPECT_TRUE(sentences.empty());
    }
    gate.Shut();  // the ring holds a part of the next step: the stall shows where that ends
    EXPECT_TRUE(streaming.Step().ok());
    gate.Open();
    absl::MutexLock lock(&mutex);
    ASSERT_EQ(sentences.size(), 2u);
    EXPECT_THAT(sentences[0], HasSubstr("the disk has delivered nothing for 3 s"));
    EXPECT_THAT(sentences[0], what);
    EXPECT_THAT(sentences[1], HasSubstr("delivers again"));
  }
}

// ---- Budgets

// Each chunk reads all that streams from the disk once: short ones would take most of the time, for
// a little more that is resident.
TEST(StreamingTest, WithoutAProfileAPromptIsNotReadInShortChunks) {
  const TempDir dir;
  MakeModelOptions model;
  model.config.num_layers = 8;
  model.config.hidden_size = 512;
  model.config.intermediate_size = 2048;
  ASSERT_TRUE(MakeModel(model, dir.path()).ok());
  const auto spec = Checkpoint::Open(dir.path())->BuildModelSpec();
  ASSERT_TRUE(spec.ok()) << spec.status();
  LocalPlanRequest request{
      .model_name = dir.path(), .budget = kGiB, .context = 512, .prompt_tokens = 500, .new_tokens = 4, .num_threads = 1};
  const auto whole = PlanForThisProcess(*spec, request);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const LocalPlanSummary summary = Summarize(whole->plan);
  ASSERT_FALSE(summary.streams());
  request.budget = summary.total() - summary.margin + 16 * kMiB - summary.weights / 2;
  const auto tight = PlanForThisProcess(*spec, request);
  ASSERT_TRUE(tight.ok()) << tight.status();
  ASSERT_TRUE(Summarize(tight->plan).streams());
  EXPECT_GE(tight->plan.prefill_chunk, 256);
}

TEST(StreamingTest, ABudgetTooSmallForTwoPiecesIsRefusedWithTheNumbers) {
  const std::string model = ShippedModel("lime-fables");
  const auto spec = Checkpoint::Open(model)->BuildModelSpec();
  ASSERT_TRUE(spec.ok()) << spec.status();
  const absl::Status refused = PlanForThisProcess(*spec, {.model_name = model, .budget = 1 * kMiB, .context = 16}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--memory allows 1.00 MiB"));
}

}  // namespace
}  // namespace lime
