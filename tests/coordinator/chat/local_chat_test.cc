// A chat over Serving, with devices that compute nothing.
#include "coordinator/chat/local_chat.h"

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/fake_devices.h"
#include "tests/coordinator/generation/made_model.h"

namespace lime::cli {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kContext = 256;

class LocalChatTest : public ::testing::Test {
 protected:
  void SetUp() override { plan_.Set({.plan = devices_.plan(), .numerics_id = "cpu-1", .step_ms = {12.5}}); }

  ApiRequest Request(const std::string& question, int64_t max_tokens) const {
    ChatMessage message;
    message.content = question;
    ApiRequest request;
    request.prompt = ChatPrompt{.messages = {message}};
    request.max_tokens = max_tokens;
    request.sampling.seed = 7;
    return request;
  }
  absl::StatusOr<ChatReply> Ask(const ApiRequest& request) {
    return chat_.Ask(
        request, {.on_reasoning = [](std::string_view) { ADD_FAILURE(); }, .on_content = [this](std::string_view text) { shown_ += text; }},
        stop_);
  }

  FakeDevices devices_{OneStage(1, kContext)};
  const std::unique_ptr<ServedModel> model_ = MadeModel{.context = kContext}.Make();
  Serving serving_{devices_, {}};
  PlanInUse plan_;
  LocalChat chat_{*model_, serving_, plan_};
  std::string shown_;
  std::atomic<bool> stop_ = false;
};

TEST_F(LocalChatTest, AnAnswerHasTheTokensOfItsPromptAndTheFigures) {
  const ApiRequest request = Request("hi", 20);
  const absl::StatusOr<ChatReply> reply = Ask(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  const Generation generation = Prepared(*model_, Endpoint::kChat, request);
  const std::vector<int32_t>& prompt = generation.requests.front().prompt;
  const std::string text = model_->tokenizer().Decode(FakeDevices::Answer(prompt, 20, /*choice=*/0));
  EXPECT_EQ(reply->content, text);
  EXPECT_EQ(shown_, text);
  EXPECT_EQ(reply->finish, "length");
  ASSERT_TRUE(reply->has_counts);
  EXPECT_EQ(reply->report.prompt_tokens, std::ssize(prompt));
  EXPECT_EQ(reply->report.completion_tokens, 20);
  EXPECT_EQ(reply->report.seed, 7u);
  EXPECT_EQ(reply->report.numerics_id, "cpu-1");
  EXPECT_EQ(reply->report.predicted_ms_per_token, 12.5);
  EXPECT_EQ(Ask(request)->content, text) << "a second time";
  EXPECT_EQ(chat_.context(), kContext);
  EXPECT_EQ(chat_.model(), "tiny");
}

TEST_F(LocalChatTest, AStoppedAnswerIsReturnedAndItsSlotIsFree) {
  ASSERT_TRUE(serving_.Drain(absl::InfiniteFuture()).ok());
  Serving slow(devices_, {.pace = absl::Hours(1)});  // an answer does not end by itself
  LocalChat chat(*model_, slow, plan_);
  const ChatPieces pieces{.on_reasoning = [](std::string_view) {}, .on_content = [](std::string_view) {}};
  stop_ = true;
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<ChatReply> reply = chat.Ask(Request("hi", 100), pieces, stop_);
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->finish, "");
    EXPECT_FALSE(reply->has_counts);
  }
}

TEST_F(LocalChatTest, AQuestionThatLeavesNoRoomHasTheCodeOfAServer) {
  const absl::Status status = Ask(Request(std::string(kContext, 'x'), 1)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("256"));
  EXPECT_EQ(shown_, "");
}

TEST_F(LocalChatTest, AFailureOfTheDevicesIsAnError) {
  devices_.Hold();
  absl::StatusOr<ChatReply> reply;
  std::thread asking([&] { reply = Ask(Request("hi", 100)); });
  devices_.Step();
  devices_.Fail(absl::DataLossError("the device a has broken weights"));
  devices_.Release();
  asking.join();
  EXPECT_TRUE(absl::IsDataLoss(reply.status())) << reply.status();
}

}  // namespace
}  // namespace lime::cli
