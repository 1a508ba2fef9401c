// Tensors of a model that are rows of larger tensors of the checkpoint: the gate and up matrices of
// every layer in one tensor, the head and the embedding in another. They have the bytes of the same
// model with a tensor for each, in all readers, in digests and in a block store.

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/formats/block_store_hash.h"
#include "daemon/formats/block_store_manifest.h"
#include "daemon/machine/block_reader.h"
#include "daemon/machine/huge_buffer.h"
#include "daemon/stores/block_store_layout.h"
#include "daemon/stores/safetensors_writer.h"
#include "daemon/stores/weights_digest.h"
#include "daemon/weights/part_reader.h"
#include "daemon/weights/row_reader.h"
#include "daemon/weights/weight_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "planner/plan/model/block_parts.h"
#include "testbed/make_model/make_model.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

constexpr Bytes kSmallParts = 16 * kKiB;

// A tensor of the fused checkpoint: tensors of the plain one, whose rows follow each other.
struct Fused {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::string> sources;
};

class FusedTensorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    MakeModelOptions options;
    options.config.intermediate_size = 512;
    ASSERT_TRUE(MakeModel(options, dir_ / "plain").ok());
    plain_.emplace(*Checkpoint::Open(dir_ / "plain"));
    spec_ = fused_spec_ = *plain_->BuildModelSpec();
    std::filesystem::create_directory(dir_ / "fused");
    dir_.Write("fused/config.json", plain_->config_json());
    Write(Fuse());
    fused_.emplace(*Checkpoint::Open(dir_ / "fused"));
  }

  std::string BytesOf(const Checkpoint& checkpoint, const TensorLocation& at) const {
    std::ifstream in(checkpoint.files()[static_cast<size_t>(at.file)].path, std::ios::binary);
    in.seekg(at.offset);
    std::string bytes(static_cast<size_t>(at.bytes), '\0');
    in.read(bytes.data(), std::ssize(bytes));
    return bytes;
  }

  // Also changes fused_spec_.
  std::vector<Fused> Fuse() {
    std::vector<Fused> all;
    std::map<std::string, size_t> fused_in;
    for (BlockSpec& block : fused_spec_.blocks) {
      for (TensorSpec& tensor : block.tensors) {
        const bool of_mlp = tensor.role == TensorRole::kGate || tensor.role == TensorRole::kUp;
        const bool of_ids = tensor.role == TensorRole::kTokenEmbedding || tensor.role == TensorRole::kOutput;
        const std::string name = of_mlp   ? absl::StrCat("model.layers.", block.id.layer, ".mlp.gate_up_proj.weight")
                                 : of_ids ? "model.ids.weight"
                                          : tensor.name;
        const auto [found, is_new] = fused_in.try_emplace(name, all.size());
        if (is_new) all.push_back({.name = name, .dtype = tensor.info.dtype, .shape = tensor.info.shape, .sources = {}});
        Fused& fused = all[found->second];
        for (const std::string& before : fused.sources) tensor.offset += plain_->location(before).bytes;
        fused.sources.push_back(tensor.name);
        if (!is_new) fused.shape[0] += tensor.info.shape[0];
        tensor.name = name;
      }
    }
    return all;
  }

  void Write(const std::vector<Fused>& all) const {
    std::vector<SafetensorsWriter::Tensor> tensors;
    tensors.reserve(all.size());
    for (const Fused& fused : all) tensors.push_back({fused.name, fused.dtype, fused.shape});
    auto writer = SafetensorsWriter::Create(dir_ / "fused/model.safetensors", tensors);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (size_t i = 0; i < all.size(); ++i) {
      int64_t at = 0;
      for (const std::string& source : all[i].sources) {
        const std::string bytes = BytesOf(*plain_, plain_->location(source));
        ASSERT_TRUE((*writer)->Write(i, at, std::as_bytes(std::span(bytes))).ok());
        at += std::ssize(bytes);
      }
    }
    ASSERT_TRUE((*writer)->Finish().ok());
  }

  // A block store of the fused checkpoint, as PrepareBlockStore writes it for a spec that it can
  // build.
  void WriteStore() const {
    std::filesystem::create_directory(dir_ / "store");
    StoreManifest manifest{.source_xxh3 = 1, .layers = fused_spec_.config.num_layers()};
    nlohmann::json weight_map;
    for (const StoreFileLayout& layout : LayOutStore(*fused_, fused_spec_)) {
      std::string bytes = layout.header;
      for (const StoreTensor& tensor : layout.tensors) {
        bytes += tensor.source ? BytesOf(*fused_, *tensor.source) : std::string(static_cast<size_t>(tensor.bytes), '\0');
        if (tensor.source) weight_map[tensor.tensor.name] = layout.name;
      }
      FileHashes hashes(layout);
      hashes.Add(std::as_bytes(std::span(bytes)));
      manifest.files.push_back(hashes.Finish(layout.name));
      dir_.Write("store/" + layout.name, bytes);
    }
    dir_.Write("store/config.json", fused_->config_json());
    dir_.Write("store/model.safetensors.index.json", nlohmann::json({{"weight_map", weight_map}}).dump());
    dir_.Write(absl::StrCat("store/", kStoreManifestName), StoreManifestText(manifest));
  }

  // Every row of every matrix, read part by part, is that of the plain checkpoint.
  void ExpectParts(const Checkpoint& checkpoint, Bytes part_bytes) const {
    const auto reader = PartReader::Open(checkpoint, fused_spec_, {.part_bytes = part_bytes});
    ASSERT_TRUE(reader.ok()) << reader.status();
    for (size_t block = 0; block < spec_.blocks.size(); ++block) {
      for (int part = 0; part < (*reader)->NumParts(static_cast<int>(block)); ++part) {
        auto place = HugeBuffer::Allocate((*reader)->PlaceBytes(static_cast<int>(block), part));
        ASSERT_TRUE(place.ok());
        AwaitedReads reads;
        (*reader)->StartRead(static_cast<int>(block), part, place->data(), reads.Add());
        const absl::Status status = reads.Await();
        ASSERT_TRUE(status.ok()) << status;
        for (int i = 0; i < (*reader)->NumRows(static_cast<int>(block), part); ++i)
          ExpectRows(spec_.blocks[block], (*reader)->Rows(static_cast<int>(block), part, i, place->data()));
      }
    }
  }

  void ExpectRows(const BlockSpec& plain, const RowsInMemory& rows) const {
    const TensorSpec& tensor = plain.tensors[*plain.Find(rows.rows.role, TensorPart::kWeight)];
    const Bytes row_bytes = tensor.info.bytes / tensor.info.shape[0], bytes = (rows.rows.end - rows.rows.begin) * row_bytes;
    const std::string expected = BytesOf(*plain_, plain_->location(tensor)).substr(static_cast<size_t>(rows.rows.begin * row_bytes));
    EXPECT_EQ(std::memcmp(rows.weight, expected.data(), static_cast<size_t>(bytes)), 0) << tensor.name << " row " << rows.rows.begin;
  }

  const TempDir dir_;
  std::optional<Checkpoint> plain_, fused_;
  ModelSpec spec_, fused_spec_;
};

TEST_F(FusedTensorTest, LoadersAndReadersFindTheRows) {
  for (const LoaderKind loader : {LoaderKind::kRead, LoaderKind::kMmap}) {
    const auto store = WeightStore::Open(*fused_, fused_spec_, {.loader = loader});
    ASSERT_TRUE(store.ok()) << store.status();
    const auto blocks = (*store)->LoadAll();
    ASSERT_TRUE(blocks.ok()) << blocks.status();
    for (size_t block = 0; block < spec_.blocks.size(); ++block) {
      for (size_t i = 0; i < spec_.blocks[block].tensors.size(); ++i) {
        const std::string expected = BytesOf(*plain_, plain_->location(spec_.blocks[block].tensors[i]));
        EXPECT_EQ(std::memcmp((*blocks)[block].tensors[i].data, expected.data(), expected.size()), 0)
            << spec_.blocks[block].tensors[i].name;
      }
    }
  }
  ExpectParts(*fused_, kSmallParts);
  ExpectParts(*fused_, kPartBytes);
  const auto rows = RowReader::Open(*fused_, fused_spec_, {.max_rows = 3});
  ASSERT_TRUE(rows.ok()) << rows.status();
  const std::vector<int32_t> ids = {0, 7, 319};
  ASSERT_TRUE((*rows)->Read(ids).ok());
  const TensorSpec& table = spec_.blocks.front().tensors.front();
  const std::string all = BytesOf(*plain_, plain_->location(table));
  const auto row_bytes = static_cast<size_t>(table.info.bytes / table.info.shape[0]);
  for (size_t i = 0; i < ids.size(); ++i)
    EXPECT_EQ(std::memcmp((*rows)->rows().weight + i * row_bytes, all.data() + static_cast<size_t>(ids[i]) * row_bytes, row_bytes), 0);
}

TEST_F(FusedTensorTest, TheDigestIsThatOfTheSameWeights) {
  const auto plain = DigestWeights(*plain_, spec_, "m"), fused = DigestWeights(*fused_, fused_spec_, "m");
  ASSERT_TRUE(plain.ok() && fused.ok());
  EXPECT_EQ(*plain, *fused);
  std::swap(fused_spec_.blocks[2].tensors[1].offset, fused_spec_.blocks[2].tensors[2].offset);  // up before gate
  EXPECT_NE(DigestWeights(*fused_, fused_spec_, "m")->blocks[2], plain->blocks[2]);
}

TEST_F(FusedTensorTest, ABlockStoreHasTheTensorOnceAndChecksumsOfItsRows) {
  WriteStore();
  const auto store = Checkpoint::Open(dir_ / "store");
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(store->index().size(), fused_->index().size());
  for (const BlockSpec& block : fused_spec_.blocks) {
    for (const BlockPart& part : CutBlock(block)) {
      for (const MatrixRows& rows : part.rows) {
        const TensorSpec& tensor = block.tensors[*block.Find(rows.role, TensorPart::kWeight)];
        const TensorLocation at = store->location(tensor);
        const Bytes row_bytes = tensor.info.bytes / tensor.info.shape[0];
        EXPECT_TRUE(store->RangeHash(at.file, at.offset + rows.begin * row_bytes, (rows.end - rows.begin) * row_bytes)) << tensor.name;
      }
    }
  }
  ExpectParts(*store, kPartBytes);
  ExpectParts(*store, kSmallParts);
  EXPECT_FALSE(store
                   ->RowHashes(store->location(fused_spec_.blocks.front().tensors.front()),
                               fused_spec_.blocks.front().tensors.front().info.bytes / spec_.config.vocab_size)
                   .empty());
}

TEST_F(FusedTensorTest, ADamagedRowIsFoundInItsOwnTensor) {
  WriteStore();
  const BlockSpec& mlp = fused_spec_.block({BlockKind::kMlp, 1});
  const TensorSpec& up = mlp.tensors[*mlp.Find(TensorRole::kUp, TensorPart::kWeight)];
  {
    const auto store = Checkpoint::Open(dir_ / "store");
    ASSERT_TRUE(store.ok()) << store.status();
    const TensorLocation at = store->location(up);
    std::fstream file(store->files()[static_cast<size_t>(at.file)].path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at.offset);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(at.offset);
    file.put(byte);
  }
  const auto store = Checkpoint::Open(dir_ / "store");
  ASSERT_TRUE(store.ok()) << store.status();
  const auto weights = WeightStore::Open(*store, fused_spec_, {.loader = LoaderKind::kRead});
  ASSERT_TRUE(weights.ok()) << weights.status();
  const std::vector<BlockId> damaged = {{BlockKind::kMlp, 1}}, others = {{BlockKind::kMlp, 0}, {BlockKind::kAttention, 1}};
  EXPECT_EQ((*weights)->LoadBlocks(damaged).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE((*weights)->LoadBlocks(others).ok());
}

}  // namespace
}  // namespace lime
