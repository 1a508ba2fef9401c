#include "daemon/weights/weight_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "tests/daemon/temp_dir.h"

namespace lime {
namespace {

// Every tensor of every block equals the bytes of the file.
void ExpectSameAsFile(const Checkpoint& checkpoint, const ModelSpec& spec, const std::vector<LoadedBlock>& blocks) {
  for (const LoadedBlock& block : blocks) {
    const BlockSpec& expected = spec.block(block.id);
    ASSERT_EQ(block.tensors.size(), expected.tensors.size());
    for (size_t i = 0; i < block.tensors.size(); ++i) {
      const LoadedTensor& tensor = block.tensors[i];
      const TensorLocation& at = checkpoint.location(expected.tensors[i].name);
      std::ifstream in(checkpoint.files()[static_cast<size_t>(at.file)].path, std::ios::binary);
      std::string bytes(static_cast<size_t>(at.bytes), '\0');
      in.seekg(at.offset).read(bytes.data(), at.bytes);
      EXPECT_EQ(tensor.bytes, at.bytes);
      EXPECT_FALSE(Misaligned(tensor.data, tensor.dtype)) << expected.tensors[i].name;
      EXPECT_EQ(std::memcmp(tensor.data, bytes.data(), bytes.size()), 0) << expected.tensors[i].name;
    }
  }
}

TEST(WeightStoreTest, SharedModelsLoadAlikeWithEveryLoader) {
  const std::string models = std::string(LIME_SHARED_DIR) + "/models";
  if (!std::filesystem::is_directory(models)) GTEST_SKIP() << "no models beside the project";
  for (const auto& entry : std::filesystem::directory_iterator(models)) {
    if (!entry.is_directory()) continue;
    const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(entry.path().string());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const absl::StatusOr<ModelSpec> spec = checkpoint->BuildModelSpec();
    ASSERT_TRUE(spec.ok()) << spec.status();
    for (const LoaderKind kind : {LoaderKind::kAuto, LoaderKind::kRead, LoaderKind::kMmap}) {
      const auto store = WeightStore::Open(*checkpoint, *spec, {.loader = kind});
      ASSERT_TRUE(store.ok()) << store.status();
      const auto blocks = (*store)->LoadAll();
      ASSERT_TRUE(blocks.ok()) << blocks.status();
      ExpectSameAsFile(*checkpoint, *spec, *blocks);
    }
  }
}

}  // namespace
}  // namespace lime
