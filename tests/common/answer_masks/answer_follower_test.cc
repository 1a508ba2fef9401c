#include "common/answer_masks/answer_follower.h"

#include <gmock/gmock.h>

#include <string>
#include <string_view>
#include <vector>

namespace lime::json_schema {
namespace {

using testing::HasSubstr;

constexpr char kCall[] = R"("schemas": [{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}],
  "answer": {"sequence": ["<call>{\"a\": ", {"value": 0}, "}</call>"]})";

std::string Format(const std::string& more) {
  return "{" + std::string(kCall) + (more.empty() ? "" : ", " + more) + "}";
}

AnswerFormatPtr Compile(const std::string& format) {
  const absl::StatusOr<AnswerFormatPtr> compiled = CompileFormat(format);
  EXPECT_TRUE(compiled.ok()) << compiled.status() << "\n" << format;
  return compiled.ok() ? *compiled : nullptr;
}

// "free": no mask; "needs N": the mask has begun, and so many bytes are needed; for tokens that are
// pushed one after another.
std::string After(const AnswerFormatPtr& format, const std::vector<std::string>& tokens) {
  AnswerFollower follower(format);
  for (const std::string& token : tokens) follower.Push(token);
  return follower.matcher() == nullptr ? "free" : "needs " + std::to_string(follower.matcher()->LeastBytes());
}

std::vector<std::string> EachByte(std::string_view text) {
  std::vector<std::string> bytes;
  for (const char byte : text) bytes.emplace_back(1, byte);
  return bytes;
}

// The whole call is <call>{"a": {"n":0}}</call>, 27 bytes.
TEST(AnswerFollowerTest, AnAnswerWithoutStartsBeginsAtOnce) {
  const AnswerFormatPtr format = Compile(Format(""));
  EXPECT_EQ(After(format, {}), "needs 27");
  EXPECT_EQ(After(format, {"<call>{\"", "", "a\": "}), "needs 15");
  EXPECT_EQ(After(format, {"<call>{\"a\": {\"n\": 12}}</call>"}), "needs 0");
  EXPECT_EQ(After(format, {"Sure"}), "free") << "no answer begins so: the masks are over";
}

TEST(AnswerFollowerTest, AMaskBeginsBehindAMarker) {
  const AnswerFormatPtr format = Compile(Format(R"("starts": [{"text": "<call>", "frame_bytes": 6}])"));
  EXPECT_EQ(After(format, {}), "free");
  EXPECT_EQ(After(format, {"I will <call"}), "free");
  for (const std::vector<std::string>& tokens :
       {std::vector<std::string>{"I will <call>"}, {"I will ", "<call>"}, {"<", "<ca", "ll>"}, EachByte("<c<call>")})
    EXPECT_EQ(After(format, tokens), "needs 21") << testing::PrintToString(tokens);
  EXPECT_EQ(After(format, {"<call>{\"a"}), "needs 18") << "what follows in the same token is part of the answer";
  EXPECT_EQ(After(format, {"<call>(1)", "x"}), "free") << "the token holds the marker, and no answer goes on so";
  EXPECT_EQ(After(format, {"<call>(1)", "<call>"}), "needs 21");
}

TEST(AnswerFollowerTest, AnAnswerMayBeginBehindOrWithinItsMarker) {
  const AnswerFormatPtr format = Compile(
      R"({"schemas": [{"type": "null"}], "answer": {"sequence": ["{\"name\": ", {"value": 0}, "}"]}, "starts": [
          {"text": "<|tag|>", "at_start": true}, {"text": "{\"name\": ", "at_start": true, "frame_bytes": 9}]})");
  EXPECT_EQ(After(format, {"<|tag|>"}), "needs 14");
  EXPECT_EQ(After(format, {"\n ", "{\"name\": "}), "needs 5");
  EXPECT_EQ(After(format, EachByte(" {\"name\": n")), "needs 4");
  EXPECT_EQ(After(format, {"Look: ", "{\"name\": "}), "free") << "not at the beginning of the content";
  EXPECT_EQ(After(format, {"x<|tag|>"}), "free");
}

TEST(AnswerFollowerTest, MarkersWithinReasoningDoNotCount) {
  const std::string start = R"("starts": [{"text": "<call>", "at_start": true, "frame_bytes": 6}])";
  const AnswerFormatPtr inside = Compile(Format(start + R"(, "thinking": "inside")"));
  EXPECT_EQ(After(inside, {"<call>"}), "free");
  EXPECT_EQ(After(inside, {"hm <call> ", "</thi", "nk>\n\n", "<call>"}), "needs 21");
  EXPECT_EQ(After(inside, EachByte("a</think></think><call>")), "free") << "the second tag is content";
  const AnswerFormatPtr open = Compile(Format(start + R"(, "thinking": "open")"));
  EXPECT_EQ(After(open, {" <think>", "<call>"}), "free");
  EXPECT_EQ(After(open, EachByte("\n<think>a<call></think><call>")), "needs 21");
  EXPECT_EQ(After(open, {"<call>"}), "needs 21") << "the text does not think";
  EXPECT_EQ(After(open, {"<call>{\"a"}), "needs 18");
  EXPECT_EQ(After(open, EachByte("<think<call>")), "free") << "content that begins like a tag";
  EXPECT_EQ(After(open, EachByte("<call>")), "needs 21") << "as a tag begins";
}

TEST(AnswerFollowerTest, BlanksOutsideOfStringsDoNotCountInAStartWithAnyBlanks) {
  const AnswerFormatPtr format = Compile(
      R"({"schemas": [{"type": "null"}], "answer": {"sequence": ["{\"name\": \"f\", \"arguments\": ", {"value": 0}, "}"]}, "starts": [
          {"text": "{\"name\": \"", "at_start": true, "any_blanks": true, "frame_bytes": 10}]})");
  for (const std::string text : {"{\"name\": \"", "{\"name\":\"", "\n{\n  \"name\" :\t\""}) {
    AnswerFollower follower(format);
    for (size_t i = 0; i < text.size(); ++i) {
      EXPECT_EQ(follower.matcher(), nullptr) << text << " " << i;
      follower.Push(text.substr(i, 1));
    }
    ASSERT_NE(follower.matcher(), nullptr) << text;
    follower.Push("f\", \"arguments\": null}");
    ASSERT_NE(follower.matcher(), nullptr) << text;
    EXPECT_TRUE(follower.matcher()->IsComplete());
  }
  for (const std::string text : {"{\"na me\": \"f", "x{\"name\": \"f", "{\"name\": f", "{{\"name\": \"f"}) {
    AnswerFollower follower(format);
    for (const char c : text) follower.Push(std::string(1, c));
    EXPECT_EQ(follower.matcher(), nullptr) << text;
  }
}

TEST(AnswerFollowerTest, WrongStartsAreNamed) {
  const auto refusal = [](const std::string& more) { return std::string(CompileFormat(Format(more)).status().message()); };
  EXPECT_THAT(refusal(R"("starts": [])"), HasSubstr("starts is no list of 1 to 16"));
  EXPECT_THAT(refusal(R"("starts": 1)"), HasSubstr("starts is no list of 1 to 16"));
  EXPECT_THAT(refusal(R"("starts": [1])"), HasSubstr("a start is no object"));
  EXPECT_THAT(refusal(R"("starts": [{}])"), HasSubstr("text is missing or no text"));
  EXPECT_THAT(refusal(R"("starts": [{"text": ")" + std::string(257, 'x') + R"("}])"), HasSubstr("longer than 256 bytes"));
  EXPECT_THAT(refusal(R"("starts": [{"text": "ab", "frame_bytes": 3}])"), HasSubstr("frame_bytes"));
  EXPECT_THAT(refusal(R"("starts": [{"text": "ab", "any_blanks": true}])"), HasSubstr("any_blanks needs at_start"));
  EXPECT_THAT(refusal(R"("starts": [{"text": "ab", "frame_bytes": 1}])"), HasSubstr("no answer begins with the frame of a start"));
  EXPECT_THAT(refusal(R"("thinking": "inside")"), HasSubstr("thinking needs starts"));
  EXPECT_THAT(refusal(R"("starts": [{"text": "ab"}], "thinking": "yes")"), HasSubstr("thinking is neither"));
  EXPECT_THAT(std::string(CompileFormat(std::string(kMaxFormatBytes + 1, ' ')).status().message()), HasSubstr("the format of the answer"));
}

}  // namespace
}  // namespace lime::json_schema
