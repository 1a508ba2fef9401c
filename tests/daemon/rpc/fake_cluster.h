// Devices of one cluster in one process: real servers on loopback, and stages that compute nothing
// but do all other work of a pipeline. A token is a hash of everything that its row met on its way,
// so any lost, repeated or misplaced message changes it. KV names its request, layer and position,
// and a row whose sequence lacks some KV is an error.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/rpc/device_server.h"
#include "planner/plan/plan.h"

namespace lime {

inline constexpr int32_t kFakeVocab = 1000;

// The tokens that follow a prompt, on any devices.
std::vector<int32_t> FakeTokens(std::vector<int32_t> ids, int count, int stages);

// The KV of a request's position in a layer.
uint64_t FakeKv(int32_t layer, int64_t request, int64_t position);

// A plan for three boards, with one stage for each entry of `order` and about equally many blocks
// in each.
Plan MakeStages(const std::vector<int32_t>& order, int32_t sequences, int32_t batch);

// Carries out orders one step after another. A stage computes a micro-batch as soon as it arrives,
// on the thread that delivers it. `hands_over_kv`: whether the next plan can take over KV.
std::unique_ptr<StageEngine> MakeFakeStage(StageSetup setup, bool hands_over_kv = true);

DeviceServer::Options FakeDevice(const std::string& name, bool hands_over_kv = true);

// Starts a gRPC server that is no limed, on a free port of loopback. It ends with the returned
// object.
std::shared_ptr<void> StartOtherServer(int& port);

}  // namespace lime
