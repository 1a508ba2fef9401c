#include "planner/base/bytes.h"

#include "gtest/gtest.h"
#include "planner/base/dtype.h"

namespace lime {
namespace {

TEST(BytesTest, ReadsUnitsOfBothKinds) {
  EXPECT_EQ(*ParseBytes("123"), 123);
  EXPECT_EQ(*ParseBytes("2GiB"), 2 * kGiB);
  EXPECT_EQ(*ParseBytes(" 1.5 GB "), 1500000000);
  EXPECT_EQ(*ParseBytes("512m"), 512 * kMiB);
}

TEST(BytesTest, RefusesWhatIsNoSize) {
  for (const char* text : {"", "GiB", "-1", "1.2.3", "5 parsecs", "99999999TiB", "nan"}) EXPECT_FALSE(ParseBytes(text).ok()) << text;
}

TEST(BytesTest, PrintsForPeople) {
  EXPECT_EQ(FormatBytes(12), "12 B");
  EXPECT_EQ(FormatBytes(1536 * kMiB), "1.50 GiB");
}

TEST(DTypeTest, NamesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(DType::kF64); ++i) {
    const DType dtype = static_cast<DType>(i);
    EXPECT_EQ(kDTypeNames.Find(DTypeName(dtype)), dtype);
  }
  EXPECT_FALSE(kDTypeNames.Find("F4").has_value());
  EXPECT_EQ(ElementBytes(DType::kBF16), 2);
  EXPECT_EQ(ElementBytes(DType::kU32), 4);
  EXPECT_EQ(ElementBytes(DType::kF64), 8);
}

}  // namespace
}  // namespace lime
