// For test programs that start and end servers and channels many times. Including this file is
// enough.
#pragma once

#include <memory>

#include "gtest/gtest.h"
#include "tests/daemon/rpc/fake_cluster.h"

namespace lime {

// gRPC 1.51 ends the threads of its callback API with the last server or channel of a process, and
// starts them with the next one. A test program does so hundreds of times. AddressSanitizer has
// seen an end and a start at the same time free memory twice. So one server stays throughout.
class KeepCallbackThreads final : public ::testing::Environment {
 public:
  void SetUp() override { server_ = *DeviceServer::Start(FakeDevice("kept")); }
  void TearDown() override { server_.reset(); }

 private:
  std::unique_ptr<DeviceServer> server_;
};
inline ::testing::Environment* const kKeepCallbackThreads = ::testing::AddGlobalTestEnvironment(new KeepCallbackThreads);

}  // namespace lime
