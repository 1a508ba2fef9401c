// `lime` over disks that fail and budgets that are too small: one sentence that names the file, the
// block and the place, the right exit code, and nothing half-written that looks complete. The
// engine's own tests (streaming_test) inject the same faults read by read.
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <string>

#include "absl/strings/str_cat.h"
#include "planner/base/bytes.h"
#include "tests/integration/programs/lime_process.h"
#include "tests/skips.h"

namespace lime {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::string kShipped = LIME_SOURCE_DIR "/models/lime-fables";

std::vector<std::string> Generation(const std::string& model, const std::vector<std::string>& more) {
  std::vector<std::string> call = {"run", "--model", model, "--prompt", "Once", "--max-tokens", "3", "--ignore-eos", "--json"};
  call.insert(call.end(), more.begin(), more.end());
  return call;
}

class BadStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Answer prepared = Call({"prepare", kShipped, "--out", store_});
    ASSERT_EQ(prepared.exit_code, 0) << prepared.err;
  }

  TempDir dir_;
  const std::string store_ = dir_ / "store";
};

TEST_F(BadStoreTest, AFlippedBitEndsTheRunAndNamesFileBlockAndOffset) {
  const std::string path = store_ + "/layer_0002.safetensors";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto at = static_cast<std::streamoff>(fs::file_size(path) * 3 / 4);
  file.seekg(at);
  const char flipped = static_cast<char>(file.get() ^ 16);
  file.seekp(at);
  file.put(flipped);
  file.close();
  const std::string differs = "at offset [0-9]+ differ from their checksum.*; remove the file and run `lime prepare` again";
  const Answer streamed = Call(Generation(store_, {"--resident", "0%"}));
  ExpectRefused(streamed, 1, "layer_0002.safetensors: mlp 2, ");
  EXPECT_THAT(streamed.err, ::testing::ContainsRegex(differs));
  for (const std::vector<std::string>& resident :
       std::vector<std::vector<std::string>>{{"--resident", "60%", "--placement", "first_n"}, {"--loader", "read"}, {"--loader", "mmap"}}) {
    const Answer loaded = Call(Generation(store_, resident));
    ExpectRefused(loaded, 1, "layer_0002.safetensors: ");
    EXPECT_THAT(loaded.err, ::testing::ContainsRegex(differs)) << resident.front();
  }
  ExpectRefused(Call({"prepare", store_, "--verify"}), 1, "layer_0002.safetensors");
  fs::remove(path);
  EXPECT_EQ(Call({"prepare", kShipped, "--out", store_}).exit_code, 0);
  EXPECT_EQ(Call(Generation(store_, {"--resident", "60%", "--placement", "first_n"})).exit_code, 0)
      << "what the sentence says to do, helps";
}

TEST_F(BadStoreTest, ATruncatedFileIsRefusedWithItsSizes) {
  const std::string path = store_ + "/layer_0003.safetensors";
  fs::resize_file(path, fs::file_size(path) - 4096);
  for (const char* resident : {"0%", "100%"})
    ExpectRefused(Call(Generation(store_, {"--resident", resident})), 1, "layer_0003.safetensors");
}

// A filesystem in a file behind a loop device. Blocks of it beyond the end of that file cannot be
// read any more once it is cut.
class LoopDisk {
 public:
  LoopDisk(const std::string& folder, const std::string& image, const std::string& mount_point) : image_(image), mount_point_(mount_point) {
    std::ofstream(image_).close();
    fs::resize_file(image_, 16 * kMiB);
    const std::string make =
        absl::StrCat("PATH=$PATH:/usr/sbin:/sbin mke2fs -q -t ext2 -b 4096 -d '", folder, "' '", image_, "' 2>/dev/null");
    if (geteuid() != 0 || std::system(make.c_str()) != 0 || !Attach()) return;
    fs::create_directory(mount_point_);
    mounted_ = ::mount(device_.c_str(), mount_point_.c_str(), "ext2", MS_RDONLY, "") == 0;
  }
  ~LoopDisk() {
    if (mounted_) ::umount(mount_point_.c_str());
    if (loop_ >= 0) ::ioctl(loop_, LOOP_CLR_FD), ::close(loop_);
  }
  LoopDisk(const LoopDisk&) = delete;
  LoopDisk& operator=(const LoopDisk&) = delete;

  bool mounted() const { return mounted_; }
  // Makes the last `bytes` of a file, and what lies behind them, unreadable.
  void CutEndOf(const std::string& file, uint64_t bytes) const {
    constexpr uint32_t kExtents = 64;
    std::vector<std::byte> room(sizeof(fiemap) + kExtents * sizeof(fiemap_extent));
    auto* const map = new (room.data()) fiemap{};
    map->fm_length = FIEMAP_MAX_OFFSET;
    map->fm_extent_count = kExtents;
    const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(::ioctl(descriptor, FS_IOC_FIEMAP, map), 0) << file;
    ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    ::close(descriptor);
    ASSERT_GT(map->fm_mapped_extents, 0u);
    const fiemap_extent& last = map->fm_extents[map->fm_mapped_extents - 1];
    fs::resize_file(image_, last.fe_physical + last.fe_length - bytes);
  }

 private:
  // With direct reads of the image: others fill what is missing with zeros.
  bool Attach() {
    const int control = ::open("/dev/loop-control", O_RDWR | O_CLOEXEC), file = ::open(image_.c_str(), O_RDWR | O_CLOEXEC);
    const int number = control < 0 ? -1 : ::ioctl(control, LOOP_CTL_GET_FREE);
    device_ = absl::StrCat("/dev/loop", number);
    if (number >= 0) loop_ = ::open(device_.c_str(), O_RDWR | O_CLOEXEC);
    loop_config config = {};
    config.fd = static_cast<uint32_t>(file);
    config.info.lo_flags = LO_FLAGS_DIRECT_IO;
    const bool attached = file >= 0 && loop_ >= 0 && ::ioctl(loop_, LOOP_CONFIGURE, &config) == 0;
    if (!attached && loop_ >= 0) ::close(loop_), loop_ = -1;
    if (control >= 0) ::close(control);
    if (file >= 0) ::close(file);
    return attached;
  }

  const std::string image_, mount_point_;
  std::string device_;
  int loop_ = -1;
  bool mounted_ = false;
};

TEST_F(BadStoreTest, AReadErrorEndsTheRunAndNamesFileBlockAndOffset) {
  const std::string name = "layer_0002.safetensors", folder = dir_ / "files", mounted = dir_ / "mounted";
  fs::create_directory(folder);
  fs::rename(store_ + "/" + name, folder + "/" + name);
  fs::create_symlink(mounted + "/" + name, store_ + "/" + name);
  const LoopDisk disk(folder, dir_ / "image", mounted);
  LIME_SKIP_WITHOUT(disk.mounted(), "root with a loop device and mke2fs");
  const Answer whole = Call(Generation(store_, {"--resident", "0%"}));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  disk.CutEndOf(mounted + "/" + name, 16 * kKiB);
  const Answer streamed = Call(Generation(store_, {"--resident", "0%"}));
  ExpectRefused(streamed, 1, "mlp 2: ");
  EXPECT_THAT(streamed.err, ::testing::ContainsRegex("layer_0002.safetensors: reading [0-9]+ bytes at offset [0-9]+ failed"));
  EXPECT_THAT(streamed.err, HasSubstr("Input/output error"));
  const Answer loaded = Call(Generation(store_, {"--loader", "read"}));
  ExpectRefused(loaded, 1, "layer_0002.safetensors: reading");
  EXPECT_THAT(loaded.err, HasSubstr("Input/output error"));
}

TEST(BadDiskTest, AFullDiskLeavesNothingThatLooksComplete) {
  TempDir dir;
  const std::string small = dir / "small";
  fs::create_directory(small);
  LIME_SKIP_WITHOUT(::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=16m,nr_inodes=4") == 0, "the right to mount a tmpfs");
  const Answer full = Call({"prepare", kShipped, "--out", small});
  ExpectRefused(full, 1, "it holds no more files");
  EXPECT_THAT(full.err, HasSubstr("small/"));
  EXPECT_NE(Call(Generation(small, {})).exit_code, 0);
  EXPECT_FALSE(fs::exists(small + "/lime_store.json"));
  ASSERT_EQ(::mount("tmpfs", small.c_str(), "tmpfs", MS_REMOUNT, "size=1m,nr_inodes=64"), 0);
  ExpectRefused(Call({"prepare", kShipped, "--out", small}), 1, "and the disk has");
  ASSERT_EQ(::mount("tmpfs", small.c_str(), "tmpfs", MS_REMOUNT, "size=16m,nr_inodes=64"), 0);
  EXPECT_EQ(Call({"prepare", kShipped, "--out", small}).exit_code, 0) << "goes on where there is room again";
  EXPECT_EQ(Call({"prepare", small, "--verify"}).exit_code, 0);
  ::umount(small.c_str());
}

// The budget that the refusal advises.
std::string AdviceOf(const std::string& sentence) {
  std::smatch found;
  return std::regex_search(sentence, found, std::regex("give --memory ([0-9]+MiB) or more")) ? found[1].str() : "";
}

TEST(BadBudgetTest, OneRefusalNamesABudgetThatSuffices) {
#ifdef LIME_SANITIZED
  GTEST_SKIP() << "no budget is kept to where a sanitizer has memory too";
#endif
  std::string advice;
  for (const char* little : {"1", "1MiB", "16MiB", "32MiB"}) {
    const Answer refused = Call(Generation(kShipped, {"--memory", little}));
    ExpectRefused(refused, 1, "two parts of streamed weights");
    EXPECT_THAT(refused.err, HasSubstr("--memory allows"));
    advice = AdviceOf(refused.err);
    ASSERT_NE(advice, "") << refused.err;
    const Answer fits = Call(Generation(kShipped, {"--memory", advice}));
    ASSERT_EQ(fits.exit_code, 0) << fits.err;
    EXPECT_LE(fits.Json()["peak_rss_bytes"].get<Bytes>(), *ParseBytes(advice));
  }
  ExpectRefused(Call(Generation(kShipped, {"--resident", "0%", "--pool", "1"})), 2, "two parts");
}

TEST(BadBudgetTest, MoreThanTheMachineHasIsAWrongCall) {
  const Answer refused = Call(Generation(kShipped, {"--memory", "100TiB"}));
  ExpectRefused(refused, 2, "--memory 100TiB: ");
  EXPECT_THAT(refused.err, HasSubstr(" or less"));
  ExpectRefused(Call(Generation(kShipped, {"--threads", "1000"})), 2, "--threads 1000 is outside 0 to ");
}

}  // namespace
}  // namespace lime
