// Receiving a model's blocks into a folder: what is there is found, what is damaged is written
// again, nothing looks like more than it is.

#include "daemon/stores/pushed_store.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "daemon/stores/store_source.h"
#include "daemon/stores/weights_digest.h"
#include "tests/daemon/weights/block_store_fixture.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

constexpr BlockId kEmbedding{BlockKind::kEmbedding, 0}, kHead{BlockKind::kHead, 0};
BlockId Attention(int32_t layer) {
  return {BlockKind::kAttention, layer};
}
BlockId Mlp(int32_t layer) {
  return {BlockKind::kMlp, layer};
}

const auto kNoProgress = [](Bytes, Bytes) { return absl::OkStatus(); };

// What a push does, without the network.
struct Pushed {
  absl::Status status;
  std::vector<int32_t> units;   // that were missing
  std::vector<BlockId> blocks;  // that they belong to
  Bytes bytes = 0;
};
Pushed Push(const StoreSource& source, StoreDisk& disk, const std::string& root, const StoreOffer& offer) {
  Pushed pushed;
  const auto run = [&]() -> absl::Status {
    LIME_ASSIGN_OR_RETURN(const std::unique_ptr<PushedStore> store, PushedStore::Open(disk, root, offer));
    LIME_ASSIGN_OR_RETURN(pushed.units, store->FindMissing(offer.check, kNoProgress));
    pushed.blocks = store->BlocksOf(pushed.units);
    LIME_RETURN_IF_ERROR(store->Begin(pushed.units));
    for (const int32_t index : pushed.units) {
      const PushUnit& unit = store->units()[static_cast<size_t>(index)];
      std::vector<std::byte> data(static_cast<size_t>(unit.bytes));
      LIME_RETURN_IF_ERROR(source.Read(unit.file, unit.offset, data));
      for (size_t at = 0; at < data.size(); at += 7000) {  // several writes for each
        LIME_RETURN_IF_ERROR(store->Write(std::span(data).subspan(at, std::min<size_t>(7000, data.size() - at))));
      }
      LIME_ASSIGN_OR_RETURN(const bool matches, store->EndUnit());
      if (!matches) return absl::DataLossError("a unit differs");
      pushed.bytes += unit.bytes;
    }
    return store->done() ? absl::OkStatus() : absl::InternalError("not done");
  };
  pushed.status = run();
  return pushed;
}

class PushedStoreTest : public PreparedTest {
 protected:
  void SetUp() override {
    PreparedTest::SetUp();
    OpenSource();
  }
  void OpenSource() {
    auto source = StoreSource::Open(model_);
    ASSERT_TRUE(source.ok()) << source.status();
    source_ = *std::move(source);
  }
  Pushed PushBlocks(std::vector<BlockId> blocks, bool check = true) {
    return Push(*source_, disk_, root_, source_->OfferOf(std::move(blocks), check));
  }
  std::string Folder() const { return FindPushed(root_, source_->manifest().source_xxh3); }
  std::vector<BlockId> Everything() const { return BlocksOf(source_->manifest()); }
  StoredBlock Block(BlockId id, std::string* file = nullptr) const {
    const auto placed = PlaceBlocks(source_->manifest(), {&id, 1});
    EXPECT_TRUE(placed.ok()) << placed.status();
    if (file != nullptr) *file = source_->manifest().files[static_cast<size_t>(placed->front().file)].name;
    return placed->front().block;
  }
  void FlipPushed(const std::string& name, int64_t offset) const {
    std::fstream file(Folder() + "/" + name, std::ios::in | std::ios::out | std::ios::binary);
    char byte = 0;
    file.seekg(offset).read(&byte, 1);
    byte = static_cast<char>(byte ^ 0x10);
    file.seekp(offset).write(&byte, 1);
  }

  StoreDisk disk_;
  const std::string root_ = dir_.file("pushed");
  std::unique_ptr<StoreSource> source_;
};

TEST_F(PushedStoreTest, AFolderIsOfferedAsTheStoreThatPrepareWouldWrite) {
  Prepare();
  const auto prepared = StoreSource::Open(store_);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ((*prepared)->manifest(), source_->manifest());
  for (size_t f = 0; f < source_->manifest().files.size(); ++f) {
    const StoredFile& file = source_->manifest().files[f];
    const std::string whole = ReadRange({InStore(file.name), file.bytes}, 0, file.bytes);
    for (const auto* source : {source_.get(), prepared->get()}) {
      for (const int64_t at : {int64_t{0}, int64_t{5}, file.bytes / 3, file.bytes - 9}) {
        std::string read(static_cast<size_t>(std::min<int64_t>(10'000, file.bytes - at)), '\0');
        ASSERT_TRUE(source->Read(static_cast<int32_t>(f), at, std::as_writable_bytes(std::span(read))).ok());
        EXPECT_EQ(read, whole.substr(static_cast<size_t>(at), read.size())) << file.name << " at " << at;
      }
    }
  }
}

TEST_F(PushedStoreTest, BlocksAreReadFromItAndOthersAreNamedAsMissing) {
  Prepare();
  const Pushed pushed = PushBlocks({Attention(1), Mlp(0), kHead});
  ASSERT_TRUE(pushed.status.ok()) << pushed.status;
  EXPECT_THAT(std::string(Checkpoint::Open(Folder()).status().message()), HasSubstr("not a whole model"));
  const auto part = Checkpoint::OpenPart(Folder()), whole = Checkpoint::Open(store_);
  ASSERT_TRUE(part.ok()) << part.status();
  const auto spec = part->BuildModelSpec();
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(part->config_json(), whole->config_json());
  for (const BlockId id : {Attention(1), Mlp(0), kHead}) {
    for (const TensorSpec& tensor : spec->block(id).tensors)
      EXPECT_EQ(TensorBytesOf(*part, tensor.name), TensorBytesOf(*whole, tensor.name)) << tensor.name;
    EXPECT_EQ(part->StoreExtent(id)->xxh3, Block(id).xxh3);
    EXPECT_TRUE(part->CheckHolds({&id, 1}).ok());
  }
  const std::vector<BlockId> wanted = {Attention(0), Mlp(0), Mlp(1)};
  const absl::Status status = part->CheckHolds(wanted);
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("lacks 2 of 3 blocks that the plan needs here (attention 0, mlp 1)"));
}

TEST_F(PushedStoreTest, WhatIsThereIsNotSentAgainAndAnotherPlanBringsOnlyWhatItAdds) {
  ASSERT_TRUE(PushBlocks({Attention(0), Mlp(0)}).status.ok());
  for (const bool check : {false, true}) EXPECT_THAT(PushBlocks({Attention(0), Mlp(0)}, check).units, ::testing::IsEmpty());
  const Pushed more = PushBlocks({Mlp(0), Attention(1)}, false);
  ASSERT_TRUE(more.status.ok()) << more.status;
  EXPECT_THAT(more.blocks, ::testing::ElementsAre(Attention(1)));
  EXPECT_EQ(more.bytes, Block(Attention(1)).bytes);
  const auto held = ReadPushedManifest(Folder());
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_THAT(held->held.held, ::testing::UnorderedElementsAre(Attention(0), Mlp(0), Attention(1)));
}

TEST_F(PushedStoreTest, EverythingIsAllBytesOnce) {
  for (const bool tied : {false, true}) {
    options_.config.tie_embeddings = tied;
    fs::remove_all(model_);
    ASSERT_TRUE(MakeModel(options_, model_).ok());
    OpenSource();
    const Pushed pushed = PushBlocks(Everything());
    ASSERT_TRUE(pushed.status.ok()) << pushed.status;
    std::map<std::pair<std::string, int64_t>, int64_t> ends;
    Bytes union_bytes = 0;
    for (const StoredFile& file : source_->manifest().files) {
      std::vector<std::pair<int64_t, int64_t>> blocks;
      for (const StoredBlock& block : file.blocks) blocks.emplace_back(block.offset, block.offset + block.bytes);
      std::ranges::sort(blocks);
      int64_t end = 0;
      for (const auto& [begin, stop] : blocks) union_bytes += std::max<int64_t>(0, stop - std::max(begin, end)), end = std::max(end, stop);
    }
    EXPECT_EQ(pushed.bytes, union_bytes) << "tied: " << tied;
    EXPECT_THAT(PushBlocks(Everything()).units, ::testing::IsEmpty());
  }
}

TEST_F(PushedStoreTest, OfATiedModelWhoseEmbeddingEndsWithinTheNormEveryBlockArrives) {
  options_.config.tie_embeddings = true;
  options_.config.hidden_size = 2560;  // a norm of 5 KiB
  options_.config.vocab_size = 321;    // it begins in the page in which the embedding ends
  options_.config.num_layers = 1;
  fs::remove_all(model_);
  ASSERT_TRUE(MakeModel(options_, model_).ok());
  OpenSource();
  for (const std::vector<BlockId>& blocks : {std::vector{kEmbedding}, std::vector{kHead}, std::vector{kHead, kEmbedding}, Everything()}) {
    fs::remove_all(root_);
    const Pushed pushed = PushBlocks(blocks);
    ASSERT_TRUE(pushed.status.ok()) << pushed.status;
    EXPECT_THAT(PushBlocks(blocks).units, ::testing::IsEmpty());
    EXPECT_TRUE(Checkpoint::OpenPart(Folder())->CheckHolds(blocks).ok());
  }
  EXPECT_LE(PushBlocks(Everything()).bytes, 0);
}

TEST_F(PushedStoreTest, TheHeadOfATiedModelIsThereOnceTheEmbeddingIs) {
  options_.config.tie_embeddings = true;
  fs::remove_all(model_);
  ASSERT_TRUE(MakeModel(options_, model_).ok());
  OpenSource();
  ASSERT_TRUE(PushBlocks({kEmbedding}).status.ok());
  const Pushed head = PushBlocks({kHead, kEmbedding});
  ASSERT_TRUE(head.status.ok()) << head.status;
  EXPECT_LT(head.bytes, 10'000) << "the norm alone";
  EXPECT_TRUE(ReadPushedManifest(Folder())->held.Holds(kHead));
}

TEST_F(PushedStoreTest, AFlippedBitIsFoundAndThatBlockAloneIsSentAgain) {
  ASSERT_TRUE(PushBlocks(Everything()).status.ok());
  const std::vector<BlockId> blocks = Everything();
  for (const BlockId id : blocks) {
    std::string file;
    const StoredBlock block = Block(id, &file);
    for (const int64_t at : {block.offset, block.offset + block.bytes / 2, block.offset + block.bytes - 1}) {
      SCOPED_TRACE(absl::StrCat(BlockName(id), " at ", at));
      FlipPushed(file, at);
      EXPECT_THAT(PushBlocks(blocks, /*check=*/false).units, ::testing::IsEmpty()) << "it is trusted";
      const Pushed pushed = PushBlocks(blocks);
      ASSERT_TRUE(pushed.status.ok()) << pushed.status;
      EXPECT_THAT(pushed.blocks, ::testing::ElementsAre(id));
      EXPECT_LE(pushed.bytes, block.bytes);
      EXPECT_THAT(PushBlocks(blocks).units, ::testing::IsEmpty());
    }
  }
}

TEST_F(PushedStoreTest, ADamagedBlockIsNotHeldFromTheMomentItIsFound) {
  ASSERT_TRUE(PushBlocks({Mlp(0), Mlp(1)}).status.ok());
  std::string file;
  FlipPushed(file = "layer_0000.safetensors", Block(Mlp(0)).offset);
  auto store = PushedStore::Open(disk_, root_, source_->OfferOf({Mlp(0), Mlp(1)}, true));
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->FindMissing(true, kNoProgress).ok());
  EXPECT_FALSE(Checkpoint::OpenPart(Folder())->CheckHolds(std::vector{Mlp(0)}).ok());
  EXPECT_TRUE(Checkpoint::OpenPart(Folder())->CheckHolds(std::vector{Mlp(1)}).ok());
}

// Counts what is done to the disk; from the n-th on everything fails, as after a kill, and that one
// is done by half.
class DyingDisk : public StoreDisk {
 public:
  explicit DyingDisk(int64_t lives) : lives_(lives) {}
  int64_t calls() const { return calls_; }
  absl::Status MakeFolder(const std::string& dir) override { return Dead() ? Death() : StoreDisk::MakeFolder(dir); }
  absl::StatusOr<FileDescriptor> Create(const std::string& path, Bytes bytes) override {
    return Dead() ? absl::StatusOr<FileDescriptor>(Death()) : StoreDisk::Create(path, bytes);
  }
  absl::StatusOr<FileDescriptor> OpenSparse(const std::string& path, Bytes bytes) override {
    return Dead() ? absl::StatusOr<FileDescriptor>(Death()) : StoreDisk::OpenSparse(path, bytes);
  }
  absl::Status Write(const FileDescriptor& file, const std::string& path, int64_t offset, std::span<const std::byte> data) override {
    if (!Dead()) return StoreDisk::Write(file, path, offset, data);
    if (calls_ == lives_ + 1) StoreDisk::Write(file, path, offset, data.first(data.size() / 2)).IgnoreError();
    return Death();
  }
  absl::Status Sync(const FileDescriptor& file, const std::string& path) override { return Dead() ? Death() : StoreDisk::Sync(file, path); }
  absl::Status Rename(const std::string& from, const std::string& to) override { return Dead() ? Death() : StoreDisk::Rename(from, to); }
  absl::Status Remove(const std::string& path) override { return Dead() ? Death() : StoreDisk::Remove(path); }

 private:
  bool Dead() { return ++calls_ > lives_; }
  static absl::Status Death() { return absl::UnavailableError("died"); }
  const int64_t lives_;
  int64_t calls_ = 0;
};

TEST_F(PushedStoreTest, AfterAnEndAtAnyWriteNothingWrongIsHeldAndTheNextPushFinishes) {
  const std::vector<BlockId> blocks = {Attention(0), Mlp(1), kHead};
  const StoreOffer offer = source_->OfferOf(blocks, false);
  DyingDisk immortal(1 << 30);
  const Pushed whole = Push(*source_, immortal, dir_.file("whole"), offer);
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  ASSERT_GT(immortal.calls(), 50);
  Bytes saved = 0;
  for (int64_t lives = 0; lives < immortal.calls(); ++lives) {
    SCOPED_TRACE(absl::StrCat("ends at call ", lives));
    fs::remove_all(root_);
    DyingDisk disk(lives);
    ASSERT_FALSE(Push(*source_, disk, root_, offer).status.ok());
    if (const auto pushed = ReadPushedManifest(Folder()); pushed.ok()) {
      for (const BlockId id : pushed->held.held) {
        std::string file;
        const StoredBlock block = Block(id, &file);
        const std::string data = ReadRange({Folder() + "/" + file, 0}, block.offset, block.bytes);
        Xxh3 hash;
        hash.Add(std::as_bytes(std::span(data)));
        EXPECT_EQ(hash.value(), block.xxh3) << BlockName(id) << " is held and is not there";
      }
    }
    const Pushed rest = Push(*source_, disk_, root_, offer);
    ASSERT_TRUE(rest.status.ok()) << rest.status;
    saved += whole.bytes - rest.bytes;
    EXPECT_THAT(PushBlocks(blocks).units, ::testing::IsEmpty());
  }
  EXPECT_GT(saved, whole.bytes) << "nothing was resumed";
}

TEST_F(PushedStoreTest, ADiskThatIsTooSmallIsReportedBeforeAnythingIsSent) {
  struct SmallDisk : StoreDisk {
    absl::StatusOr<Bytes> FreeBytes(const std::string&) override { return 5000; }
  } disk;
  const Pushed pushed = Push(*source_, disk, root_, source_->OfferOf(Everything(), true));
  EXPECT_TRUE(absl::IsResourceExhausted(pushed.status)) << pushed.status;
  EXPECT_THAT(std::string(pushed.status.message()), HasSubstr("and the disk has 4.88 KiB free"));
  EXPECT_EQ(pushed.bytes, 0);
}

TEST_F(PushedStoreTest, ADiskThatFillsUpMeanwhileEndsThePushAndTheNextOneGoesOn) {
  struct FillingDisk : StoreDisk {
    absl::Status Write(const FileDescriptor& file, const std::string& path, int64_t offset, std::span<const std::byte> data) override {
      if ((room -= static_cast<Bytes>(data.size())) < 0) return DiskFull(path, 1, 0);
      return StoreDisk::Write(file, path, offset, data);
    }
    Bytes room = 60'000;
  } disk;
  const StoreOffer offer = source_->OfferOf(Everything(), true);
  EXPECT_TRUE(absl::IsResourceExhausted(Push(*source_, disk, root_, offer).status));
  const Pushed rest = PushBlocks(Everything());
  ASSERT_TRUE(rest.status.ok()) << rest.status;
  EXPECT_LT(rest.bytes, source_->manifest().bytes());
}

TEST_F(PushedStoreTest, OfANewerVersionOfAModelOnlyTheBlocksThatChangedAreSent) {
  ASSERT_TRUE(PushBlocks(Everything()).status.ok());
  const auto checkpoint = Checkpoint::Open(model_);
  const TensorLocation at = checkpoint->location("model.layers.1.mlp.down_proj.weight");
  const std::string path = checkpoint->files()[static_cast<size_t>(at.file)].path;
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at.offset + 300).write("\x01\x02", 2);  // between two of the places that the digest looks at
  }
  const uint64_t digest = source_->manifest().source_xxh3;
  OpenSource();
  ASSERT_EQ(source_->manifest().source_xxh3, digest);
  const Pushed pushed = PushBlocks(Everything(), false);
  ASSERT_TRUE(pushed.status.ok()) << pushed.status;
  EXPECT_THAT(pushed.blocks, ::testing::ElementsAre(Mlp(1)));
  EXPECT_THAT(PushBlocks(Everything()).units, ::testing::IsEmpty());
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(at.offset + at.bytes - 2).write("\x03\x04", 2);
  OpenSource();
  EXPECT_NE(source_->manifest().source_xxh3, digest) << "the last bytes of a tensor are looked at";
}

TEST_F(PushedStoreTest, TwoWritersAreKeptApart) {
  auto first = PushedStore::Open(disk_, root_, source_->OfferOf({kHead}, true));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(absl::IsFailedPrecondition(PushedStore::Open(disk_, root_, source_->OfferOf({kHead}, true)).status()));
}

TEST_F(PushedStoreTest, AnOfferThatIsNotAStoreIsRefusedAndLeavesNoFile) {
  const auto refused = [&](const std::function<void(StoreOffer&)>& change, const std::string& words) {
    StoreOffer offer = source_->OfferOf({kHead, Mlp(0)}, true);
    change(offer);
    const absl::Status status = PushedStore::Open(disk_, root_, offer).status();
    EXPECT_FALSE(status.ok()) << words;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
    EXPECT_FALSE(fs::exists(root_)) << words;
  };
  refused([](StoreOffer& o) { o.manifest.files[0].name = "../outside.safetensors"; }, "is not a weight file");
  refused([](StoreOffer& o) { o.manifest.files[0].name = ".hidden.safetensors"; }, "is not a weight file");
  refused([](StoreOffer& o) { o.manifest.files[0].name = "config.json"; }, "is not a weight file");
  refused([](StoreOffer& o) { o.manifest.files[0].blocks.clear(); }, "is not a weight file");
  refused([](StoreOffer& o) { o.headers.pop_back(); }, "headers were sent");
  refused([](StoreOffer& o) { o.headers[0] += "x"; }, "were sent");
  refused([](StoreOffer& o) { o.headers[0][20] = '\1'; }, "layer_0000");
  refused([](StoreOffer& o) { o.headers[0].resize(4); }, "too few");
  refused([](StoreOffer& o) { o.blocks.push_back(kHead); }, "offered twice");
  refused([](StoreOffer& o) { o.blocks = {Mlp(77)}; }, "has no block mlp 77");
  refused([](StoreOffer& o) { o.manifest.files[0].ranges.clear(); }, "has no checksum for the bytes");
}

TEST_F(PushedStoreTest, AnOfferWhoseConfigIsOfAnotherModelIsRefusedBeforeAnythingIsSent) {
  StoreOffer offer = source_->OfferOf({kHead}, true);
  MakeModelOptions other = options_;
  other.config.num_layers = 3;
  offer.config_json = ConfigJson(other);
  EXPECT_FALSE(PushedStore::Open(disk_, root_, offer).ok());
  EXPECT_TRUE(PushBlocks({kHead}).status.ok()) << "the right one mends it";
}

TEST_F(PushedStoreTest, ARecordThatIsNotOneIsRefusedAndTheNextPushMendsIt) {
  ASSERT_TRUE(PushBlocks({Mlp(0)}).status.ok());
  const std::string path = Folder() + "/" + kHeldBlocksName;
  const std::string right = *ReadTextFile(path, kMiB);
  const std::vector<std::string> wrong = {"", "{}", "[]", right.substr(0, right.size() / 2),
                                          R"({"format":"lime-held-blocks","version":1,"manifest_xxh3":"0","held":[],"begun":[]})"};
  for (const std::string& text : wrong) {
    std::ofstream(path) << text;
    EXPECT_FALSE(Checkpoint::OpenPart(Folder()).ok()) << text;
    const Pushed mended = PushBlocks({Mlp(0)}, false);
    ASSERT_TRUE(mended.status.ok()) << mended.status;
    EXPECT_EQ(mended.bytes, 0) << "it was found by its checksums";
    EXPECT_TRUE(Checkpoint::OpenPart(Folder())->CheckHolds(std::vector{Mlp(0)}).ok());
  }
}

TEST(ByteSetTest, RangesThatTouchAreOne) {
  ByteSet set;
  set.Add(10, 20);
  set.Add(30, 40);
  EXPECT_FALSE(set.Contains(10, 40));
  set.Add(20, 30);
  EXPECT_TRUE(set.Contains(10, 40));
  EXPECT_FALSE(set.Contains(9, 11));
  EXPECT_FALSE(set.Contains(39, 41));
  set.Add(0, 100);
  EXPECT_TRUE(set.Contains(0, 100));
}

}  // namespace
}  // namespace lime
