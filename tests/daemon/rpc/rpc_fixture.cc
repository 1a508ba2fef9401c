#include "tests/daemon/rpc/rpc_fixture.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/rpc/device_client.h"
#include "coordinator/serving/cluster_run.h"

namespace lime {

std::vector<int32_t> Ids(int count, int32_t first) {
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) ids.push_back((first + 7 * i) % kFakeVocab);
  return ids;
}

void RpcTest::StartDevices(const std::vector<std::string>& names) {
  for (const std::string& name : names) Start(FakeDevice(name));
}

void RpcTest::Start(const DeviceServer::Options& options) {
  absl::StatusOr<std::unique_ptr<DeviceServer>> server = DeviceServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  devices_.push_back({.name = options.health.name, .address = Address(**server)});
  servers_.push_back(*std::move(server));
}

void RpcTest::StartAgain(int device) {
  DeviceServer::Options options = FakeDevice(devices_[static_cast<size_t>(device)].name);
  options.listen = devices_[static_cast<size_t>(device)].address;
  servers_[static_cast<size_t>(device)].reset();
  absl::StatusOr<std::unique_ptr<DeviceServer>> server = DeviceServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  servers_[static_cast<size_t>(device)] = *std::move(server);
}

std::string RpcTest::Address(const DeviceServer& server) {
  return absl::StrCat("127.0.0.1:", server.port());
}

std::unique_ptr<ClusterClient> RpcTest::Connect() {
  absl::StatusOr<std::unique_ptr<ClusterClient>> client = ClusterClient::Connect({.devices = devices_});
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

int64_t RpcTest::EpochOf(int device) {
  const ClusterClient::Device& asked = devices_[static_cast<size_t>(device)];
  const absl::StatusOr<DeviceHealth> health = DeviceClient(asked.name, asked.address, {}).Health(absl::Seconds(10));
  EXPECT_TRUE(health.ok()) << health.status();
  return health.ok() ? health->epoch : -2;
}

bool RpcTest::BecomesFree(int device) {
  const absl::Time until = absl::Now() + absl::Seconds(10);
  while (EpochOf(device) != -1 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(20));
  return EpochOf(device) == -1;
}

Outcome RunAll(ClusterClient& client, const std::vector<std::vector<int32_t>>& prompts, int64_t max_new_tokens, bool hash) {
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
