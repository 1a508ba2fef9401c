// The memory account: refused before it is allocated, and the same for whatever is not of the
// model.

#include <malloc.h>

#include <string>

#include "coordinator/local/local_device.h"
#include "coordinator/local/local_plan.h"
#include "daemon/engine/process_memory.h"
#include "daemon/engine/stage_engine.h"
#include "daemon/weights/checkpoint.h"
#include "gmock/gmock.h"
#include "tests/integration/models.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

class MemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    mallopt(M_MMAP_THRESHOLD, 128 << 10);  // fixed: what one device gives back does not stay with the process for the next
    MakeModelOptions model;
    model.config.num_layers = 4;
    model.config.hidden_size = 256;
    model.config.intermediate_size = 8192;
    model.config.num_heads = 8;
    model.config.num_kv_heads = 8;
    model.config.head_dim = 32;
    model.config.max_positions = 1 << 20;
    ASSERT_TRUE(MakeModel(model, dir_.path()).ok());
    const auto checkpoint = Checkpoint::Open(dir_.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    auto spec = checkpoint->BuildModelSpec();
    ASSERT_TRUE(spec.ok()) << spec.status();
    spec_ = *std::move(spec);
    ASSERT_TRUE(Open({}).ok()) << "what the libraries take once";
  }

  struct Shape {
    int64_t chunk = 512;
    int32_t sequences = 1;
    int64_t context = 1024;
    bool grow_kv = false;
    Bytes budget = 8 * kGiB;
  };
  absl::StatusOr<Plan> PlanFor(const Shape& shape) const {
    LIME_ASSIGN_OR_RETURN(LocalPlan plan, PlanForThisProcess(spec_, {.model_name = dir_.path(),
                                                                     .budget = shape.budget,
                                                                     .context = shape.context,
                                                                     .spills_kv = false,
                                                                     .sequences = shape.sequences,
                                                                     .prompt_tokens = shape.context,
                                                                     .chunk = shape.chunk,
                                                                     .num_threads = 2}));
    return std::move(plan.plan);
  }

  // Of a plan that is installed: what was counted, and what the process has beside weights, ring,
  // KV and activations.
  struct Installed {
    PlanMemory memory;
    Bytes runtime = 0;
  };
  absl::StatusOr<Installed> Open(const Shape& shape) const {
    LIME_ASSIGN_OR_RETURN(const Plan plan, PlanFor(shape));
    LocalDevice device({.weights = dir_.path(), .make_stage = MakeEngineStages({.num_threads = 2, .grow_kv = shape.grow_kv})});
    LIME_RETURN_IF_ERROR(device.Install(plan, {}));
    ReturnFreedMemory();
    const PlanMemory& memory = plan.devices.front().memory;
    const Bytes counted = memory.total() - memory.runtime - memory.margin - (shape.grow_kv ? memory.kv : 0);
    return Installed{.memory = memory, .runtime = ProcessResidentBytes() - counted};
  }

  void ExpectRefused(const Shape& shape, const std::vector<std::string>& parts) const {
    const Bytes peak = ProcessPeakResidentBytes();
    const absl::Status refused = PlanFor(shape).status();
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    // No regular expression of GoogleTest: Oniguruma, which this program links, has a regcomp of
    // its own.
    for (const std::string& part : parts) EXPECT_THAT(std::string(refused.message()), HasSubstr(part));
    EXPECT_LT(ProcessPeakResidentBytes() - peak, 8 * kMiB);
  }

  TempDir dir_;
  ModelSpec spec_;
};

TEST_F(MemoryTest, ActivationsBeyondTheBudgetAreNeverAllocated) {
  ExpectRefused({.chunk = 1 << 16, .context = 1 << 16, .budget = 2 * kGiB},
                {"KV 256.00 MiB, activations 5.", " GiB, runtime ", "allows 2.00 GiB"});
}

// A device counts for itself: it does not take a plan's word for its activations.
TEST_F(MemoryTest, ActivationsThatAPlanForgetsAreNeverAllocated) {
  absl::StatusOr<Plan> plan = PlanFor({.chunk = 1 << 16, .context = 1 << 16});
  ASSERT_TRUE(plan.ok()) << plan.status();
  PlanDevice& device = plan->devices.front();
  device.budget = 2 * kGiB;
  device.memory.activations = device.memory.margin = 0;
  device.memory.margin = device.budget - device.memory.total();
  const Bytes peak = ProcessPeakResidentBytes();
  const absl::Status refused = LocalDevice({.weights = dir_.path(), .make_stage = MakeEngineStages({.num_threads = 2})}).Install(*plan, {});
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  for (const char* part : {"activations 5.", "KV 256.00 MiB", "may use 2.00 GiB"})
    EXPECT_THAT(std::string(refused.message()), HasSubstr(part));
  EXPECT_LT(ProcessPeakResidentBytes() - peak, 8 * kMiB);
}

// The list of free pages alone has 64 MiB.
TEST_F(MemoryTest, PagesBeyondTheBudgetAreNeverAllocated) {
  ExpectRefused({.sequences = 64, .context = 1 << 20, .budget = 2 * kGiB}, {"KV 256.00 GiB", "allows 2.00 GiB"});
}

// Whatever is forgotten in the account of activations would show as runtime.
TEST_F(MemoryTest, RuntimeDoesNotGrowWithTheChunk) {
  const auto small = Open({.chunk = 8}), large = Open({.chunk = 1024});
  ASSERT_TRUE(small.ok() && large.ok()) << small.status() << large.status();
  EXPECT_GT(large->memory.activations, small->memory.activations + 64 * kMiB);
  EXPECT_NEAR(static_cast<double>(large->runtime), static_cast<double>(small->runtime), 4 * kMiB);
}

TEST_F(MemoryTest, RuntimeIsTheSameWhetherKvIsReservedOrGrows) {
  const auto reserved = Open({.context = 1 << 15}), growing = Open({.context = 1 << 15, .grow_kv = true});
  ASSERT_TRUE(reserved.ok() && growing.ok()) << reserved.status() << growing.status();
  EXPECT_GT(growing->memory.kv, 64 * kMiB);
  EXPECT_EQ(growing->memory.kv, reserved->memory.kv);
  EXPECT_NEAR(static_cast<double>(growing->runtime), static_cast<double>(reserved->runtime), 4 * kMiB);
}

}  // namespace
}  // namespace lime
