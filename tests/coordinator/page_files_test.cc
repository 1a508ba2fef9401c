#include "coordinator/page/page_files.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::filesystem::path kFolder = std::filesystem::path(LIME_SOURCE_DIR) / "coordinator/page";

std::string BytesOf(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(PageFilesTest, EveryFileOfThePageIsAnsweredByteForByte) {
  std::set<std::string> in_folder;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    const std::string extension = entry.path().extension();
    if (extension == ".html" || extension == ".css" || extension == ".js" || extension == ".svg") in_folder.insert(entry.path().filename());
  }
  std::set<std::string> answered;
  for (const PageFile& file : PageFiles()) {
    const std::string name = file.path == "/" ? "index.html" : std::string(file.path.substr(1));
    EXPECT_TRUE(answered.insert(name).second) << name;
    EXPECT_EQ(file.bytes, BytesOf(kFolder / name)) << name;
    EXPECT_EQ(FindPageFile(file.path), &file);
  }
  EXPECT_EQ(answered, in_folder);
}

TEST(PageFilesTest, TypesAreThoseThatBrowsersAskForUnderNosniff) {
  EXPECT_EQ(FindPageFile("/")->content_type, "text/html; charset=utf-8");
  EXPECT_EQ(FindPageFile("/lime.css")->content_type, "text/css; charset=utf-8");
  EXPECT_EQ(FindPageFile("/lime.js")->content_type, "text/javascript; charset=utf-8");
  EXPECT_EQ(FindPageFile("/icon.svg")->content_type, "image/svg+xml");
}

TEST(PageFilesTest, NothingElseIsAFileOfThePage) {
  for (const std::string_view path :
       {"", "/index.html", "lime.js", "//lime.js", "/lime.js/", "/../page_files.cc", "/README.md", "/v1/models", "/LIME.js"}) {
    EXPECT_EQ(FindPageFile(path), nullptr) << path;
  }
}

TEST(PageFilesTest, TagsAreStrongAndDiffer) {
  std::set<std::string_view> tags;
  for (const PageFile& file : PageFiles()) {
    EXPECT_EQ(file.etag.size(), 34u) << file.etag;
    EXPECT_EQ(file.etag.find_first_not_of("0123456789abcdef", 1), 33u) << file.etag;
    EXPECT_TRUE(file.etag.starts_with('"') && file.etag.ends_with('"')) << file.etag;
    EXPECT_TRUE(tags.insert(file.etag).second) << file.path;
  }
}

TEST(PageFilesTest, ThePolicyAllowsNothingInlineAndNothingFromElsewhere) {
  std::set<std::string_view> names;
  for (const PageHeader& header : PageHeaders()) names.insert(header.name);
  EXPECT_THAT(names, ElementsAre("Cache-Control", "Content-Security-Policy", "Referrer-Policy", "X-Content-Type-Options"));
  const std::string_view policy = PageHeaders()[0].value;
  EXPECT_EQ(policy,
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
            "form-action 'none'; frame-ancestors 'none'");
  EXPECT_THAT(std::string(policy), ::testing::Not(HasSubstr("unsafe")));
}

TEST(PageFilesTest, AFileIsUnchangedForWhoeverHasItsTag) {
  const PageFile file = {"/a", "text/plain", "\"abc\"", "bytes"};
  for (const std::string_view has :
       {"\"abc\"", "W/\"abc\"", "*", " * ", "\"x\", \"abc\"", "\"x\",\t\"abc\" ,\"y\"", "W/\"x\",W/\"abc\"", ",,\"abc\""}) {
    EXPECT_TRUE(IsUnchanged(file, has)) << has;
  }
  for (const std::string_view lacks :
       {"", " ", ",", "\"ab\"", "abc", "\"abc", "w/\"abc\"", "\"*\"", "\"abcd\"", "W/W/\"abc\"", "\"x\", *"}) {
    EXPECT_FALSE(IsUnchanged(file, lacks)) << lacks;
  }
}

}  // namespace
}  // namespace lime
