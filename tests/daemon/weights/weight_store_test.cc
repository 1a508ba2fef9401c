#include "daemon/weights/weight_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <vector>

#include "daemon/formats/safetensors.h"
#include "daemon/machine/mapped_file.h"
#include "testbed/make_model/make_model.h"
#include "tests/daemon/weights/drop_from_page_cache.h"
#include "tests/skips.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

struct OpenModel {
  explicit OpenModel(const std::string& dir) : checkpoint(*Checkpoint::Open(dir)), spec(*checkpoint.BuildModelSpec()) {}
  std::unique_ptr<WeightStore> Store(const WeightStore::Options& options) const {
    auto store = WeightStore::Open(checkpoint, spec, options);
    LIME_CHECK(store.ok()) << store.status();
    return *std::move(store);
  }
  Checkpoint checkpoint;
  ModelSpec spec;
};

Bytes ResidentBytes() {
  Bytes size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * 4 * kKiB;
}

// Every way of loading that a user or the system can bring about.
std::vector<WeightStore::Options> AllWays() {
  std::vector<WeightStore::Options> ways;
  ways.push_back({.loader = LoaderKind::kAuto});
  ways.push_back({.loader = LoaderKind::kMmap});
  ways.push_back({.loader = LoaderKind::kMmap, .available_memory = 1});  // not populated
  ways.push_back({.loader = LoaderKind::kRead});
  ways.push_back({.loader = LoaderKind::kRead, .read = {.use_page_cache = false}});
  ways.push_back({.loader = LoaderKind::kRead, .read = {.io_uring = false, .use_page_cache = false}});
  ways.push_back({.loader = LoaderKind::kRead, .read = {.queue_depth = 1, .read_bytes = 64 * kKiB, .use_page_cache = false}});
  return ways;
}

void ExpectAllWaysLoad(const std::string& dir) {
  const OpenModel model(dir);
  for (const WeightStore::Options& options : AllWays()) {
    const auto store = model.Store(options);
    const auto blocks = store->LoadAll();
    ASSERT_TRUE(blocks.ok()) << blocks.status() << " " << store->Describe();
    ASSERT_EQ(blocks->size(), model.spec.blocks.size());
    ExpectSameAsFile(model.checkpoint, model.spec, *blocks);
  }
}

// Lengthens the header by `bytes` spaces, so that every tensor moves.
void ShiftData(const std::string& path, int bytes) {
  std::ifstream in(path, std::ios::binary);
  std::string file{std::istreambuf_iterator<char>(in), {}};
  const size_t header =
      static_cast<size_t>(*ParseSafetensorsLength(std::as_bytes(std::span(file)), static_cast<int64_t>(file.size()), path));
  file.insert(8 + header, static_cast<size_t>(bytes), ' ');
  for (int i = 0; i < 8; ++i) file[static_cast<size_t>(i)] = static_cast<char>((header + static_cast<size_t>(bytes)) >> (8 * i) & 255);
  std::ofstream(path, std::ios::binary) << file;
}

const std::byte* DataOf(const std::vector<LoadedBlock>& blocks, BlockId id, TensorRole role) {
  for (const LoadedBlock& block : blocks) {
    if (!(block.id == id)) continue;
    for (const LoadedTensor& tensor : block.tensors) {
      if (tensor.role == role) return tensor.data;
    }
  }
  return nullptr;
}

TEST(WeightStoreTest, EveryWayOfLoadingReturnsTheBytesOfTheFile) {
  TempDir dir;
  for (const std::string family : {"llama", "opt", "qwen3_5"}) {
    for (const int shards : {1, 3}) {
      MakeModelOptions options{.shards = shards};
      options.config.family = family;
      options.config.full_attention_interval = 2;  // one layer of each kind
      const std::string folder = dir.file(family + "_" + std::to_string(shards));
      ASSERT_TRUE(MakeModel(options, folder).ok());
      ExpectAllWaysLoad(folder);
    }
  }
}

TEST(WeightStoreTest, TensorsAtAnyOffsetAreAlignedToTheirElement) {
  TempDir dir;
  for (const int shift : {1, 2, 3, 5}) {
    MakeModelOptions options{.dtype = shift == 2 ? DType::kF32 : DType::kBF16};
    if (shift == 5) options.config.quantization = Quantization{.bits = 3, .group_size = 32};
    const std::string folder = dir.file(std::to_string(shift));
    ASSERT_TRUE(MakeModel(options, folder).ok());
    ShiftData(folder + "/model.safetensors", shift);
    ExpectAllWaysLoad(folder);
  }
}

TEST(WeightStoreTest, ColdAndHalfCachedFilesLoad) {
  TempDir dir;
  MakeModelOptions options;
  options.config.vocab_size = 100'000;  // an embedding of 12.8 MB: more than one run of the choice between cache and disk
  options.config.tie_embeddings = false;
  ASSERT_TRUE(MakeModel(options, dir.path()).ok());
  const OpenModel model(dir.path());
  const std::string path = dir.file("model.safetensors");
  for (const bool half : {false, true}) {
    ASSERT_TRUE(DropFromPageCache(path).ok());
    if (half) {
      std::ifstream in(path, std::ios::binary);
      std::vector<char> first(13'000'000);
      in.read(first.data(), static_cast<std::streamsize>(first.size()));
    }
    const auto blocks = model.Store({.loader = LoaderKind::kRead})->LoadAll();
    ASSERT_TRUE(blocks.ok()) << blocks.status();
    ExpectSameAsFile(model.checkpoint, model.spec, *blocks);
  }
}

TEST(WeightStoreTest, BlocksMayBeLoadedInAnyOrderAndOneByOne) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.path()).ok());
  const OpenModel model(dir.path());
  for (const WeightStore::Options& options : AllWays()) {
    const auto store = model.Store(options);
    const BlockId ids[] = {{BlockKind::kMlp, 1}, {BlockKind::kHead, 0}, {BlockKind::kAttention, 0}};
    const auto together = store->LoadBlocks(ids);
    ASSERT_TRUE(together.ok()) << together.status();
    ASSERT_EQ(together->size(), 3u);
    EXPECT_EQ((*together)[1].id.kind, BlockKind::kHead);
    ExpectSameAsFile(model.checkpoint, model.spec, *together);
    for (const BlockId id : ids) {
      const auto alone = store->LoadBlocks(std::span(&id, 1));
      ASSERT_TRUE(alone.ok()) << alone.status();
      ExpectSameAsFile(model.checkpoint, model.spec, *alone);
    }
    EXPECT_TRUE(store->LoadBlocks({})->empty());
  }
}

TEST(WeightStoreTest, ATiedOutputSharesTheEmbeddingsMemoryAlsoAcrossLoads) {
  TempDir dir;
  MakeModelOptions make;
  make.config.tie_embeddings = true;
  ASSERT_TRUE(MakeModel(make, dir.path()).ok());
  const OpenModel model(dir.path());
  const BlockId embedding{BlockKind::kEmbedding, 0}, head{BlockKind::kHead, 0};
  for (const WeightStore::Options& options : AllWays()) {
    const auto store = model.Store(options);
    const auto all = store->LoadAll();
    ASSERT_TRUE(all.ok());
    EXPECT_EQ(DataOf(*all, embedding, TensorRole::kTokenEmbedding), DataOf(*all, head, TensorRole::kOutput));
    auto first = store->LoadBlocks(std::span(&embedding, 1));
    ASSERT_TRUE(first.ok());
    auto second = store->LoadBlocks(std::span(&head, 1));
    ASSERT_TRUE(second.ok());
    EXPECT_EQ(DataOf(*first, embedding, TensorRole::kTokenEmbedding), DataOf(*second, head, TensorRole::kOutput));
    first = std::vector<LoadedBlock>();  // the head keeps the memory
    ExpectSameAsFile(model.checkpoint, model.spec, *second);
  }
}

TEST(WeightStoreTest, BlocksOutliveTheStore) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.path()).ok());
  const OpenModel model(dir.path());
  for (const WeightStore::Options& options : AllWays()) {
    const auto blocks = model.Store(options)->LoadAll();
    ASSERT_TRUE(blocks.ok());
    ExpectSameAsFile(model.checkpoint, model.spec, *blocks);
  }
}

TEST(WeightStoreTest, ProgressEndsWithAllBytes) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.path()).ok());
  const OpenModel model(dir.path());
  for (const LoaderKind kind : {LoaderKind::kRead, LoaderKind::kMmap}) {
    LoadProgress last;
    ASSERT_TRUE(model.Store({.loader = kind})->LoadAll({.progress = [&](const LoadProgress& progress) { last = progress; }}).ok());
    EXPECT_EQ(last.done, last.total);
    EXPECT_GE(last.total, model.spec.WeightBytes());
  }
}

TEST(WeightStoreTest, MemoryOfABlockGoesBackWithItAndTheOthersStay) {
  TempDir dir;
  MakeModelOptions options;
  options.config.hidden_size = 1024;
  options.config.intermediate_size = 4096;  // 24 MiB of an MLP
  ASSERT_TRUE(MakeModel(options, dir.path()).ok());
  const OpenModel model(dir.path());
  const auto store = model.Store({.loader = LoaderKind::kRead});
  const auto before = store->LoadAll();
  ASSERT_TRUE(before.ok()) << before.status();
  auto blocks = store->LoadAll();
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  const BlockId mlp = {BlockKind::kMlp, 0};
  const Bytes loaded = ResidentBytes();
  std::erase_if(*blocks, [&](const LoadedBlock& block) { return block.id == mlp; });
  EXPECT_LT(ResidentBytes(), loaded - model.spec.block(mlp).bytes * 9 / 10);
  for (const LoadedBlock& block : *blocks) {
    const auto same = std::ranges::find(*before, block.id, &LoadedBlock::id);
    for (size_t i = 0; i < block.tensors.size(); ++i)
      ASSERT_EQ(std::memcmp(block.tensors[i].data, same->tensors[i].data, static_cast<size_t>(block.tensors[i].bytes)), 0);
  }
}

TEST(WeightStoreTest, ACancelledLoadSaysSo) {
  TempDir dir;
  MakeModelOptions options;
  options.config.vocab_size = 50'000;
  ASSERT_TRUE(MakeModel(options, dir.path()).ok());
  const OpenModel model(dir.path());
  const std::atomic<bool> cancelled = true;
  EXPECT_EQ(model.Store({.loader = LoaderKind::kMmap})->LoadAll({.cancelled = &cancelled}).status().code(), absl::StatusCode::kCancelled);
}

TEST(WeightStoreTest, AFileThatShrankAfterItsHeaderWasReadIsAnErrorAndNoSignal) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.path()).ok());
  const OpenModel model(dir.path());
  const std::string path = dir.file("model.safetensors");
  const auto mapped_before = model.Store({.loader = LoaderKind::kMmap, .available_memory = 1024 * kGiB});
  const auto unpopulated_before = model.Store({.loader = LoaderKind::kMmap, .available_memory = 1});
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);

  const auto late = WeightStore::Open(model.checkpoint, model.spec, {.loader = LoaderKind::kMmap});
  EXPECT_EQ(late.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(late.status().message()), AllOf(HasSubstr(path), HasSubstr("when its header was read")));

  for (const auto* store : {&mapped_before, &unpopulated_before}) {
    const absl::Status while_mapped = (*store)->LoadAll().status();
    EXPECT_EQ(while_mapped.code(), absl::StatusCode::kDataLoss) << while_mapped;
    EXPECT_THAT(std::string(while_mapped.message()), AllOf(HasSubstr(path), HasSubstr("truncated")));
  }

  const absl::Status read = model.Store({.loader = LoaderKind::kRead})->LoadAll().status();
  EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss) << read;
  EXPECT_THAT(std::string(read.message()), HasSubstr(path));
}

TEST(MappedFileTest, PagesComeByPlainReadsWhereTheKernelCannotBeAskedForThem) {
  TempDir dir;
  const std::string path = dir.file("weights");
  const Bytes bytes = 3 * kMiB + 5;
  std::ofstream(path) << std::string(static_cast<size_t>(bytes), 'w');
  const auto file = MappedFile::Map(path, bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->PopulateByReading(7, bytes - 7).ok());
  EXPECT_EQ((*file)->data()[bytes - 1], std::byte{'w'});
  std::filesystem::resize_file(path, static_cast<uintmax_t>(kMiB));
  const absl::Status truncated = (*file)->PopulateByReading(0, bytes);
  EXPECT_EQ(truncated.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(truncated.message()), AllOf(HasSubstr(path), HasSubstr("truncated to 1048576 of 3145733 bytes")));
}

TEST(WeightStoreTest, TheChoiceIsStated) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.path()).ok());
  const OpenModel model(dir.path());
  EXPECT_THAT(model.Store({.loader = LoaderKind::kRead})->Describe(), AllOf(HasSubstr("read ("), HasSubstr("as asked")));
  const auto store = model.Store({.loader = LoaderKind::kAuto, .available_memory = 1});
  EXPECT_EQ(store->choice().kind, LoaderKind::kMmap);
  EXPECT_THAT(store->Describe(), HasSubstr("do not fit"));
}

TEST(WeightStoreTest, SharedModelsLoadAlikeWithEveryLoader) {
  const std::filesystem::path models = SharedDir() / "models";
  LIME_SKIP_WITHOUT_SHARED(models);
  for (const auto& entry : std::filesystem::directory_iterator(models)) {
    if (!entry.is_directory()) continue;
    ExpectAllWaysLoad(entry.path().string());
  }
}

}  // namespace
}  // namespace lime
