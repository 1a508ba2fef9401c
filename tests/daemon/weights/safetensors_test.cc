#include "daemon/formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "daemon/stores/safetensors_writer.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The error of a header in a file with `data_bytes` bytes of data.
std::string ErrorOf(const std::string& json, int64_t data_bytes) {
  const absl::StatusOr<SafetensorsHeader> header =
      ParseSafetensorsHeader(json, kSafetensorsLengthBytes + static_cast<int64_t>(json.size()) + data_bytes, "m.safetensors");
  return header.ok() ? "no error" : std::string(header.status().message());
}

absl::StatusOr<int64_t> LengthOf(uint64_t length, int64_t file_bytes) {
  std::byte prefix[8];
  std::memcpy(prefix, &length, sizeof(prefix));
  return ParseSafetensorsLength(prefix, file_bytes, "m.safetensors");
}

TEST(SafetensorsTest, TensorsComeInFileOrderWithOffsetsFromTheBeginningOfTheFile) {
  const std::string json = R"({"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},"__metadata__":{"format":"pt"},)"
                           R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"none":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}})";
  const absl::StatusOr<SafetensorsHeader> header =
      ParseSafetensorsHeader(json, 8 + static_cast<int64_t>(json.size()) + 16, "m.safetensors");
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->tensors.size(), 3u);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[1].name, "none");
  EXPECT_EQ(header->tensors[2].name, "b");
  EXPECT_EQ(header->tensors[2].offset, 8 + static_cast<int64_t>(json.size()) + 4);
  EXPECT_EQ(header->tensors[2].info.dtype, DType::kBF16);
  EXPECT_EQ(header->tensors[2].info.bytes, 12);
  EXPECT_THAT(header->tensors[2].info.shape, testing::ElementsAre(2, 3));
  EXPECT_EQ(header->metadata.at("format"), "pt");
}

TEST(SafetensorsTest, AFileShorterThanTheLengthFieldIsRefused) {
  EXPECT_THAT(std::string(ParseSafetensorsLength({}, 3, "m.safetensors").status().message()), HasSubstr("m.safetensors: has 3 bytes"));
}

TEST(SafetensorsTest, AHeaderLongerThanTheFileIsRefused) {
  EXPECT_EQ(*LengthOf(92, 100), 92);
  EXPECT_THAT(std::string(LengthOf(93, 100).status().message()), HasSubstr("header has 93 bytes, but the file has 100"));
  EXPECT_FALSE(LengthOf(~uint64_t{0}, 100).ok());
}

TEST(SafetensorsTest, AHeaderBeyondTheLimitOfTheFormatIsRefused) {
  EXPECT_TRUE(LengthOf(100'000'000, int64_t{1} << 40).ok());
  EXPECT_THAT(std::string(LengthOf(100'000'001, int64_t{1} << 40).status().message()), HasSubstr("the limit is 100000000"));
}

TEST(SafetensorsTest, BrokenJsonNamesTheByte) {
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"F32",)", 4), HasSubstr("m.safetensors: safetensors header is not valid JSON in UTF-8 at byte 21"));
  EXPECT_THAT(ErrorOf("", 0), HasSubstr("is not valid JSON"));
  EXPECT_THAT(ErrorOf("{} trailing", 0), HasSubstr("is not valid JSON"));
}

TEST(SafetensorsTest, BrokenUtf8InANameIsRefused) {
  EXPECT_THAT(ErrorOf("{\"\xff\xfe\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4), HasSubstr("not valid JSON in UTF-8"));
}

TEST(SafetensorsTest, AHeaderThatIsNoObjectIsRefused) {
  EXPECT_THAT(ErrorOf("[]", 0), HasSubstr("has an array at the top"));
  EXPECT_THAT(ErrorOf("7", 0), HasSubstr("has a number at the top"));
}

TEST(SafetensorsTest, ATensorListedTwiceIsRefused) {
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2),
              HasSubstr("lists tensor \"a\" twice"));
}

TEST(SafetensorsTest, AFieldThatComesTwiceIsRefused) {
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1), HasSubstr("field dtype twice"));
}

TEST(SafetensorsTest, AnUnknownFieldIsRefused) {
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"stride":[1]}})", 1),
              HasSubstr("tensor \"a\" has the unknown field \"stride\""));
}

TEST(SafetensorsTest, AMissingFieldIsRefused) {
  EXPECT_THAT(ErrorOf(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1), HasSubstr("tensor \"a\" lacks the field dtype"));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1), HasSubstr("lacks the field shape"));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","shape":[1]}})", 1), HasSubstr("lacks the field data_offsets"));
}

TEST(SafetensorsTest, ADtypeThatIsNotKnownIsLeftToWhoeverNeedsTheTensor) {
  const std::string json = R"({"a":{"dtype":"F4","shape":[6],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})";
  const auto header = ParseSafetensorsHeader(json, 8 + static_cast<int64_t>(json.size()) + 4, "m.safetensors");
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors[0].unknown_dtype, "F4");
  EXPECT_EQ(header->tensors[0].info.bytes, 3) << "as its offsets say";
  EXPECT_EQ(header->tensors[1].unknown_dtype, "");
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"F4","shape":[6],"data_offsets":[0,3]}})", 2), HasSubstr("beyond the file's 2 data bytes"));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"F4","shape":[6],"data_offsets":[1,3]}})", 3), HasSubstr("hole"));
}

TEST(SafetensorsTest, ANegativeDimensionIsRefused) {
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1),
              HasSubstr("the negative number -1 in field shape of tensor \"a\""));
}

TEST(SafetensorsTest, AFractionalOrHugeNumberIsRefused) {
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1), HasSubstr("not a 64-bit integer in field shape"));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]}})", 1), HasSubstr("not a 64-bit integer"));
}

TEST(SafetensorsTest, AShapeThatOverflowsIsRefused) {
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0),
              HasSubstr("tensor \"a\" has a shape whose size overflows 64 bits"));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,0]}})", 0), HasSubstr("overflows"));
}

TEST(SafetensorsTest, NestedValuesAreRefused) {
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1), HasSubstr("has an array in field shape"));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":{},"shape":[1],"data_offsets":[0,1]}})", 1), HasSubstr("has an object in field dtype"));
  EXPECT_THAT(ErrorOf(R"({"a":null})", 1), HasSubstr("has null for tensor \"a\""));
  EXPECT_THAT(ErrorOf(R"({"__metadata__":{"a":1}})", 0), HasSubstr("has a number for metadata \"a\""));
}

TEST(SafetensorsTest, OffsetsBeyondTheFileNameTensorAndOffsets) {
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", 7),
              AllOf(HasSubstr("tensor \"a\" has data_offsets [0, 8) beyond the file's 7 data bytes"), HasSubstr("truncated")));
}

TEST(SafetensorsTest, OffsetsThatRunBackwardsAreRefused) {
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[5,4]}})", 8), HasSubstr("data_offsets [5, 4) that run backwards"));
}

TEST(SafetensorsTest, ThreeOffsetsAreRefused) {
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1), HasSubstr("has 3 data_offsets"));
}

TEST(SafetensorsTest, ASizeThatIsNotShapeTimesDtypeIsRefused) {
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"BF16","shape":[3],"data_offsets":[0,8]}})", 8),
              HasSubstr("data_offsets [0, 8) of 8 bytes, but dtype and shape need 6 bytes"));
}

TEST(SafetensorsTest, OverlappingTensorsAreNamedWithTheirOffsets) {
  const std::string json = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})";
  const int64_t data = 8 + static_cast<int64_t>(json.size());
  EXPECT_THAT(ErrorOf(json, 7), AllOf(HasSubstr("tensor \"b\" begins at file offset " + std::to_string(data + 3)),
                                      HasSubstr("a ends at " + std::to_string(data + 4)), HasSubstr("overlap")));
}

TEST(SafetensorsTest, AHoleBetweenTensorsIsRefused) {
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})", 9),
              HasSubstr("there is a hole between them"));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}})", 5), HasSubstr("hole"));
}

TEST(SafetensorsTest, BytesAfterTheLastTensorAreRefused) {
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 5), HasSubstr("the last tensor ends at offset"));
}

TEST(SafetensorsTest, ALongHostileNameIsShortenedAndEscaped) {
  const std::string error = ErrorOf("{\"" + std::string(100'000, 'x') + R"(\u0007":{"dtype":"?","shape":[],"data_offsets":[0,0]}})", 0);
  EXPECT_LT(error.size(), 400u);
}

TEST(SafetensorsTest, ATruncatedFileIsRefusedWithItsPath) {
  TempDir dir;
  dir.Write("m.safetensors", std::string("\x10\0\0\0\0\0\0\0{\"a\":", 13));
  EXPECT_THAT(std::string(ReadSafetensorsHeader(dir.file("m.safetensors")).status().message()),
              AllOf(HasSubstr(dir.file("m.safetensors")), HasSubstr("header has 16 bytes, but the file has 13")));
}

TEST(SafetensorsWriterTest, WhatIsWrittenReadsBackAlignedAndInOrder) {
  TempDir dir;
  const std::string path = dir.file("out.safetensors");
  auto writer = SafetensorsWriter::Create(path, {{"z", DType::kU8, {3}}, {"a", DType::kF32, {2}}}, {.alignment = 4096});
  ASSERT_TRUE(writer.ok()) << writer.status();
  const std::string a = "abcdefgh", z = "xyz";
  ASSERT_TRUE((*writer)->Write(1, 4, std::as_bytes(std::span(a).subspan(4))).ok());
  ASSERT_TRUE((*writer)->Write(1, 0, std::as_bytes(std::span(a).first(4))).ok());
  ASSERT_TRUE((*writer)->Write(0, 0, std::as_bytes(std::span(z))).ok());
  EXPECT_FALSE(std::filesystem::exists(path)) << "looks complete before Finish";
  ASSERT_TRUE((*writer)->Finish().ok());
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));

  const absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(path);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->data_begin % 4096, 0);
  EXPECT_EQ(header->tensors[0].name, "z");
  const std::string file = dir.Read("out.safetensors");
  EXPECT_EQ(file.substr(static_cast<size_t>(header->tensors[0].offset)), "xyzabcdefgh");
}

TEST(SafetensorsWriterTest, AnUnfinishedFileIsRefusedAndRemoved) {
  TempDir dir;
  const std::string path = dir.file("out.safetensors");
  {
    auto writer = SafetensorsWriter::Create(path, {{"a", DType::kU8, {3}}});
    ASSERT_TRUE(writer.ok());
    EXPECT_THAT(std::string((*writer)->Finish().message()), HasSubstr("0 of 3 tensor bytes were written"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

}  // namespace
}  // namespace lime
