// Complete checkpoint folders of model families: each is described, or refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "daemon/weights/checkpoint.h"
#include "daemon/weights/unused_tensors.h"
#include "tests/skips.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::set<std::string>& Supported() {
  static const std::set<std::string> names = {
      "smollm3-tiny",      "granite-tiny",    "phi3-window-tiny", "qwen3_5-mlx-tiny", "qwen3_5-tied-tiny",     "qwen3_5-tiny",
      "qwen3_5-tiny-bf16", "qwen3_moe-tiny",  "mixtral-tiny",     "qwen3_5_moe-tiny", "qwen3_5_moe-mlx4-tiny", "qwen3_next-tiny",
      "minimax_m2-tiny",   "glm4_moe-tiny",   "ministral3-tiny",  "gpt_oss-tiny",     "gpt_oss-tiny-bf16",     "gpt_oss-mlx-tiny",
      "falcon-tiny",       "falcon-new-tiny", "gemma3-tiny",      "gemma3-vl-tiny",   "gemma4-moe-tiny",       "glm4_moe_lite-tiny",
      "phi3-tiny",         "gemma4-tiny"};
  return names;
}

std::filesystem::path FamilyFolders() {
  return SharedDir() / "families";
}

class FamilyFoldersTest : public ::testing::TestWithParam<std::string> {};

TEST_P(FamilyFoldersTest, AllTensorsOfTheLanguageModelAreUsed) {
  LIME_SKIP_WITHOUT_SHARED(FamilyFolders() / GetParam());
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open((FamilyFolders() / GetParam()).string());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const absl::StatusOr<ModelSpec> spec = checkpoint->BuildModelSpec();
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_GT(spec->NumKvLayers(), 0);
  const auto unused = DescribeUnused(*checkpoint, *spec);
  ASSERT_TRUE(unused.ok()) << unused.status();
  EXPECT_THAT(*unused, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyFoldersTest, ::testing::ValuesIn(Supported()), [](const auto& instance) {
  std::string name = instance.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

TEST(OtherFamilyFoldersTest, AreRefusedByTheNameOfWhatIsNotSupported) {
  LIME_SKIP_WITHOUT_SHARED(FamilyFolders());
  for (const auto& folder : std::filesystem::directory_iterator(FamilyFolders())) {
    const std::string name = folder.path().filename().string();
    if (!folder.is_directory() || Supported().contains(name)) continue;
    const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(folder.path().string());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const absl::Status status = checkpoint->BuildModelSpec().status();
    EXPECT_TRUE(absl::IsUnimplemented(status)) << name << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("is not supported")) << name;
  }
}

}  // namespace
}  // namespace lime
