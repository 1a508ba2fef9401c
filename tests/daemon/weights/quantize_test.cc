#include "daemon/stores/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/str_cat.h"
#include "daemon/stores/affine.h"
#include "daemon/stores/float_codec.h"
#include "daemon/stores/output_file.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/weight_store.h"
#include "testbed/make_model/make_model.h"
#include "tests/skips.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What PackCodes has packed.
void UnpackCodes(std::span<const uint32_t> words, int bits, std::span<uint8_t> codes) {
  ASSERT_EQ(words.size() * 32, codes.size() * static_cast<size_t>(bits));
  uint64_t pending = 0;
  int held = 0;
  size_t word = 0;
  for (uint8_t& code : codes) {
    if (held < bits) {
      pending |= static_cast<uint64_t>(words[word++]) << held;
      held += 32;
    }
    code = static_cast<uint8_t>(pending & ((1u << bits) - 1));
    pending >>= bits;
    held -= bits;
  }
}

TEST(FloatCodecTest, EveryHalfSurvivesTheRoundTrip) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const auto half = static_cast<uint16_t>(bits);
      std::array<std::byte, 3> memory = {};  // at an odd address, as in a file
      std::byte* const at = memory.data() + 1;
      std::memcpy(at, &half, sizeof(half));
      const float value = LoadFloat(dtype, at);
      StoreFloat(dtype, value, at);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(LoadFloat(dtype, at)));
      } else {
        EXPECT_EQ(std::memcmp(at, &half, sizeof(half)), 0) << bits;
      }
    }
  }
}

class AffineTest : public ::testing::TestWithParam<int> {};

TEST_P(AffineTest, UnpackingIsTheInverseOfPacking) {
  const int bits = GetParam();
  std::mt19937 random(7);
  std::vector<uint8_t> codes(32 * 40), back(codes.size());
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random() & ((1u << bits) - 1));
  std::vector<uint32_t> words(codes.size() * static_cast<size_t>(bits) / 32);
  PackCodes(codes, bits, words);
  UnpackCodes(words, bits, back);
  EXPECT_EQ(codes, back);
}

TEST_P(AffineTest, CodesLieInOneLittleEndianBitStream) {
  const int bits = GetParam();
  std::vector<uint8_t> codes(64);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 37 & ((1u << bits) - 1));
  std::vector<uint32_t> words(64 * static_cast<size_t>(bits) / 32);
  PackCodes(codes, bits, words);
  for (size_t bit = 0; bit < words.size() * 32; ++bit) {
    const bool in_words = (words[bit / 32] >> (bit % 32) & 1) != 0;
    const size_t code = bit / static_cast<size_t>(bits);
    EXPECT_EQ(in_words, (codes[code] >> (bit % static_cast<size_t>(bits)) & 1) != 0) << "bit " << bit;
  }
}

TEST_P(AffineTest, ErrorIsAtMostAStepAndZeroIsExact) {
  const int bits = GetParam();
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 200; ++round) {
    std::vector<float> group(64);
    for (float& w : group) w = normal(random) * 0.05f + (round % 5 == 0 ? 0.3f : 0.0f);
    group[static_cast<size_t>(round % 64)] = 0;
    std::vector<uint8_t> codes(group.size());
    const GroupScale fitted = QuantizeGroup(group, bits, DType::kF32, codes);
    const auto [low, high] = std::minmax_element(group.begin(), group.end());
    const float step = (*high - *low) / static_cast<float>((1 << bits) - 1);
    for (size_t i = 0; i < group.size(); ++i) {
      const float back = fitted.scale * static_cast<float>(codes[i]) + fitted.bias;
      EXPECT_LE(std::fabs(back - group[i]), step * 1.001f) << "round " << round;
      if (group[i] == 0) {
        EXPECT_NEAR(back, 0, 1e-6);
      }
    }
  }
}

TEST_P(AffineTest, EachCodeIsTheNearestWithTheStoredScale) {
  const int bits = GetParam();
  std::mt19937 random(6);
  std::normal_distribution<float> normal(0.01f, 0.05f);
  for (const DType stored : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (int round = 0; round < 100; ++round) {
      std::vector<float> group(32);
      for (float& w : group) w = normal(random);
      std::vector<uint8_t> codes(group.size());
      const GroupScale fitted = QuantizeGroup(group, bits, stored, codes);
      for (const float value : {fitted.scale, fitted.bias}) {
        std::array<std::byte, 4> bytes;
        StoreFloat(stored, value, bytes.data());
        ASSERT_EQ(LoadFloat(stored, bytes.data()), value) << DTypeName(stored);
      }
      for (size_t i = 0; i < group.size(); ++i) {
        const auto error = [&](int code) { return std::fabs(fitted.scale * static_cast<float>(code) + fitted.bias - group[i]); };
        for (int code = 0; code < 1 << bits; ++code)
          ASSERT_LE(error(codes[i]), error(code) + 1e-6f) << DTypeName(stored) << " round " << round << " code " << code;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Bits, AffineTest, ::testing::Values(3, 4, 6, 8), [](const auto& info) { return std::to_string(info.param); });

TEST(AffineTest, TheLargerEndIsExactAndIsTheBias) {
  const std::vector<float> group = {-0.75f, 0.0f, 0.3f, 0.7f};
  std::vector<uint8_t> codes(4);
  const GroupScale fitted = QuantizeGroup(group, 4, DType::kF32, codes);
  EXPECT_EQ(fitted.bias, -0.75f);
  EXPECT_GT(fitted.scale, 0);
  EXPECT_EQ(codes[0], 0);
  const GroupScale mirrored = QuantizeGroup(std::vector<float>{0.75f, 0.0f, -0.3f, -0.7f}, 4, DType::kF32, codes);
  EXPECT_EQ(mirrored.bias, 0.75f);
  EXPECT_EQ(mirrored.scale, -fitted.scale);
}

TEST(AffineTest, AGroupOfZerosIsZero) {
  std::vector<uint8_t> codes(32, 9);
  const GroupScale fitted = QuantizeGroup(std::vector<float>(32, 0.0f), 4, DType::kF32, codes);
  EXPECT_EQ(fitted.bias, 0);
  EXPECT_THAT(codes, Each(0));
}

TEST(AffineTest, NanAndInfinityAreNotHidden) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> group(32, 0.5f);
    group[17] = bad;
    std::vector<uint8_t> codes(32);
    EXPECT_TRUE(std::isnan(QuantizeGroup(group, 4, DType::kF32, codes).scale));
  }
}

// Values of a tensor of a loaded checkpoint.
std::vector<float> Dense(const LoadedTensor& tensor) {
  std::vector<float> values;
  for (Bytes at = 0; at < tensor.bytes; at += ElementBytes(tensor.dtype)) values.push_back(LoadFloat(tensor.dtype, tensor.data + at));
  return values;
}

std::vector<float> Dequantized(const LoadedTensor& words, const LoadedTensor& scales, const LoadedTensor& biases,
                               const Quantization& packing) {
  const auto count = static_cast<size_t>(words.bytes * 8 / packing.bits);
  std::vector<uint8_t> codes(count);
  UnpackCodes({reinterpret_cast<const uint32_t*>(words.data), static_cast<size_t>(words.bytes / 4)}, packing.bits, codes);
  const std::vector<float> scale = Dense(scales), bias = Dense(biases);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t group = i / static_cast<size_t>(packing.group_size);
    values[i] = scale[group] * static_cast<float>(codes[i]) + bias[group];
  }
  return values;
}

struct LoadedModel {
  explicit LoadedModel(const std::string& dir)
      : checkpoint(*Checkpoint::Open(dir)),
        spec(*checkpoint.BuildModelSpec()),
        store(*WeightStore::Open(checkpoint, spec, {})),
        blocks(*store->LoadAll()) {}
  Checkpoint checkpoint;
  ModelSpec spec;
  std::unique_ptr<WeightStore> store;
  std::vector<LoadedBlock> blocks;
};

// The dense tensors of `model` by block and role; the packed ones unpacked.
std::vector<std::vector<float>> AllValues(const LoadedModel& model) {
  std::vector<std::vector<float>> values;
  for (const LoadedBlock& block : model.blocks) {
    for (size_t i = 0; i < block.tensors.size(); ++i) {
      if (block.tensors[i].dtype != DType::kU32) {
        values.push_back(Dense(block.tensors[i]));
        continue;
      }
      values.push_back(Dequantized(block.tensors[i], block.tensors[i + 1], block.tensors[i + 2], *model.spec.config.quantization));
      i += 2;
    }
  }
  return values;
}

class QuantizeTest : public ::testing::TestWithParam<std::tuple<int, int, DType>> {};

TEST_P(QuantizeTest, ACheckpointComesBackWithinTheErrorOfItsBits) {
  const auto [bits, group_size, dtype] = GetParam();
  TempDir dir;
  MakeModelOptions options{.dtype = dtype, .shards = bits == 4 ? 3 : 1};
  options.config.hidden_size = 128;
  options.config.intermediate_size = 256;
  ASSERT_TRUE(MakeModel(options, dir.file("dense")).ok());
  dir.Write("dense/chat_template.jinja", "{{ x }}");
  const auto report = QuantizeCheckpoint(dir.file("dense"), dir.file("packed"), {.bits = bits, .group_size = group_size});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->quantized, 2 * 7 + 2);
  EXPECT_LT(report->bytes, report->source_bytes * (bits + 2) / (8 * ElementBytes(dtype)) + 40'000);
  EXPECT_EQ(dir.Read("packed/tokenizer.json"), dir.Read("dense/tokenizer.json"));
  EXPECT_EQ(dir.Read("packed/chat_template.jinja"), "{{ x }}");

  const LoadedModel dense(dir.file("dense")), packed(dir.file("packed"));
  EXPECT_EQ(packed.spec.config.quantization->bits, bits);
  EXPECT_EQ(packed.spec.config.quantization->group_size, group_size);
  EXPECT_EQ(packed.spec.working_dtype, dtype);
  const auto before = AllValues(dense), after = AllValues(packed);
  ASSERT_EQ(before.size(), after.size());
  for (size_t t = 0; t < before.size(); ++t) {
    ASSERT_EQ(before[t].size(), after[t].size());
    float largest = 0, error = 0;
    for (size_t i = 0; i < before[t].size(); ++i) {
      largest = std::max(largest, std::fabs(before[t][i]));
      error = std::max(error, std::fabs(before[t][i] - after[t][i]));
    }
    // A step spans the range over 2^bits - 1 codes; bf16 scales add a few of their own roundings.
    EXPECT_LE(error, 2 * largest / static_cast<float>((1 << bits) - 1) + largest / 64) << "tensor " << t;
  }
}

INSTANTIATE_TEST_SUITE_P(Packings, QuantizeTest,
                         ::testing::Values(std::tuple(3, 64, DType::kBF16), std::tuple(4, 32, DType::kBF16), std::tuple(4, 64, DType::kF32),
                                           std::tuple(6, 64, DType::kF16), std::tuple(8, 128, DType::kBF16)));

TEST(QuantizeTest, WhatPythonWroteIntoTheConfigStaysThere) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.file("dense")).ok());
  std::string config = dir.Read("dense/config.json");
  config.insert(config.find('{') + 1, "\"limit\": [0.0, Infinity], \"quantization\": null, ");
  dir.Write("dense/config.json", config);
  const auto report = QuantizeCheckpoint(dir.file("dense"), dir.file("packed"), {.bits = 4, .group_size = 32});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(dir.Read("packed/config.json"), HasSubstr("\"limit\": [0.0, Infinity]"));
  const auto spec = LoadModelSpec(dir.file("packed"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->config.quantization->bits, 4);
}

TEST(QuantizeTest, MatricesWhoseColumnsDoNotDivideStayDenseAndAreNamed) {
  TempDir dir;
  MakeModelOptions options;
  options.config.intermediate_size = 160;  // down_proj has 160 columns
  ASSERT_TRUE(MakeModel(options, dir.file("dense")).ok());
  const auto report = QuantizeCheckpoint(dir.file("dense"), dir.file("packed"), {.bits = 4, .group_size = 64});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->dense, ElementsAre("model.layers.0.mlp.down_proj.weight", "model.layers.1.mlp.down_proj.weight"));
  EXPECT_TRUE(LoadModelSpec(dir.file("packed")).ok());
}

TEST(QuantizeTest, ImpossibleRequestsAreRefusedInOneSentence) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.file("dense")).ok());
  const auto error = [&](const std::string& target, Quantization packing) {
    return std::string(QuantizeCheckpoint(dir.file("dense"), target, packing).status().message());
  };
  EXPECT_THAT(error(dir.file("packed"), {.bits = 5, .group_size = 64}), HasSubstr("cannot quantise to 5 bits"));
  EXPECT_THAT(error(dir.file("packed"), {.bits = 4, .group_size = 128}), HasSubstr("no matrix has a multiple of 128 columns"));
  EXPECT_THAT(error(dir.file("dense"), {.bits = 4, .group_size = 64}), HasSubstr("is the folder of the source itself"));
  EXPECT_TRUE(LoadModelSpec(dir.file("dense")).ok()) << "the source is untouched";
  ASSERT_TRUE(QuantizeCheckpoint(dir.file("dense"), dir.file("packed"), {.bits = 4, .group_size = 64}).ok());
  EXPECT_THAT(std::string(QuantizeCheckpoint(dir.file("packed"), dir.file("again"), {.bits = 4, .group_size = 64}).status().message()),
              HasSubstr("is already quantised"));
}

TEST(QuantizeTest, ACancelledRunLeavesNothing) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.file("dense")).ok());
  const std::atomic<bool> cancelled = true;
  const auto report =
      QuantizeCheckpoint(dir.file("dense"), dir.file("packed"), {.bits = 4, .group_size = 64}, {.watch = {.cancelled = &cancelled}});
  EXPECT_EQ(report.status().code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(std::filesystem::exists(dir.file("packed")));
}

TEST(QuantizeTest, ADiskTooSmallIsReportedWithTheNumbersAndNoFileRemains) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.file("dense")).ok());
  std::filesystem::create_directory(dir.file("small"));
  LIME_SKIP_WITHOUT(::mount("tmpfs", dir.file("small").c_str(), "tmpfs", 0, "size=16k") == 0, "the right to mount a tmpfs");
  const absl::Status status = QuantizeCheckpoint(dir.file("dense"), dir.file("small/copy"), {.bits = 4, .group_size = 64}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              ::testing::ContainsRegex("copy: needs .*, and the disk has .* free; free some space and run the same command again$"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.file("small")));
  ::umount(dir.file("small").c_str());
}

TEST(QuantizeTest, TwoCallsAtOnceAreRefused) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.file("dense")).ok());
  const absl::StatusOr<OutputFolder> other = OutputFolder::Make(dir.file("copy"), "lime quantize");
  ASSERT_TRUE(other.ok());
  EXPECT_THAT(std::string(QuantizeCheckpoint(dir.file("dense"), dir.file("copy"), {.bits = 4, .group_size = 64}).status().message()),
              HasSubstr("another `lime quantize` is writing here"));
}

// By path below the folder.
std::map<std::string, std::string> FilesOf(const TempDir& dir, const std::string& name) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(dir.file(name))) {
    const std::string file = entry.path().filename().string();
    files[file] = dir.Read(absl::StrCat(name, "/", file));
  }
  return files;
}

TEST(QuantizeTest, AnotherModelsFolderIsRefusedAndKeptAsItIs) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.file("dense")).ok());
  ASSERT_TRUE(MakeModel({.seed = 7}, dir.file("other")).ok());
  ASSERT_TRUE(QuantizeCheckpoint(dir.file("other"), dir.file("copy"), {.bits = 8, .group_size = 64}).ok());
  std::filesystem::create_directory(dir.file("notes"));
  dir.Write("notes/config.json", "my own");
  const std::pair<const char*, const char*> refused[] = {{"other", "holds files other than the quantised copy that LIME made (config.json"},
                                                         {"copy", "is the quantised copy of another model"},
                                                         {"notes", "(config.json)"}};
  for (const auto& [name, why] : refused) {
    const auto before = FilesOf(dir, name);
    EXPECT_THAT(std::string(QuantizeCheckpoint(dir.file("dense"), dir.file(name), {.bits = 4, .group_size = 64}).status().message()),
                HasSubstr(why));
    EXPECT_EQ(FilesOf(dir, name), before);
  }
  for (const char* name : {"other", "copy"}) {
    const auto before = FilesOf(dir, name);
    EXPECT_FALSE(QuantizeCheckpoint(dir.file("dense"), dir.file(name), {.bits = 4, .group_size = 64}, {.overwrite = true}).ok());
    EXPECT_EQ(FilesOf(dir, name), before);
  }
  EXPECT_TRUE(QuantizeCheckpoint(dir.file("dense"), dir.file("notes"), {.bits = 4, .group_size = 64}, {.overwrite = true}).ok());
}

TEST(QuantizeTest, AFileThatTheCopyWouldLackIsAnError) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.file("dense")).ok());
  std::filesystem::create_symlink("../blobs/abc", dir.file("dense/tokenizer_config.json"));
  const auto refused = [&] {
    return std::string(QuantizeCheckpoint(dir.file("dense"), dir.file("copy"), {.bits = 4, .group_size = 64}).status().message());
  };
  EXPECT_THAT(refused(), HasSubstr("tokenizer_config.json: is a link to ../blobs/abc, which does not exist; download the file again"));
  EXPECT_FALSE(std::filesystem::exists(dir.file("copy/config.json")));
  std::filesystem::remove(dir.file("dense/tokenizer_config.json"));
  EXPECT_EQ(refused(), "");
}

TEST(QuantizeTest, WhatSomebodyHasChangedInAnEarlierCopyIsNoLongerLimes) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.file("dense")).ok());
  dir.Write("dense/generation_config.json", "{}");
  const auto again = [&](bool overwrite) {
    return QuantizeCheckpoint(dir.file("dense"), dir.file("copy"), {.bits = 8, .group_size = 64}, {.overwrite = overwrite}).status();
  };
  ASSERT_TRUE(again(false).ok());
  ASSERT_TRUE(again(false).ok()) << "as LIME wrote it";
  const auto whole = FilesOf(dir, "copy");
  for (const auto& [name, text] : whole) {
    if (name == "lime_quantized.json") continue;
    SCOPED_TRACE(name);
    dir.Write("copy/" + name, text.substr(0, text.size() - 1) + "\t");
    const auto before = FilesOf(dir, "copy");
    EXPECT_THAT(std::string(again(false).message()),
                HasSubstr("holds files other than the quantised copy as LIME wrote it (" + name + ")"));
    EXPECT_EQ(FilesOf(dir, "copy"), before);
    if (name.ends_with(".safetensors")) {
      EXPECT_THAT(std::string(again(true).message()), HasSubstr("which LIME never replaces"));
      EXPECT_EQ(FilesOf(dir, "copy"), before);
      dir.Write("copy/" + name, text);
    } else {
      EXPECT_TRUE(again(true).ok());
    }
    EXPECT_EQ(FilesOf(dir, "copy"), whole);
  }
}

TEST(QuantizeTest, TheMarkOfAnEarlierReleaseDoesNotShowTheFilesOfLime) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.file("dense")).ok());
  ASSERT_TRUE(QuantizeCheckpoint(dir.file("dense"), dir.file("copy"), {.bits = 4, .group_size = 64}).ok());
  nlohmann::json mark = nlohmann::json::parse(dir.Read("copy/lime_quantized.json"));
  for (nlohmann::json& file : mark["files"]) file = file["name"].get<std::string>();
  dir.Write("copy/lime_quantized.json", mark.dump());
  const auto before = FilesOf(dir, "copy");
  EXPECT_THAT(std::string(QuantizeCheckpoint(dir.file("dense"), dir.file("copy"), {.bits = 4, .group_size = 64}).status().message()),
              HasSubstr("of an earlier release, which wrote no checksums"));
  EXPECT_EQ(FilesOf(dir, "copy"), before);
}

TEST(QuantizeTest, AGroupThatFitsNoMatrixChangesNothingWhereACopyLies) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.file("dense")).ok());
  ASSERT_TRUE(QuantizeCheckpoint(dir.file("dense"), dir.file("copy"), {.bits = 4, .group_size = 64}).ok());
  const auto before = FilesOf(dir, "copy");
  EXPECT_FALSE(QuantizeCheckpoint(dir.file("dense"), dir.file("copy"), {.bits = 4, .group_size = 128}).ok());
  EXPECT_EQ(FilesOf(dir, "copy"), before);
  ASSERT_TRUE(QuantizeCheckpoint(dir.file("dense"), dir.file("copy"), {.bits = 8, .group_size = 32}).ok()) << "an earlier copy is replaced";
  EXPECT_EQ(LoadModelSpec(dir.file("copy"))->config.quantization->bits, 8);
}

TEST(QuantizeTest, ACopyOfOneShardWhateverItsNameIsACheckpointAndHasTheModelsFilesAlone) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.file("dense")).ok());
  std::filesystem::rename(dir.file("dense/model.safetensors"), dir.file("dense/model-00001-of-00001.safetensors"));
  nlohmann::json index = {{"weight_map", nlohmann::json::object()}};
  const std::string bytes = dir.Read("dense/model-00001-of-00001.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const nlohmann::json tensors = nlohmann::json::parse(bytes.substr(8, header));
  for (const auto& [name, tensor] : tensors.items()) {
    if (name != "__metadata__") index["weight_map"][name] = "model-00001-of-00001.safetensors";
  }
  dir.Write("dense/model.safetensors.index.json", index.dump());
  dir.Write("dense/golden.json", "{}");
  dir.Write("dense/requirements.txt", "torch");
  const auto report = QuantizeCheckpoint(dir.file("dense"), dir.file("packed"), {.bits = 4, .group_size = 64});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(LoadModelSpec(dir.file("packed")).ok());
  const auto files = FilesOf(dir, "packed");
  EXPECT_EQ(files.count("golden.json") + files.count("requirements.txt"), 0u);
  EXPECT_EQ(files.count("tokenizer.json") + files.count("generation_config.json"), 2u);
}

}  // namespace
}  // namespace lime
