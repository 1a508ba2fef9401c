#include "planner/base/foreign_file.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/json_text.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

std::string ForeignFileError(std::string_view beginning) {
  return std::string(RefuseForeignFile(beginning, "the.file").message());
}

TEST(ForeignFileTest, WhatLiesInPlaceOfAFileIsNamedWithItsRemedy) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1048576\n";
  EXPECT_THAT(ForeignFileError(pointer), HasSubstr("the.file: is a pointer of git-lfs, not the file itself; fetch it with `git lfs pull`"));
  for (const char* old :
       {"version http://git-media.io/v/2\noid sha256:4d7a\nsize 7\n", "version https://hawser.github.com/spec/v1\noid sha256:4d\n"})
    EXPECT_THAT(ForeignFileError(old), HasSubstr("is a pointer of git-lfs"));
  EXPECT_THAT(ForeignFileError("# xet version 0\nfilesize = 14\n"), HasSubstr("is a pointer of git-xet"));
  EXPECT_THAT(ForeignFileError("/annex/objects/SHA256E-s7--4d7a\n"), HasSubstr("is a pointer of git-annex"));
  EXPECT_THAT(ForeignFileError("\n <!DOCTYPE html><html>"), HasSubstr("is a web page"));
  EXPECT_THAT(ForeignFileError("\xef\xbb\xbf<HTML lang=en>"), HasSubstr("is a web page"));
  EXPECT_THAT(ForeignFileError("<?xml version=\"1.0\"?><Error><Code>AccessDenied"), HasSubstr("is an XML document"));
  EXPECT_THAT(ForeignFileError("GGUF\x03"), HasSubstr("is a GGUF file"));
  EXPECT_THAT(ForeignFileError("PK\x03\x04"), HasSubstr("convert it to safetensors"));
  EXPECT_THAT(std::string(ParsePythonJson(pointer, "config.json").status().message()), HasSubstr("config.json: is a pointer of git-lfs"));
}

TEST(ForeignFileTest, TextInPlaceOfWeightsIsShown) {
  const auto error = [](std::string_view beginning) { return std::string(RefuseTextFile(beginning, "w").message()); };
  EXPECT_THAT(error("{\"error\":\"Repository not found\"}\nmore"),
              HasSubstr("w: is a text file that begins with \"{\\\"error\\\":\\\"Repository not found\\\"}\", not weights; download"));
  EXPECT_THAT(error("Entry not found"), HasSubstr("begins with \"Entry not found\""));
  EXPECT_THAT(error("<!doctype html>"), HasSubstr("is a web page"));
  EXPECT_EQ(error(std::string_view("\x10\0\0\0\0\0\0\0{}", 10)), "");
  EXPECT_EQ(error(""), "");
}

TEST(ForeignFileTest, EverythingElseIsLeftToItsReader) {
  for (const std::string_view text : {"", "{", "{\"version\": \"https://git-lfs.github.com/\"}", "version 1", "#version: 0.2\nh e\n"})
    EXPECT_TRUE(RefuseForeignFile(text, "f").ok()) << text;
}

}  // namespace
}  // namespace lime
