// Two folders hold the same weights, or they do not, whatever form each has them in.

#include "daemon/stores/weights_digest.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "daemon/stores/pushed_store.h"
#include "daemon/stores/store_source.h"
#include "nlohmann/json.hpp"
#include "tests/daemon/weights/block_store_fixture.h"

namespace lime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Opened {
  Checkpoint checkpoint;
  ModelSpec spec;
};

Opened Open(const std::string& dir) {
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::OpenPart(dir);
  LIME_CHECK(checkpoint.ok()) << checkpoint.status().message();
  absl::StatusOr<ModelSpec> spec = checkpoint->BuildModelSpec();
  LIME_CHECK(spec.ok()) << spec.status().message();
  return {*std::move(checkpoint), *std::move(spec)};
}

WeightsDigest DigestOf(const std::string& dir, std::vector<BlockId> blocks = {}) {
  const Opened model = Open(dir);
  if (blocks.empty()) {
    for (const BlockSpec& block : model.spec.blocks) blocks.push_back(block.id);
  }
  const auto digest = DigestWeights(model.checkpoint, model.spec, blocks, "the model");
  EXPECT_TRUE(digest.ok()) << digest.status();
  return *digest;
}

std::string CheckError(const std::string& dir, const WeightsDigest& expected) {
  const Opened model = Open(dir);
  const absl::Status status = CheckWeights(model.checkpoint, model.spec, expected, nullptr);
  return status.ok() ? "no error" : std::string(status.message());
}

// Without what only a store knows.
std::vector<uint64_t> Samples(const WeightsDigest& digest) {
  std::vector<uint64_t> samples = {digest.config};
  for (const BlockDigest& block : digest.blocks) samples.push_back(block.sample);
  return samples;
}

class WeightsDigestTest : public PreparedTest {
 protected:
  WeightsDigestTest() { options_.config.vocab_size = 2048; }  // an embedding that is larger than what is read of it

  // Another model beside the first one.
  std::string Other(const std::function<void(MakeModelOptions&)>& change) {
    MakeModelOptions options = options_;
    change(options);
    EXPECT_TRUE(MakeModel(options, dir_.file("other")).ok());
    return dir_.file("other");
  }
  static void FlipByte(const std::string& path, int64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    char byte = 0;
    file.seekg(offset).read(&byte, 1);
    byte = static_cast<char>(byte ^ 0x10);
    file.seekp(offset).write(&byte, 1);
  }
  // A byte of the tensor that no sample has.
  int64_t ByteBesideTheSamples(const std::string& tensor) {
    const WeightsDigest before = DigestOf(model_);
    const Opened model = Open(model_);
    const TensorLocation& at = model.checkpoint.location(tensor);
    const std::string& path = model.checkpoint.files()[static_cast<size_t>(at.file)].path;
    for (int64_t offset = at.offset; offset < at.offset + at.bytes; offset += 4096) {
      FlipByte(path, offset);
      const bool unseen = Samples(DigestOf(model_)) == Samples(before);
      FlipByte(path, offset);
      if (unseen) return offset;
    }
    ADD_FAILURE() << "all of " << tensor << " is read";
    return at.offset;
  }
};

TEST_F(WeightsDigestTest, AFolderItsShardsAStoreAndPushedBlocksAgree) {
  const WeightsDigest folder = DigestOf(model_);
  EXPECT_EQ(folder.blocks.front().bytes, 0) << "a folder has no checksums";
  EXPECT_EQ(Samples(DigestOf(Other([](MakeModelOptions& options) { options.shards = 3; }))), Samples(folder));
  Prepare();
  const WeightsDigest store = DigestOf(store_);
  EXPECT_EQ(Samples(store), Samples(folder));
  EXPECT_GT(store.blocks.front().bytes, 0);
  EXPECT_EQ(WeightsXxh3(store), WeightsXxh3(folder));

  const auto source = StoreSource::Open(model_);
  ASSERT_TRUE(source.ok()) << source.status();
  StoreDisk disk;
  const std::vector<BlockId> blocks = {{BlockKind::kAttention, 1}, {BlockKind::kMlp, 1}};
  const auto pushed = PushedStore::Open(disk, dir_.file("pushed"), (*source)->OfferOf(blocks, /*check=*/true));
  ASSERT_TRUE(pushed.ok()) << pushed.status();
  const auto missing = (*pushed)->FindMissing(true, [](Bytes, Bytes) { return absl::OkStatus(); });
  ASSERT_TRUE(missing.ok()) << missing.status();
  ASSERT_TRUE((*pushed)->Begin(*missing).ok());
  for (const int32_t index : *missing) {
    const PushUnit& unit = (*pushed)->units()[static_cast<size_t>(index)];
    std::vector<std::byte> data(static_cast<size_t>(unit.bytes));
    ASSERT_TRUE((*source)->Read(unit.file, unit.offset, data).ok());
    ASSERT_TRUE((*pushed)->Write(data).ok());
    ASSERT_TRUE((*pushed)->EndUnit().value_or(false));
  }
  const std::string held = FindPushed(dir_.file("pushed"), (*source)->manifest().source_xxh3);
  EXPECT_EQ(DigestOf(held, blocks).blocks, DigestOf(store_, blocks).blocks) << "checksums as well";
  EXPECT_EQ(CheckError(held, DigestOf(model_, blocks)), "no error");
  EXPECT_EQ(CheckError(held, DigestOf(store_, blocks)), "no error");
}

TEST_F(WeightsDigestTest, OtherValuesAreRefusedWithFolderModelAndBlock) {
  const std::string tuned = Other([](MakeModelOptions& options) { options.seed = 2; });
  EXPECT_THAT(CheckError(tuned, DigestOf(model_)),
              AllOf(HasSubstr("the weights in " + tuned + " differ from those of the coordinator's \"the model\""),
                    HasSubstr("embedding has other values, and so have 5 more blocks"), HasSubstr("lime push")));
  EXPECT_NE(WeightsXxh3(DigestOf(tuned)), WeightsXxh3(DigestOf(model_)));
}

TEST_F(WeightsDigestTest, OneByteOfASmallTensorIsSeenAndOnlyItsBlockDiffers) {
  const WeightsDigest before = DigestOf(model_);
  const Opened model = Open(model_);
  const TensorLocation& at = model.checkpoint.location("model.layers.1.mlp.up_proj.weight");
  FlipByte(model.checkpoint.files()[static_cast<size_t>(at.file)].path, at.offset + at.bytes / 2);
  EXPECT_THAT(CheckError(model_, before), HasSubstr("mlp 1 has other values;"));
  const std::vector<BlockId> others = {{BlockKind::kAttention, 0}, {BlockKind::kMlp, 0}};
  EXPECT_EQ(DigestOf(model_, others).blocks[1], before.blocks[2]) << "a device that does not use the block does not mind";
}

TEST_F(WeightsDigestTest, AByteThatNoSampleHasIsSeenWhereBothSidesHaveChecksums) {
  Prepare();
  const WeightsDigest folder = DigestOf(model_), store = DigestOf(store_);
  const int64_t offset = ByteBesideTheSamples("model.embed_tokens.weight");
  FlipByte(Open(model_).checkpoint.files().front().path, offset);
  EXPECT_EQ(CheckError(model_, folder), "no error");
  const auto report = PrepareBlockStore(model_, dir_.file("store of another"));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(CheckError(dir_.file("store of another"), store), HasSubstr("embedding has other values;"));
  EXPECT_EQ(CheckError(dir_.file("store of another"), folder), "no error") << "a folder has nothing to compare it with";
}

TEST_F(WeightsDigestTest, AConfigThatChangesTheComputationIsAnotherModel) {
  const WeightsDigest before = DigestOf(model_);
  const auto config = nlohmann::json::parse(dir_.Read("model/config.json"));
  const auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json changed = config;
    changed[key] = value;
    dir_.Write("model/config.json", changed.dump());
    return CheckError(model_, before);
  };
  EXPECT_EQ(with("transformers_version", "5.0.0"), "no error") << "its text does not matter";
  EXPECT_EQ(with("max_position_embeddings", 4096), "no error");
  EXPECT_THAT(with("rope_theta", 20000.0), HasSubstr("config.json describes another computation"));
  EXPECT_THAT(with("rms_norm_eps", 1e-4), HasSubstr("config.json describes another computation"));
  EXPECT_THAT(with("rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}), HasSubstr("config.json describes another computation"));
}

TEST_F(WeightsDigestTest, BlocksThatAreNotThereAreRefused) {
  WeightsDigest expected = DigestOf(model_);
  expected.blocks.back().block = {BlockKind::kMlp, 17};
  EXPECT_THAT(CheckError(model_, expected), HasSubstr("there is no mlp 17"));
}

TEST_F(WeightsDigestTest, SamplesAreKeptUntilAFileIsWritten) {
  const Opened model = Open(model_);
  const std::vector<BlockId> blocks = {{BlockKind::kHead, 0}};
  SampleMemory memory;
  const auto first = DigestWeights(model.checkpoint, model.spec, blocks, "m", &memory);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string path = model.checkpoint.files().front().path;
  EXPECT_EQ(*DigestWeights(model.checkpoint, model.spec, blocks, "m", &memory), *first);
  FlipByte(path, model.checkpoint.location("model.norm.weight").offset);
  fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(5));
  EXPECT_NE(*DigestWeights(model.checkpoint, model.spec, blocks, "m", &memory), *first);
}

}  // namespace
}  // namespace lime
