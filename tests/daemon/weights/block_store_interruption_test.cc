// Preparing that ends early: by death at any write, by a full disk.

#include <gmock/gmock.h>
#include <sys/mount.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "daemon/formats/block_store_manifest.h"
#include "tests/cases.h"
#include "tests/daemon/weights/block_store_fixture.h"
#include "tests/skips.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

// Counts what is done to the disk; from the n-th on everything fails, as after a kill, and that one
// is done by half.
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

// Whether the disk is full.
class InterruptedTest : public PreparedTest, public ::testing::WithParamInterface<bool> {
 protected:
  void MakeRelu() {
    options_.config.activation = Activation::kRelu;
    ASSERT_TRUE(MakeModel(options_, model_).ok());
  }
  void ExpectFinished(bool bundles, int64_t step);
};

// Ends preparing at every `step`th call of the disk.
void InterruptedTest::ExpectFinished(bool bundles, int64_t step) {
  const bool full = GetParam();
  PrepareOptions options{.buffer_bytes = 20'000, .bundles = bundles, .bundle_buffer_bytes = 20'000};  // several writes for every file
  DyingDisk immortal(1 << 30, full);
  options.disk = &immortal;
  ASSERT_TRUE(PrepareBlockStore(model_, dir_.file("whole"), options).ok());
  const auto whole = Contents(dir_.file("whole"));
  ASSERT_GT(immortal.calls(), 60);
  int64_t kept = 0, refused = 0;
  for (int64_t lives = 0; lives < immortal.calls(); lives += step) {
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
    // An interrupted call after the first one loses nothing that it left.
    const std::atomic<bool> stop = true;
    options.watch.cancelled = &stop;
    PrepareBlockStore(model_, store_, options).status().IgnoreError();  // ends early if weights are missing
    options.watch.cancelled = nullptr;
    const auto report = PrepareBlockStore(model_, store_, options);
    ASSERT_TRUE(report.ok()) << report.status();
    kept += report->kept_files;
    EXPECT_EQ(Contents(store_), whole);
  }
  EXPECT_GT(kept, 0) << "no file survived any interruption";
  EXPECT_GT(refused, 50 / step);
}

TEST_P(InterruptedTest, AfterAnEndAtAnyWriteTheNextCallFinishesTheSameStore) {
  ExpectFinished(/*bundles=*/false, ManyCases() ? 1 : 3);
}

TEST_P(InterruptedTest, AfterAnEndAtSomeWritesTheNextCallFinishesTheSameStoreWithBundles) {
  MakeRelu();
  ExpectFinished(/*bundles=*/true, 7);
}

// A store that is in use gets bundles: it stays whole at every moment, and finished files are kept.
TEST_P(InterruptedTest, AWholeStoreStaysOneUntilItHasBundles) {
  const bool full = GetParam();
  MakeRelu();
  ASSERT_TRUE(PrepareBlockStore(model_, dir_.file("dense")).ok());
  PrepareOptions options{.bundles = true, .bundle_buffer_bytes = 20'000};
  DyingDisk immortal(1 << 30, full);
  options.disk = &immortal;
  fs::copy(dir_.file("dense"), store_);
  ASSERT_TRUE(PrepareBlockStore(model_, store_, options).ok());
  const auto whole = Contents(store_);
  ASSERT_GT(immortal.calls(), 30);
  int64_t kept = 0;
  for (int64_t lives = full ? 1 : 0; lives < immortal.calls(); lives += 2) {
    SCOPED_TRACE(absl::StrCat("ends at call ", lives));
    fs::remove_all(store_);
    fs::copy(dir_.file("dense"), store_);
    DyingDisk disk(lives, full);
    options.disk = &disk;
    PrepareBlockStore(model_, store_, options).status().IgnoreError();
    EXPECT_TRUE(Checkpoint::Open(store_).ok());
    EXPECT_TRUE(VerifyBlockStore(store_).ok());
    const bool journal = fs::exists(InStore(kStoreJournalName));
    options.disk = nullptr;
    // Once begun, bundles are finished also if the next call does not name them.
    const auto report = PrepareBlockStore(model_, store_, journal ? PrepareOptions{.bundle_buffer_bytes = 20'000} : options);
    ASSERT_TRUE(report.ok()) << report.status();
    kept = std::max(kept, report->kept_files);
    EXPECT_EQ(Contents(store_), whole);
  }
  EXPECT_EQ(kept, 5) << "no bundles survived any interruption";
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

TEST_F(PreparedTest, AnInterruptBeforeTheFirstFileLeavesNothingAndSaysSo) {
  const std::atomic<bool> stop = true;
  PrepareOptions options;
  options.watch.cancelled = &stop;
  EXPECT_THAT(std::string(PrepareBlockStore(model_, store_, options).status().message()),
              HasSubstr("interrupted, and its files were removed"));
  EXPECT_FALSE(fs::exists(store_));
}

TEST_F(PreparedTest, ADiskTooSmallIsReportedBeforeTheCopyWithTheNumbers) {
  const std::string mount = dir_.file("small");
  fs::create_directory(mount);
  LIME_SKIP_WITHOUT(::mount("tmpfs", mount.c_str(), "tmpfs", 0, "size=128k") == 0, "the right to mount a tmpfs");
  const absl::Status status = PrepareBlockStore(model_, mount).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::ContainsRegex("small: needs .*, and the disk has .* free"));
  EXPECT_FALSE(Checkpoint::Open(mount).ok());
  EXPECT_TRUE(fs::is_empty(mount)) << "nothing to go on with is left";
  ::umount(mount.c_str());
}

TEST_F(PreparedTest, ADiskTooSmallForBundlesIsReportedBeforeTheCopy) {
  options_.config.activation = Activation::kRelu;
  ASSERT_TRUE(MakeModel(options_, model_).ok());
  ASSERT_TRUE(PrepareBlockStore(model_, store_).ok());
  struct Small : StoreDisk {
    absl::StatusOr<Bytes> FreeBytes(const std::string&) override { return 100 * kKiB; }
  } disk;
  const auto before = Contents(store_);
  const absl::Status status = PrepareBlockStore(model_, store_, {.bundles = true, .disk = &disk}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::ContainsRegex("store: needs .*, and the disk has 100.* KiB .*free"));
  EXPECT_EQ(Contents(store_), before);
}

TEST_F(PreparedTest, ADiskThatFillsUpInTheMiddleNamesTheFileAndKeepsWhatIsFinished) {
  const std::string mount = dir_.file("small");
  fs::create_directory(mount);
  LIME_SKIP_WITHOUT(::mount("tmpfs", mount.c_str(), "tmpfs", 0, "size=420k") == 0, "the right to mount a tmpfs");
  struct Optimist : StoreDisk {
    absl::StatusOr<Bytes> FreeBytes(const std::string&) override { return kGiB; }
  } disk;
  options_.config.num_layers = 8;
  ASSERT_TRUE(MakeModel(options_, model_).ok());
  const absl::Status status = PrepareBlockStore(model_, mount, {.disk = &disk}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::ContainsRegex("small/layer_000.*: needs .*, and the disk has .* free"));
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

}  // namespace
}  // namespace lime
