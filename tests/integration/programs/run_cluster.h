// Helpers of the tests of `lime run --cluster`: three `limed` processes on loopback, and plans for
// them that interleave and stream.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/rpc/device_client.h"
#include "daemon/profile/profile_file.h"
#include "daemon/weights/checkpoint.h"
#include "planner/kv/kv_growth.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"
#include "planner/problem/plan_problem.h"
#include "tests/integration/programs/limed_process.h"

namespace lime {

inline const std::string kModel = LIME_SOURCE_DIR "/models/lime-fables";
inline constexpr int kDevices = 3;

struct ClusterShape {
  int64_t kv_tokens = 0;           // positions with KV at first; 0: all
  bool split_head = false;         // neighbouring ranges of the head are on different devices
  int64_t retained_positions = 0;  // positions that keep KV; then nothing streams; 0: all
};

// Stages go round the devices three times. Every other part streams; parts have at most 32 KiB.
inline Plan InterleavedPlan(const ClusterShape& shape = {}) {
  const auto checkpoint = Checkpoint::Open(kModel);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto spec = checkpoint->BuildModelSpec();
  EXPECT_TRUE(spec.ok()) << spec.status();
  std::vector<ClusterDevice> devices(kDevices);
  for (int d = 0; d < kDevices; ++d) {
    devices[d] = {.name = std::string(1, static_cast<char>('a' + d)), .budget = 2 * kGiB, .runtime = 256 * kMiB, .activations = 64 * kMiB};
    devices[d].profile.read_bytes_per_second = 1e10;
    devices[d].profile.disk = {{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1e9, .latency_ms = 0.1}};
  }
  PlanRequest request{.model_name = "lime-fables", .context = 512, .batches = {1}, .part_bytes = 32 * kKiB, .prompt_tokens = 16};
  request.chunks = {8};
  request.kv_tokens = shape.kv_tokens;
  request.retained_positions = shape.retained_positions;
  const auto problem = MakePlanProblem(*spec, devices, request);
  EXPECT_TRUE(problem.ok()) << problem.status();
  PlanChoice choice{.batch = 1};
  choice.first_token = {.feasible = true, .ms = 1, .chunk_rows = 8, .chunks = 2, .chunks_per_sweep = 1};
  choice.stages.embedding_by_rows = true;
  const Instance& instance = problem->instance;
  int begun = 0;
  for (int b = 0; b < instance.NumBlocks(); ++b) {
    std::vector<Stage>& stages = choice.stages.stages;
    const bool range = shape.split_head && instance.blocks[b].kind == Instance::Kind::kHead;
    const bool begins = b == 0 || range || (!instance.ContinuesBlock(b) && b * 3 * kDevices / instance.NumBlocks() >= begun);
    if (begins) {
      stages.push_back({begun++ % kDevices, b, b + 1});
    } else {
      stages.back().hi = b + 1;
    }
    if (b % 2 == 1 && shape.retained_positions == 0) choice.stages.streamed.push_back(b);
  }
  auto plan = MakePlan(*problem, choice);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : Plan{};
}

// A plan in which the blocks of a model go round the first `owners` devices, and nothing streams.
inline Plan PlanInTurns(const std::string& model, int owners, PlanRequest request) {
  const auto checkpoint = Checkpoint::Open(model);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto spec = checkpoint->BuildModelSpec();
  EXPECT_TRUE(spec.ok()) << spec.status();
  std::vector<ClusterDevice> devices(kDevices);
  for (int d = 0; d < kDevices; ++d) {
    devices[d] = {.name = std::string(1, static_cast<char>('a' + d)), .budget = 2 * kGiB, .runtime = 256 * kMiB, .activations = 64 * kMiB};
    devices[d].profile.read_bytes_per_second = 1e10;
    devices[d].profile.disk = {{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1e9, .latency_ms = 0.1}};
  }
  request.context = 512, request.batches = {1}, request.prompt_tokens = 16, request.chunks = {8};
  const auto problem = MakePlanProblem(*spec, devices, request);
  EXPECT_TRUE(problem.ok()) << problem.status();
  PlanChoice choice{.batch = 1};
  choice.first_token = {.feasible = true, .ms = 1, .chunk_rows = 8, .chunks = 2, .chunks_per_sweep = 1};
  choice.stages.embedding_by_rows = true;
  const Instance& instance = problem->instance;
  int begun = 0;
  for (int b = 0; b < instance.NumBlocks(); ++b) {
    std::vector<Stage>& stages = choice.stages.stages;
    if (b == 0 || (owners > 1 && !instance.ContinuesBlock(b))) {
      stages.push_back({begun++ % owners, b, b + 1});
    } else {
      stages.back().hi = b + 1;
    }
  }
  auto plan = MakePlan(*problem, choice);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : Plan{};
}

// Memory is just enough for the first level, so that more KV takes the place of parts.
inline Plan GrowingPlan() {
  Plan plan = InterleavedPlan({.kv_tokens = 64});
  for (PlanDevice& device : plan.devices) {
    device.memory.ring = std::min<Bytes>(device.memory.ring, 192 * kKiB);
    device.memory.margin = device.least_margin = 0;
    device.budget = device.memory.total();
  }
  EXPECT_TRUE(plan.Validate().ok()) << plan.Validate();
  return plan;
}

// A plan with memory for the KV of few positions. It evicts the rest.
inline Plan EvictingPlan() {
  Plan plan = InterleavedPlan({.retained_positions = 64});
  for (PlanDevice& device : plan.devices) {
    device.memory.margin = device.least_margin = 0;
    device.budget = device.memory.total();
  }
  return plan;
}

// A plan in which every device keeps only the working pages in memory. The rest of KV is on disks,
// or on the next device as its host; the last device always uses its disk. Hosts attend to all
// their KV, or send all of it back.
enum class KvFrom : uint8_t { kDisks, kHostsThatAttend, kHostsThatSendBack };
inline Plan SpillingPlan(KvFrom from = KvFrom::kDisks) {
  const bool hosts = from != KvFrom::kDisks;
  const auto checkpoint = Checkpoint::Open(kModel);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  absl::StatusOr<Plan> cut = CutForKv(InterleavedPlan({.kv_tokens = 64}), *checkpoint->BuildModelSpec());
  EXPECT_TRUE(cut.ok()) << cut.status();
  for (PlanDevice& device : cut->devices) {
    device.max_layer_pages = WorkingPages(*cut);
    device.memory.ring = std::min<Bytes>(device.memory.ring, 192 * kKiB);
  }
  for (int d = 0; hosts && d + 1 < kDevices; ++d) {
    PlanDevice& device = cut->devices[d];
    device.kv_host = d + 1, device.asks_kv = from == KvFrom::kHostsThatAttend;
    if (!device.asks_kv) device.kv_fetch_pieces = HostedPieces(*cut, device) + kKvFetchesUnderWay, device.kv_fetch_mb_per_ms = 0.1;
  }
  absl::StatusOr<Plan> plan = WithResidency(*cut, ResidencyOf(*cut));
  EXPECT_TRUE(plan.ok()) << plan.status();
  for (PlanDevice& device : plan->devices) {
    device.memory.margin = device.least_margin = 0;
    device.budget = device.memory.total();
  }
  EXPECT_TRUE(plan->Validate().ok()) << plan->Validate();
  return *std::move(plan);
}

class ClusterRunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Plan plan = InterleavedPlan();
    ASSERT_GE(plan.stages.size(), 2u * kDevices) << ToJsonText(plan);
    dir_.Write("plan.json", ToJsonText(plan));
    for (int d = 0; d < kDevices; ++d) limed_.push_back(std::make_unique<Limed>(Name(d)));
    WriteCluster();
  }

  static std::string Name(int device) { return std::string(1, static_cast<char>('a' + device)); }

  void WriteCluster(bool profiles = true) {
    DeviceProfile profile{.threads = 1, .read_bytes_per_second = 1e10, .flops = 1e10};
    profile.SetDisk({{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1e9, .latency_ms = 0.1}});
    ASSERT_TRUE(WriteProfile(profile, dir_ / "profile.json").ok());
    std::string text =
        absl::StrCat("[cluster]\nname = \"test\"\nmodel = \"", model_, "\"\n[[link]]\nbandwidth = \"1Gbit/s\"\nlatency = \"0.1ms\"\n");
    for (int d = 0; d < kDevices; ++d) {
      absl::StrAppend(&text, "[[device]]\nname = \"", Name(d), "\"\naddress = \"127.0.0.1:", limed_[d]->port(),
                      "\"\nmemory = \"2GiB\"\nweights = \"", model_, "\"\n", profiles ? "profile = \"profile.json\"\n" : "");
    }
    dir_.Write("cluster.toml", text);
  }

  std::vector<std::string> OverCluster(std::vector<std::string> call) {
    for (const std::string& more : {std::string("--cluster"), dir_ / "cluster.toml", std::string("--plan"), dir_ / "plan.json"})
      call.push_back(more);
    return call;
  }

  // Waits until `steps` steps of the plan in use have ended on the last device, a minute at most.
  void AwaitSteps(int64_t steps) const { EXPECT_EQ(AwaitSteps(steps, {kDevices - 1}), kDevices - 1); }
  // Or on any of these. Returns it; -1: none.
  int AwaitSteps(int64_t steps, const std::vector<int>& devices) const {
    const absl::Time until = absl::Now() + absl::Minutes(1);
    for (int64_t ended = 0; absl::Now() < until;) {
      for (const int d : devices) {
        const DeviceClient client(Name(d), absl::StrCat("127.0.0.1:", limed_[static_cast<size_t>(d)]->port()), {});
        const absl::StatusOr<DeviceStatistics> statistics = client.Statistics(absl::Seconds(5));
        ended = statistics.ok() ? statistics->steps : 0;
        if (ended >= steps) return d;
      }
      if (ended < steps) absl::SleepFor(absl::Milliseconds(5));
    }
    return -1;
  }

  TempDir dir_;
  std::string model_ = kModel;
  std::vector<std::unique_ptr<Limed>> limed_;
};

}  // namespace lime
