// What a machine says of itself for `lime doctor`.
#include "daemon/inspect/inspect.h"

#include <sys/stat.h>
#include <unistd.h>

#include "daemon/weights/system_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::time_t kNow = 1'800'000'000, kDay = 86400;

TEST(InspectTest, ABudgetIsHeldAgainstTheMachineAndTheProgramItself) {
  const Finding beyond = InspectMemory(MachineMemory() + kGiB, 0);
  EXPECT_EQ(beyond.grade, Grade::kFail);
  EXPECT_THAT(beyond.remedy, HasSubstr("start it with --memory of at most"));
  const Finding below = InspectMemory(100 * kMiB, 170 * kMiB);
  EXPECT_EQ(below.grade, Grade::kFail);
  EXPECT_THAT(below.what, HasSubstr("itself it takes 170.00 MiB"));
  EXPECT_EQ(InspectMemory(0, 0).grade, Grade::kOk);
  EXPECT_EQ(InspectMemory(MachineMemory(), 0).grade, Grade::kWarn) << "all of it is never free";
}

TEST(InspectTest, ADiskTellsItsRoomRateAndHowItIsRead) {
  const TempDir dir;
  EXPECT_THAT(InspectDisk("disk", dir.path(), false, 0).what, HasSubstr("nothing there to measure reads with"));
  dir.Write("model.safetensors", std::string(4 << 20, 'x'));
  const Finding finding = InspectDisk("disk", dir.path(), false, 0.1);
  EXPECT_NE(finding.grade, Grade::kFail);
  EXPECT_THAT(finding.what, AllOf(HasSubstr(dir.path() + ": "), HasSubstr(" free; "), HasSubstr(" GB/s, ")));
}

TEST(InspectTest, AStoreThatIsMadeLaterLiesOnTheDiskOfItsParent) {
  const TempDir dir;
  EXPECT_NE(InspectDisk("disk", dir / "later/on", true, 0).grade, Grade::kFail);
  EXPECT_EQ(InspectDisk("disk", dir / "later/on", false, 0).grade, Grade::kFail) << "weights have to be there";
  dir.Write("file", "");
  EXPECT_EQ(InspectDisk("disk", dir / "file", true, 0).grade, Grade::kFail);
  EXPECT_EQ(InspectStore(dir / "later/on").grade, Grade::kOk);
}

TEST(InspectTest, AStoreThatMayNotBeWrittenFails) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  const TempDir dir;
  chmod(dir.path().c_str(), 0500);
  EXPECT_THAT(InspectDisk("disk", dir.path(), true, 0).what, HasSubstr("limed may not write there"));
  chmod(dir.path().c_str(), 0700);
}

TEST(InspectTest, WeightsThatCannotBeReadAreAFault) {
  const TempDir dir;
  const Finding finding = InspectWeights(dir.path());
  EXPECT_EQ(finding.grade, Grade::kFail);
  EXPECT_THAT(finding.what, HasSubstr(dir.path()));
}

TEST(InspectTest, ExpiryIsToldThirtyDaysAhead) {
  EXPECT_EQ(InspectExpiry("its keys", kNow + 31 * kDay, kNow, "renew").grade, Grade::kOk);
  const Finding soon = InspectExpiry("its keys", kNow + 29 * kDay, kNow, "renew");
  EXPECT_EQ(soon.grade, Grade::kWarn);
  EXPECT_EQ(soon.what, "its keys expire in 29 days, on 2027-02-13 08:00 UTC");
  EXPECT_EQ(soon.remedy, "renew");
  EXPECT_EQ(InspectExpiry("its keys", kNow, kNow, "renew").grade, Grade::kFail);
}

}  // namespace
}  // namespace lime
