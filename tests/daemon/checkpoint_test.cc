#include "daemon/weights/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/weights/safetensors_writer.h"
#include "planner/base/json_text.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void WriteShard(const TempDir& dir, const std::string& file, const std::vector<std::string>& tensors) {
  std::vector<SafetensorsWriter::Tensor> list;
  for (const std::string& name : tensors) list.push_back({name, DType::kU8, {4}});
  auto writer = SafetensorsWriter::Create(dir.file(file), list);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string bytes(4, static_cast<char>('a' + i));
    ASSERT_TRUE((*writer)->Write(i, 0, std::as_bytes(std::span(bytes))).ok());
  }
  ASSERT_TRUE((*writer)->Finish().ok());
}

std::string OpenError(const TempDir& dir) {
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(dir.path());
  return checkpoint.ok() ? "no error" : std::string(checkpoint.status().message());
}

// A folder with two shards: x and y in one, z in two.
class ShardsTest : public ::testing::Test {
 protected:
  ShardsTest() {
    dir_.Write("config.json", "{}");
    WriteShard(dir_, "one.safetensors", {"x", "y"});
    WriteShard(dir_, "two.safetensors", {"z"});
    WriteIndex(R"({"x":"one.safetensors","y":"one.safetensors","z":"two.safetensors"})");
  }
  void WriteIndex(const std::string& map) { dir_.Write("model.safetensors.index.json", R"({"metadata":{},"weight_map":)" + map + "}"); }
  TempDir dir_;
};

TEST_F(ShardsTest, TensorsOfAllShardsAreFound) {
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(dir_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->index().size(), 3u);
  EXPECT_EQ(checkpoint->files().size(), 2u);
  const TensorLocation& y = checkpoint->location("y");
  EXPECT_EQ(dir_.Read("one.safetensors").substr(static_cast<size_t>(y.offset), static_cast<size_t>(y.bytes)), "bbbb");
}

TEST_F(ShardsTest, AMissingShardIsNamedWithATensorOfIt) {
  std::filesystem::remove(dir_.file("two.safetensors"));
  EXPECT_THAT(OpenError(dir_), AllOf(HasSubstr("two.safetensors: the shard is missing"), HasSubstr("\"z\"")));
}

TEST_F(ShardsTest, AnIndexThatNamesATensorOfNoShardIsRefused) {
  WriteIndex(R"({"x":"one.safetensors","y":"one.safetensors","z":"two.safetensors","w":"two.safetensors"})");
  EXPECT_THAT(OpenError(dir_), HasSubstr("says two.safetensors holds tensor \"w\", which is in no shard"));
}

TEST_F(ShardsTest, AnIndexThatNamesTheWrongShardIsRefused) {
  WriteIndex(R"({"x":"two.safetensors","y":"one.safetensors","z":"two.safetensors"})");
  EXPECT_THAT(OpenError(dir_), AllOf(HasSubstr("says two.safetensors holds tensor \"x\""), HasSubstr("one.safetensors")));
}

TEST_F(ShardsTest, ATensorInTwoShardsIsRefused) {
  WriteShard(dir_, "two.safetensors", {"z", "x"});
  EXPECT_THAT(OpenError(dir_), AllOf(HasSubstr("two.safetensors: tensor \"x\" is also in"), HasSubstr("one.safetensors")));
}

TEST_F(ShardsTest, AShardOutsideTheFolderIsRefused) {
  for (const char* name : {"../one.safetensors", "/etc/passwd", "..", "", ".hidden", "a/b.safetensors", "a\\\\b"}) {
    WriteIndex(std::string(R"({"x":")") + name + "\"}");
    EXPECT_THAT(OpenError(dir_), HasSubstr("not a plain file name")) << name;
  }
}

TEST_F(ShardsTest, AnIndexWithoutAWeightMapIsRefused) {
  dir_.Write("model.safetensors.index.json", "{}");
  EXPECT_THAT(OpenError(dir_), HasSubstr("lacks the object \"weight_map\""));
  dir_.Write("model.safetensors.index.json", "{");
  EXPECT_THAT(OpenError(dir_), HasSubstr("is not valid JSON"));
  WriteIndex(R"({"x":7})");
  EXPECT_THAT(OpenError(dir_), HasSubstr("gives tensor \"x\" no file name but number"));
}

TEST_F(ShardsTest, AnIndexBeyondAnyBoundIsRefused) {
  WriteIndex(std::string(1000, '[') + std::string(1000, ']'));
  EXPECT_THAT(OpenError(dir_), HasSubstr("model.safetensors.index.json: nests more than 64 levels"));
  dir_.Write("model.safetensors.index.json", std::string(kMaxJsonBytes + 1, ' '));
  EXPECT_THAT(OpenError(dir_), HasSubstr("model.safetensors.index.json: has 16777217 bytes, at most 16777216"));
  dir_.Write("config.json", std::string(kMaxJsonBytes + 1, ' '));
  EXPECT_THAT(OpenError(dir_), HasSubstr("config.json: has 16777217 bytes, at most 16777216"));
}

TEST_F(ShardsTest, ATruncatedShardIsRefused) {
  std::filesystem::resize_file(dir_.file("one.safetensors"), std::filesystem::file_size(dir_.file("one.safetensors")) - 1);
  EXPECT_THAT(OpenError(dir_), AllOf(HasSubstr("one.safetensors: tensor \"y\""), HasSubstr("truncated")));
}

TEST(CheckpointTest, AFolderWithoutWeightsSaysWhatWasLookedFor) {
  TempDir dir;
  EXPECT_THAT(OpenError(dir), HasSubstr("config.json: cannot open"));
  dir.Write("config.json", "{}");
  EXPECT_THAT(OpenError(dir), HasSubstr("holds neither model.safetensors nor model.safetensors.index.json"));
  dir.Write("pytorch_model.bin", "");
  EXPECT_THAT(OpenError(dir), HasSubstr("convert pytorch_model.bin"));
}

TEST(CheckpointTest, APathThatIsNoFolderIsRefused) {
  EXPECT_THAT(std::string(Checkpoint::Open("/nowhere/at/all").status().message()), HasSubstr("/nowhere/at/all: is no folder"));
}

TEST(CheckpointTest, SharedModelsResolve) {
  const std::string models = std::string(LIME_SHARED_DIR) + "/models";
  if (!std::filesystem::is_directory(models)) GTEST_SKIP() << "no models beside the project";
  for (const auto& entry : std::filesystem::directory_iterator(models)) {
    if (!entry.is_directory()) continue;
    const absl::StatusOr<ModelSpec> spec = LoadModelSpec(entry.path().string());
    EXPECT_TRUE(spec.ok()) << spec.status();
  }
}

}  // namespace
}  // namespace lime
