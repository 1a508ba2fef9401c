// A cluster of fake devices on loopback and a coordinator, for tests over real sockets.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/rpc/cluster_client.h"
#include "daemon/rpc/device_server.h"
#include "gtest/gtest.h"
#include "tests/daemon/rpc/fake_cluster.h"

namespace lime {

std::vector<int32_t> Ids(int count, int32_t first);

class RpcTest : public ::testing::Test {
 protected:
  void StartDevices(const std::vector<std::string>& names = {"a", "b", "c"});
  void Start(const DeviceServer::Options& options);
  // Ends a device, and starts one with the same name and address.
  void StartAgain(int device);
  static std::string Address(const DeviceServer& server);
  std::unique_ptr<ClusterClient> Connect();
  int64_t EpochOf(int device);
  bool BecomesFree(int device);

  std::vector<ClusterClient::Device> devices_;
  std::vector<std::unique_ptr<DeviceServer>> servers_;
};

struct Outcome {
  absl::Status status;
  std::vector<std::vector<int32_t>> tokens;  // by request
  std::vector<uint64_t> hashes;
};

Outcome RunAll(ClusterClient& client, const std::vector<std::vector<int32_t>>& prompts, int64_t max_new_tokens, bool hash = false);

}  // namespace lime
