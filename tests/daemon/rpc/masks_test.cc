// Requests with a format over real sockets on loopback: the device that samples gets the vocabulary
// and makes the masks, also after a loss. The stages compute nothing: their logits have one likely
// id.

#include <grpcpp/client_context.h>
#include <xxhash.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/answer_masks/vocabulary_bytes.h"
#include "coordinator/serving/serving.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/json_text.h"
#include "tests/coordinator/recorded_answer.h"
#include "tests/daemon/rpc/control_stub.h"
#include "tests/daemon/rpc/keep_callback_threads.h"
#include "tests/daemon/rpc/rpc_fixture.h"

namespace lime {
namespace {

using json_schema::TokenText;
using json_schema::TokenUse;
using json_schema::VocabularyPtr;
using ::testing::HasSubstr;

constexpr int32_t kEnd = kFakeVocab - 1;
constexpr int64_t kTokens = 100;

// Bytes, words, and one id that ends an answer.
VocabularyPtr FakeTexts() {
  std::vector<TokenText> tokens;
  tokens.reserve(kEnd + 1);
  for (int id = 0; id < kEnd; ++id) tokens.push_back({id < 256 ? std::string(1, static_cast<char>(id)) : absl::StrCat("w", id)});
  tokens.push_back({"</s>", TokenUse::kEnd});
  return std::make_shared<json_schema::Vocabulary>(tokens);
}

class AnswerWithFault final : public RequestSink {
 public:
  AnswerWithFault(std::shared_ptr<RecordedAnswer> answer, std::function<void()> fault)
      : answer_(std::move(answer)), fault_(std::move(fault)) {}
  void OnToken(const ServedToken& token) override {
    answer_->OnToken(token);
    if (++tokens_ == 5 && fault_) fault_();
  }
  void OnEnd(const RequestEnd& end) override { answer_->OnEnd(end); }

 private:
  const std::shared_ptr<RecordedAnswer> answer_;
  const std::function<void()> fault_;
  int tokens_ = 0;
};

class MasksTest : public RpcTest {
 protected:
  void SetUp() override {
    StartDevices();
    client_ = Connect();
  }

  static ServingRequest Ask(int request) {
    ServingRequest asked{
        .prompt = Ids(3 + 9 * request, request), .max_new_tokens = kTokens, .end_tokens = {kEnd}, .stop_strings = {}, .sampling = {}};
    asked.sampling.params = {.presence_penalty = 0.5, .temperature = request % 2 * 1.0, .seed = 7};
    asked.sampling.logprobs = 1;
    asked.sampling.format = R"({"schemas": [{"type": "array", "items": {"type": "string"}, "minItems": 2}], "answer": {"value": 0}})";
    return asked;
  }
  // The tokens of three requests, with `fault` after some of the first one's.
  std::vector<std::vector<int32_t>> RunWith(const std::function<void()>& fault) {
    Serving::Options options;
    options.vocabulary = texts_;
    options.survival = ClusterRun::Survival{};
    Serving serving(*client_, std::move(options));
    std::vector<std::shared_ptr<RecordedAnswer>> answers;
    std::vector<Submission> together;
    for (int r = 0; r < 3; ++r) {
      answers.push_back(std::make_shared<RecordedAnswer>());
      together.push_back({Ask(r), std::make_shared<AnswerWithFault>(answers.back(), r == 0 ? fault : nullptr)});
    }
    EXPECT_TRUE(serving.SubmitTogether(std::move(together)).ok());
    std::vector<std::vector<int32_t>> tokens;
    for (const auto& answer : answers) {
      const RequestEnd end = answer->Wait();
      EXPECT_TRUE(end.status.ok()) << end.status;
      EXPECT_EQ(end.reason, FinishReason::kEndToken);
      for (const auto& score : answer->scores()) EXPECT_TRUE(score && score->logprob && score->top.size() == 1);
      tokens.push_back(answer->tokens());
    }
    EXPECT_TRUE(serving.Drain(absl::InfiniteFuture()).ok());
    EXPECT_EQ(serving.recoveries() > 0, fault != nullptr);
    return tokens;
  }
  std::string TextOf(const std::vector<int32_t>& tokens) const {
    std::string text;
    for (const int32_t token : tokens) text += token == kEnd ? "" : texts_->Bytes(token);
    return text;
  }

  const VocabularyPtr texts_ = FakeTexts();
  std::unique_ptr<ClusterClient> client_;
};

TEST_F(MasksTest, AnswersAreOfTheirFormatWhereverTheHeadIs) {
  for (const std::vector<int32_t>& order : {std::vector<int32_t>{0}, {0, 1, 2}, {1, 0, 2, 1, 0}}) {
    SCOPED_TRACE(absl::StrCat(order.size(), " stages"));
    ASSERT_TRUE(client_->Install(MakeStages(order, 2, 1), {}).ok());
    for (const std::vector<int32_t>& tokens : RunWith({})) {
      const std::string text = TextOf(tokens);
      const auto json = ParseJson(text, "the answer");
      EXPECT_TRUE(json.ok() && json->is_array() && json->size() >= 2) << text;
    }
    EXPECT_TRUE(client_->Unload().ok());
  }
}

TEST_F(MasksTest, ALossInTheMiddleOfAnAnswerChangesNoToken) {
  ASSERT_TRUE(client_->Install(MakeStages({0, 1, 2, 1}, 2, 1), {}).ok());
  const std::vector<std::vector<int32_t>> expected = RunWith({});
  for (int device = 0; device < 3; ++device) {
    SCOPED_TRACE(devices_[static_cast<size_t>(device)].name);
    ASSERT_TRUE(client_->Unload().ok());
    ASSERT_TRUE(client_->Install(MakeStages({0, 1, 2, 1}, 2, 1), {}).ok());
    EXPECT_EQ(RunWith([&] { StartAgain(device); }), expected);
  }
}

// A stream of orders as any program could open it.
class Stream {
 public:
  // `vocabulary`: announced by its digest.
  Stream(const ClusterClient::Device& device, int64_t epoch, const std::string& vocabulary) : stub_(ControlOf(device)) {
    stream_ = stub_->Orders(&context_);
    v1::OrderRequest request;
    request.mutable_open()->set_epoch(epoch);
    request.mutable_open()->set_vocabulary(vocabulary.empty() ? 0 : XXH3_64bits(vocabulary.data(), vocabulary.size()));
    stream_->Write(request);
    v1::OrderEvent event;
    EXPECT_TRUE(stream_->Read(&event));
    wants_vocabulary_ = event.opened().wants_vocabulary();
  }
  ~Stream() { (void)Finish(); }
  bool wants_vocabulary() const { return wants_vocabulary_; }
  void SendPart(const std::string& data, int64_t total) {
    v1::OrderRequest request;
    request.mutable_vocabulary()->set_data(data);
    request.mutable_vocabulary()->set_total_bytes(total);
    stream_->Write(request);
  }
  grpc::Status Finish() {
    if (stream_ == nullptr) return grpc::Status::OK;
    stream_->WritesDone();
    for (v1::OrderEvent event; stream_->Read(&event);) {
    }
    return std::exchange(stream_, nullptr)->Finish();
  }

 private:
  const std::unique_ptr<v1::Control::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::OrderRequest, v1::OrderEvent>> stream_;
  bool wants_vocabulary_ = false;
};

TEST_F(MasksTest, AVocabularyIsSentOnceAndToTheDeviceThatSamplesAlone) {
  const std::string bytes = json_schema::VocabularyBytes(*texts_), other = bytes.substr(0, 2);
  int before = 0;
  const auto begin = [&](int device, const std::string& vocabulary) {
    EXPECT_TRUE(BecomesFree(std::exchange(before, device))) << "its stream has ended";
    EXPECT_TRUE(client_->Install(MakeStages({0, 1}, 1, 1), {}).ok());
    return std::make_unique<Stream>(devices_[static_cast<size_t>(device)], client_->plan().epoch, vocabulary);
  };
  EXPECT_FALSE(begin(0, bytes)->wants_vocabulary()) << "it has no part of the head";
  EXPECT_FALSE(begin(1, "")->wants_vocabulary());
  std::unique_ptr<Stream> stream = begin(1, bytes);
  EXPECT_TRUE(stream->wants_vocabulary());
  stream->SendPart(bytes.substr(0, 1000), std::ssize(bytes));
  stream->SendPart(bytes.substr(1000), std::ssize(bytes));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_FALSE(begin(1, bytes)->wants_vocabulary()) << "it was sent under another plan";
  EXPECT_TRUE(begin(1, other)->wants_vocabulary());
  EXPECT_TRUE(begin(1, bytes)->wants_vocabulary()) << "the other one took its place";
}

TEST_F(MasksTest, PartsThatAreNoVocabularyEndTheirStream) {
  const std::string bytes = json_schema::VocabularyBytes(*texts_);
  const auto end_of = [&](const std::string& announced, const std::string& data, int64_t total) {
    EXPECT_TRUE(BecomesFree(1));
    EXPECT_TRUE(client_->Install(MakeStages({0, 1}, 1, 1), {}).ok());
    Stream stream(devices_[1], client_->plan().epoch, announced);
    stream.SendPart(data, total);
    return stream.Finish();
  };
  const grpc::Status unknown = end_of("", bytes, std::ssize(bytes));
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << unknown.error_message();
  const grpc::Status damaged = end_of(bytes, std::string(bytes.size(), 'x'), std::ssize(bytes));
  EXPECT_EQ(damaged.error_code(), grpc::StatusCode::DATA_LOSS) << damaged.error_message();
  const grpc::Status longer = end_of(bytes, bytes, 5);
  EXPECT_EQ(longer.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << longer.error_message();
  const grpc::Status none = end_of("\xff", "\xff", 1);
  EXPECT_EQ(none.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(none.error_message(), HasSubstr("token 0 is cut"));
}

}  // namespace
}  // namespace lime
