#include "daemon/stores/output_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>

#include "tests/skips.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kOurs[] = "ours: ";

// Texts that begin with kOurs are of the kind that is written.
OutputOptions Options(bool overwrite = false) {
  return {.overwrite = overwrite, .is_ours = [](std::string_view text) { return text.starts_with(kOurs); }};
}

std::string Refusal(const std::string& path, const OutputOptions& options = Options()) {
  const absl::Status status = WriteOutput(path, "new", options);
  EXPECT_EQ(CheckOutput(path, options).message(), status.message());
  return std::string(status.message());
}

TEST(OutputFileTest, ANewFileIsWrittenAndNothingElseIsLeftInItsFolder) {
  TempDir dir;
  ASSERT_TRUE(WriteOutput(dir / "plan.json", "text", Options()).ok());
  EXPECT_EQ(dir.Read("plan.json"), "text");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 1);
}

TEST(OutputFileTest, OnlyWhatLimeWroteOrWhatIsEmptyIsReplacedUnlessOverwriteSaysSo) {
  TempDir dir;
  dir.Write("ours", std::string(kOurs) + "old");
  dir.Write("empty", "");
  dir.Write("letter", "dear reader");
  ASSERT_EQ(::chmod((dir / "ours").c_str(), 0640), 0);
  for (const char* name : {"ours", "empty"}) {
    EXPECT_TRUE(WriteOutput(dir / name, "new", Options()).ok());
    EXPECT_EQ(dir.Read(name), "new");
  }
  struct stat info;
  ASSERT_EQ(::stat((dir / "ours").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
  EXPECT_THAT(Refusal(dir / "letter"), HasSubstr("is there already, and LIME did not write it; name another file, or give --overwrite"));
  OutputOptions plan = Options();
  plan.kind = "a plan";
  EXPECT_THAT(Refusal(dir / "letter", plan), HasSubstr("LIME did not write it as a plan; name another file"));
  EXPECT_EQ(dir.Read("letter"), "dear reader");
  EXPECT_TRUE(WriteOutput(dir / "letter", "new", Options(/*overwrite=*/true)).ok());
  EXPECT_EQ(dir.Read("letter"), "new");
}

TEST(OutputFileTest, WhatTheCallReadsAndWhatAModelNeedsIsNotReplacedWhateverTheFlags) {
  TempDir dir;
  dir.Write("read", std::string(kOurs) + "old");
  fs::create_symlink("read", dir / "link");
  OutputOptions reading = Options(/*overwrite=*/true);
  reading.inputs = {"a word", dir / "nothing", dir / "read"};
  for (const char* name : {"read", "link"}) EXPECT_THAT(Refusal(dir / name, reading), HasSubstr("is also read by this command"));
  EXPECT_TRUE(WriteOutput(dir / "other", "new", reading).ok());
  fs::create_directory(dir / "model");
  for (const char* name : {"model/config.json", "model/tokenizer.json", "model/model.safetensors.index.json"}) {
    dir.Write(name, "{}");
    EXPECT_TRUE(CheckOutput(dir / name, Options(/*overwrite=*/true)).ok()) << "no model is there";
    dir.Write("model/weights.safetensors", "w");
    EXPECT_THAT(Refusal(dir / name, Options(/*overwrite=*/true)), HasSubstr("belongs to the model in its folder"));
    fs::remove(dir / "model/weights.safetensors");
  }
}

TEST(OutputFileTest, WeightsAreNotReplacedWhateverTheFlags) {
  TempDir dir;
  dir.Write("named.safetensors", "anything");
  dir.Write("gguf", "GGUF and more bytes");
  dir.Write("zip", "PK\x03\x04 a checkpoint of PyTorch");
  dir.Write("safetensors", std::string("\x02\0\0\0\0\0\0\0{}", 10));
  for (const char* name : {"named.safetensors", "gguf", "zip", "safetensors"}) {
    const std::string before = dir.Read(name);
    EXPECT_THAT(Refusal(dir / name, Options(/*overwrite=*/true)), HasSubstr("holds weights of a model, which LIME never replaces"));
    EXPECT_EQ(dir.Read(name), before);
  }
  dir.Write("short", "{}");
  EXPECT_FALSE(LooksLikeWeights(dir / "short"));
}

TEST(OutputFileTest, APipeADeviceAndALinkAreWrittenThrough) {
  TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  const FileDescriptor reader(::open((dir / "pipe").c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(WriteOutput(dir / "pipe", "through", Options()).ok());
  char got[16] = {};
  EXPECT_EQ(::read(reader.get(), got, sizeof(got)), 7);
  EXPECT_STREQ(got, "through");
  EXPECT_TRUE(fs::is_fifo(dir / "pipe"));

  ASSERT_TRUE(WriteOutput("/dev/null", "text", Options()).ok());
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  if (::mknod((dir / "null").c_str(), S_IFCHR | 0600, ::makedev(1, 3)) == 0) {
    EXPECT_TRUE(WriteOutput(dir / "null", "text", Options()).ok());
    EXPECT_TRUE(fs::is_character_file(dir / "null"));
  }

  dir.Write("target", std::string(kOurs));
  fs::create_symlink("target", dir / "link");
  fs::create_symlink(dir / "link", dir / "link_to_link");
  fs::create_symlink("missing", dir / "dangling");
  ASSERT_TRUE(WriteOutput(dir / "link_to_link", "through links", Options()).ok());
  EXPECT_EQ(dir.Read("target"), "through links");
  ASSERT_TRUE(WriteOutput(dir / "dangling", "made", Options()).ok());
  EXPECT_EQ(dir.Read("missing"), "made");
  for (const char* link : {"link", "link_to_link", "dangling"}) EXPECT_TRUE(fs::is_symlink(dir / link));
  dir.Write("letter", "dear reader");
  fs::create_symlink("letter", dir / "to_letter");
  EXPECT_THAT(Refusal(dir / "to_letter"), HasSubstr("LIME did not write it"));
}

TEST(OutputFileTest, AFileWithSeveralNamesKeepsThem) {
  TempDir dir;
  dir.Write("one", std::string(kOurs) + "a text that is longer than the new one");
  fs::create_hard_link(dir / "one", dir / "two");
  ASSERT_TRUE(WriteOutput(dir / "one", "new", Options()).ok());
  EXPECT_EQ(dir.Read("two"), "new");
  EXPECT_EQ(fs::hard_link_count(dir / "one"), 2u);
}

TEST(OutputFileTest, ADescriptorOfThisProcessIsGoneOnWithWhereItIs) {
  TempDir dir;
  const FileDescriptor out(::open((dir / "out").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::write(out.get(), "before ", 7), 7);
  fs::create_symlink("/proc/self/fd/" + std::to_string(out.get()), dir / "stdout");  // as /dev/stdout is
  ASSERT_TRUE(WriteOutput(dir / "stdout", "after", Options()).ok());
  EXPECT_EQ(dir.Read("out"), "before after");
  const FileDescriptor in(::open((dir / "out").c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_THAT(Refusal("/proc/self/fd/" + std::to_string(in.get())), HasSubstr("is open for reading only"));
}

TEST(OutputFileTest, FoldersSocketsAndLinksIntoThemselvesAreRefused) {
  TempDir dir;
  EXPECT_THAT(Refusal(dir.path()), HasSubstr("is a folder; name a file in it"));
  EXPECT_THAT(Refusal(dir / "no/file"), HasSubstr("lies in a folder that does not exist"));
  EXPECT_THAT(Refusal(dir / "new/"), HasSubstr("names a folder"));
  EXPECT_THAT(Refusal(""), HasSubstr("names no file"));
  fs::create_symlink("loop", dir / "loop");
  EXPECT_THAT(Refusal(dir / "loop"), HasSubstr("a link to itself"));
  struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  (dir / "socket").copy(address.sun_path, sizeof(address.sun_path) - 1);
  const FileDescriptor listener(::socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const struct sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_THAT(Refusal(dir / "socket"), HasSubstr("is a socket"));
}

TEST(OutputFileTest, APipeWhoseReaderGoesIsAnErrorAndOneWithoutReaderEndsWithTheInterrupt) {
  TempDir dir;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  const std::string path = "/proc/self/fd/" + std::to_string(ends[1]);
  EXPECT_THAT(std::string(WriteOutput(path, "new", Options()).message()), HasSubstr("Broken pipe")) << "and no signal ended this process";
  ::close(ends[1]);

  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  std::atomic<bool> cancelled = false;
  OutputOptions options = Options();
  options.cancelled = &cancelled;
  struct sigaction wake = {}, before = {};
  wake.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &wake, &before), 0);
  const pthread_t writer = ::pthread_self();
  std::atomic<bool> over = false;
  std::thread interrupt([&] {
    cancelled = true;
    while (!over) {  // until it arrives in the wait
      ::pthread_kill(writer, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  EXPECT_EQ(WriteOutput(dir / "pipe", "nobody reads", options).code(), absl::StatusCode::kCancelled);
  over = true;
  interrupt.join();
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST(OutputFileTest, AFullDiskLeavesTheOldFileAndNothingBesideIt) {
  TempDir dir;
  LIME_SKIP_WITHOUT(::mount("tmpfs", dir.path().c_str(), "tmpfs", 0, "size=64k") == 0, "the right to mount a tmpfs");
  const std::string old = std::string(kOurs) + "old", large(1 << 20, 'x');
  dir.Write("trace.json", old);
  EXPECT_EQ(WriteOutput(dir / "trace.json", large, Options()).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(WriteOutput(dir / "other.json", large, Options()).code(), absl::StatusCode::kResourceExhausted);
  fs::create_hard_link(dir / "trace.json", dir / "name");
  EXPECT_EQ(WriteOutput(dir / "name", large, Options()).code(), absl::StatusCode::kResourceExhausted);
  fs::remove(dir / "name");
  EXPECT_EQ(dir.Read("trace.json"), old);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 1);
  ::umount(dir.path().c_str());
}

TEST(NewFileTest, AFileThatIsNotCommittedIsNowhere) {
  TempDir dir;
  {
    absl::StatusOr<NewFile> file = NewFile::Create(dir / "a");
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE(WriteExactly(file->descriptor(), "a", 0, std::as_bytes(std::span("text"))).ok());
  }
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(NewFileTest, WhatIsStagedComesThroughLinksForItsOwnerAloneOnceItIsCommitted) {
  TempDir dir;
  fs::create_symlink("target", dir / "link");
  const OutputOptions secret{.overwrite = true, .secret = true};
  {
    absl::StatusOr<NewFile> file = PrepareOutput(dir / "link", "secret", secret);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_FALSE(fs::exists(dir / "target"));
    ASSERT_TRUE(file->Commit().ok());
  }
  EXPECT_TRUE(fs::is_symlink(dir / "link"));
  EXPECT_EQ(dir.Read("target"), "secret");
  EXPECT_EQ(fs::status(dir / "target").permissions(), fs::perms::owner_read | fs::perms::owner_write);
  fs::create_hard_link(dir / "target", dir / "name");
  EXPECT_THAT(std::string(PrepareOutput(dir / "name", "x", secret).status().message()), HasSubstr("a file with several names"));
}

TEST(OutputFolderTest, AFolderThatHoldsOtherThingsIsRefusedWithTheirNames) {
  TempDir dir;
  const auto check = [&](bool overwrite) {
    return CheckOutputFolder(dir / "out", {.what = "copy",
                                           .is_ours = [](const std::string& name) { return name == "mark"; },
                                           .names = {"config.json", "w.safetensors"},
                                           .overwrite = overwrite});
  };
  EXPECT_TRUE(check(false).ok());
  fs::create_directory(dir / "out");
  dir.Write("out/mark", "");
  EXPECT_TRUE(check(false).ok());
  dir.Write("out/config.json", "{}");
  dir.Write("out/photo.jpg", "");
  EXPECT_THAT(std::string(check(false).message()),
              HasSubstr("holds files other than the copy (config.json, photo.jpg); give an empty or a new folder, or --overwrite"));
  EXPECT_TRUE(check(true).ok());
  dir.Write("out/w.safetensors", "w");
  EXPECT_THAT(std::string(check(true).message()), HasSubstr("(w.safetensors), which LIME never replaces"));
  EXPECT_THAT(std::string(check(false).message()), Not(HasSubstr("--overwrite"))) << "which would not help";
  fs::remove(dir / "out/w.safetensors");
  // Not to be written, but the folder is another model's.
  for (const char* name : {"model.gguf", "pytorch_model.bin", "lime_store.partial", "lime_quantized.json"}) {
    dir.Write(std::string("out/") + name, "x");
    EXPECT_THAT(std::string(check(true).message()), HasSubstr(std::string("holds another model, or links (") + name + ")"));
    fs::remove(dir / (std::string("out/") + name));
  }
  fs::remove(dir / "out/config.json");
  fs::create_symlink("photo.jpg", dir / "out/config.json");
  EXPECT_THAT(std::string(check(true).message()), HasSubstr("links (config.json)"));
}

TEST(OutputFolderTest, OnlyFoldersThatWereMadeGoAgain) {
  TempDir dir;
  fs::create_directory(dir / "a");
  { EXPECT_TRUE(OutputFolder::Make(dir / "a/b/c", "lime").ok()); }
  EXPECT_TRUE(fs::exists(dir / "a"));
  EXPECT_FALSE(fs::exists(dir / "a/b"));
  {
    absl::StatusOr<OutputFolder> kept = OutputFolder::Make(dir / "a/b", "lime");
    ASSERT_TRUE(kept.ok());
    kept->Commit();
  }
  EXPECT_TRUE(fs::exists(dir / "a/b"));
}

TEST(OutputFolderTest, OneCallAloneWrites) {
  TempDir dir;
  {
    const absl::StatusOr<OutputFolder> first = OutputFolder::Make(dir / "a", "lime keys");
    ASSERT_TRUE(first.ok()) << first.status();
    const absl::Status second = OutputFolder::Make(dir / "a", "lime keys").status();
    EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(second.message()), HasSubstr("another `lime keys` is writing here; wait for it to end"));
    EXPECT_TRUE(fs::exists(dir / "a"));
  }
  EXPECT_TRUE(OutputFolder::Make(dir / "a", "lime keys").ok());
  dir.Write("file", "");
  EXPECT_THAT(std::string(OutputFolder::Make(dir / "file", "lime").status().message()), HasSubstr("is not a folder"));
  EXPECT_THAT(std::string(OutputFolder::Make(dir / "file/a", "lime").status().message()), HasSubstr("lies below a file"));
}

}  // namespace
}  // namespace lime
