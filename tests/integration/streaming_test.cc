// A model that streams while memory comes and goes, over disks that fail. (Whatever streams gives the same bits: streaming_bits_test.)

#include <atomic>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "daemon/weights/block_store.h"
#include "daemon/weights/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testbed/make_model/make_model.h"
#include "tests/daemon/faulty_device.h"
#include "tests/integration/fake_machine.h"
#include "tests/integration/models.h"
#include "tests/integration/single_tokens.h"
#include "tests/integration/variants.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

// ---- Residency that changes

TEST(StreamingTest, BlocksShedAndTakenBackInMidGenerationChangeNoBit) {
  const std::vector<int32_t> ids = RandomIds(3, 60, 512);
  auto resident = OpenEngine(ShippedModel("lime-fables"), {.chunk = 8}, 64);
  ASSERT_TRUE(resident.ok()) << resident.status();
  const std::vector<float> expected = Generate(**resident, ids, [](size_t) {});

  for (const LoaderKind loader : {LoaderKind::kRead, LoaderKind::kMmap}) {
    auto engine = OpenEngine(ShippedModel("lime-fables"), {.loader = loader, .chunk = 8, .resident = 0.8, .piece_bytes = 64 * kKiB}, 64);
    ASSERT_TRUE(engine.ok()) << engine.status();
    Streamer& streamer = *(*engine)->streamer();
    const Bytes before = streamer.resident_bytes();
    Bytes least = before;
    const auto change = [&](size_t i) {
      if (i == 5) {
        EXPECT_GT(streamer.Shed(kMiB / 2), 0);
      }
      if (i == 12) {
        EXPECT_GT(streamer.Shed(64 * kMiB), 0) << "everything";
      }
      least = std::min(least, streamer.resident_bytes());
      if (i == 20) {
        EXPECT_TRUE(streamer.Regain(kMiB / 4).ok());
      }
      if (i >= 30 && i % 4 == 0) {
        RegainAll(streamer);
      }
      if (i >= 30 && i % 4 == 2) streamer.Shed(kMiB);
    };
    EXPECT_TRUE(SameBits(Generate(**engine, ids, change), expected)) << LoaderName(loader);
    EXPECT_EQ(least, 0);
    RegainAll(streamer);
    EXPECT_GE(streamer.resident_bytes(), before) << "taken back, with the ends of pages";
    EXPECT_TRUE(SameBits(Generate(**engine, ids, [](size_t) {}), expected)) << "and once more";
  }
}

TEST(StreamingTest, SheddingBetweenTwoBlocksOfAStepChangesNoBit) {
  const std::vector<int32_t> ids = RandomIds(4, 40, 512);
  auto resident = OpenEngine(ShippedModel("lime-fables"), {.chunk = 8}, 64);
  auto engine = OpenEngine(ShippedModel("lime-fables"), {.chunk = 8, .resident = 0.9, .ring_pieces = 2, .piece_bytes = 32 * kKiB}, 64);
  ASSERT_TRUE(resident.ok() && engine.ok()) << engine.status();
  Streamer& streamer = *(*engine)->streamer();
  std::mt19937 random(1);
  streamer.set_between_blocks([&] {
    if (random() % 5 == 0) streamer.Shed(static_cast<Bytes>(random() % kMiB));
    if (random() % 5 == 0) {
      EXPECT_TRUE(streamer.Regain(static_cast<Bytes>(random() % kMiB)).ok());
    }
  });
  EXPECT_TRUE(SameBits(Generate(**engine, ids, [](size_t) {}), Generate(**resident, ids, [](size_t) {})));
}

TEST(StreamingTest, AModelThatWasAllResidentGivesMemoryBackWhileOthersNeedItAndChangesNoBit) {
  const std::vector<int32_t> ids = RandomIds(7, 48, 512);
  auto resident = OpenEngine(ShippedModel("lime-fables"), {.chunk = 8}, 64);
  ASSERT_TRUE(resident.ok()) << resident.status();
  const std::vector<float> expected = Generate(**resident, ids, [](size_t) {});

  FakeMachine machine;
  Engine::Options options;
  options.max_rows = 8;
  options.context = 64;
  options.watch_pressure = true;
  options.pressure = machine.Watch();
  auto engine = Engine::Create(ShippedModel("lime-fables"), options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto wait_until = [&](auto done) {
    for (int i = 0; i < 1500 && !done(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      (*engine)->FollowPressure();
    }
    EXPECT_TRUE(done());
  };
  const auto change = [&](size_t i) {
    if (i == 10) {
      EXPECT_EQ((*engine)->streamer(), nullptr) << "nothing of the streaming path while there is no pressure";
      machine.SetAvailable(16 * kMiB);
      wait_until([&] { return (*engine)->streamer() != nullptr; });
    }
    if (i == 25) {
      EXPECT_EQ((*engine)->streamer()->resident_bytes(), 0);
      machine.SetAvailable(8 * kGiB);
      wait_until([&] { return (*engine)->streamer()->num_shed() == 0; });
    }
  };
  EXPECT_TRUE(SameBits(Generate(**engine, ids, change), expected));
  EXPECT_GT((*engine)->streamer()->resident_bytes(), 2 * kMiB);
}

// ---- Faults

absl::Status StepOnce(Engine& engine, int32_t token = 5) {
  EXPECT_TRUE(engine.StartSequence(0, 4).ok());
  MicroBatch batch;
  batch.rows = {{.sequence = 0, .token = token, .position = 0, .wants_logits = true}};
  const absl::Status status = engine.Step(batch).status();
  engine.EndSequence(0);
  return status;
}

Engine::Options StreamingOptions() {
  Engine::Options options;
  options.num_threads = 1;
  options.max_rows = 8;
  options.context = 16;
  options.resident_share = 0;
  return options;
}

TEST(StreamingTest, AReadThatFailsOnceIsRepeatedAndOneThatKeepsFailingEndsTheStepWithASentence) {
  std::atomic<int> failures = 0;
  Engine::Options options = StreamingOptions();
  options.wrap_device = [&](std::unique_ptr<BlockDevice> device) -> std::unique_ptr<BlockDevice> {
    return std::make_unique<FaultyDevice>(std::move(device), [&](const FaultyDevice::Read&) {
      return failures.load() > 0 && failures-- > 0 ? FaultyDevice::Fault{.error = EIO} : FaultyDevice::Fault{};
    });
  };
  auto engine = Engine::Create(ShippedModel("lime-fables"), options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_TRUE(StepOnce(**engine).ok());
  failures = 2;
  EXPECT_TRUE(StepOnce(**engine).ok()) << "repeated";
  failures = 1 << 30;
  const absl::Status failed = StepOnce(**engine);
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("model.safetensors"));
  EXPECT_THAT(std::string(failed.message()), HasSubstr("offset"));
  EXPECT_THAT(std::string(failed.message()), HasSubstr("Input/output error"));
  failures = 0;
  EXPECT_TRUE(StepOnce(**engine).ok()) << "the next request begins anew";
}

void FlipBit(const std::string& file, int64_t offset) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(offset);
  const char byte = static_cast<char>(stream.get() ^ 4);
  stream.seekp(offset);
  stream.put(byte);
}

TEST(StreamingTest, AFlippedBitInAPreparedStoreEndsTheStepWithASentence) {
  TempDir dir;
  ASSERT_TRUE(PrepareBlockStore(ShippedModel("lime-fables"), dir / "store").ok());
  auto whole = Engine::Create(dir / "store", StreamingOptions());
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_TRUE(StepOnce(**whole).ok());
  const std::string file = dir / "store/layer_0002.safetensors";
  const auto middle = static_cast<std::streamoff>(std::filesystem::file_size(file) / 2);
  FlipBit(file, middle);
  auto engine = Engine::Create(dir / "store", StreamingOptions());
  ASSERT_TRUE(engine.ok()) << engine.status();
  const absl::Status failed = StepOnce(**engine);
  EXPECT_EQ(failed.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("layer_0002.safetensors: "));
  EXPECT_THAT(std::string(failed.message()), HasSubstr(" 2, "));
  EXPECT_THAT(std::string(failed.message()), HasSubstr("checksum"));
}

TEST(StreamingTest, AFlippedBitInARowOfTheEmbeddingEndsTheStepThatReadsItWithASentence) {
  TempDir dir;
  ASSERT_TRUE(PrepareBlockStore(ShippedModel("lime-fables"), dir / "store").ok());
  const auto checkpoint = Checkpoint::Open(dir / "store");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const TensorLocation& table = checkpoint->location("model.embed_tokens.weight");
  const Bytes row_bytes = table.bytes / checkpoint->index().find("model.embed_tokens.weight")->second.shape[0];
  FlipBit(checkpoint->files()[static_cast<size_t>(table.file)].path, table.offset + 17 * row_bytes);
  auto engine = Engine::Create(dir / "store", StreamingOptions());
  ASSERT_TRUE(engine.ok()) << engine.status();
  const absl::Status failed = StepOnce(**engine, 17);
  EXPECT_EQ(failed.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("non_layer.safetensors: embedding, row of token 17, "));
}

TEST(StreamingTest, ADiskThatStallsIsReportedWhileItStalls) {
  std::atomic<bool> stalled = false;
  std::vector<std::string> sentences;
  Engine::Options options = StreamingOptions();
  // Reads are held back on a thread of their own while the disk is stalled.
  class StallingDevice : public FaultyDevice {
   public:
    StallingDevice(std::unique_ptr<BlockDevice> device, std::atomic<bool>& stalled)
        : FaultyDevice(std::move(device), [](const Read&) { return Fault{}; }), stalled_(stalled) {}
    void StartRead(int lane, int file, int64_t offset, std::byte* destination, Bytes bytes, Completion done) override {
      if (!stalled_) return FaultyDevice::StartRead(lane, file, offset, destination, bytes, std::move(done));
      Post([=, this, done = std::move(done)] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        StartRead(lane, file, offset, destination, bytes, done);
      });
    }

   private:
    std::atomic<bool>& stalled_;
  };
  options.wrap_device = [&](std::unique_ptr<BlockDevice> device) -> std::unique_ptr<BlockDevice> {
    return std::make_unique<StallingDevice>(std::move(device), stalled);
  };
  options.report = [&](const std::string& sentence) {
    sentences.push_back(sentence);
    stalled = false;
  };
  std::atomic<bool> cancelled = false;
  options.load.cancelled = &cancelled;
  auto engine = Engine::Create(ShippedModel("lime-fables"), options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_TRUE(StepOnce(**engine).ok());
  EXPECT_TRUE(sentences.empty());
  stalled = true;  // the ring holds a part of the next step: the stall shows where that ends
  EXPECT_TRUE(StepOnce(**engine).ok());
  ASSERT_EQ(sentences.size(), 2u);
  EXPECT_THAT(sentences[0], HasSubstr("the disk has delivered nothing for 3 s"));
  EXPECT_THAT(sentences[1], HasSubstr("delivers again"));
}

// Each chunk reads all that streams from the disk once: short ones would take most of the time, for a little more that is resident.
TEST(StreamingTest, WithoutAProfileAPromptIsNotReadInShortChunks) {
  const TempDir dir;
  MakeModelOptions model;
  model.config.num_layers = 8;
  model.config.hidden_size = 512;
  model.config.intermediate_size = 2048;
  ASSERT_TRUE(MakeModel(model, dir.path()).ok());
  Engine::Options options = StreamingOptions();
  options.resident_share.reset();
  options.context = 512;
  options.work = {.prompt_tokens = 500, .new_tokens = 4};
  options.memory = kGiB;
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(dir.path(), options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  ASSERT_FALSE((*engine)->residency().streams());
  options.memory = (*engine)->memory().total() - (*engine)->memory().weights / 2;
  engine->reset();
  engine = Engine::Create(dir.path(), options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  ASSERT_TRUE((*engine)->residency().streams());
  EXPECT_GE((*engine)->max_rows(), 256);
}

TEST(StreamingTest, ABudgetTooSmallForTwoPiecesIsRefusedWithTheNumbers) {
  Engine::Options options = StreamingOptions();
  options.resident_share.reset();
  options.memory = 1 * kMiB;
  const absl::Status refused = Engine::Create(ShippedModel("lime-fables"), options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--memory allows 1.00 MiB"));
}

}  // namespace
}  // namespace lime
