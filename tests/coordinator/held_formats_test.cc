// How many formats may be in memory.
#include "coordinator/serving/held_formats.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// An object with so long keys that its grammar takes more than 1 MiB.
std::string LargeFormat(int number) {
  std::string properties;
  for (int i = 0; i < 50; ++i)
    absl::StrAppend(&properties, i > 0 ? "," : "", "\"", number, "_", i, "_", std::string(1000, static_cast<char>('a' + i % 26)), "\":{}");
  return absl::StrCat(R"({"schemas": [{"type": "object", "properties": {)", properties, R"(}}], "answer": {"value": 0}})");
}

TEST(HeldFormatsTest, FormatsOfRequestsThatHaveNotEndedAreBounded) {
  HeldFormats formats;
  std::vector<HeldFormats::Hold> holds;
  absl::StatusOr<HeldFormats::Hold> next = formats.Add(LargeFormat(0), {});
  for (int i = 1; next.ok() && i < 20; ++i) {
    holds.push_back(*std::move(next));
    next = formats.Add(LargeFormat(i), {});
  }
  EXPECT_EQ(next.status().code(), absl::StatusCode::kResourceExhausted) << next.status();
  EXPECT_THAT(std::string(next.status().message()), HasSubstr("need more than 8 MiB together"));
  EXPECT_FALSE(IsWrongFormat(next.status())) << "it may be sent again";
  EXPECT_TRUE(LacksFormatMemory(next.status()));
  ASSERT_GE(holds.size(), 4);
  for (int i = 0; i < 16; ++i) holds.push_back(formats.Add(LargeFormat(0), {}).value());  // the same one counts once
  holds.erase(holds.begin() + 1);                                                         // its request has ended
  EXPECT_TRUE(formats.Add(LargeFormat(30), {}).ok());
}

TEST(HeldFormatsTest, AWrongFormatIsRefused) {
  HeldFormats formats;
  const absl::Status wrong = formats.Add(R"({"schemas": [{"type": "strin"}], "answer": {"value": 0}})", {}).status();
  EXPECT_THAT(std::string(wrong.message()), StartsWith("#/type: "));
  EXPECT_TRUE(absl::IsInvalidArgument(wrong) && IsWrongFormat(wrong)) << wrong;
}

}  // namespace
}  // namespace lime
