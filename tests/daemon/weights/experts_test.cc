// Models with experts: stacked or apart, dense or packed, whole, in parts, in a block store and in a
// quantised copy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <tuple>

#include "absl/synchronization/notification.h"
#include "daemon/machine/huge_buffer.h"
#include "daemon/stores/block_store.h"
#include "daemon/stores/quantize.h"
#include "daemon/stores/weights_digest.h"
#include "daemon/weights/part_reader.h"
#include "daemon/weights/weight_store.h"
#include "planner/plan/model/block_parts.h"
#include "testbed/make_model/make_model.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

constexpr char kStacked[] = "qwen3_5_moe", kApart[] = "qwen3_moe";

class ExpertsTest : public ::testing::Test {
 protected:
  void Make(const std::string& family, int bits = 0) const {
    MakeModelOptions options;
    options.config.family = family;
    options.config.full_attention_interval = 2;
    options.config.experts_per_token = 3;
    if (bits > 0) options.config.quantization = Quantization{.bits = bits, .group_size = 32};
    ASSERT_TRUE(MakeModel(options, dir_.file("model")).ok());
  }

  // The bytes of every tensor, as a load of the whole model has them.
  static std::map<std::string, std::string> LoadedWhole(const Checkpoint& checkpoint, const ModelSpec& spec) {
    auto store = WeightStore::Open(checkpoint, spec, {.loader = LoaderKind::kRead});
    std::map<std::string, std::string> tensors;
    const auto blocks = (*store)->LoadAll();
    for (size_t b = 0; b < blocks->size(); ++b) {
      for (size_t i = 0; i < (*blocks)[b].tensors.size(); ++i) {
        const LoadedTensor& loaded = (*blocks)[b].tensors[i];
        const TensorSpec& tensor = spec.blocks[b].tensors[i];
        tensors[NameApart(spec, spec.blocks[b].id, tensor)].assign(reinterpret_cast<const char*>(loaded.data),
                                                                   static_cast<size_t>(loaded.bytes));
      }
    }
    return tensors;
  }

  // Reads all experts in parts of at most `part_bytes`, and compares every row.
  static void ExpectParts(const Checkpoint& checkpoint, const ModelSpec& spec, Bytes part_bytes) {
    const std::map<std::string, std::string> whole = LoadedWhole(checkpoint, spec);
    auto reader = PartReader::Open(checkpoint, spec, {.part_bytes = part_bytes});
    ASSERT_TRUE(reader.ok()) << reader.status();
    int64_t rows_read = 0;
    for (size_t b = 0; b < spec.blocks.size(); ++b) {
      const BlockSpec& block = spec.blocks[b];
      if (block.id.kind != BlockKind::kExperts) continue;
      for (int part = 0; part < (*reader)->NumParts(static_cast<int>(b)); ++part) {
        auto place = HugeBuffer::Allocate((*reader)->PlaceBytes(static_cast<int>(b), part));
        absl::Notification read;
        (*reader)->StartRead(static_cast<int>(b), part, place->data(), [&](const absl::Status& status) {
          EXPECT_TRUE(status.ok()) << status;
          read.Notify();
        });
        read.WaitForNotification();
        for (int i = 0; i < (*reader)->NumRows(static_cast<int>(b), part); ++i) {
          const RowsInMemory rows = (*reader)->Rows(static_cast<int>(b), part, i, place->data());
          ExpectRows(spec, block, rows, whole);
          rows_read += rows.rows.end - rows.rows.begin;
        }
      }
    }
    EXPECT_GT(rows_read, 0);
  }

  static void ExpectRows(const ModelSpec& spec, const BlockSpec& block, const RowsInMemory& rows,
                         const std::map<std::string, std::string>& whole) {
    for (const auto& [part, data] :
         {std::pair{TensorPart::kWeight, rows.weight}, {TensorPart::kScales, rows.scales}, {TensorPart::kGroupBiases, rows.biases}}) {
      const auto i = block.Find(rows.rows.role, part, rows.rows.expert);
      ASSERT_EQ(i.has_value(), data != nullptr);
      if (!i) continue;
      const TensorSpec& tensor = block.tensors[*i];
      const auto row_bytes = static_cast<size_t>(tensor.info.bytes / tensor.info.shape[0]);
      const std::string& expected = whole.at(NameApart(spec, block.id, tensor));
      const auto begin = static_cast<size_t>(rows.rows.begin), end = static_cast<size_t>(rows.rows.end);
      EXPECT_EQ(std::memcmp(data, expected.data() + begin * row_bytes, (end - begin) * row_bytes), 0) << tensor.name << " " << begin;
    }
  }

  TempDir dir_;
};

TEST_F(ExpertsTest, PartsHaveTheRowsOfTheirExperts) {
  for (const char* family : {kStacked, kApart}) {
    for (const int bits : {0, 4}) {
      SCOPED_TRACE(testing::Message() << family << " " << bits);
      Make(family, bits);
      const auto checkpoint = Checkpoint::Open(dir_.file("model"));
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
      const ModelSpec spec = *checkpoint->BuildModelSpec();
      for (const Bytes part_bytes : {8 * kKiB, 40 * kKiB, kPartBytes}) ExpectParts(*checkpoint, spec, part_bytes);
    }
  }
}

TEST_F(ExpertsTest, AStoreOfStackedExpertsIsTheSameModelWithATensorForEach) {
  for (const int bits : {0, 4}) {
    Make(kStacked, bits);
    TempDir target;
    const auto report = PrepareBlockStore(dir_.file("model"), target.file("store"));
    ASSERT_TRUE(report.ok()) << report.status();
    const auto source = Checkpoint::Open(dir_.file("model")), store = Checkpoint::Open(target.file("store"));
    ASSERT_TRUE(store.ok()) << store.status();
    const ModelSpec stacked = *source->BuildModelSpec(), apart = *store->BuildModelSpec();
    EXPECT_TRUE(store->index().contains("model.layers.0.mlp.experts.7.up_proj.weight"));
    EXPECT_EQ(LoadedWhole(*source, stacked), LoadedWhole(*store, apart));
    EXPECT_EQ(WeightsXxh3(*DigestWeights(*source, stacked, "m")), WeightsXxh3(*DigestWeights(*store, apart, "m")));
    ExpectParts(*store, apart, kPartBytes);
    EXPECT_TRUE(VerifyBlockStore(target.file("store")).ok());
  }
}

TEST_F(ExpertsTest, ADigestSeesWhichExpertAMatrixIsOf) {
  Make(kApart);
  const auto checkpoint = Checkpoint::Open(dir_.file("model"));
  ModelSpec spec = *checkpoint->BuildModelSpec();
  const uint64_t before = WeightsXxh3(*DigestWeights(*checkpoint, spec, "m"));
  BlockSpec& block = spec.blocks[2];
  ASSERT_EQ(block.id.kind, BlockKind::kExperts);
  std::swap(block.tensors[*block.Find(TensorRole::kUp, TensorPart::kWeight, 1)].name,
            block.tensors[*block.Find(TensorRole::kUp, TensorPart::kWeight, 2)].name);
  EXPECT_NE(WeightsXxh3(*DigestWeights(*checkpoint, spec, "m")), before);
}

TEST_F(ExpertsTest, AQuantisedCopyPacksTheExpertsAndLeavesRoutersDense) {
  for (const char* family : {kStacked, kApart}) {
    Make(family);
    TempDir target;
    const auto report = QuantizeCheckpoint(dir_.file("model"), target.file("copy"), {.bits = 4, .group_size = 32});
    ASSERT_TRUE(report.ok()) << report.status();
    const auto copy = Checkpoint::Open(target.file("copy"));
    ASSERT_TRUE(copy.ok()) << copy.status();
    const auto spec = copy->BuildModelSpec();
    ASSERT_TRUE(spec.ok()) << spec.status();
    const BlockSpec& block = spec->block({BlockKind::kExperts, 1});
    EXPECT_TRUE(block.Find(TensorRole::kDown, TensorPart::kScales, 7).has_value());
    EXPECT_FALSE(block.Find(TensorRole::kRouter, TensorPart::kScales).has_value());
    ASSERT_TRUE(spec->config.quantization_of.contains("model.layers.1.mlp.gate"));
    const auto described = ModelSpec::FromConfig(spec->config, spec->working_dtype, "copy");
    ASSERT_TRUE(described.ok()) << described.status();
    EXPECT_EQ(described->block({BlockKind::kExperts, 1}).bytes, block.bytes);
    ExpectParts(*copy, *spec, kPartBytes);
  }
}

}  // namespace
}  // namespace lime
