// Devices of one cluster in one process: real servers on loopback, and stages that compute nothing
// but do all that a pipeline has to. A token is a hash of all that its row has seen on its way, so
// any loss, repetition or disorder shows in it. Their KV says whose it is, and a row whose sequence
// lacks any of it is an error.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/rpc/device_server.h"
#include "planner/plan/plan.h"

namespace lime {

inline constexpr int32_t kFakeVocab = 1000;

// The tokens that follow a prompt, whatever the devices.
std::vector<int32_t> FakeTokens(std::vector<int32_t> ids, int count, int stages);

// What the position of a request has in a layer.
uint64_t FakeKv(int32_t layer, int64_t request, int64_t position);

// A plan of three boards with one stage for each `order` entry, parts shared out evenly.
Plan MakeStages(const std::vector<int32_t>& order, int32_t sequences, int32_t batch);

// Carries orders out one step after another, a micro-batch through a stage as soon as it is there.
// Computes where the event comes in. `hands_over_kv`: for the plan that comes next.
std::unique_ptr<StageEngine> MakeFakeStage(StageSetup setup, bool hands_over_kv = true);

DeviceServer::Options FakeDevice(const std::string& name, bool hands_over_kv = true);

// A server of gRPC that is no limed, on a free port of loopback, for as long as what is returned.
std::shared_ptr<void> StartOtherServer(int& port);

}  // namespace lime
