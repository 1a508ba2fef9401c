#include "daemon/engine/cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "daemon/engine/process_memory.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

TEST(CoresTest, ListsAreNumbersAndRangesOfCoresThatMayBeUsed) {
  const Cores all = OtherCores({});
  ASSERT_FALSE(all.empty());
  const std::string first = std::to_string(all.front());
  EXPECT_EQ(*ParseCores(first), Cores{all.front()});
  EXPECT_EQ(*ParseCores(first + "," + first + "-" + first), Cores{all.front()});
  for (const char* const wrong : {"", ",", "a", "-1", "1-", "0x1", "3-1", "1;2", "99999999999"}) {
    EXPECT_THAT(std::string(ParseCores(wrong).status().message()), HasSubstr("is not a list of cores")) << wrong;
  }
  for (const char* const absent : {"1000000", "1000000-2000000000"}) {
    EXPECT_THAT(std::string(ParseCores(absent).status().message()), HasSubstr("core 1000000 is not available to this process")) << absent;
  }
}

TEST(CoresTest, AThreadKeepsToThemForAWhileAndThoseItMakesForGood) {
  const Cores all = OtherCores({}), one = {all.back()};
  int inside = 0, made = 0;
  std::thread worker;
  {
    const ScopedCoreBinding binding(one);
    inside = UsableCores();
    worker = std::thread([&] { made = UsableCores(); });
  }
  worker.join();
  EXPECT_EQ(inside, 1);
  EXPECT_EQ(made, 1);
  EXPECT_EQ(UsableCores(), std::ssize(all));
  EXPECT_EQ(std::ssize(OtherCores(one)), std::ssize(all) - 1);
  const ScopedCoreBinding any({});
  EXPECT_EQ(UsableCores(), std::ssize(all));
}

}  // namespace
}  // namespace lime
