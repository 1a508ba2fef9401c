#include "daemon/machine/system_memory.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "gtest/gtest.h"

namespace lime {
namespace {

// A cgroup tree of files in a folder of its own.
class CgroupRoomTest : public ::testing::Test {
 protected:
  CgroupRoomTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "lime_cgroup_XXXXXX";
    root_ = mkdtemp(pattern.data());
  }
  ~CgroupRoomTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  Bytes Room(const std::string& self) {
    std::istringstream in(self);
    return CgroupRoom(in, root_, 10000);
  }

  std::string root_;
};

TEST_F(CgroupRoomTest, WithoutLimitsEverythingIsRoom) {
  Write("a/memory.max", "max\n");
  EXPECT_EQ(Room("0::/a\n"), 10000);
  EXPECT_EQ(Room(""), 10000);
  EXPECT_EQ(Room("nonsense\n:\n"), 10000);
}

TEST_F(CgroupRoomTest, VersionTwoLeavesLimitLessUsePlusPageCache) {
  Write("a/b/memory.max", "5000\n");
  Write("a/b/memory.current", "3000\n");
  Write("a/b/memory.stat", "anon 2500\nactive_file 300\ninactive_file 200\n");
  EXPECT_EQ(Room("0::/a/b\n"), 2500);
  EXPECT_EQ(Room("0::/a/b/c\n"), 2500) << "limits of the groups above hold too";
}

TEST_F(CgroupRoomTest, VersionOneHasNamesOfItsOwn) {
  Write("memory/box/memory.limit_in_bytes", "4000\n");
  Write("memory/box/memory.usage_in_bytes", "1000\n");
  Write("memory/box/memory.stat", "total_inactive_file 100\ntotal_active_file 0\n");
  EXPECT_EQ(Room("12:cpu,cpuacct:/box\n9:memory:/box\n"), 3100);
  EXPECT_EQ(Room("12:cpu,cpuacct:/box\n"), 10000);
}

TEST_F(CgroupRoomTest, TheLowestLimitNamesItsGroupOfEitherVersion) {
  Write("a/memory.max", "5000\n");
  Write("a/b/memory.max", "7000\n");
  Write("memory/box/memory.limit_in_bytes", "4000\n");
  const auto lowest = [&](const std::string& self, Bytes machine) {
    std::istringstream in(self);
    return LowestMemoryLimit(MemoryGroups(in, root_), machine);
  };
  EXPECT_EQ(lowest("0::/a/b\n", 10000).bytes, 5000);
  EXPECT_EQ(lowest("0::/a/b\n", 10000).group, root_ + "/a/");
  EXPECT_EQ(lowest("9:memory:/box\n", 10000).group, root_ + "/memory/box/");
  EXPECT_EQ(lowest("0::/a/b\n", 3000).bytes, 3000);
  EXPECT_EQ(lowest("0::/a/b\n", 3000).group, "");
  EXPECT_EQ(lowest("", 10000).bytes, 10000);
}

TEST_F(CgroupRoomTest, WhereTasksAreThrottledIsALimit) {
  Write("a/memory.max", "9000\n");
  Write("a/memory.high", "6000\n");
  Write("a/memory.current", "1000\n");
  EXPECT_EQ(Room("0::/a\n"), 5000);
  Write("a/memory.max", "max\n");
  EXPECT_EQ(Room("0::/a\n"), 5000);
}

TEST_F(CgroupRoomTest, BothVersionsSideBySideHaveVersionTwoInAFolderOfItsOwn) {
  Write("unified/a/memory.max", "4000\n");
  EXPECT_EQ(Room("0::/a\n"), 4000);
  std::istringstream self("4:memory:/x/y\n0::/a\n");
  std::string folders;
  for (const MemoryGroup& group : MemoryGroups(self, root_)) folders += group.folder.substr(root_.size()) + (group.v2 ? "2 " : "1 ");
  EXPECT_EQ(folders, "/memory/x/y/1 /memory/x/1 /memory/1 /unified/a/2 /unified/2 ");
}

TEST(SystemMemoryTest, TheMachineHasMoreThanIsAvailable) {
  EXPECT_GT(AvailableMemory(), 0);
  EXPECT_GE(MachineMemory(), AvailableMemory());
}

TEST_F(CgroupRoomTest, TheRootGroupLimitsToo) {
  Write("memory/memory.limit_in_bytes", "700\n");
  Write("memory/memory.usage_in_bytes", "900\n");
  EXPECT_EQ(Room("9:memory:/\n"), 0) << "more than all is in use";
}

}  // namespace
}  // namespace lime
