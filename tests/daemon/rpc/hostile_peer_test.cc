// Peers that say what they must not, over real sockets on loopback.

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>

#include <string>

#include "daemon/rpc/activation_wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/rpc/control_stub.h"
#include "tests/daemon/rpc/keep_callback_threads.h"
#include "tests/daemon/rpc/rpc_fixture.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

class HostileTest : public RpcTest {
 protected:
  void SetUp() override {
    StartDevices({"a", "b"});
    client_ = Connect();
    ASSERT_TRUE(client_->Install(MakeStages({0, 1}, 1, 1), {}).ok());
  }
  // What device "b" answers to one message of activations.
  grpc::Status SendTo(const std::string& epoch, const std::string& from, const std::string& bytes) {
    grpc::GenericStub stub(OpenChannel(devices_[1].address, "", {}, ChannelUse::kActivations));
    grpc::ClientContext context;
    context.AddMetadata(kEpochKey, epoch);
    context.AddMetadata(kFromKey, from);
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, kActivationMethod, &queue);
    const auto wait = [&] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    call->StartCall(nullptr);
    if (!wait()) return grpc::Status(grpc::StatusCode::UNKNOWN, "no call");
    grpc::Slice slice(bytes);
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    (void)wait();
    grpc::Status status;
    call->Finish(&status, nullptr);
    (void)wait();
    return status;
  }
  std::string Message(ActivationHeader header, size_t payload) {
    const auto bytes = Encode(header);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) + std::string(payload, 'x');
  }
  std::string Epoch() const { return std::to_string(client_->plan().epoch); }
  // Whoever was refused, the plan still runs.
  void ExpectUnharmed() {
    const Outcome outcome = RunAll(*client_, {Ids(3, 1)}, 5);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.tokens[0], FakeTokens(Ids(3, 1), 5, 2));
  }

  std::unique_ptr<ClusterClient> client_;
};

TEST_F(HostileTest, ActivationsOfAnotherEpochAreRefused) {
  EXPECT_EQ(SendTo("7777", "0", "").error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  const grpc::Status status = SendTo(Epoch(), "0", Message({.epoch = 7777, .bytes = 8}, 8));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("epoch 7777"));
  ExpectUnharmed();
}

TEST_F(HostileTest, MalformedActivationsAreRefused) {
  const int64_t epoch = client_->plan().epoch;
  for (const std::string& bytes :
       {std::string(), std::string("LIME"), std::string(4096, '\xff'), Message({.epoch = epoch, .bytes = 9}, 8),
        Message({.epoch = epoch, .bytes = 0}, 8), Message({.epoch = epoch, .stage = 1, .bytes = 8}, 8),
        Message({.epoch = epoch, .stage = 60000, .bytes = 8}, 8), Message({.epoch = epoch, .bytes = 8, .probe = true}, 8),
        Message({.epoch = epoch, .bytes = kProbeBytes, .probe = true}, kProbeBytes),
        Message({.epoch = epoch, .bytes = kProbeBytes - 48, .probe = true}, kProbeBytes - 49)}) {
    EXPECT_EQ(SendTo(Epoch(), "0", bytes).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  for (const char* from : {"-1", "2000", "", "a", "99999999999999999999"})
    EXPECT_EQ(SendTo(Epoch(), from, "").error_code(), grpc::StatusCode::INVALID_ARGUMENT) << from;
  ExpectUnharmed();
}

TEST_F(HostileTest, OrdersOfAnotherEpochOrNoneAreRefused) {
  const auto stub = ControlOf(devices_[0]);
  for (const int64_t epoch : {int64_t{0}, client_->plan().epoch + 1}) {
    grpc::ClientContext context;
    const auto stream = stub->Orders(&context);
    v1::OrderRequest request;
    request.mutable_open()->set_epoch(epoch);
    stream->Write(request);
    v1::OrderEvent event;
    EXPECT_FALSE(stream->Read(&event));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  }
  grpc::ClientContext context;
  const auto stream = stub->Orders(&context);
  v1::OrderRequest request;
  request.mutable_order()->mutable_retire();
  stream->Write(request);
  v1::OrderEvent event;
  EXPECT_FALSE(stream->Read(&event));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  ExpectUnharmed();
}

TEST_F(HostileTest, AnOrderThatCannotBeEndsItsCoordinatorsPlan) {
  const auto stub = ControlOf(devices_[0]);
  grpc::ClientContext context;
  const auto stream = stub->Orders(&context);
  v1::OrderRequest request;
  request.mutable_open()->set_epoch(client_->plan().epoch);
  stream->Write(request);
  v1::OrderEvent event;
  ASSERT_TRUE(stream->Read(&event));
  request.mutable_order()->mutable_step()->add_microbatches()->add_rows()->set_position(-5);
  stream->Write(request);
  while (stream->Read(&event)) {
  }
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("position"));
  EXPECT_TRUE(BecomesFree(0));
}

TEST_F(HostileTest, PlansThatAreNoneAreRefusedAndTheOneInstalledStays) {
  const auto stub = ControlOf(devices_[0]);
  v1::InstallRequest good;
  ToProto(InstallCall{.plan = client_->plan(), .device = 0, .addresses = {"", "", ""}}, good);
  const auto refused = [&](const v1::InstallRequest& request) {
    grpc::ClientContext context;
    const auto reader = stub->Install(&context, request);
    v1::InstallEvent event;
    while (reader->Read(&event)) {
    }
    return reader->Finish().error_code();
  };
  EXPECT_EQ(refused(good), grpc::StatusCode::ABORTED) << "its epoch was here already";
  v1::InstallRequest bad = good;
  bad.set_plan("{}");
  EXPECT_EQ(refused(bad), grpc::StatusCode::INVALID_ARGUMENT);
  bad = good, bad.set_device(3);
  EXPECT_EQ(refused(bad), grpc::StatusCode::INVALID_ARGUMENT);
  bad = good, bad.add_addresses("one too many");
  EXPECT_EQ(refused(bad), grpc::StatusCode::INVALID_ARGUMENT);
  bad = good, bad.set_weights(std::string(5000, 'x'));
  EXPECT_EQ(refused(bad), grpc::StatusCode::INVALID_ARGUMENT);
  ExpectUnharmed();
}

TEST_F(HostileTest, UnloadingAnotherEpochIsRefused) {
  grpc::ClientContext context;
  v1::UnloadRequest request;
  request.set_epoch(7777);
  v1::UnloadReply reply;
  EXPECT_EQ(ControlOf(devices_[0])->Unload(&context, request, &reply).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  ExpectUnharmed();
}

TEST_F(HostileTest, UnknownMethodsAreRefused) {
  grpc::GenericStub stub(OpenChannel(devices_[0].address, "", {}, ChannelUse::kControl));
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::Slice slice("x");
  grpc::ByteBuffer request(&slice, 1), reply;
  auto call = stub.PrepareUnaryCall(&context, "/lime.v1.Control/Format", request, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

}  // namespace
}  // namespace lime
