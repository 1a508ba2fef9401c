// Stores that were damaged: who finds it, and what they name.

#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "daemon/formats/block_store_manifest.h"
#include "tests/daemon/weights/block_store_fixture.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(PreparedTest, ATruncatedFileIsNamedByEveryoneAndWrittenAgain) {
  Prepare();
  const auto whole = Contents(store_);
  const std::string path = InStore("layer_0001.safetensors");
  const auto size = static_cast<int64_t>(fs::file_size(path));
  fs::resize_file(path, static_cast<uintmax_t>(size - 5));
  const std::string found(VerifyBlockStore(store_).status().message());
  EXPECT_THAT(found, HasSubstr("layer_0001.safetensors: has " + std::to_string(size - 5) + " bytes, but the manifest says"));
  EXPECT_THAT(found, HasSubstr("block mlp 1 differs from offset " + std::to_string(size - 5)));
  EXPECT_THAT(std::string(Checkpoint::Open(store_).status().message()), HasSubstr("layer_0001.safetensors"));
  const auto report = PrepareBlockStore(model_, store_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->kept_files, 2);
  EXPECT_EQ(Contents(store_), whole);
}

TEST_F(PreparedTest, WhatSomebodyPutIntoAStoreSinceIsNotWrittenAnew) {
  ASSERT_TRUE(MakeModel(options_, model_).ok());
  dir_.Write("model/generation_config.json", "{}");
  Prepare();
  const auto whole = Contents(store_);
  const auto again = [this](bool overwrite) { return PrepareBlockStore(model_, store_, {.overwrite = overwrite}).status(); };
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "layer_0001.safetensors", "non_layer.safetensors"}) {
    SCOPED_TRACE(name);
    const bool weights = std::string_view(name).ends_with(".safetensors");
    dir_.Write(absl::StrCat("store/", name), weights ? dir_.Read("model/model.safetensors") : "my own");
    const auto before = Contents(store_);
    EXPECT_THAT(std::string(again(false).message()),
                HasSubstr(absl::StrCat("files other than the block store as LIME wrote it (", name, ")")));
    EXPECT_EQ(Contents(store_), before);
    if (weights) {
      EXPECT_THAT(std::string(again(true).message()), HasSubstr("which LIME never replaces"));
      EXPECT_EQ(Contents(store_), before);
      fs::remove(InStore(name));
      EXPECT_TRUE(again(false).ok());
    } else {
      EXPECT_TRUE(again(true).ok());
    }
    EXPECT_EQ(Contents(store_), whole);
  }
}

// Fine-tuned models have the same shapes; one tensor that was trained is enough.
TEST_F(PreparedTest, AFileOfAnotherModelOfTheSameShapesIsNotWrittenAnew) {
  Prepare();
  for (const char* name : {"layer_0001.safetensors", "non_layer.safetensors"}) {
    SCOPED_TRACE(name);
    const auto whole = Contents(store_);
    const auto manifest = ReadStoreManifest(store_);
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    const auto file = std::ranges::find(manifest->files, name, &StoredFile::name);
    std::string other = dir_.Read(absl::StrCat("store/", name));
    const StoredBlock& block = file->blocks.back();
    for (int64_t at = block.offset; at < block.offset + block.bytes; ++at) other[static_cast<size_t>(at)] ^= 1;
    dir_.Write(absl::StrCat("store/", name), other + "longer");  // so that it is looked at
    EXPECT_THAT(std::string(PrepareBlockStore(model_, store_).status().message()),
                HasSubstr(absl::StrCat("files other than the block store as LIME wrote it (", name, ")")));
    EXPECT_EQ(dir_.Read(absl::StrCat("store/", name)), other + "longer");
    fs::remove(InStore(name));
    ASSERT_TRUE(PrepareBlockStore(model_, store_).ok());
    EXPECT_EQ(Contents(store_), whole);
  }
}

TEST_F(PreparedTest, ASideFileOfAnEarlierCallIsWrittenAnewWhereTheModelHasAnother) {
  Prepare();
  dir_.Write("model/tokenizer.json", dir_.Read("model/tokenizer.json") + "\n");
  fs::remove(InStore("layer_0000.safetensors"));
  const auto report = PrepareBlockStore(model_, store_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(dir_.Read("store/tokenizer.json"), dir_.Read("model/tokenizer.json"));
}

TEST_F(PreparedTest, OneFlippedBitAnywhereIsFoundAndNamed) {
  Prepare();
  const auto manifest = ReadStoreManifest(store_);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  for (const StoredFile& file : manifest->files) {
    std::vector<std::pair<int64_t, std::string>> places = {{0, ""}, {file.bytes / 2, ""}, {file.bytes - 1, ""}};
    for (const StoredBlock& block : file.blocks) {
      if (block.id.kind != BlockKind::kHead) places.emplace_back(block.offset, "block " + BlockName(block.id));
      places.emplace_back(block.offset + block.bytes - 1, "block " + BlockName(block.id));
    }
    for (const auto& [offset, place] : places) {
      Flip(file.name, offset);
      const absl::Status status = VerifyBlockStore(store_).status();
      EXPECT_TRUE(absl::IsDataLoss(status)) << file.name << " " << offset;
      EXPECT_THAT(std::string(status.message()), HasSubstr(file.name + ": " + place));
      EXPECT_THAT(std::string(status.message()), HasSubstr("offset"));
      Flip(file.name, offset);
    }
  }
  EXPECT_TRUE(VerifyBlockStore(store_).ok());
}

TEST_F(PreparedTest, ADifferenceIsPlacedWithinItsRangeAndBlock) {
  ASSERT_TRUE(MakeModel(options_, model_).ok());
  Prepare();
  const auto manifest = ReadStoreManifest(store_);
  ASSERT_TRUE(manifest.ok());
  const StoredFile& file = manifest->files[1];
  const StoredBlock& mlp = file.blocks[1];
  ASSERT_EQ(mlp.id, (BlockId{BlockKind::kMlp, 1}));
  ASSERT_GT(file.ranges.size(), 8u);
  for (const StoredRange& range : file.ranges) {
    Flip(file.name, range.offset + range.bytes / 2);
    const std::string block = range.offset < mlp.offset ? "attention 1" : "mlp 1";
    EXPECT_THAT(std::string(VerifyBlockStore(store_).status().message()),
                HasSubstr(absl::StrCat(file.name, ": block ", block, " differs from its checksum between offsets ", range.offset, " and ",
                                       range.offset + range.bytes, ";")));
    Flip(file.name, range.offset + range.bytes / 2);
  }
}

TEST_F(PreparedTest, ADifferenceInTheEmbeddingIsPlacedWithinItsRow) {
  Prepare();
  const auto manifest = ReadStoreManifest(store_);
  ASSERT_TRUE(manifest.ok());
  const StoredFile& file = manifest->files[2];
  ASSERT_EQ(file.rows.size(), 1u);
  const StoredRows& table = file.rows[0];
  const int64_t begin = table.offset + 3 * table.row_bytes;
  Flip(file.name, begin + table.row_bytes - 1);
  EXPECT_THAT(std::string(VerifyBlockStore(store_).status().message()),
              HasSubstr(absl::StrCat("differs from its checksum between offsets ", begin, " and ", begin + table.row_bytes, ";")));
}

TEST_F(PreparedTest, AChecksumThatIsWrongInTheManifestAloneIsFound) {
  Prepare();
  auto manifest = nlohmann::json::parse(dir_.Read("store/lime_store.json"));
  manifest["files"][0]["ranges"][2][2] = "0123456789abcdef";
  dir_.Write("store/lime_store.json", manifest.dump());
  const absl::Status status = VerifyBlockStore(store_).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("between offsets ", manifest["files"][0]["ranges"][2][0].get<int64_t>(), " and ")));
}

TEST_F(PreparedTest, AManifestThatDisagreesWithTheFilesIsRefused) {
  Prepare();
  const auto good = nlohmann::json::parse(dir_.Read("store/lime_store.json"));
  const auto open = [&](const nlohmann::json& manifest) -> std::string {
    dir_.Write("store/lime_store.json", manifest.dump());
    const auto checkpoint = Checkpoint::Open(store_);
    return std::string(checkpoint.ok() ? checkpoint->BuildModelSpec().status().message() : checkpoint.status().message());
  };
  auto moved = good;  // the block lies where the file has other tensors
  std::swap(moved["files"][0]["blocks"][0]["kind"], moved["files"][0]["blocks"][1]["kind"]);
  EXPECT_THAT(open(moved), HasSubstr("block attention 0 does not hold tensor"));
  auto longer = good;
  longer["files"][0]["bytes"] = longer["files"][0]["bytes"].get<int64_t>() + 1;
  EXPECT_THAT(open(longer), HasSubstr("layer_0000.safetensors: has"));
  auto stray = good;
  stray["files"][0]["name"] = "absent.safetensors";
  EXPECT_THAT(open(stray), HasSubstr("absent.safetensors"));
  EXPECT_THAT(open(good), IsEmpty());
}

}  // namespace
}  // namespace lime
