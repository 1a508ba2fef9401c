#include "daemon/machine/unreadable_pages.h"

#include <signal.h>
#include <sys/mman.h>

#include "daemon/machine/mapped_file.h"
#include "gtest/gtest.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

constexpr Bytes kBytes = 64 * kKiB;

// Reads one byte of every page.
int Touch(const std::byte* data) {
  int sum = 0;
  for (const volatile std::byte* p = data; p < data + kBytes; p += 4096) sum += static_cast<int>(*p);
  return sum;
}

class UnreadablePagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
#ifdef LIME_SANITIZED
    GTEST_SKIP() << "sanitizers have a handler of their own";
#endif
    dir_.Write("first", std::string(kBytes, 'x'));
    dir_.Write("second", std::string(kBytes, 'x'));
  }
  TempDir dir_;
};

TEST_F(UnreadablePagesTest, ATruncatedFileEndsTheProgramWithItsName) {
  for (const bool populated : {false, true}) {
    EXPECT_EXIT(
        {
          ExitOnUnreadablePages();
          const auto first = *MappedFile::Map(dir_.file("first"), kBytes);
          const auto second = *MappedFile::Map(dir_.file("second"), kBytes);
          if (populated && !second->Populate(0, kBytes).ok()) _exit(3);
          std::filesystem::resize_file(second->path(), 0);
          Touch(first->data());
          Touch(second->data());
          _exit(4);
        },
        ::testing::ExitedWithCode(1), "^lime: .*/second: cannot be read any more: it was truncated .*\n$")
        << "populated " << populated;
    dir_.Write("second", std::string(kBytes, 'x'));
  }
}

TEST_F(UnreadablePagesTest, OtherBusErrorsKeepTheirMeaning) {
  EXPECT_EXIT(
      {
        ExitOnUnreadablePages();
        { const auto gone = *MappedFile::Map(dir_.file("first"), kBytes); }
        const FileDescriptor file = *OpenForReading(dir_.file("first"));
        void* const data = mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
        std::filesystem::resize_file(dir_.file("first"), 0);
        Touch(static_cast<const std::byte*>(data));
        _exit(4);
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace lime
