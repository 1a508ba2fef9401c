// The memory account: refused before it is allocated, and the same for whatever is not of the model.

#include <malloc.h>

#include "daemon/engine/process_memory.h"
#include "gmock/gmock.h"
#include "tests/integration/models.h"

namespace lime {
namespace {

class MemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    mallopt(M_MMAP_THRESHOLD, 128 << 10);  // fixed: what one engine gives back does not stay with the process for the next
    MakeModelOptions model;
    model.config.num_layers = 4;
    model.config.hidden_size = 256;
    model.config.intermediate_size = 8192;
    model.config.num_heads = 8;
    model.config.num_kv_heads = 8;
    model.config.head_dim = 32;
    model.config.max_positions = 1 << 20;
    ASSERT_TRUE(MakeModel(model, dir_.path()).ok());
    ASSERT_TRUE(Open({}).ok()) << "what the libraries take once";
  }

  struct Shape {
    int64_t max_rows = 512;
    int64_t max_sequences = 1;
    int64_t context = 64;
    bool grow_kv = false;
    Bytes memory = 0;
  };
  absl::StatusOr<EngineMemory> Open(const Shape& shape) {
    Engine::Options options;
    options.num_threads = 2;
    options.loader = LoaderKind::kRead;
    options.max_rows = shape.max_rows;
    options.max_sequences = shape.max_sequences;
    options.context = shape.context;
    options.grow_kv = shape.grow_kv;
    options.memory = shape.memory;
    LIME_ASSIGN_OR_RETURN(const auto engine, Engine::Create(dir_.path(), options));
    return engine->memory();
  }

  TempDir dir_;
};

TEST_F(MemoryTest, ActivationsBeyondTheBudgetAreNeverAllocated) {
  const Bytes peak = ProcessPeakResidentBytes();
  const auto refused = Open({.max_rows = 1 << 20, .memory = 2 * kGiB});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  // No regular expression of GoogleTest: Oniguruma, which this program links, has a regcomp of its own.
  for (const char* part : {"activations 8", " GiB, runtime ", "allows 2.00 GiB"})
    EXPECT_THAT(std::string(refused.status().message()), ::testing::HasSubstr(part));
  EXPECT_LT(ProcessPeakResidentBytes() - peak, 8 * kMiB);
}

TEST_F(MemoryTest, PagesBeyondTheBudgetAreNeverAllocated) {
  const Bytes peak = ProcessPeakResidentBytes();
  const auto refused = Open({.max_sequences = 64, .context = 1 << 20, .memory = 2 * kGiB});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_LT(ProcessPeakResidentBytes() - peak, 8 * kMiB) << "the list of free pages alone has 64 MiB";
}

// Whatever is forgotten in the account of activations would show as runtime.
TEST_F(MemoryTest, RuntimeDoesNotGrowWithTheChunk) {
  const auto small = Open({.max_rows = 8}), large = Open({.max_rows = 1024});
  ASSERT_TRUE(small.ok() && large.ok()) << large.status();
  EXPECT_GT(large->activations, small->activations + 64 * kMiB);
  EXPECT_NEAR(static_cast<double>(large->runtime), static_cast<double>(small->runtime), 4 * kMiB);
}

TEST_F(MemoryTest, RuntimeIsTheSameWhetherKvIsReservedOrGrows) {
  const auto reserved = Open({.context = 1 << 15}), growing = Open({.context = 1 << 15, .grow_kv = true});
  ASSERT_TRUE(reserved.ok() && growing.ok());
  EXPECT_GT(growing->kv, 64 * kMiB);
  EXPECT_EQ(growing->kv, reserved->kv);
  EXPECT_NEAR(static_cast<double>(growing->runtime), static_cast<double>(reserved->runtime), 4 * kMiB);
}

}  // namespace
}  // namespace lime
