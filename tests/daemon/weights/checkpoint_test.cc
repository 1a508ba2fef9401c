#include "daemon/weights/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "daemon/stores/safetensors_writer.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_text.h"
#include "testbed/make_model/make_model.h"
#include "tests/skips.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void WriteShard(const TempDir& dir, const std::string& file, const std::vector<std::string>& tensors) {
  std::vector<SafetensorsWriter::Tensor> list;
  list.reserve(tensors.size());
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

TEST_F(ShardsTest, AFolderWithoutAnyOfItsShardsNamesOneWithATensorOfIt) {
  std::filesystem::remove(dir_.file("one.safetensors"));
  std::filesystem::remove(dir_.file("two.safetensors"));
  EXPECT_THAT(OpenError(dir_), AllOf(HasSubstr("one.safetensors: the shard is missing"), HasSubstr("\"x\"")));
}

TEST_F(ShardsTest, ALinkToNothingIsNoMissingFile) {
  const auto error_with = [&](const std::string& name) {
    std::filesystem::remove(dir_.file(name));
    std::filesystem::create_symlink("../blobs/abc", dir_.file(name));
    std::string error = OpenError(dir_);
    std::filesystem::remove(dir_.file(name));
    return error;
  };
  const auto dead = [&](const std::string& name) {
    return dir_.file(name) + ": is a link to ../blobs/abc, which does not exist; download the file again";
  };
  EXPECT_EQ(error_with("two.safetensors"), dead("two.safetensors"));
  EXPECT_EQ(error_with("model.safetensors"), dead("model.safetensors"));
  EXPECT_EQ(error_with("model.safetensors.index.json"), dead("model.safetensors.index.json"));
  EXPECT_EQ(error_with("model-00001-of-00001.safetensors"), dead("model-00001-of-00001.safetensors")) << "without an index";
  EXPECT_EQ(error_with("config.json"), dead("config.json"));
}

TEST_F(ShardsTest, AFolderInPlaceOfTheWeightsIsNoMissingFile) {
  std::filesystem::create_directory(dir_.file("model.safetensors"));
  EXPECT_EQ(OpenError(dir_), dir_.file("model.safetensors") + ": is a folder, but must be a file of the model; download the model again");
}

TEST_F(ShardsTest, AnIndexThatNamesTheWrongShardIsPassedOver) {
  WriteIndex(R"({"x":"two.safetensors","y":"one.safetensors","z":"two.safetensors"})");
  EXPECT_EQ(OpenError(dir_), "no error") << "transformers reads every shard that the index names, whatever it says is where";
}

TEST_F(ShardsTest, ATensorInTwoShardsIsRefused) {
  WriteShard(dir_, "two.safetensors", {"z", "x"});
  EXPECT_THAT(OpenError(dir_), AllOf(HasSubstr("two.safetensors: tensor \"x\" is also in"), HasSubstr("one.safetensors")));
}

TEST_F(ShardsTest, ATensorInTwoShardsIsThatOfTheLastWhereTheIndexSaysSo) {
  WriteShard(dir_, "two.safetensors", {"z", "x"});
  WriteIndex(R"({"x":"two.safetensors","y":"one.safetensors","z":"two.safetensors"})");
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(dir_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const TensorLocation& x = checkpoint->location("x");
  EXPECT_EQ(checkpoint->files()[static_cast<size_t>(x.file)].path, dir_.file("two.safetensors"));
  EXPECT_EQ(dir_.Read("two.safetensors").substr(static_cast<size_t>(x.offset), static_cast<size_t>(x.bytes)), "bbbb");
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
  WriteIndex("{}");
  EXPECT_THAT(OpenError(dir_), HasSubstr("weight_map is empty; download the file again"));
  WriteIndex(R"({"x":7})");
  EXPECT_THAT(OpenError(dir_), HasSubstr("gives tensor \"x\" a value of type number instead of a file name"));
}

TEST_F(ShardsTest, AnIndexBeyondAnyBoundIsRefused) {
  WriteIndex(std::string(1000, '[') + std::string(1000, ']'));
  EXPECT_THAT(OpenError(dir_), HasSubstr("model.safetensors.index.json: nests more than 64 levels"));
  std::filesystem::resize_file(dir_.file("model.safetensors.index.json"), 128 * kMiB + 1);
  EXPECT_THAT(OpenError(dir_), HasSubstr("model.safetensors.index.json: has 134217729 bytes, more than the limit of 134217728"));
  dir_.Write("config.json", std::string(kMaxJsonBytes + 1, ' '));
  EXPECT_THAT(OpenError(dir_), HasSubstr("config.json: has 16777217 bytes, more than the limit of 16777216"));
}

TEST_F(ShardsTest, ATruncatedShardIsRefused) {
  std::filesystem::resize_file(dir_.file("one.safetensors"), std::filesystem::file_size(dir_.file("one.safetensors")) - 1);
  EXPECT_THAT(OpenError(dir_), AllOf(HasSubstr("one.safetensors: tensor \"y\""), HasSubstr("truncated")));
}

// A model of one layer in two shards that an index names.
class ModelShardsTest : public ::testing::Test {
 protected:
  ModelShardsTest() {
    MakeModelOptions options;
    options.config.num_layers = 1;
    options.shards = 2;
    EXPECT_TRUE(MakeModel(options, dir_.path()).ok());
  }
  std::string SpecError() const {
    const absl::StatusOr<ModelSpec> spec = LoadModelSpec(dir_.path());
    return spec.ok() ? "no error" : std::string(spec.status().message());
  }
  // The index names these, too.
  void Claim(const std::vector<std::pair<std::string, std::string>>& tensors) const {
    auto index = nlohmann::json::parse(dir_.Read(kIndex));
    for (const auto& [tensor, shard] : tensors) index["weight_map"][tensor] = shard;
    dir_.Write(kIndex, index.dump());
  }
  std::vector<std::string> Shards() const {
    std::set<std::string> shards;
    const auto index = nlohmann::json::parse(dir_.Read(kIndex));
    for (const auto& [tensor, shard] : index["weight_map"].items()) shards.insert(shard);
    return {shards.begin(), shards.end()};
  }

  static constexpr char kIndex[] = "model.safetensors.index.json";
  TempDir dir_;
};

TEST_F(ModelShardsTest, WhatAnIndexNamesAndNobodyNeedsIsPassedOver) {
  Claim({{"mtp.fc.weight", Shards().front()}, {"model.layers.0.self_attn.rotary_emb.inv_freq", "model-00009-of-00009.safetensors"}});
  EXPECT_EQ(SpecError(), "no error");
}

TEST_F(ModelShardsTest, AMissingShardThatTheModelNeedsIsNamedWithATensorOfIt) {
  const std::string gone = Shards().back();
  std::filesystem::remove(dir_.file(gone));
  EXPECT_THAT(SpecError(), AllOf(HasSubstr(gone + ": the shard is missing"), HasSubstr("download the folder again")));
}

TEST_F(ModelShardsTest, ATensorThatIsInNoShardIsNamedWhereTheModelNeedsIt) {
  auto config = nlohmann::json::parse(dir_.Read("config.json"));
  config["attention_bias"] = true;
  dir_.Write("config.json", config.dump());
  Claim({{"model.layers.0.self_attn.q_proj.bias", Shards().front()}});
  EXPECT_THAT(SpecError(), HasSubstr("holds tensor \"model.layers.0.self_attn.q_proj.bias\", but no shard holds it"));
}

TEST_F(ModelShardsTest, AWholeSetOfShardsNeedsNoIndex) {
  std::filesystem::remove(dir_.file(kIndex));
  EXPECT_EQ(SpecError(), "no error");
}

TEST_F(ModelShardsTest, APartOfASetWithoutAnIndexNamesWhatIsMissing) {
  const std::string gone = Shards().back();
  std::filesystem::remove(dir_.file(kIndex));
  std::filesystem::rename(dir_.file(gone), dir_.file("elsewhere"));
  EXPECT_THAT(SpecError(), AllOf(HasSubstr("holds shards without model.safetensors.index.json"), HasSubstr("1 of 2 are missing: " + gone)));
  std::filesystem::rename(dir_.file("elsewhere"), dir_.file("model-00003-of-00003.safetensors"));
  EXPECT_THAT(SpecError(), HasSubstr("not all of one set"));
}

TEST_F(ModelShardsTest, AShardThatIsAPointerOfGitLfsIsCalledThat) {
  dir_.Write(Shards().front(), "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 1048576\n");
  EXPECT_THAT(SpecError(), AllOf(HasSubstr(Shards().front()), HasSubstr("is a pointer of git-lfs"), HasSubstr("git lfs pull")));
}

// A model of one layer and, in a file beside it that the index names, more tensors.
class MoreTensorsTest : public ModelShardsTest {
 protected:
  void Add(const std::vector<std::string>& tensors, std::optional<std::string> dtype = {}) const {
    WriteShard(dir_, "more.safetensors", tensors);
    if (dtype) {
      std::string bytes = dir_.Read("more.safetensors");
      for (size_t at = bytes.find("\"U8\""); at != std::string::npos; at = bytes.find("\"U8\"")) bytes.replace(at + 1, 2, *dtype);
      dir_.Write("more.safetensors", bytes);
    }
    std::vector<std::pair<std::string, std::string>> claims;
    claims.reserve(tensors.size());
    for (const std::string& tensor : tensors) claims.emplace_back(tensor, "more.safetensors");
    Claim(claims);
  }
  std::vector<std::string> Ignored() const {
    const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(dir_.path());
    const absl::StatusOr<ModelSpec> spec = checkpoint.ok() ? checkpoint->BuildModelSpec() : checkpoint.status();
    return spec.ok() ? checkpoint->IgnoredTensors(*spec) : std::vector<std::string>{std::string(spec.status().message())};
  }
};

TEST_F(MoreTensorsTest, TensorsOfTheLayersInUseThatNothingAsksForAreMentioned) {
  Add({"model.layers.0.self_attn.q_proj.bias", "model.layers.0.mlp.pre_norm.weight", "model.norm.bias", "lm_head.bias"});
  EXPECT_THAT(Ignored(),
              ElementsAre("lm_head.bias", "model.layers.0.mlp.pre_norm.weight", "model.layers.0.self_attn.q_proj.bias", "model.norm.bias"));
}

TEST_F(MoreTensorsTest, RotaryTablesFurtherLayersAndOtherModulesAreNot) {
  Add({"model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.1.self_attn.q_proj.bias", "mtp.fc.weight",
       "model.visual.layers.0.bias", "score.weight"});
  EXPECT_THAT(Ignored(), ElementsAre());
}

TEST_F(MoreTensorsTest, ADtypeThatIsNotKnownMattersWhereTheModelNeedsTheTensor) {
  Add({"mtp.scale", "mtp.other"}, "F4");
  EXPECT_EQ(SpecError(), "no error");
  auto config = nlohmann::json::parse(dir_.Read("config.json"));
  config["attention_bias"] = true;
  dir_.Write("config.json", config.dump());
  Add({"model.layers.0.self_attn.q_proj.bias"}, "F4");
  EXPECT_THAT(
      SpecError(),
      HasSubstr(
          "tensor model.layers.0.self_attn.q_proj.bias is F4; BF16, F16, F32, MLX affine groups, mxfp4 and FP8 with scales are supported"));
}

TEST(CheckpointTest, AFolderWithoutWeightsSaysWhatWasLookedFor) {
  TempDir dir;
  EXPECT_THAT(OpenError(dir), HasSubstr("config.json: cannot open"));
  dir.Write("config.json", "{}");
  EXPECT_THAT(OpenError(dir), HasSubstr("holds neither model.safetensors nor model.safetensors.index.json"));
  dir.Write("pytorch_model.bin", "");
  EXPECT_THAT(OpenError(dir), HasSubstr("convert pytorch_model.bin"));
  dir.Write("adapter_model.safetensors", "");
  EXPECT_THAT(OpenError(dir), HasSubstr("merge the adapter into its model first"));
}

TEST(CheckpointTest, APathThatIsNoFolderIsRefused) {
  const auto error = [](const std::string& path) { return std::string(Checkpoint::Open(path).status().message()); };
  EXPECT_THAT(error("/nowhere/at/all"), HasSubstr("/nowhere/at/all: is not a folder"));
  EXPECT_THAT(error("org/name"),
              HasSubstr("LIME downloads no models; download it, for example with `git clone https://huggingface.co/org/name`"));
  TempDir dir;
  dir.Write("a.gguf", "GGUF");
  EXPECT_THAT(error(dir.file("a.gguf")), HasSubstr("is a GGUF file, which LIME does not read; give the folder"));
}

TEST(CheckpointTest, SharedModelsResolve) {
  const std::filesystem::path models = SharedDir() / "models";
  LIME_SKIP_WITHOUT_SHARED(models);
  for (const auto& entry : std::filesystem::directory_iterator(models)) {
    if (!entry.is_directory()) continue;
    const absl::StatusOr<ModelSpec> spec = LoadModelSpec(entry.path().string());
    EXPECT_TRUE(spec.ok()) << spec.status();
  }
}

}  // namespace
}  // namespace lime
