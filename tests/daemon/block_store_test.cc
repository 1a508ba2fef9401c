#include "daemon/weights/block_store.h"

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
#include "daemon/weights/block_device.h"
#include "daemon/weights/block_store_manifest.h"
#include "daemon/weights/safetensors.h"
#include "daemon/weights/weight_store.h"
#include "testbed/make_model/make_model.h"
#include "tests/daemon/temp_dir.h"

namespace lime {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr ModelFamily kFamilies[] = {ModelFamily::kLlama, ModelFamily::kMistral, ModelFamily::kQwen2, ModelFamily::kQwen3,
                                     ModelFamily::kOpt};

// In memory where there is such a folder: hundreds of stores are synced here.
std::string MemoryFolder() {
  return fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path().string();
}

std::string ReadRange(const CheckpointFile& file, int64_t offset, Bytes bytes) {
  std::ifstream in(file.path, std::ios::binary);
  std::string data(static_cast<size_t>(bytes), '\0');
  in.seekg(offset).read(data.data(), bytes);
  EXPECT_EQ(in.gcount(), bytes) << file.path;
  return data;
}

std::string TensorBytesOf(const Checkpoint& checkpoint, const std::string& name) {
  const TensorLocation& at = checkpoint.location(name);
  return ReadRange(checkpoint.files()[static_cast<size_t>(at.file)], at.offset, at.bytes);
}

// Every name and content under a folder.
std::map<std::string, std::string> Contents(const std::string& dir) {
  std::map<std::string, std::string> contents;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir)) {
    std::ifstream in(entry.path(), std::ios::binary);
    contents[entry.path().filename()] = {std::istreambuf_iterator<char>(in), {}};
  }
  return contents;
}

bool Overlap(const BlockExtent& a, const BlockExtent& b) {
  return a.file == b.file && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

// The store holds the source's tensors, and each block is one aligned range with the checksum that it says.
void ExpectStoreOf(const std::string& source_dir, const std::string& store_dir) {
  const auto source = Checkpoint::Open(source_dir), store = Checkpoint::Open(store_dir);
  ASSERT_TRUE(source.ok() && store.ok()) << source.status() << store.status();
  EXPECT_FALSE(source->is_block_store());
  EXPECT_TRUE(store->is_block_store());
  ASSERT_EQ(source->index().size(), store->index().size());
  for (const auto& [name, info] : source->index()) {
    const TensorInfo& stored = store->index().find(name)->second;
    EXPECT_EQ(stored.dtype, info.dtype) << name;
    EXPECT_EQ(stored.shape, info.shape) << name;
    EXPECT_EQ(TensorBytesOf(*source, name), TensorBytesOf(*store, name)) << name;
    EXPECT_EQ(store->location(name).offset % 64, 0) << name;
  }
  const absl::StatusOr<ModelSpec> spec = store->BuildModelSpec();
  ASSERT_TRUE(spec.ok()) << spec.status();
  for (const CheckpointFile& file : store->files()) {
    const absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(file.path);
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->data_begin % 4096, 0) << file.path;
  }
  std::vector<std::pair<BlockId, BlockExtent>> seen;
  for (const BlockSpec& block : spec->blocks) {
    const std::vector<BlockExtent> extents = store->BlockExtents(block);
    ASSERT_EQ(extents.size(), 1u);
    const BlockExtent& extent = extents[0];
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
    const bool layered = block.id.kind == BlockKind::kAttention || block.id.kind == BlockKind::kMlp;
    const std::string name = fs::path(file.path).filename();
    EXPECT_EQ(name, layered ? "layer_000" + std::to_string(block.id.layer) + ".safetensors" : "non_layer.safetensors");
    for (const auto& [id, other] : seen) {
      const bool tied = spec->config.tie_embeddings && id.kind == BlockKind::kEmbedding && block.id.kind == BlockKind::kHead;
      EXPECT_EQ(Overlap(extent, other), tied) << BlockName(id) << " and " << BlockName(block.id);
      if (id.kind == BlockKind::kAttention && block.id == BlockId{BlockKind::kMlp, id.layer}) {
        EXPECT_EQ(other.offset + other.bytes, extent.offset) << "MLP follows attention";
      }
    }
    seen.emplace_back(block.id, extent);
  }
}

TEST(BlockStoreTest, EveryFamilyDtypeAndPackingIsTheSameModelInAlignedBlocks) {
  for (const ModelFamily family : kFamilies) {
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      for (const int bits : {0, 3, 4, 6, 8}) {
        for (const bool tie : {false, true}) {
          if (bits != 0 && bits != 4 && tie) continue;
          SCOPED_TRACE(absl::StrCat("family ", static_cast<int>(family), " dtype ", static_cast<int>(dtype), " bits ", bits, " tie ", tie));
          TempDir dir(bits == 0 ? fs::temp_directory_path().string() : MemoryFolder());
          MakeModelOptions options{.dtype = dtype, .shards = tie ? 3 : 1};
          options.config.family = family;
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

class PreparedTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(MakeModel(options_, model_).ok()); }
  std::string InStore(const std::string& name) const { return store_ + "/" + name; }
  void Prepare() {
    const auto report = PrepareBlockStore(model_, store_);
    ASSERT_TRUE(report.ok()) << report.status();
  }
  // Changes one byte of a file of the store.
  void Flip(const std::string& name, int64_t offset) const {
    std::fstream file(InStore(name), std::ios::in | std::ios::out | std::ios::binary);
    char byte = 0;
    file.seekg(offset).read(&byte, 1);
    byte = static_cast<char>(byte ^ 0x10);
    file.seekp(offset).write(&byte, 1);
  }

  MakeModelOptions options_;
  TempDir dir_{MemoryFolder()};
  const std::string model_ = dir_.file("model"), store_ = dir_.file("store");
};

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
  EXPECT_THAT(std::string(PrepareBlockStore(model_, model_).status().message()), HasSubstr("is the model itself"));
  EXPECT_THAT(std::string(PrepareBlockStore(model_, dir_.file("other")).status().message()),
              HasSubstr("holds files that are no block store"));
}

TEST_F(PreparedTest, TwoCallsAtOnceAreTold) {
  fs::create_directory(store_);
  const FileDescriptor lock(::open(store_.c_str(), O_RDONLY | O_DIRECTORY));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX | LOCK_NB), 0);
  EXPECT_THAT(std::string(PrepareBlockStore(model_, store_).status().message()), HasSubstr("another `lime prepare` is writing here"));
}

TEST_F(PreparedTest, ATruncatedFileIsNamedByEveryoneAndWrittenAgain) {
  Prepare();
  const auto whole = Contents(store_);
  const std::string path = InStore("layer_0001.safetensors");
  const auto size = static_cast<int64_t>(fs::file_size(path));
  fs::resize_file(path, static_cast<uintmax_t>(size - 5));
  const std::string found(VerifyBlockStore(store_).status().message());
  EXPECT_THAT(found, HasSubstr("layer_0001.safetensors: has " + std::to_string(size - 5) + " bytes where the manifest says"));
  EXPECT_THAT(found, HasSubstr("block mlp 1 differs from offset " + std::to_string(size - 5)));
  EXPECT_THAT(std::string(Checkpoint::Open(store_).status().message()), HasSubstr("layer_0001.safetensors"));
  const auto report = PrepareBlockStore(model_, store_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->kept_files, 2);
  EXPECT_EQ(Contents(store_), whole);
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

// ---- interruption ----

// Counts what is done to the disk; from the n-th on everything fails, as after a kill, and that one is done by half.
class DyingDisk : public StoreDisk {
 public:
  DyingDisk(int64_t lives, bool full) : lives_(lives), full_(full) {}
  int64_t calls() const { return calls_; }

  absl::Status MakeFolder(const std::string& dir) override { return Dead() ? Death(dir) : StoreDisk::MakeFolder(dir); }
  absl::StatusOr<FileDescriptor> Create(const std::string& path, Bytes bytes) override {
    return Dead() ? absl::StatusOr<FileDescriptor>(Death(path)) : StoreDisk::Create(path, bytes);
  }
  absl::Status Write(const FileDescriptor& file, const std::string& path, int64_t offset, std::span<const std::byte> data) override {
    if (!Dead()) return StoreDisk::Write(file, path, offset, data);
    if (calls_ == lives_ + 1) StoreDisk::Write(file, path, offset, data.first(data.size() / 2)).IgnoreError();
    return Death(path);
  }
  absl::Status Sync(const FileDescriptor& file, const std::string& path) override {
    return Dead() ? Death(path) : StoreDisk::Sync(file, path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return Dead() ? Death(from) : StoreDisk::Rename(from, to);
  }
  // A full disk still lets go of files; a dead process does not.
  absl::Status Remove(const std::string& path) override {
    if (full_) return StoreDisk::Remove(path);
    return Dead() ? Death(path) : StoreDisk::Remove(path);
  }

 private:
  bool Dead() { return ++calls_ > lives_; }
  absl::Status Death(const std::string& path) const { return full_ ? DiskFull(path, 1000, 10) : absl::UnavailableError("died"); }

  const int64_t lives_;
  const bool full_;
  int64_t calls_ = 0;
};

class InterruptedTest : public PreparedTest, public ::testing::WithParamInterface<bool> {};

TEST_P(InterruptedTest, AfterAnEndAtAnyWriteTheNextCallFinishesTheSameStore) {
  const bool full = GetParam();
  PrepareOptions options{.buffer_bytes = 20'000};  // several writes for every file
  DyingDisk immortal(1 << 30, full);
  options.disk = &immortal;
  ASSERT_TRUE(PrepareBlockStore(model_, dir_.file("whole"), options).ok());
  const auto whole = Contents(dir_.file("whole"));
  ASSERT_GT(immortal.calls(), 60);
  int64_t kept = 0, refused = 0;
  for (int64_t lives = 0; lives < immortal.calls(); ++lives) {
    SCOPED_TRACE(absl::StrCat("ends at call ", lives));
    fs::remove_all(store_);
    DyingDisk disk(lives, full);
    options.disk = &disk;
    const absl::Status status = PrepareBlockStore(model_, store_, options).status();
    const bool complete = fs::exists(InStore(kStoreManifestName));
    if (!complete) {
      ASSERT_FALSE(status.ok());
      EXPECT_FALSE(Checkpoint::Open(store_).ok()) << "a store that is not finished opens as a checkpoint";
      EXPECT_FALSE(VerifyBlockStore(store_).ok());
      ++refused;
    } else {
      EXPECT_TRUE(VerifyBlockStore(store_).ok()) << "the manifest is there and the store is not whole";
    }
    if (full && fs::exists(store_)) {
      for (const auto& [name, bytes] : Contents(store_)) {
        EXPECT_TRUE(name == kStoreJournalName || !name.ends_with(".partial")) << name << " is left of a full disk";
      }
    }
    options.disk = nullptr;
    const auto report = PrepareBlockStore(model_, store_, options);
    ASSERT_TRUE(report.ok()) << report.status();
    kept += report->kept_files;
    EXPECT_EQ(Contents(store_), whole);
  }
  EXPECT_GT(kept, 0) << "no file survived any interruption";
  EXPECT_GT(refused, 50);
}

INSTANTIATE_TEST_SUITE_P(KilledAndFull, InterruptedTest, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "DiskFull" : "Killed"); });

TEST_F(PreparedTest, OfAnInterruptedCallFinishedFilesAreNotWrittenAgain) {
  std::atomic<bool> stop = false;
  PrepareOptions options{.buffer_bytes = 20'000};
  options.watch.cancelled = &stop;
  struct StopAfterTheFirstLayer : StoreDisk {
    explicit StopAfterTheFirstLayer(std::atomic<bool>& stop) : stop(stop) {}
    absl::Status Rename(const std::string& from, const std::string& to) override {
      if (to.ends_with("layer_0000.safetensors")) stop = true;
      return StoreDisk::Rename(from, to);
    }
    std::atomic<bool>& stop;
  } disk(stop);
  options.disk = &disk;
  const absl::Status status = PrepareBlockStore(model_, store_, options).status();
  EXPECT_TRUE(absl::IsCancelled(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("interrupted with 1 of 3 weight files written"));
  EXPECT_FALSE(fs::exists(InStore("layer_0001.safetensors.partial")));
  const fs::file_time_type first = fs::last_write_time(InStore("layer_0000.safetensors"));
  stop = false;
  const auto report = PrepareBlockStore(model_, store_, options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->kept_files, 1);
  EXPECT_EQ(fs::last_write_time(InStore("layer_0000.safetensors")), first);
}

TEST_F(PreparedTest, ADiskTooSmallIsToldBeforeTheCopyWithTheNumbers) {
  const std::string mount = dir_.file("small");
  fs::create_directory(mount);
  if (::mount("tmpfs", mount.c_str(), "tmpfs", 0, "size=128k") != 0) GTEST_SKIP() << "this process may not mount a tmpfs";
  const absl::Status status = PrepareBlockStore(model_, mount).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::ContainsRegex("small: needs .* and .* are free there"));
  EXPECT_FALSE(Checkpoint::Open(mount).ok());
  ::umount(mount.c_str());
}

TEST_F(PreparedTest, ADiskThatFillsUpInTheMiddleNamesTheFileAndKeepsWhatIsFinished) {
  const std::string mount = dir_.file("small");
  fs::create_directory(mount);
  if (::mount("tmpfs", mount.c_str(), "tmpfs", 0, "size=420k") != 0) GTEST_SKIP() << "this process may not mount a tmpfs";
  struct Optimist : StoreDisk {
    absl::StatusOr<Bytes> FreeBytes(const std::string&) override { return kGiB; }
  } disk;
  options_.config.num_layers = 8;
  ASSERT_TRUE(MakeModel(options_, model_).ok());
  const absl::Status status = PrepareBlockStore(model_, mount, {.disk = &disk}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::ContainsRegex("small/layer_000.*: needs .* and .* are free there"));
  EXPECT_FALSE(Checkpoint::Open(mount).ok());
  ASSERT_EQ(::mount("tmpfs", mount.c_str(), "tmpfs", MS_REMOUNT, "size=16m"), 0);
  const auto report = PrepareBlockStore(model_, mount);
  EXPECT_TRUE(report.ok()) << report.status();
  if (report.ok()) {
    EXPECT_GT(report->kept_files, 0);
  }
  EXPECT_TRUE(VerifyBlockStore(mount).ok());
  ::umount(mount.c_str());
}

// ---- extents of a folder that is not prepared ----

TEST_F(PreparedTest, ExtentsOfAnUnpreparedFolderAreAlignedDisjointAndEncloseTheTensors) {
  options_.shards = 3;
  ASSERT_TRUE(MakeModel(options_, dir_.file("sharded")).ok());
  for (const std::string& dir : {model_, dir_.file("sharded")}) {
    const auto checkpoint = Checkpoint::Open(dir);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const auto spec = checkpoint->BuildModelSpec();
    ASSERT_TRUE(spec.ok());
    for (const BlockSpec& block : spec->blocks) {
      const std::vector<BlockExtent> extents = checkpoint->BlockExtents(block);
      for (size_t i = 0; i < extents.size(); ++i) {
        const Bytes file_bytes = checkpoint->files()[static_cast<size_t>(extents[i].file)].bytes;
        const int64_t end = extents[i].offset + extents[i].bytes;
        EXPECT_EQ(extents[i].offset % 4096, 0);
        EXPECT_TRUE(end % 4096 == 0 || end == file_bytes) << end;
        EXPECT_FALSE(extents[i].xxh3.has_value());
        for (size_t j = 0; j < i; ++j) EXPECT_FALSE(Overlap(extents[i], extents[j]));
      }
      for (const TensorSpec& tensor : block.tensors) {
        const TensorLocation& at = checkpoint->location(tensor.name);
        EXPECT_EQ(std::count_if(extents.begin(), extents.end(),
                                [&](const BlockExtent& extent) {
                                  return extent.file == at.file && at.offset >= extent.offset &&
                                         at.offset + at.bytes <= extent.offset + extent.bytes;
                                }),
                  1)
            << tensor.name;
      }
    }
  }
}

TEST_F(PreparedTest, FarTensorsOfABlockAreExtentsOfTheirOwn) {
  options_.config.vocab_size = 40'000;  // 5 MB of embedding
  ASSERT_TRUE(MakeModel(options_, model_).ok());
  const auto checkpoint = Checkpoint::Open(model_);
  ASSERT_TRUE(checkpoint.ok());
  BlockSpec both = checkpoint->BuildModelSpec()->block({BlockKind::kAttention, 0});
  both.tensors.push_back(checkpoint->BuildModelSpec()->block({BlockKind::kHead, 0}).tensors.back());
  Bytes read = 0, needed = 0;
  for (const BlockExtent& extent : checkpoint->BlockExtents(both)) read += extent.bytes;
  for (const TensorSpec& tensor : both.tensors) needed += tensor.info.bytes;
  EXPECT_LT(read, needed + 600'000);
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
  if (now.rlim_max < 1024) GTEST_SKIP() << "a hard limit of " << now.rlim_max << " descriptors leaves nothing to raise";
  const std::string usual = (*OpenBlockDevice({model_ + "/model.safetensors"}, {}))->Describe();
  const std::string way = usual.find("io_uring") != std::string::npos ? "io_uring" : "threads";
  EXPECT_EXIT(std::exit(ExitCodeUnderLimit(store_, {200, now.rlim_max}, way)), ::testing::ExitedWithCode(0), "fine");
  EXPECT_EXIT(std::exit(ExitCodeUnderLimit(store_, {200, 200}, "threads")), ::testing::ExitedWithCode(0), "fine");
}

// ---- the manifest ----

TEST(StoreManifestTest, TextAndBack) {
  StoreManifest manifest{.source_xxh3 = 0xfedcba9876543210, .layers = 1};
  manifest.files.push_back({.name = "layer_0000.safetensors", .bytes = 4096 * 600, .xxh3 = 1});
  manifest.files[0].blocks = {{{BlockKind::kAttention, 0}, 4096, 8192, 7}, {{BlockKind::kMlp, 0}, 12288, 4096, 8}};
  manifest.files[0].ranges = {{4096, 2, 11}, {4096, 64, 12}, {5000, 1, 0xffffffffffffffff}, {4096 * 600 - 1, 1, 13}};
  manifest.files.push_back({.name = "non_layer.safetensors", .bytes = 12288, .xxh3 = 2});
  manifest.files[1].blocks = {{{BlockKind::kEmbedding, 0}, 4096, 4096, 9}, {{BlockKind::kHead, 0}, 4096, 8192, 10}};
  const auto parsed = ParseStoreManifest(StoreManifestText(manifest), "m");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, manifest);
  manifest.files.pop_back();
  EXPECT_TRUE(ParseStoreJournal(StoreManifestText(manifest), "m").ok());
  EXPECT_THAT(std::string(ParseStoreManifest(StoreManifestText(manifest), "m").status().message()),
              HasSubstr("m: field \"files\" holds 2 blocks where 1 layers have 4"));
}

TEST(StoreManifestTest, EveryWrongFieldIsNamed) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.file("model")).ok());
  ASSERT_TRUE(PrepareBlockStore(dir.file("model"), dir.file("store")).ok());
  const auto good = nlohmann::json::parse(dir.Read("store/lime_store.json"));
  struct Case {
    std::string pointer;
    nlohmann::json value;
    std::string words;
  };
  const Case cases[] = {
      {"/format", "zip", "field \"format\" is not \"lime-block-store\""},
      {"/version", 1, "field \"version\" = 1; this program knows 2, so remove the folder and prepare the model again"},
      {"/version", "2", "field \"version\" is not an integer"},
      {"/alignment", 512, "field \"alignment\" = 512 is outside"},
      {"/piece_bytes", 0, "field \"piece_bytes\""},
      {"/layers", 0, "field \"layers\" = 0 is outside"},
      {"/layers", 18446744073709551615u, "field \"layers\" is too large"},
      {"/layers", 3, "holds 6 blocks where 3 layers have 8"},
      {"/source_xxh3", "12", "field \"source_xxh3\" is not 16 hexadecimal digits"},
      {"/files", 7, "field \"files\" is not an array"},
      {"/files/0", 7, "m: files[0]: is not an object"},
      {"/files/0/name", "../x", "m: files[0]: field \"name\" is not a plain file name"},
      {"/files/0/name", "lime_store.json", "field \"name\" is that of a manifest"},
      {"/files/0/name", good["files"][1]["name"], "lists \"layer_0001.safetensors\" twice"},
      {"/files/0/bytes", -1, "m: files[0]: field \"bytes\" = -1 is outside"},
      {"/files/0/bytes", 1e300, "field \"bytes\" is not an integer"},
      {"/files/0/xxh3", nullptr, "m: files[0] (layer_0000.safetensors): field \"xxh3\" is not 16"},
      {"/files/0/ranges", 7, "m: files[0] (layer_0000.safetensors): field \"ranges\" is not an array"},
      {"/files/0/ranges/0", 7, "files[0] (layer_0000.safetensors) ranges[0]: is not [offset, bytes, "},
      {"/files/0/ranges/0", {0, 1}, "ranges[0]: is not ["},
      {"/files/0/ranges/1/0", -1, "ranges[1]: is not ["},
      {"/files/0/ranges/1/0", 1.5, "ranges[1]: is not ["},
      {"/files/0/ranges/1/2", "XYZ", "ranges[1]: is not ["},
      {"/files/0/ranges/1/0", 18446744073709551615u, "bytes from offset 18446744073709551615 are empty or end after their file"},
      {"/files/0/ranges/1/1", 18446744073709551615u, "ranges[1]: 18446744073709551615 bytes from offset"},
      {"/files/0/ranges/1/1", good["files"][0]["bytes"], "are empty or end after their file"},
      {"/files/0/ranges/1/1", 0, "ranges[1]: 0 bytes from offset"},
      {"/files/0/ranges/1", good["files"][0]["ranges"][0], "ranges[1]: does not come after the range before it"},
      {"/files/0/ranges/2/0", 0, "ranges[2]: does not come after the range before it"},
      {"/files/0/blocks/0/kind", "tail", "blocks[0]: field \"kind\" is not embedding"},
      {"/files/0/blocks/0/layer", 2, "blocks[0]: field \"layer\" = 2 is outside 0 to 1"},
      {"/files/0/blocks/0/layer", 1, "holds the block attention 1 twice"},
      {"/files/0/blocks/0/offset", 4097, "field \"offset\" = 4097 is not aligned to 4 KiB"},
      {"/files/0/blocks/1/offset", 9223372036854775807, "field \"offset\""},
      {"/files/0/blocks/1/bytes", 0, "field \"bytes\" = 0 is outside"},
      {"/files/0/blocks/1/bytes", 4095, "is not whole 4 KiB"},
      {"/files/0/blocks/1/bytes", good["files"][0]["bytes"].get<int64_t>() / 4096 * 4096, "ends after its file"},
  };
  for (const Case& wrong : cases) {
    auto manifest = good;
    manifest[nlohmann::json::json_pointer(wrong.pointer)] = wrong.value;
    const absl::Status status = ParseStoreManifest(manifest.dump(), "m").status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.words)) << wrong.pointer << " " << wrong.value;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
  }
  EXPECT_THAT(std::string(ParseStoreManifest("{", "m").status().message()), HasSubstr("m: is not valid JSON"));
  EXPECT_THAT(std::string(ParseStoreManifest("[]", "m").status().message()), HasSubstr("m: is not a JSON object"));
}

}  // namespace
}  // namespace lime
