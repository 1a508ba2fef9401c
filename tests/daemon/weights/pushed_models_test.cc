// What was pushed to a device is listed, and removed so that nothing half of it passes as whole.

#include "daemon/stores/pushed_models.h"

#include <gmock/gmock.h>
#include <sys/file.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/stores/pushed_store.h"
#include "daemon/stores/store_source.h"
#include "tests/daemon/weights/block_store_fixture.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

class PushedModelsTest : public PreparedTest {
 protected:
  void SetUp() override {
    PreparedTest::SetUp();
    auto source = StoreSource::Open(model_);
    ASSERT_TRUE(source.ok()) << source.status();
    source_ = *std::move(source);
    model_digest_ = source_->manifest().source_xxh3;
  }
  // All of it where `units` is negative, else so many pieces.
  void Push(std::vector<BlockId> blocks, int units = -1) {
    auto store = PushedStore::Open(disk_, root_, source_->OfferOf(std::move(blocks), false));
    ASSERT_TRUE(store.ok()) << store.status();
    const auto missing = (*store)->FindMissing(false, [](Bytes, Bytes) { return absl::OkStatus(); });
    ASSERT_TRUE(missing.ok());
    ASSERT_TRUE((*store)->Begin(*missing).ok());
    for (const int32_t index : *missing) {
      if (units-- == 0) return;
      const PushUnit& unit = (*store)->units()[static_cast<size_t>(index)];
      std::vector<std::byte> data(static_cast<size_t>(unit.bytes));
      ASSERT_TRUE(source_->Read(unit.file, unit.offset, data).ok());
      ASSERT_TRUE((*store)->Write(data).ok());
      ASSERT_TRUE(*(*store)->EndUnit());
    }
  }
  std::vector<PushedModel> List() const {
    const auto models = ListPushed(root_);
    EXPECT_TRUE(models.ok()) << models.status();
    return *models;
  }

  StoreDisk disk_;
  const std::string root_ = dir_.file("pushed");
  std::unique_ptr<StoreSource> source_;
  uint64_t model_digest_ = 0;
};

TEST_F(PushedModelsTest, AModelIsListedWithItsNameItsBlocksAndItsSize) {
  EXPECT_THAT(List(), IsEmpty());  // nothing was pushed yet
  Push({{BlockKind::kMlp, 0}, {BlockKind::kHead, 0}});
  const std::vector<PushedModel> models = List();
  ASSERT_EQ(models.size(), 1u);
  EXPECT_EQ(models[0].model, model_digest_);
  EXPECT_EQ(models[0].name, "model");
  EXPECT_EQ(models[0].held, 2);
  EXPECT_EQ(models[0].blocks, static_cast<int>(BlocksOf(source_->manifest()).size()));
  EXPECT_GT(models[0].bytes, 0);
  EXPECT_LT(absl::Now() - models[0].used, absl::Minutes(1));
}

TEST_F(PushedModelsTest, AnInterruptedPushIsListedToo) {
  Push(BlocksOf(source_->manifest()), 1);
  ASSERT_EQ(List().size(), 1u);
  EXPECT_LT(List()[0].held, List()[0].blocks);
  fs::remove(absl::StrCat(List()[0].dir, "/lime_store.model"));
  ASSERT_EQ(List().size(), 1u);
  EXPECT_EQ(List()[0].blocks, 0);
}

TEST_F(PushedModelsTest, FoldersThatAreNoneAreLeftAlone) {
  Push({{BlockKind::kMlp, 0}});
  for (const std::string name : {"mine", "0123", "0123456789abcdeF", ".removed-mine"}) fs::create_directories(root_ + "/" + name);
  fs::create_directory_symlink(dir_.path(), root_ + "/0123456789abcdef");
  EXPECT_EQ(List().size(), 1u);
  EXPECT_TRUE(absl::IsNotFound(RemovePushed(root_, 7).status()));
  EXPECT_FALSE(RemovePushed(root_, 0x0123456789abcdef).ok());  // a link
  EndRemovals(root_);
  EXPECT_TRUE(fs::exists(root_ + "/.removed-mine"));
  EXPECT_TRUE(fs::exists(dir_.path()));
}

TEST_F(PushedModelsTest, RemovingAModelFreesItsBytesAndItMayBePushedAgain) {
  Push({{BlockKind::kMlp, 0}});
  const Bytes held = List()[0].bytes;
  const auto freed = RemovePushed(root_, model_digest_);
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_EQ(*freed, held);
  EXPECT_THAT(List(), IsEmpty());
  EXPECT_TRUE(fs::is_empty(root_));
  EXPECT_EQ(FindPushed(root_, model_digest_), "");
  Push({{BlockKind::kMlp, 0}});
  EXPECT_EQ(List()[0].held, 1);
}

// At whichever moment it ends, the model is there as before or not there at all.
TEST_F(PushedModelsTest, ARemovalThatWasInterruptedLeavesNothingThatPassesAsAStore) {
  Push(BlocksOf(source_->manifest()));
  const std::string dir = List()[0].dir, removed = absl::StrCat(root_, "/.removed-", fs::path(dir).filename().string());
  fs::rename(dir, removed);
  fs::remove(removed + "/config.json");  // so far it had come
  EXPECT_THAT(List(), IsEmpty());
  EXPECT_EQ(FindPushed(root_, model_digest_), "");
  Push({{BlockKind::kMlp, 0}});  // beside it
  EXPECT_EQ(List()[0].held, 1);
  ASSERT_TRUE(RemovePushed(root_, model_digest_).ok());
  EXPECT_TRUE(fs::is_empty(root_));
  fs::create_directories(removed);
  EndRemovals(root_);
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST_F(PushedModelsTest, WhatIsBeingPushedIsNotRemoved) {
  Push({{BlockKind::kMlp, 0}});
  {
    const auto store = PushedStore::Open(disk_, root_, source_->OfferOf({{BlockKind::kMlp, 0}}, false));
    ASSERT_TRUE(store.ok());
    EXPECT_THAT(std::string(RemovePushed(root_, model_digest_).status().message()), HasSubstr("a push to this folder is running"));
  }
  EXPECT_TRUE(RemovePushed(root_, model_digest_).ok());
}

TEST_F(PushedModelsTest, LoadingAModelIsAUseOfIt) {
  Push({{BlockKind::kMlp, 0}});
  const std::string record = List()[0].dir + "/lime_store.held";
  fs::last_write_time(record, fs::file_time_type::clock::now() - std::chrono::hours(48));
  EXPECT_GT(absl::Now() - List()[0].used, absl::Hours(47));
  NotePushedUse(List()[0].dir);
  EXPECT_LT(absl::Now() - List()[0].used, absl::Minutes(1));
  NotePushedUse(dir_.path());  // no store
  EXPECT_FALSE(fs::exists(dir_.file("lime_store.held")));
}

}  // namespace
}  // namespace lime
