// A cluster of fake devices on loopback and a coordinator, for tests over real sockets.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/serving/cluster_run.h"
#include "gtest/gtest.h"
#include "lime/v1/control.grpc.pb.h"
#include "tests/daemon/fake_cluster.h"

namespace lime {

inline std::vector<int32_t> Ids(int count, int32_t first) {
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) ids.push_back((first + 7 * i) % kFakeVocab);
  return ids;
}

class RpcTest : public ::testing::Test {
 protected:
  void StartDevices(const std::vector<std::string>& names = {"a", "b", "c"}) {
    for (const std::string& name : names) Start(FakeDevice(name));
  }
  void Start(const DeviceServer::Options& options) {
    absl::StatusOr<std::unique_ptr<DeviceServer>> server = DeviceServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    devices_.push_back({.name = options.name, .address = Address(**server)});
    servers_.push_back(*std::move(server));
  }
  static std::string Address(const DeviceServer& server) { return absl::StrCat("127.0.0.1:", server.port()); }

  std::unique_ptr<ClusterClient> Connect() {
    absl::StatusOr<std::unique_ptr<ClusterClient>> client = ClusterClient::Connect({.devices = devices_});
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  std::unique_ptr<v1::Control::Stub> Control(int device) {
    return v1::Control::NewStub(OpenChannel(devices_[static_cast<size_t>(device)].address, "", {}, ChannelUse::kControl));
  }
  int64_t EpochOf(int device) {
    grpc::ClientContext context;
    v1::HealthReply reply;
    EXPECT_TRUE(Control(device)->Health(&context, {}, &reply).ok());
    return reply.epoch();
  }
  bool BecomesFree(int device) {
    const absl::Time until = absl::Now() + absl::Seconds(10);
    while (EpochOf(device) != -1 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(20));
    return EpochOf(device) == -1;
  }

  std::vector<ClusterClient::Device> devices_;
  std::vector<std::unique_ptr<DeviceServer>> servers_;
};

struct Outcome {
  absl::Status status;
  std::vector<std::vector<int32_t>> tokens;  // by request
  std::vector<uint64_t> hashes;
};

inline Outcome RunAll(ClusterClient& client, const std::vector<std::vector<int32_t>>& prompts, int64_t max_new_tokens, bool hash = false) {
  ClusterRun run(client);
  for (const auto& prompt : prompts) {
    EXPECT_TRUE(run.Add({.prompt = prompt, .max_new_tokens = max_new_tokens}, {.hash_logits = hash}).ok());
  }
  Outcome outcome{.tokens = std::vector<std::vector<int32_t>>(prompts.size()), .hashes = std::vector<uint64_t>(prompts.size())};
  outcome.status = run.Run(
      [&](const ClusterRun::Token& token) {
        outcome.tokens[static_cast<size_t>(token.request)].push_back(token.token);
        outcome.hashes[static_cast<size_t>(token.request)] = token.logits_hash;
        return true;
      },
      nullptr);
  return outcome;
}

}  // namespace lime
