// Nothing is allocated on the token path: this program replaces the allocator and mmap by ones that count, and takes 64 steps.

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "common/sampler.h"
#include "coordinator/cli/generate.h"
#include "coordinator/cli/text_stream.h"
#include "coordinator/local/local_device.h"
#include "coordinator/local/local_plan.h"
#include "coordinator/serving/cluster_run.h"
#include "daemon/stage/engine_stage.h"
#include "daemon/weights/checkpoint.h"
#include "gtest/gtest.h"
#include "tests/integration/models.h"

namespace {
std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

void Count() {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
}
}  // namespace

// The C library's own, under the names that the replacements below hide.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t size) {
  Count();
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  Count();
  return __libc_calloc(count, size);
}
void* realloc(void* memory, size_t size) {
  Count();
  return __libc_realloc(memory, size);
}
void* memalign(size_t alignment, size_t size) {
  Count();
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  Count();
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, size_t alignment, size_t size) {
  Count();
  *memory = __libc_memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}
void* mmap(void* address, size_t length, int protection, int flags, int descriptor, off_t offset) noexcept {
  Count();
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, length, protection, flags, descriptor, offset));
}
}

namespace lime {
namespace {

constexpr int64_t kSteps = 64;

class TokenPathTest : public ::testing::Test {
 protected:
  // Decodes `sequences` side by side for kSteps steps after a warm-up, sampling each; returns the allocations counted.
  int64_t Decode(const MakeModelOptions& model, int64_t sequences, const SamplingParams& sampling) {
    TempDir dir;
    EXPECT_TRUE(MakeModel(model, dir.path()).ok());
    RunShape shape{.threads = 2, .chunk = 300};
    shape.companions.resize(sequences - 1);
    auto engine = OpenEngine(dir.path(), shape, 400);
    EXPECT_TRUE(engine.ok()) << engine.status();
    if (!engine.ok()) return -1;
    MicroBatch batch;
    batch.rows.reserve(300 * sequences);
    for (int32_t slot = 0; slot < sequences; ++slot) EXPECT_TRUE((*engine)->StartSequence(slot, 400).ok());
    for (int32_t slot = 0; slot < sequences; ++slot) {
      batch.Clear();
      for (int32_t i = 0; i < 240; ++i) batch.rows.push_back({.sequence = slot, .token = i, .position = i, .wants_logits = i == 239});
      EXPECT_TRUE((*engine)->Step(batch).ok());
    }
    Sampler sampler;
    std::vector<int32_t> tokens(sequences, 1);
    bool ok = true;
    for (int64_t step = -4; step < kSteps; ++step) {  // the positions cross from the first piece of 256 to the second
      if (step == 0) counting = true;
      batch.Clear();
      const int32_t position = static_cast<int32_t>(244 + step);
      for (int32_t slot = 0; slot < sequences; ++slot) {
        batch.rows.push_back({.sequence = slot, .token = tokens[slot], .position = position, .wants_logits = true});
      }
      const auto logits = (*engine)->Step(batch);
      ok = ok && logits.ok();
      const size_t vocab = (*engine)->spec().config.vocab_size;
      for (int32_t slot = 0; ok && slot < sequences; ++slot) {
        const auto token =
            sampler.Sample(logits->subspan(slot * vocab, vocab), sampling, {}, {.request = 0, .position = static_cast<uint64_t>(position)});
        ok = ok && token.ok();
        if (ok) tokens[slot] = *token;
      }
    }
    counting = false;
    EXPECT_TRUE(ok);
    return allocations.exchange(0);
  }
};

TEST_F(TokenPathTest, TheCountersCount) {
  counting = true;
  void* volatile memory = malloc(100);
  free(memory);
  delete new int64_t(1);
  void* const mapped = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  counting = false;
  munmap(mapped, 4096);
  EXPECT_GE(allocations.exchange(0), 2);
}

TEST_F(TokenPathTest, GreedyDecodingAllocatesNothing) {
  EXPECT_EQ(Decode({}, 1, {}), 0);
}

TEST_F(TokenPathTest, SampledDecodingOfABatchAllocatesNothing) {
  EXPECT_EQ(Decode({}, 4, {.temperature = 0.8, .top_k = 40, .top_p = 0.9}), 0);
}

// The whole loop: scheduler, step, sampler, hash, text, stop strings, and a sink that only counts.
TEST_F(TokenPathTest, GeneratingAllocatesNothingFromStepToText) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.path()).ok());
  const auto tokenizer = Tokenizer::Load(dir.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const int64_t sequences : {1, 3}) {
    RunShape shape{.chunk = 300};
    shape.companions.resize(sequences - 1);
    auto engine = OpenEngine(dir.path(), shape, 400);
    ASSERT_TRUE(engine.ok()) << engine.status();
    cli::GenerateOptions options;
    options.sampling = {.repetition_penalty = 1.1, .temperature = 1.0, .top_k = 200};
    options.max_new_tokens = {380};
    options.chunk = 64;
    options.stop_strings = {"no such text", "nor this"};
    options.hash_logits = true;
    int64_t calls = 0;
    options.on_text = [&calls](size_t, std::string_view) {
      ++calls;
      if (calls == 20) counting = true;
      if (calls == 20 + kSteps) counting = false;
    };
    const std::vector<std::vector<int32_t>> prompts(sequences, {1, 2, 3});
    const auto summary = cli::Generate(**engine, **tokenizer, prompts, sequences, options);
    counting = false;
    ASSERT_TRUE(summary.ok()) << summary.status();
    EXPECT_GE(calls, 20 + kSteps) << "too little text to count over";
    EXPECT_EQ(allocations.exchange(0), 0) << sequences << " sequences";
  }
}

// Likewise where a plan runs in this process: orders, step, sampler, hash, news, text.
TEST_F(TokenPathTest, APlanInOneProcessAllocatesNothingFromOrderToText) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.path()).ok());
  const auto tokenizer = Tokenizer::Load(dir.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto spec = Checkpoint::Open(dir.path())->BuildModelSpec();
  ASSERT_TRUE(spec.ok()) << spec.status();
  for (const int32_t sequences : {1, 3}) {
    SCOPED_TRACE(sequences);
    const auto plan = PlanForThisProcess(
        *spec, {.budget = 8 * kGiB, .context = 400, .sequences = sequences, .prompt_tokens = 3, .chunk = 64, .num_threads = 2});
    ASSERT_TRUE(plan.ok()) << plan.status();
    LocalDevice device({.weights = dir.path(), .make_stage = MakeEngineStages({.num_threads = 2})});
    ASSERT_TRUE(device.Install(plan->plan, {}).ok());
    cli::GenerateOptions options;
    options.sampling = {.repetition_penalty = 1.1, .temperature = 1.0, .top_k = 200};
    options.max_new_tokens = {380};
    options.stop_strings = {"no such text", "nor this"};
    int64_t calls = 0;
    options.on_text = [&calls](size_t, std::string_view) {
      ++calls;
      if (calls == 20) counting = true;
      if (calls == 20 + kSteps) counting = false;
    };
    ClusterRun run(device);
    const std::vector<int32_t> prompt = {1, 2, 3};
    std::vector<std::unique_ptr<cli::TextStream>> streams;
    for (int32_t i = 0; i < sequences; ++i) {
      ASSERT_TRUE(run.Add({.prompt = prompt, .max_new_tokens = 380}, {.params = options.sampling, .hash_logits = true}).ok());
      streams.push_back(std::make_unique<cli::TextStream>(**tokenizer, options, static_cast<size_t>(i), prompt));
    }
    const absl::Status status = run.Run(
        [&](const ClusterRun::Token& token) {
          return streams[static_cast<size_t>(token.request)]->Take(token.token, token.reason) == FinishReason::kNone;
        },
        nullptr);
    counting = false;
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_GE(calls, 20 + kSteps) << "too little text to count over";
    EXPECT_EQ(allocations.exchange(0), 0);
  }
}

TEST_F(TokenPathTest, PackedWeightsAndOtherFamiliesAllocateNothing) {
  MakeModelOptions packed;
  packed.config.hidden_size = 128;
  packed.config.intermediate_size = 256;
  packed.config.quantization = Quantization{4, 64};
  EXPECT_EQ(Decode(packed, 1, {}), 0);
  MakeModelOptions qwen3;
  qwen3.config.family = ModelFamily::kQwen3;
  EXPECT_EQ(Decode(qwen3, 1, {}), 0);
  MakeModelOptions opt;
  opt.config.family = ModelFamily::kOpt;
  opt.config.num_kv_heads = 4;
  opt.config.rope.type = RopeType::kNone;
  opt.config.activation = Activation::kRelu;
  opt.config.tie_embeddings = true;
  EXPECT_EQ(Decode(opt, 1, {}), 0);
}

}  // namespace
}  // namespace lime
