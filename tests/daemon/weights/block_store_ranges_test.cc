// The checksums of what streaming reads, as a block store says them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "daemon/stores/block_store.h"
#include "daemon/stores/block_store_layout.h"
#include "daemon/weights/checkpoint.h"
#include "planner/plan/model/block_parts.h"
#include "testbed/make_model/make_model.h"
#include "tests/skips.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

std::string MemoryFolder() {
  return std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path().string();
}

uint64_t HashOf(const CheckpointFile& file, int64_t offset, Bytes bytes) {
  std::ifstream in(file.path, std::ios::binary);
  std::string data(static_cast<size_t>(bytes), '\0');
  in.seekg(offset).read(data.data(), bytes);
  EXPECT_EQ(in.gcount(), bytes) << file.path;
  return XXH3_64bits(data.data(), data.size());
}

// What streaming reads of one tensor: (first byte in the tensor, bytes).
std::vector<std::pair<int64_t, Bytes>> ReadsOf(const BlockSpec& block, const TensorSpec& tensor) {
  if (IsPinned(tensor)) return {{0, tensor.info.bytes}};
  std::vector<std::pair<int64_t, Bytes>> reads;
  const Bytes row = tensor.info.bytes / tensor.info.shape[0];
  for (const BlockPart& part : CutBlock(block)) {
    for (const MatrixRows& rows : part.rows) {
      if (rows.role == tensor.role) reads.emplace_back(rows.begin * row, (rows.end - rows.begin) * row);
    }
  }
  return reads;
}

// Every row of the embedding has its checksum, in every part of it.
void ExpectRowsOf(const Checkpoint& store, const ModelSpec& spec) {
  int tables = 0;
  for (const TensorSpec& tensor : spec.block({BlockKind::kEmbedding, 0}).tensors) {
    if (tensor.role != TensorRole::kTokenEmbedding || IsPinned(tensor)) continue;
    ++tables;
    const TensorLocation& at = store.location(tensor.name);
    const Bytes row = at.bytes / tensor.info.shape[0];
    const std::span<const uint32_t> hashes = store.RowHashes(at, row);
    ASSERT_EQ(static_cast<int64_t>(hashes.size()), tensor.info.shape[0]) << tensor.name;
    const CheckpointFile& file = store.files()[static_cast<size_t>(at.file)];
    const int64_t step = std::max<int64_t>(1, tensor.info.shape[0] / 500);
    for (int64_t i = 0; i < tensor.info.shape[0]; i += step) {
      ASSERT_EQ(hashes[static_cast<size_t>(i)], static_cast<uint32_t>(HashOf(file, at.offset + i * row, row))) << tensor.name << " " << i;
    }
    EXPECT_TRUE(store.RowHashes(at, row + 1).empty());
  }
  EXPECT_GE(tables, 1);
}

// Everything that streaming reads has its checksum, every byte of every tensor is in it, and
// nothing else is known.
void ExpectRangesOf(const std::string& store_dir, size_t at_least) {
  const auto store = Checkpoint::Open(store_dir);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto spec = store->BuildModelSpec();
  ASSERT_TRUE(spec.ok()) << spec.status();
  std::set<std::tuple<int32_t, int64_t, Bytes>> seen;
  for (const BlockSpec& block : spec->blocks) {
    for (const TensorSpec& tensor : block.tensors) {
      const TensorLocation& at = store->location(tensor.name);
      Bytes covered = 0;
      for (const auto& [begin, bytes] : ReadsOf(block, tensor)) {
        const auto hash = store->RangeHash(at.file, at.offset + begin, bytes);
        ASSERT_TRUE(hash.has_value()) << tensor.name << " " << begin;
        EXPECT_EQ(*hash, HashOf(store->files()[static_cast<size_t>(at.file)], at.offset + begin, bytes)) << tensor.name << " " << begin;
        EXPECT_FALSE(store->RangeHash(at.file, at.offset + begin + 1, bytes));
        EXPECT_FALSE(store->RangeHash(at.file, at.offset + begin, bytes - 1));
        covered += bytes;
        seen.emplace(at.file, at.offset + begin, bytes);
      }
      EXPECT_EQ(covered, at.bytes) << tensor.name;
    }
  }
  EXPECT_GE(seen.size(), at_least);
  ExpectRowsOf(*store, *spec);
  size_t said = 0;
  const auto manifest = ReadStoreManifest(store_dir);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  for (const StoredFile& file : manifest->files) said += file.ranges.size();
  EXPECT_EQ(said, seen.size());
}

TEST(BlockStoreRangesTest, EveryFamilyAndPackingHasTheChecksumOfEverythingThatStreamingReads) {
  for (const std::string family : {"llama", "mistral", "qwen2", "qwen3", "opt"}) {
    for (const int bits : {0, 4}) {
      for (const bool tie : {false, true}) {
        SCOPED_TRACE(absl::StrCat("family ", family, " bits ", bits, " tie ", tie));
        const TempDir dir(MemoryFolder());
        MakeModelOptions options;
        options.config.family = family;
        options.config.tie_embeddings = tie;
        if (bits != 0) options.config.quantization = Quantization{.bits = bits, .group_size = 32};
        ASSERT_TRUE(MakeModel(options, dir.file("model")).ok());
        ASSERT_TRUE(PrepareBlockStore(dir.file("model"), dir.file("store")).ok());
        ExpectRangesOf(dir.file("store"), 15);
        EXPECT_TRUE(VerifyBlockStore(dir.file("store")).ok());
      }
    }
  }
}

TEST(BlockStoreRangesTest, BlocksOfSeveralPiecesHaveOneForEach) {
  for (const int bits : {0, 4}) {
    SCOPED_TRACE(bits);
    const TempDir dir(MemoryFolder());
    MakeModelOptions options{.dtype = DType::kF32};
    options.config.num_layers = 1;
    options.config.hidden_size = 512;
    options.config.intermediate_size = bits == 0 ? 9000 : 30'016;
    options.config.vocab_size = bits == 0 ? 12'001 : 70'001;
    options.config.tie_embeddings = true;
    if (bits != 0) options.config.quantization = Quantization{.bits = bits, .group_size = 32};
    ASSERT_TRUE(MakeModel(options, dir.file("model")).ok());
    ASSERT_TRUE(PrepareBlockStore(dir.file("model"), dir.file("store"), {.buffer_bytes = 1'000'001}).ok());
    const auto checkpoint = Checkpoint::Open(dir.file("store"));
    const auto spec = checkpoint->BuildModelSpec();
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_GT(CutBlock(spec->block({BlockKind::kMlp, 0})).size(), 1u);
    EXPECT_GT(CutBlock(spec->block({BlockKind::kHead, 0})).size(), 1u);
    ExpectRangesOf(dir.file("store"), checkpoint->index().size() + 2);
  }
}

TEST(BlockStoreRangesTest, AnUnpreparedFolderKnowsNone) {
  const TempDir dir(MemoryFolder());
  ASSERT_TRUE(MakeModel({}, dir.file("model")).ok());
  const auto checkpoint = Checkpoint::Open(dir.file("model"));
  for (const auto& [name, info] : checkpoint->index()) {
    const TensorLocation& at = checkpoint->location(name);
    EXPECT_FALSE(checkpoint->RangeHash(at.file, at.offset, at.bytes));
    EXPECT_TRUE(checkpoint->RowHashes(at, at.bytes / info.shape[0]).empty());
  }
}

// ---- the largest models

// Headers alone: the files are holes as long as the tensors.
void WriteHollowModel(const TempDir& dir, const ModelShape& config, DType dtype) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) { tensors.push_back({name, dtype, std::move(shape)}); };
  const int64_t hidden = config.hidden_size, kv = config.num_kv_heads * config.head_dim;
  add("model.embed_tokens.weight", {config.vocab_size, hidden});
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"}) add(layer + norm, {hidden});
    for (const char* name : {"q_proj", "o_proj"}) add(absl::StrCat(layer, "self_attn.", name, ".weight"), {hidden, hidden});
    for (const char* name : {"k_proj", "v_proj"}) add(absl::StrCat(layer, "self_attn.", name, ".weight"), {kv, hidden});
    for (const char* name : {"gate_proj", "up_proj"}) {
      add(absl::StrCat(layer, "mlp.", name, ".weight"), {config.intermediate_size, hidden});
    }
    add(layer + "mlp.down_proj.weight", {hidden, config.intermediate_size});
  }
  add("model.norm.weight", {hidden});
  add("lm_head.weight", {config.vocab_size, hidden});
  dir.Write("config.json", ConfigJson({.config = config, .dtype = dtype}));
  const std::string header = SafetensorsHeaderBytes(tensors, {});
  dir.Write("model.safetensors", header);
  auto bytes = static_cast<int64_t>(header.size());
  for (const auto& tensor : tensors) bytes += TensorBytes(tensor.dtype, tensor.shape);
  std::error_code error;
  std::filesystem::resize_file(dir.file("model.safetensors"), static_cast<uintmax_t>(bytes), error);
  LIME_SKIP_WITHOUT(!error, "a file system with sparse files of 1 TB");
}

TEST(BlockStoreRangesTest, TheManifestOf405BillionParametersIsReadBack) {
  const TempDir dir(MemoryFolder());
  WriteHollowModel(dir,
                   {.num_layers = 126,
                    .hidden_size = 16384,
                    .num_heads = 128,
                    .num_kv_heads = 8,
                    .head_dim = 128,
                    .intermediate_size = 53248,
                    .vocab_size = 128256,
                    .max_positions = 131072},
                   DType::kBF16);
  if (IsSkipped()) return;
  const auto source = Checkpoint::Open(dir.path());
  ASSERT_TRUE(source.ok()) << source.status();
  const auto spec = source->BuildModelSpec();
  ASSERT_TRUE(spec.ok()) << spec.status();
  StoreManifest manifest{.source_xxh3 = 1, .layers = 126};
  size_t ranges = 0;
  for (const StoreFileLayout& layout : LayOutStore(*source, *spec)) {
    StoredFile& file = manifest.files.emplace_back(layout);
    file.xxh3 = 2;
    for (StoredBlock& block : file.blocks) block.xxh3 = 3;
    for (StoredRange& range : file.ranges) range.xxh3 = ~uint64_t{0};
    for (StoredRows& table : file.rows) std::ranges::fill(table.xxh3, ~uint32_t{0});
    ranges += layout.ranges.size();
  }
  EXPECT_GT(manifest.bytes(), 811'000'000'000);
  const std::string text = StoreManifestText(manifest);
  RecordProperty("manifest_bytes", static_cast<int>(text.size()));
  RecordProperty("ranges", static_cast<int>(ranges));
  EXPECT_LT(static_cast<Bytes>(text.size()), kMaxStoreManifestBytes / 2) << ranges << " ranges";
  const auto parsed = ParseStoreManifest(text, "m");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, manifest);
}

}  // namespace
}  // namespace lime
