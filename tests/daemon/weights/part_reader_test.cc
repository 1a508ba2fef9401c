#include "daemon/weights/part_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "absl/synchronization/notification.h"
#include "daemon/machine/huge_buffer.h"
#include "daemon/stores/block_store.h"
#include "daemon/weights/row_reader.h"
#include "daemon/weights/weight_store.h"
#include "testbed/make_model/make_model.h"
#include "tests/daemon/weights/faulty_device.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

// A checkpoint, and every byte of its files as they are.
class ModelFiles {
 public:
  explicit ModelFiles(const std::string& dir) : checkpoint(*Checkpoint::Open(dir)), spec(*checkpoint.BuildModelSpec()) {
    for (const CheckpointFile& file : checkpoint.files()) {
      std::ifstream in(file.path, std::ios::binary);
      files_.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    }
  }
  // Bytes of `rows` rows of a tensor from `begin` on.
  const char* Rows(const std::string& name, int64_t begin, Bytes row_bytes) const {
    const TensorLocation& at = checkpoint.location(name);
    return files_[static_cast<size_t>(at.file)].data() + at.offset + begin * row_bytes;
  }

  const Checkpoint checkpoint;
  const ModelSpec spec;

 private:
  std::vector<std::string> files_;
};

const TensorSpec* Find(const BlockSpec& block, TensorRole role, TensorPart part) {
  for (const TensorSpec& tensor : block.tensors) {
    if (tensor.role == role && tensor.part == part && !IsPinned(tensor)) return &tensor;
  }
  return nullptr;
}

void ExpectRows(const ModelFiles& model, const BlockSpec& block, const RowsInMemory& rows) {
  const std::tuple<TensorPart, const std::byte*> parts[] = {
      {TensorPart::kWeight, rows.weight}, {TensorPart::kScales, rows.scales}, {TensorPart::kGroupBiases, rows.biases}};
  for (const auto& [part, data] : parts) {
    const TensorSpec* tensor = Find(block, rows.rows.role, part);
    ASSERT_EQ(tensor != nullptr, data != nullptr);
    if (tensor == nullptr) continue;
    const Bytes row_bytes = tensor->info.bytes / tensor->info.shape[0];
    EXPECT_EQ(std::memcmp(data, model.Rows(tensor->name, rows.rows.begin, row_bytes),
                          static_cast<size_t>((rows.rows.end - rows.rows.begin) * row_bytes)),
              0)
        << tensor->name << " rows " << rows.rows.begin;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(ElementBytes(tensor->info.dtype)), 0u) << tensor->name;
  }
}

absl::Status ReadPart(PartReader& reader, int block, int part, std::byte* place) {
  absl::Notification done;
  absl::Status result;
  reader.StartRead(block, part, place, [&](absl::Status status) {
    result = std::move(status);
    done.Notify();
  });
  done.WaitForNotification();
  return result;
}

// Every part of every block holds the rows that it says, each part on its alignment.
void ExpectParts(const std::string& dir, Bytes part_bytes, bool io_uring) {
  const ModelFiles model(dir);
  auto reader = PartReader::Open(model.checkpoint, model.spec, {.part_bytes = part_bytes, .io_uring = io_uring});
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (int block = 0; block < static_cast<int>(model.spec.blocks.size()); ++block) {
    for (int part = 0; part < (*reader)->NumParts(block); ++part) {
      auto place = HugeBuffer::Allocate((*reader)->PlaceBytes(block, part));
      ASSERT_TRUE(place.ok());
      const absl::Status status = ReadPart(**reader, block, part, place->data());
      ASSERT_TRUE(status.ok()) << status;
      for (int i = 0; i < (*reader)->NumRows(block, part); ++i) {
        ExpectRows(model, model.spec.blocks[static_cast<size_t>(block)], (*reader)->Rows(block, part, i, place->data()));
      }
    }
  }
}

MakeModelOptions Packed() {
  MakeModelOptions options;
  options.config.hidden_size = 128;
  options.config.intermediate_size = 256;
  options.config.num_layers = 3;
  options.config.quantization = Quantization{4, 64};
  return options;
}

TEST(PartReaderTest, PartsHoldTheirRowsDenseAndPackedWholeAndPrepared) {
  const TempDir dir;
  ASSERT_TRUE(MakeModel({.shards = 2}, dir.file("dense")).ok());
  ASSERT_TRUE(MakeModel(Packed(), dir.file("packed")).ok());
  for (const char* name : {"dense", "packed"}) {
    for (const Bytes part_bytes : {kPartBytes, 4 * kKiB}) {
      for (const bool io_uring : {true, false}) ExpectParts(dir.file(name), part_bytes, io_uring);
    }
    const std::string store = dir.file(name) + "_store";
    ASSERT_TRUE(PrepareBlockStore(dir.file(name), store).ok());
    ExpectParts(store, kPartBytes, true);
  }
}

// One byte more in the header shifts every tensor off its alignment.
TEST(PartReaderTest, TensorsOffTheirAlignmentSlideToIt) {
  const TempDir dir;
  for (const auto& [name, options] : {std::pair<const char*, MakeModelOptions>{"dense", {.dtype = DType::kF32}}, {"packed", Packed()}}) {
    ASSERT_TRUE(MakeModel(options, dir.file(name)).ok());
    const std::string path = dir.file(name) + "/model.safetensors";
    std::ifstream in(path, std::ios::binary);
    std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    in.close();
    uint64_t header = 0;
    std::memcpy(&header, text.data(), sizeof(header));
    const std::string data = text.substr(8 + header);
    std::string shifted = text.substr(0, 8 + header);
    shifted += " ";
    ++header;
    std::memcpy(shifted.data(), &header, sizeof(header));
    std::ofstream(path, std::ios::binary) << shifted << data;
    ExpectParts(dir.file(name), kPartBytes, true);
    ExpectParts(dir.file(name), 4 * kKiB, false);
  }
}

// Spoils what a read brought, as often as asked.
class Spoiler : public FaultyDevice {
 public:
  Spoiler(std::unique_ptr<BlockDevice> device, std::atomic<int>& remaining)
      : FaultyDevice(std::move(device), [](const Read&) { return Fault{}; }), remaining_(remaining) {}
  void StartRead(int channel, int file, int64_t offset, std::byte* destination, Bytes bytes, Completion done) override {
    FaultyDevice::StartRead(channel, file, offset, destination, bytes, [this, destination, done = std::move(done)](Result result) {
      if (remaining_ > 0 && remaining_-- > 0) {
        for (Bytes i = 0; i < result.bytes; ++i) destination[i] ^= std::byte{1};
      }
      done(result);
    });
  }

 private:
  std::atomic<int>& remaining_;
};

TEST(PartReaderTest, DamageThatPassesIsReadAgainAndDamageThatStaysIsNamed) {
  const TempDir dir;
  ASSERT_TRUE(MakeModel(Packed(), dir.file("model")).ok());
  ASSERT_TRUE(PrepareBlockStore(dir.file("model"), dir.file("store")).ok());
  const ModelFiles model(dir.file("store"));
  std::atomic<int> remaining = 0;
  auto reader = PartReader::Open(model.checkpoint, model.spec, {.wrap_device = [&](std::unique_ptr<BlockDevice> device) {
                                   return std::make_unique<Spoiler>(std::move(device), remaining);
                                 }});
  ASSERT_TRUE(reader.ok()) << reader.status();
  auto place = HugeBuffer::Allocate((*reader)->PlaceBytes(2, 0));
  ASSERT_TRUE(place.ok());
  remaining = 3;
  EXPECT_TRUE(ReadPart(**reader, 2, 0, place->data()).ok()) << "the fourth read is good";
  remaining = 1000;
  const absl::Status status = ReadPart(**reader, 2, 0, place->data());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer_0000.safetensors: mlp 0, "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("differ from their checksum after 4 reads"));
}

void Flip(const std::string& path, int64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(offset);
  const char flipped = static_cast<char>(file.get() ^ 16);
  file.seekp(offset);
  file.put(flipped);
}

std::vector<int> AllParts(const PartReader& reader, int block) {
  std::vector<int> parts(static_cast<size_t>(reader.NumParts(block)));
  std::iota(parts.begin(), parts.end(), 0);
  return parts;
}

// Parts of another size than the store's ranges: each is compared nonetheless, whichever byte is
// damaged, and whenever.
TEST(PartReaderTest, PartsThatAStoreIsNotCutInAreCheckedByItsRangesThatCoverThem) {
  const TempDir dir;
  MakeModelOptions untied, tied;
  tied.config.tie_embeddings = true;
  for (const auto& [name, options] : {std::pair<const char*, MakeModelOptions>{"dense", untied}, {"tied", tied}, {"packed", Packed()}}) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(MakeModel(options, dir.file(name)).ok());
    const std::string store = dir.file(name) + "_store";
    ASSERT_TRUE(PrepareBlockStore(dir.file(name), store).ok());
    const ModelFiles model(store);
    std::atomic<int> remaining = 0;
    auto reader =
        PartReader::Open(model.checkpoint, model.spec, {.part_bytes = 4 * kKiB, .wrap_device = [&](std::unique_ptr<BlockDevice> device) {
                                                          return std::make_unique<Spoiler>(std::move(device), remaining);
                                                        }});
    ASSERT_TRUE(reader.ok()) << reader.status();
    for (int block = 1; block < static_cast<int>(model.spec.blocks.size()); ++block) {
      SCOPED_TRACE(BlockName(model.spec.blocks[static_cast<size_t>(block)].id));
      ASSERT_GT((*reader)->NumParts(block), 1);
      const absl::Status learned = (*reader)->LearnChecksums(block, AllParts(**reader, block), nullptr);
      ASSERT_TRUE(learned.ok()) << learned;
      for (int part = 0; part < (*reader)->NumParts(block); ++part) {
        auto place = HugeBuffer::Allocate((*reader)->PlaceBytes(block, part));
        ASSERT_TRUE(place.ok());
        remaining = 1;
        EXPECT_TRUE(ReadPart(**reader, block, part, place->data()).ok()) << "the second read is good";
        EXPECT_EQ(remaining, 0);
        remaining = 1000;
        EXPECT_EQ(ReadPart(**reader, block, part, place->data()).code(), absl::StatusCode::kDataLoss) << part;
      }
      remaining = 0;
      for (const TensorSpec& tensor : model.spec.blocks[static_cast<size_t>(block)].tensors) {
        if (IsPinned(tensor)) continue;
        const TensorLocation& at = model.checkpoint.location(tensor.name);
        const std::string& path = model.checkpoint.files()[static_cast<size_t>(at.file)].path;
        for (const int64_t byte : {int64_t{0}, at.bytes / 2, at.bytes - 1}) {
          Flip(path, at.offset + byte);
          auto damaged = PartReader::Open(model.checkpoint, model.spec, {.part_bytes = 4 * kKiB});
          ASSERT_TRUE(damaged.ok()) << damaged.status();
          absl::Status status = (*damaged)->LearnChecksums(block, AllParts(**damaged, block), nullptr);
          for (int part = 0; status.ok() && part < (*damaged)->NumParts(block); ++part) {  // that the store is cut in, too
            auto place = HugeBuffer::Allocate((*damaged)->PlaceBytes(block, part));
            ASSERT_TRUE(place.ok());
            status = ReadPart(**damaged, block, part, place->data());
          }
          EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << tensor.name << " " << byte;
          EXPECT_THAT(std::string(status.message()),
                      HasSubstr(path + ": " + BlockName(model.spec.blocks[static_cast<size_t>(block)].id) + ", "));
          EXPECT_THAT(std::string(status.message()),
                      HasSubstr("differ from their checksum after 4 reads; remove the file and run `lime prepare` again"));
          Flip(path, at.offset + byte);
        }
      }
    }
    std::atomic<bool> cancelled = true;
    auto other = PartReader::Open(model.checkpoint, model.spec, {.part_bytes = 4 * kKiB});
    const int head = static_cast<int>(model.spec.blocks.size()) - 1;
    EXPECT_TRUE(absl::IsCancelled((*other)->LearnChecksums(head, AllParts(**other, head), &cancelled)));
  }
}

TEST(PartReaderTest, ChecksumsOfOtherPartsAreThoseOfABlockInMemory) {
  const TempDir dir;
  ASSERT_TRUE(MakeModel(Packed(), dir.file("model")).ok());
  ASSERT_TRUE(PrepareBlockStore(dir.file("model"), dir.file("store")).ok());
  const ModelFiles model(dir.file("store"));
  std::atomic<int> remaining = 0;
  auto reader =
      PartReader::Open(model.checkpoint, model.spec, {.part_bytes = 4 * kKiB, .wrap_device = [&](std::unique_ptr<BlockDevice> device) {
                                                        return std::make_unique<Spoiler>(std::move(device), remaining);
                                                      }});
  ASSERT_TRUE(reader.ok()) << reader.status();
  auto store = WeightStore::Open(model.checkpoint, model.spec, {.loader = LoaderKind::kRead});
  ASSERT_TRUE(store.ok()) << store.status();
  const std::vector<BlockId> second = {model.spec.blocks[2].id};
  const auto loaded = (*store)->LoadBlocks(second);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  (*reader)->LearnChecksums(loaded->front());
  for (int part = 0; part < (*reader)->NumParts(2); ++part) {
    auto place = HugeBuffer::Allocate((*reader)->PlaceBytes(2, part));
    ASSERT_TRUE(place.ok());
    EXPECT_TRUE(ReadPart(**reader, 2, part, place->data()).ok());
    remaining = 1000;
    EXPECT_EQ(ReadPart(**reader, 2, part, place->data()).code(), absl::StatusCode::kDataLoss);
    remaining = 0;
  }
}

TEST(RowReaderTest, BringsTheRowsOfItsTokensInTheirOrder) {
  const TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.file("dense")).ok());
  ASSERT_TRUE(MakeModel(Packed(), dir.file("packed")).ok());
  for (const char* name : {"dense", "packed"}) {
    const ModelFiles model(dir.file(name));
    auto reader = RowReader::Open(model.checkpoint, model.spec, {.max_rows = 100});
    ASSERT_TRUE(reader.ok()) << reader.status();
    std::vector<int32_t> tokens(100);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 7919 % 320);
    ASSERT_TRUE((*reader)->Read(tokens).ok());
    const RowsInMemory rows = (*reader)->rows();
    EXPECT_EQ(rows.rows.end, 100);
    const BlockSpec& block = model.spec.blocks.front();
    const TensorSpec* tensor = Find(block, TensorRole::kTokenEmbedding, TensorPart::kWeight);
    ASSERT_NE(tensor, nullptr);
    const Bytes row_bytes = tensor->info.bytes / tensor->info.shape[0];
    for (int64_t i = 0; i < 100; ++i) {
      EXPECT_EQ(std::memcmp(rows.weight + i * row_bytes, model.Rows(tensor->name, tokens[static_cast<size_t>(i)], row_bytes),
                            static_cast<size_t>(row_bytes)),
                0)
          << name << " row " << i;
    }
  }
}

TEST(RowReaderTest, RowsOfAStoreAreCheckedReadAgainAndNamed) {
  const TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.file("dense")).ok());
  ASSERT_TRUE(MakeModel(Packed(), dir.file("packed")).ok());
  for (const char* name : {"dense", "packed"}) {
    const std::string store = dir.file(name) + "_store";
    ASSERT_TRUE(PrepareBlockStore(dir.file(name), store).ok());
    const ModelFiles model(store);
    std::atomic<int> remaining = 0;
    auto reader = RowReader::Open(model.checkpoint, model.spec, {.max_rows = 2, .wrap_device = [&](std::unique_ptr<BlockDevice> device) {
                                                                   return std::make_unique<Spoiler>(std::move(device), remaining);
                                                                 }});
    ASSERT_TRUE(reader.ok()) << reader.status();
    const std::vector<int32_t> tokens = {3, 319};
    ASSERT_TRUE((*reader)->Read(tokens).ok()) << name;
    remaining = 1;
    ASSERT_TRUE((*reader)->Read(tokens).ok()) << name << ": the second read is good";
    const TensorSpec* tensor = Find(model.spec.blocks.front(), TensorRole::kTokenEmbedding, TensorPart::kWeight);
    const Bytes row_bytes = tensor->info.bytes / tensor->info.shape[0];
    EXPECT_EQ(std::memcmp((*reader)->rows().weight + row_bytes, model.Rows(tensor->name, 319, row_bytes), static_cast<size_t>(row_bytes)),
              0);
    remaining = 1'000'000;
    const absl::Status status = (*reader)->Read(tokens);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("non_layer.safetensors: embedding, row of token 3, "));
    EXPECT_THAT(std::string(status.message()), HasSubstr("differ from their checksum after 4 reads"));
  }
}

TEST(KeptTensorsTest, HoldNormsAndBiasesAndNothingElse) {
  const TempDir dir;
  MakeModelOptions options;
  options.config.family = "qwen2";
  ASSERT_TRUE(MakeModel(options, dir.file("model")).ok());
  const ModelFiles model(dir.file("model"));
  const BlockSpec& block = model.spec.blocks[1];
  const auto loaded = LoadPinned(model.checkpoint, block);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  int pinned = 0;
  for (size_t i = 0; i < block.tensors.size(); ++i) {
    const TensorSpec& tensor = block.tensors[i];
    ASSERT_EQ(loaded->tensors[i].data != nullptr, IsPinned(tensor)) << tensor.name;
    if (!IsPinned(tensor)) continue;
    ++pinned;
    EXPECT_EQ(std::memcmp(loaded->tensors[i].data, model.Rows(tensor.name, 0, 0), static_cast<size_t>(tensor.info.bytes)), 0);
  }
  EXPECT_EQ(pinned, 4) << "the norm and the biases of q, k and v";
}

}  // namespace
}  // namespace lime
