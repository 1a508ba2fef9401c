#include "daemon/stores/block_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "daemon/formats/block_store_manifest.h"
#include "daemon/formats/safetensors.h"
#include "daemon/machine/block_device.h"
#include "daemon/weights/weight_store.h"
#include "planner/base/strings.h"
#include "planner/plan/model/family.h"
#include "tests/cases.h"
#include "tests/daemon/weights/block_store_fixture.h"
#include "tests/skips.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

bool Overlap(const BlockExtent& a, const BlockExtent& b) {
  return a.file == b.file && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

std::string BytesOf(const Checkpoint& checkpoint, const TensorLocation& at) {
  return ReadRange(checkpoint.files()[static_cast<size_t>(at.file)], at.offset, at.bytes);
}

// Every tensor of a block has the values of the source, and the bytes of an expert are together.
void ExpectTheSameBlocks(const Checkpoint& source, const Checkpoint& store, const ModelSpec& stored) {
  const ModelSpec spec = *source.BuildModelSpec();
  ASSERT_EQ(spec.blocks.size(), stored.blocks.size());
  for (size_t b = 0; b < spec.blocks.size(); ++b) {
    const BlockSpec &from = spec.blocks[b], &to = stored.blocks[b];
    ASSERT_EQ(from.tensors.size(), to.tensors.size());
    for (size_t i = 0; i < to.tensors.size(); ++i) {
      const TensorSpec &tensor = from.tensors[i], &apart = to.tensors[i];
      EXPECT_EQ(apart.name, NameApart(spec, from.id, tensor));
      EXPECT_EQ(apart.info.shape, tensor.info.shape) << apart.name;
      EXPECT_EQ(BytesOf(store, store.location(apart)), BytesOf(source, source.location(tensor))) << apart.name;
      if (i == 0 || apart.expert < 0 || to.tensors[i - 1].expert != apart.expert) continue;
      const TensorLocation before = store.location(to.tensors[i - 1]);
      EXPECT_EQ(store.location(apart).offset, RoundUp(before.offset + before.bytes, 64)) << apart.name;
    }
  }
}

// The store holds the source's tensors, and each block is one aligned range with the checksum that
// it says.
void ExpectStoreOf(const std::string& source_dir, const std::string& store_dir) {
  const auto source = Checkpoint::Open(source_dir), store = Checkpoint::Open(store_dir);
  ASSERT_TRUE(source.ok() && store.ok()) << source.status() << store.status();
  EXPECT_FALSE(source->is_block_store());
  EXPECT_TRUE(store->is_block_store());
  for (const auto& [name, info] : source->index()) {
    const auto found = store->index().find(name);
    if (found == store->index().end()) {
      EXPECT_THAT(name, HasSubstr(".experts.")) << "is no stack of experts";
      continue;
    }
    EXPECT_EQ(found->second.dtype, info.dtype) << name;
    EXPECT_EQ(found->second.shape, info.shape) << name;
    EXPECT_EQ(TensorBytesOf(*source, name), TensorBytesOf(*store, name)) << name;
    EXPECT_EQ(store->location(name).offset % 64, 0) << name;
  }
  const absl::StatusOr<ModelSpec> spec = store->BuildModelSpec();
  ASSERT_TRUE(spec.ok()) << spec.status();
  ExpectTheSameBlocks(*source, *store, *spec);
  for (const CheckpointFile& file : store->files()) {
    const absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(file.path);
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->data_begin % 4096, 0) << file.path;
  }
  std::vector<std::pair<BlockId, BlockExtent>> seen;
  for (const BlockSpec& block : spec->blocks) {
    ASSERT_NE(store->StoreExtent(block.id), nullptr);
    const BlockExtent& extent = *store->StoreExtent(block.id);
    const CheckpointFile& file = store->files()[static_cast<size_t>(extent.file)];
    EXPECT_EQ(extent.offset % 4096, 0);
    EXPECT_EQ(extent.bytes % 4096, 0);
    ASSERT_LE(extent.offset + extent.bytes, file.bytes);
    EXPECT_LT(extent.bytes, block.bytes + 4096 * 2 + 64 * static_cast<Bytes>(block.tensors.size())) << "as long as its tensors need";
    const std::string bytes = ReadRange(file, extent.offset, extent.bytes);
    ASSERT_TRUE(extent.xxh3.has_value());
    EXPECT_EQ(*extent.xxh3, XXH3_64bits(bytes.data(), bytes.size())) << BlockName(block.id);
    for (const TensorSpec& tensor : block.tensors) {
      const TensorLocation& at = store->location(tensor.name);
      EXPECT_EQ(at.file, extent.file);
      EXPECT_GE(at.offset, extent.offset);
      EXPECT_LE(at.offset + at.bytes, extent.offset + extent.bytes);
    }
    const std::string name = fs::path(file.path).filename();
    EXPECT_EQ(name, IsLayered(block.id.kind) ? "layer_000" + std::to_string(block.id.layer) + ".safetensors" : "non_layer.safetensors");
    for (const auto& [id, other] : seen) {
      const bool tied = spec->config.tie_embeddings && id.kind == BlockKind::kEmbedding && block.id.kind == BlockKind::kHead;
      EXPECT_EQ(Overlap(extent, other), tied) << BlockName(id) << " and " << BlockName(block.id);
      if (IsAttentionHalf(id.kind) && block.id == BlockId{BlockKind::kMlp, id.layer}) {
        EXPECT_EQ(other.offset + other.bytes, extent.offset) << "MLP follows attention";
      }
    }
    seen.emplace_back(block.id, extent);
  }
}

TEST(BlockStoreTest, EveryFamilyDtypeAndPackingIsTheSameModelInAlignedBlocks) {
  size_t turn = 0;  // of the dtypes: each family has one for each packing
  for (const Family* const family : Families()) {
    for (const int bits : {0, 3, 4, 6, 8}) {
      for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        if (turn++ % (ManyCases() ? 4 : 16) != 0) continue;
        for (const bool tie : {false, true}) {
          if (bits != 0 && bits != 4 && tie) continue;
          SCOPED_TRACE(absl::StrCat(Text(family->name), " dtype ", static_cast<int>(dtype), " bits ", bits, " tie ", tie));
          TempDir dir(bits == 0 ? fs::temp_directory_path().string() : MemoryFolder());
          MakeModelOptions options{.dtype = dtype, .shards = tie ? 3 : 1};
          options.config.family = family->name;
          options.config.full_attention_interval = 2;  // one layer of each kind
          options.config.tie_embeddings = tie;
          if (bits != 0) options.config.quantization = Quantization{.bits = bits, .group_size = 32};
          ASSERT_TRUE(MakeModel(options, dir.file("model")).ok());
          const auto report = PrepareBlockStore(dir.file("model"), dir.file("store"));
          ASSERT_TRUE(report.ok()) << report.status();
          EXPECT_EQ(report->layers, 2);
          ExpectStoreOf(dir.file("model"), dir.file("store"));
          const auto verified = VerifyBlockStore(dir.file("store"));
          ASSERT_TRUE(verified.ok()) << verified.status();
          EXPECT_EQ(verified->bytes, report->bytes);
        }
      }
    }
  }
}

TEST_F(PreparedTest, SmallFilesComeAlongAndOtherProgramsFindAllTensorsByTheIndex) {
  dir_.Write("model/generation_config.json", "{\"eos_token_id\": 257}");
  dir_.Write("model/chat_template.jinja", "{{ messages }}");
  dir_.Write("model/notes.bin", "not copied");
  fs::create_directory(model_ + "/folder.json");
  ASSERT_EQ(::mkfifo((model_ + "/pipe.json").c_str(), 0600), 0);
  Prepare();
  for (const char* name : {"config.json", "generation_config.json", "chat_template.jinja", "tokenizer.json"}) {
    EXPECT_EQ(dir_.Read(absl::StrCat("store/", name)), dir_.Read(absl::StrCat("model/", name))) << name;
  }
  for (const char* name : {"notes.bin", "folder.json", "pipe.json"}) EXPECT_FALSE(fs::exists(InStore(name))) << name;
  const auto source = Checkpoint::Open(model_), store = Checkpoint::Open(store_);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto weight_map = nlohmann::json::parse(dir_.Read("store/model.safetensors.index.json"))["weight_map"];
  EXPECT_EQ(weight_map.size(), source->index().size());
  for (const auto& [name, file] : weight_map.items()) {
    EXPECT_EQ(InStore(file.get<std::string>()), store->files()[static_cast<size_t>(store->location(name).file)].path);
  }
}

TEST_F(PreparedTest, TensorsOfNoBlockAreKept) {
  options_.config.tie_embeddings = false;
  ASSERT_TRUE(MakeModel(options_, model_).ok());
  auto config = nlohmann::json::parse(dir_.Read("model/config.json"));
  config["tie_word_embeddings"] = true;  // lm_head.weight is in the file and unused now
  dir_.Write("model/config.json", config.dump());
  Prepare();
  ExpectStoreOf(model_, store_);
}

TEST_F(PreparedTest, ACompleteStoreIsLeftAsItIs) {
  Prepare();
  const auto before = Contents(store_);
  const fs::file_time_type time = fs::last_write_time(InStore("layer_0000.safetensors"));
  const auto again = PrepareBlockStore(model_, store_);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->was_complete);
  EXPECT_EQ(Contents(store_), before);
  EXPECT_EQ(fs::last_write_time(InStore("layer_0000.safetensors")), time);
}

TEST_F(PreparedTest, AStoreCanBePreparedAgainFromAStore) {
  Prepare();
  const auto copy = PrepareBlockStore(store_, dir_.file("copy"));
  ASSERT_TRUE(copy.ok()) << copy.status();
  auto original = Contents(store_), copied = Contents(dir_.file("copy"));
  EXPECT_EQ(original, copied);
}

TEST_F(PreparedTest, OtherModelsAndOtherFoldersAreRefusedUntouched) {
  Prepare();
  ASSERT_TRUE(MakeModel({.seed = 2}, dir_.file("other")).ok());  // the same config and headers: only the weights differ
  const auto before = Contents(store_);
  EXPECT_THAT(std::string(PrepareBlockStore(dir_.file("other"), store_).status().message()), HasSubstr("the block store of another model"));
  EXPECT_EQ(Contents(store_), before);
  fs::rename(InStore("lime_store.json"), InStore("lime_store.partial"));
  EXPECT_THAT(std::string(PrepareBlockStore(dir_.file("other"), store_).status().message()), HasSubstr("the block store of another model"));
  EXPECT_THAT(std::string(PrepareBlockStore(model_, model_).status().message()), HasSubstr("is the folder of the model itself"));
  dir_.Write("a file", "");
  EXPECT_THAT(std::string(PrepareBlockStore(model_, dir_.file("a file")).status().message()), HasSubstr("is not a folder"));
  EXPECT_THAT(std::string(PrepareBlockStore(model_, dir_.file("other")).status().message()),
              HasSubstr("holds files other than the block store"));
}

TEST_F(PreparedTest, OverwriteReplacesNoOtherModel) {
  ASSERT_TRUE(MakeModel({.seed = 2}, dir_.file("other")).ok());  // its weights have a name that a store has not
  const auto before = Contents(dir_.file("other"));
  EXPECT_THAT(std::string(PrepareBlockStore(model_, dir_.file("other"), {.overwrite = true}).status().message()),
              HasSubstr("holds another model, or links (model.safetensors)"));
  EXPECT_EQ(Contents(dir_.file("other")), before);
}

TEST_F(PreparedTest, TwoCallsAtOnceAreRefused) {
  fs::create_directory(store_);
  const FileDescriptor lock(::open(store_.c_str(), O_RDONLY | O_DIRECTORY));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX | LOCK_NB), 0);
  EXPECT_THAT(std::string(PrepareBlockStore(model_, store_).status().message()), HasSubstr("another `lime prepare` is writing here"));
}

// ---- many files ----

// Loads all of the store under a limit of descriptors, and says what went wrong.
std::string LoadUnderLimit(const std::string& dir, rlimit limit, const std::string& expected_way) {
  const auto checkpoint = Checkpoint::Open(dir);
  const auto spec = checkpoint->BuildModelSpec();
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return "setrlimit failed";
  const auto store = WeightStore::Open(*checkpoint, *spec, {.loader = LoaderKind::kRead, .read = {.use_page_cache = false}});
  if (!store.ok()) return store.status().ToString();
  if ((*store)->Describe().find(expected_way) == std::string::npos) return (*store)->Describe();
  const auto blocks = (*store)->LoadAll();
  if (!blocks.ok()) return blocks.status().ToString();
  for (size_t i = 0; i < blocks->size(); ++i) {
    for (size_t j = 0; j < spec->blocks[i].tensors.size(); ++j) {
      const LoadedTensor& tensor = (*blocks)[i].tensors[j];
      const std::string data(reinterpret_cast<const char*>(tensor.data), static_cast<size_t>(tensor.bytes));
      if (data != TensorBytesOf(*checkpoint, spec->blocks[i].tensors[j].name)) return spec->blocks[i].tensors[j].name + " differs";
    }
  }
  return "fine";
}

// In a process of its own, which cannot raise its limit again.
int ExitCodeUnderLimit(const std::string& dir, rlimit limit, const std::string& expected_way) {
  const std::string found = LoadUnderLimit(dir, limit, expected_way);
  std::fprintf(stderr, "%s\n", found.c_str());
  return found == "fine" ? 0 : 1;
}

TEST_F(PreparedTest, AStoreOfMoreFilesThanDescriptorsForEveryLaneLoads) {
  options_.config.num_layers = 30;
  ASSERT_TRUE(MakeModel(options_, model_).ok());
  Prepare();
  rlimit now;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &now), 0);
  LIME_SKIP_WITHOUT(now.rlim_max >= 1024, "the right to open 1024 files");
  const std::string usual = (*OpenBlockDevice({model_ + "/model.safetensors"}, {}))->Describe();
  const std::string way = usual.find("io_uring") != std::string::npos ? "io_uring" : "threads";
  EXPECT_EXIT(std::exit(ExitCodeUnderLimit(store_, {200, now.rlim_max}, way)), ::testing::ExitedWithCode(0), "fine");
  EXPECT_EXIT(std::exit(ExitCodeUnderLimit(store_, {200, 200}, "threads")), ::testing::ExitedWithCode(0), "fine");
}

}  // namespace
}  // namespace lime
