// One program links libtorch, gRPC, Protobuf, Abseil and asio (with io_uring), and each of them
// works beside the others.

#include <ATen/ATen.h>
#include <fcntl.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <asio.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"

namespace {

grpc::ByteBuffer ToBuffer(const std::string& text) {
  grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

std::string ToText(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& slice : slices) text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return text;
}

// Answers every call with the bytes it received.
class Echo final : public grpc::CallbackGenericService {
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    class Reactor final : public grpc::ServerGenericBidiReactor {
     public:
      Reactor() { StartRead(&buffer_); }
      void OnReadDone(bool ok) override { ok ? StartWrite(&buffer_) : Finish(grpc::Status::OK); }
      void OnWriteDone(bool) override { Finish(grpc::Status::OK); }
      void OnDone() override { delete this; }

     private:
      grpc::ByteBuffer buffer_;
    };
    return new Reactor;
  }
};

// A tensor's bytes, described by a Protobuf message, travel through gRPC and come back as the same
// tensor.
TEST(OneBinaryTest, ATensorTravelsThroughGrpcBesideProtobufAndAbseil) {
  Echo echo;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&echo);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_TRUE(server);

  const at::Tensor sent = at::mm(at::ones({3, 4}), at::full({4, 2}, 0.5));
  google::protobuf::Struct message;
  (*message.mutable_fields())["first"].set_number_value(sent[0][0].item<double>());
  const std::string body = message.SerializeAsString();

  grpc::GenericStub stub(grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  grpc::ByteBuffer request = ToBuffer(body), reply;
  grpc::CompletionQueue queue;
  auto call = stub.PrepareUnaryCall(&context, "/lime.test/Echo", request, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  ASSERT_TRUE(status.ok()) << status.error_message();
  google::protobuf::Struct received;
  ASSERT_TRUE(received.ParseFromString(ToText(reply)));
  EXPECT_EQ(received.fields().at("first").number_value(), 2.0);
  server->Shutdown();
}

TEST(OneBinaryTest, AsioReadsAFileThroughIoUringAndKeepsTime) {
  char path[] = "/tmp/lime_one_binary_XXXXXX";
  const int descriptor = mkstemp(path);
  ASSERT_GE(descriptor, 0);
  ASSERT_EQ(write(descriptor, "lime", 4), 4);
  asio::io_context io;
  asio::random_access_file file(io, descriptor);
  char text[4] = {};
  size_t received = 0;
  file.async_read_some_at(0, asio::buffer(text), [&](const std::error_code& error, size_t bytes) {
    EXPECT_FALSE(error) << error.message();
    received = bytes;
  });
  asio::steady_timer timer(io, std::chrono::milliseconds(1));
  bool fired = false;
  timer.async_wait([&](const std::error_code& error) { fired = !error; });
  io.run();
  unlink(path);
  EXPECT_EQ(std::string(text, received), "lime");
  EXPECT_TRUE(fired);
}

}  // namespace
