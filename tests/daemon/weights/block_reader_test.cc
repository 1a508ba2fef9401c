#include "daemon/machine/block_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <set>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "daemon/machine/huge_buffer.h"
#include "tests/daemon/weights/faulty_device.h"
#include "tests/skips.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Bytes kFileBytes = 3 * kMiB + 1234;

std::string Contents() {
  std::string text(kFileBytes, '\0');
  uint32_t x = 1;
  for (char& c : text) c = static_cast<char>((x = x * 1664525u + 1013904223u) >> 24);
  return text;
}

// Each way of reading, by direct and io_uring.
class BlockReaderTest : public ::testing::TestWithParam<std::pair<bool, bool>> {
 protected:
  BlockReaderTest() : contents_(Contents()) { dir_.Write("data", contents_); }

  std::unique_ptr<BlockReader> MakeReader(FaultyDevice::Plan plan = nullptr) {
    auto device = OpenBlockDevice({dir_.file("data")}, {.channels = 3, .direct = GetParam().first, .io_uring = GetParam().second});
    LIME_CHECK(device.ok()) << device.status();
    if (plan) device = std::make_unique<FaultyDevice>(*std::move(device), std::move(plan));
    return std::make_unique<BlockReader>(*std::move(device), BlockReader::Options{.read_bytes = 64 * kKiB});
  }

  // Reads one extent and compares it with the file.
  absl::Status ReadAndCompare(BlockReader& reader, int64_t offset, Bytes bytes) {
    const Extent extent{0, offset, bytes};
    absl::StatusOr<HugeBuffer> slot = HugeBuffer::Allocate(reader.BufferBytes(extent) + 4096);
    LIME_RETURN_IF_ERROR(slot.status());
    absl::Notification done;
    absl::Status result;
    reader.StartRead(extent, slot->data(), [&](absl::Status status) {
      result = std::move(status);
      done.Notify();
    });
    done.WaitForNotification();
    if (result.ok()) {
      EXPECT_EQ(std::memcmp(slot->data() + reader.BufferOffset(extent), contents_.data() + offset, static_cast<size_t>(bytes)), 0)
          << "offset " << offset << " bytes " << bytes;
    }
    return result;
  }

  TempDir dir_;
  const std::string contents_;
};

TEST_P(BlockReaderTest, AnyOffsetAndLengthArrives) {
  const auto reader = MakeReader();
  for (const auto& [offset, bytes] : std::vector<std::pair<int64_t, Bytes>>{{0, kFileBytes},
                                                                            {0, 1},
                                                                            {1, 1},
                                                                            {4095, 2},
                                                                            {4096, 4096},
                                                                            {12345, 700'001},
                                                                            {kFileBytes - 1, 1},
                                                                            {kFileBytes - 5000, 5000},
                                                                            {77, 0},
                                                                            {65536, 131072}}) {
    EXPECT_TRUE(ReadAndCompare(*reader, offset, bytes).ok());
  }
  EXPECT_GT(reader->bytes_read(), kFileBytes);
}

TEST_P(BlockReaderTest, ShortReadsAreContinued) {
  int count = 0;
  const auto reader =
      MakeReader([&](const FaultyDevice::Read&) -> FaultyDevice::Fault { return {.shortened_to = ++count % 3 ? -1 : 8192}; });
  EXPECT_TRUE(ReadAndCompare(*reader, 1000, kFileBytes - 1000).ok());
}

TEST_P(BlockReaderTest, AnInterruptedReadIsRepeated) {
  std::set<int64_t> seen;
  const auto reader = MakeReader(
      [&](const FaultyDevice::Read& read) -> FaultyDevice::Fault { return {.error = seen.insert(read.offset).second ? EINTR : 0}; });
  EXPECT_TRUE(ReadAndCompare(*reader, 0, kFileBytes).ok());
}

TEST_P(BlockReaderTest, ADiskErrorThatPassesIsSurvived) {
  int failures = 3;
  const auto reader = MakeReader([&](const FaultyDevice::Read& read) -> FaultyDevice::Fault {
    return {.error = read.offset == 128 * kKiB && failures-- > 0 ? EIO : 0};
  });
  EXPECT_TRUE(ReadAndCompare(*reader, 0, kFileBytes).ok());
}

TEST_P(BlockReaderTest, ADiskErrorThatStaysNamesFileAndOffset) {
  int attempts = 0;
  const auto reader = MakeReader([&](const FaultyDevice::Read& read) -> FaultyDevice::Fault {
    if (read.offset != kMiB) return {};
    ++attempts;
    return {.error = EIO};
  });
  const absl::Status status = ReadAndCompare(*reader, 0, kFileBytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(dir_.file("data")), HasSubstr("at offset 1048576 failed 4 times"), HasSubstr("Input/output error")));
  EXPECT_EQ(attempts, 4) << "bounded";
  EXPECT_TRUE(ReadAndCompare(*reader, 0, 4096).ok()) << "the reader serves the next request";
}

TEST_P(BlockReaderTest, AFileTruncatedAfterItWasOpenedIsDataLoss) {
  const auto reader = MakeReader();
  std::filesystem::resize_file(dir_.file("data"), kMiB + 100);
  const absl::Status status = ReadAndCompare(*reader, 0, kFileBytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(dir_.file("data")), HasSubstr("ends at or before offset 1"), HasSubstr("truncated")));
}

TEST_P(BlockReaderTest, CancelEndsEveryRequestAndTheReaderLivesOn) {
  absl::StatusOr<HugeBuffer> slot = HugeBuffer::Allocate(2 * kFileBytes);
  ASSERT_TRUE(slot.ok());
  std::atomic<int> cancelled = 0;
  absl::BlockingCounter ended(50);
  absl::Notification cancel_has_come;
  const auto reader = MakeReader();  // last: its destructor waits for reads into what is above
  for (int i = 0; i < 50; ++i) {
    reader->StartRead({0, 0, kFileBytes}, slot->data(), [&](const absl::Status& status) {
      cancel_has_come.WaitForNotification();  // however fast the disk is, most reads are under way or wait by then
      cancelled += absl::IsCancelled(status);
      ended.DecrementCount();
    });
  }
  reader->Cancel();
  cancel_has_come.Notify();
  EXPECT_TRUE(ReadAndCompare(*reader, 5, 100).ok());
  // A read that was in flight when Cancel came may end after the one above, which took another
  // channel.
  ended.Wait();
  EXPECT_GT(cancelled, 40);
}

TEST_P(BlockReaderTest, CancelOfATagEndsItsRequestsAlone) {
  absl::StatusOr<HugeBuffer> slot = HugeBuffer::Allocate(2 * kFileBytes);
  ASSERT_TRUE(slot.ok());
  std::atomic<int> cancelled = 0, others = 0;
  absl::BlockingCounter ended(40);
  absl::Notification cancel_has_come;
  const auto reader = MakeReader();
  for (int i = 0; i < 40; ++i) {
    const int64_t tag = i % 2;
    const auto done = [&, tag](const absl::Status& status) {
      cancel_has_come.WaitForNotification();
      (tag == 1 ? cancelled : others) += absl::IsCancelled(status);
      ended.DecrementCount();
    };
    reader->StartRead({0, 0, kFileBytes}, slot->data(), done, tag);
  }
  reader->Cancel(/*tag=*/1);
  cancel_has_come.Notify();
  ended.Wait();
  EXPECT_GT(cancelled, 15);
  EXPECT_EQ(others, 0);
}

TEST_P(BlockReaderTest, DestructionWaitsForEveryCompletion) {
  absl::StatusOr<HugeBuffer> slot = HugeBuffer::Allocate(2 * kFileBytes);
  ASSERT_TRUE(slot.ok());
  std::atomic<int> ended = 0;
  {
    const auto reader = MakeReader();
    for (int i = 0; i < 10; ++i) reader->StartRead({0, 0, kFileBytes}, slot->data(), [&](const absl::Status&) { ++ended; });
  }
  EXPECT_EQ(ended, 10);
}

INSTANTIATE_TEST_SUITE_P(Ways, BlockReaderTest,
                         ::testing::Values(std::pair(true, true), std::pair(true, false), std::pair(false, true), std::pair(false, false)),
                         [](const auto& info) {
                           return std::string(info.param.first ? "Direct" : "Buffered") + (info.param.second ? "Uring" : "Threads");
                         });

TEST(BlockDeviceTest, AMissingFileIsNamed) {
  EXPECT_THAT(std::string(OpenBlockDevice({"/nowhere/x"}, {}).status().message()), HasSubstr("/nowhere/x: cannot open"));
}

TEST(BlockDeviceTest, FilesInMemoryAreReadWhetherOrNotTheyAllowDirectReads) {
  LIME_SKIP_WITHOUT(std::filesystem::is_directory("/dev/shm"), "a tmpfs at /dev/shm");
  TempDir dir("/dev/shm");
  dir.Write("data", "hello");
  auto device = OpenBlockDevice({dir.file("data")}, {});
  ASSERT_TRUE(device.ok()) << device.status();
  BlockReader reader(*std::move(device), {});
  alignas(4096) char slot[8192] = {};
  absl::Notification done;
  const Extent extent{0, 1, 3};
  reader.StartRead(extent, reinterpret_cast<std::byte*>(slot), [&](const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_EQ(std::string(slot + reader.BufferOffset(extent), 3), "ell");
}

}  // namespace
}  // namespace lime
