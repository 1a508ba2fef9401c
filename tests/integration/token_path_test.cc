// Nothing is allocated on the token path, from the order to the text, by one process and by the
// stages of a cluster: this program replaces the allocator and mmap by ones that count, and makes
// 64 tokens. What a link over a network allocates is not counted here (daemon/rpc/README.md).

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/sampling/sampler.h"
#include "coordinator/serving/serving.h"
#include "coordinator/sessions/generate.h"
#include "coordinator/text/tokenizer.h"
#include "daemon/logic/stage_inbox.h"
#include "daemon/stores/block_store.h"
#include "gtest/gtest.h"
#include "tests/integration/loopback_cluster.h"
#include "tests/integration/made_copies.h"
#include "tests/integration/models.h"

namespace {
std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

void Count() {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
}
}  // namespace

// The C library's own, under the names that the replacements below hide.
// NOLINTBEGIN(bugprone-reserved-identifier, performance-no-int-to-ptr)
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
// NOLINTEND(bugprone-reserved-identifier, performance-no-int-to-ptr)

namespace lime {
namespace {

constexpr int64_t kSteps = 64;
constexpr int64_t kPrompt = 200, kContext = 512;
constexpr int64_t kWarmUp = 20;  // tokens of each sequence before those that are counted

// Prompts of `sequences` at a time, continued as `lime run` does: orders, step, sampler, hash,
// news, text, stop strings, and a sink that only counts. Returns the allocations of kSteps tokens
// of each, which cross from the first 256 positions to the next ones. If `again`, the same prompts are
// continued a second time, and the allocations are those of the second time.
int64_t AllocationsOn(Devices& devices, const Tokenizer& tokenizer, int32_t sequences, const SamplingParams& sampling,
                      bool hash_logits = true, bool again = false) {
  cli::GenerateOptions options;
  options.sampling = sampling;
  options.max_new_tokens = {kContext - kPrompt};
  options.stop_strings = {"no such text", "nor this"};
  options.hash_logits = hash_logits;
  int64_t calls = 0;
  options.on_text = [&](size_t prompt, std::string_view) {
    if (again && prompt < static_cast<size_t>(sequences)) return;
    ++calls;
    if (calls == kWarmUp * sequences) counting = true;
    if (calls == (kWarmUp + kSteps) * sequences) counting = false;
  };
  cli::Generator generator(devices, {}, tokenizer, options, /*expected_prompt_seconds=*/std::nullopt);
  std::vector<int32_t> prompt(kPrompt);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>('a' + i % 26);
  for (int32_t i = 0; i < (again ? 2 : 1) * sequences; ++i) generator.Add(prompt);
  const auto summary = generator.Run();
  counting = false;
  EXPECT_TRUE(summary.ok()) << summary.status();
  EXPECT_GE(calls, (kWarmUp + kSteps) * sequences) << "too little text to count over";
  return allocations.exchange(0);
}

// By one process.
int64_t AllocationsOf(const MakeModelOptions& model, int32_t sequences, const SamplingParams& sampling,
                      std::optional<int64_t> unit_places = std::nullopt) {
  const TempDir dir;
  EXPECT_TRUE(MakeModel(model, dir.path()).ok());
  const auto tokenizer = Tokenizer::Load(dir.path());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  RunShape shape{.chunk = 64, .unit_places = unit_places};
  shape.companions.resize(static_cast<size_t>(sequences - 1));
  const auto device = InstallHere(dir.path(), shape, kContext);
  EXPECT_TRUE(device.ok()) << device.status();
  if (!tokenizer.ok() || !device.ok()) return -1;
  return AllocationsOn(**device, **tokenizer, sequences, sampling);
}

// By a cluster.
int64_t AllocationsOf(const SplitShape& shape, const SamplingParams& sampling, bool hash_logits = true) {
  MakeModelOptions model;
  model.config.num_layers = 6;
  if (shape.split_head) model.config.vocab_size = 3 * kVocabRange;
  const TempDir dir;
  EXPECT_TRUE(MakeModel(model, dir.path()).ok());
  const auto tokenizer = Tokenizer::Load(dir.path());
  const auto checkpoint = Checkpoint::Open(dir.path());
  EXPECT_TRUE(tokenizer.ok() && checkpoint.ok()) << tokenizer.status() << checkpoint.status();
  const auto plan = SplitPlan(*checkpoint->BuildModelSpec(), shape);
  EXPECT_TRUE(plan.ok()) << plan.status();
  LoopbackCluster cluster(dir.path(), MakeEngineStages({.num_threads = 1}));
  const absl::Status installed = plan.ok() ? cluster.Install(*plan, {}) : plan.status();
  EXPECT_TRUE(installed.ok()) << installed;
  if (!installed.ok()) return -1;
  return AllocationsOn(cluster, **tokenizer, shape.sequences, sampling, hash_logits);
}

TEST(TokenPathTest, TheCountersCount) {
  counting = true;
  void* volatile memory = malloc(100);
  free(memory);
  delete new int64_t(1);
  void* const mapped = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  counting = false;
  munmap(mapped, 4096);
  EXPECT_GE(allocations.exchange(0), 2);
}

TEST(TokenPathTest, GreedyDecodingAllocatesNothing) {
  EXPECT_EQ(AllocationsOf({}, 1, {}), 0);
}

TEST(TokenPathTest, SampledDecodingOfABatchAllocatesNothing) {
  EXPECT_EQ(AllocationsOf({}, 4, {.temperature = 0.8, .top_k = 40, .top_p = 0.9}), 0);
}

TEST(TokenPathTest, DecodingWithARepetitionPenaltyAllocatesNothing) {
  for (const int32_t sequences : {1, 3})
    EXPECT_EQ(AllocationsOf({}, sequences, {.repetition_penalty = 1.1, .temperature = 1.0, .top_k = 200}), 0) << sequences << " sequences";
}

TEST(TokenPathTest, DecodingWithPenaltiesAndBiasesAllocatesNothing) {
  const SamplingParams params{
      .presence_penalty = 0.5, .frequency_penalty = 0.5, .logit_bias = {{3, -100}, {7, 2}}, .temperature = 1.0, .top_k = 200};
  EXPECT_EQ(AllocationsOf({}, 2, params), 0);
}

// Counts the allocations of kSteps tokens behind the first ones.
class CountedAnswer final : public RequestSink {
 public:
  void OnToken(const ServedToken& token) override {
    ++tokens_;
    scored_ += token.score != nullptr ? 1 : 0;
    if (tokens_ == kWarmUp) counting = true;
    if (tokens_ == kWarmUp + kSteps) counting = false;
  }
  void OnEnd(const RequestEnd& end) override {
    EXPECT_TRUE(end.status.ok()) << end.status;
    EXPECT_EQ(scored_, tokens_);
    ended_.Notify();
  }
  void Wait() { ended_.WaitForNotification(); }

 private:
  int64_t tokens_ = 0, scored_ = 0;
  absl::Notification ended_;
};

TEST(TokenPathTest, LogProbabilitiesOfTwentyIdsAllocateNothing) {
  const TempDir dir;
  ASSERT_TRUE(MakeModel({}, dir.path()).ok());
  const auto device = InstallHere(dir.path(), RunShape{.chunk = 64}, kContext);
  ASSERT_TRUE(device.ok()) << device.status();
  Serving serving(**device, {});
  ServingRequest request{.prompt = std::vector<int32_t>(kPrompt, 'a'),
                         .max_new_tokens = kContext - kPrompt,
                         .end_tokens = {},
                         .stop_strings = {},
                         .sampling = {}};
  request.sampling.logprobs = kMostLogprobs;
  const auto answer = std::make_shared<CountedAnswer>();
  ASSERT_TRUE(serving.Submit(std::move(request), answer).ok());
  answer->Wait();
  EXPECT_EQ(allocations.exchange(0), 0);
}

TEST(TokenPathTest, PackedWeightsAndOtherFamiliesAllocateNothing) {
  MakeModelOptions packed;
  packed.config.hidden_size = 128;
  packed.config.intermediate_size = 256;
  packed.config.quantization = Quantization{4, 64};
  EXPECT_EQ(AllocationsOf(packed, 1, {}), 0);
  MakeModelOptions qwen3;
  qwen3.config.family = "qwen3";
  EXPECT_EQ(AllocationsOf(qwen3, 1, {}), 0);
  MakeModelOptions opt;
  opt.config.family = "opt";
  opt.config.num_kv_heads = 4;
  opt.config.activation = Activation::kRelu;
  opt.config.tie_embeddings = true;
  EXPECT_EQ(AllocationsOf(opt, 1, {}), 0);
  MakeModelOptions qwen3_5;
  qwen3_5.config.family = "qwen3_5";
  qwen3_5.config.num_layers = 5;
  EXPECT_EQ(AllocationsOf(qwen3_5, 1, {}), 0);
}

// A read allocates its request, as that of a streamed part does. Here every expert has a place, so
// that the cache is at work and the disk is not.
TEST(TokenPathTest, ModelsWithExpertsAllocateNothing) {
  for (const std::string family : {"qwen3_moe", "qwen3_next"}) {
    MakeModelOptions model;
    model.config.family = family;
    model.config.num_layers = 5;  // of qwen3_next, one has full attention
    EXPECT_EQ(AllocationsOf(model, 2, {}), 0) << family;
    EXPECT_EQ(AllocationsOf(model, 2, {}, model.config.num_experts), 0) << family << ", on demand";
  }
}

// Reads of neurons allocate their requests, too. Every neuron has a row in memory, and the same tokens
// once more need no other ones. A chunk of a prompt reads pieces, so it is not counted.
TEST(TokenPathTest, SparseMlpsAllocateNothingOnceTheirNeuronsAreInMemory) {
  struct Case {
    int64_t chunk = 1;
    bool packed = false, certified = false;
  };
  for (const auto& [chunk, packed, certified] :
       {Case{}, {.chunk = 64}, {.chunk = 64, .packed = true}, {.certified = true}, {.chunk = 64, .certified = true}}) {
    MakeModelOptions model;
    model.config.activation = Activation::kRelu;
    if (packed) model.config.hidden_size = 128, model.config.intermediate_size = 256, model.config.quantization = Quantization{4, 64};
    const TempDir dir;
    ASSERT_TRUE(MakeModel(model, dir / "model").ok());
    if (certified) {
      ASSERT_TRUE(PrepareWithCopies(dir / "model", dir / "store").ok());
    } else {
      ASSERT_TRUE(PrepareBlockStore(dir / "model", dir / "store", {.bundles = true}).ok());
    }
    const auto tokenizer = Tokenizer::Load(dir / "model");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const auto device =
        InstallHere(dir / "store", {.chunk = chunk, .neuron_rows = model.config.intermediate_size, .certified = certified}, kContext);
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ(AllocationsOn(**device, **tokenizer, 1, {}, /*hash_logits=*/true, /*again=*/true), 0)
        << "chunk " << chunk << ", certified " << certified;
    const auto statistics = (*device)->Statistics(0);
    ASSERT_TRUE(statistics.ok()) << statistics.status();
    EXPECT_EQ(statistics->neurons_copied > 0, chunk > 1);
    EXPECT_GT(statistics->neurons_loaded + statistics->neurons_copied, 0);
    EXPECT_GT(statistics->neurons_computed, 20 * statistics->neurons_loaded);
  }
}

TEST(TokenPathTest, StagesWithPeersAllocateNothing) {
  EXPECT_EQ(AllocationsOf(SplitShape{}, {}), 0);
  EXPECT_EQ(AllocationsOf(SplitShape{.devices = 3, .rounds = 2}, {}), 0);
}

TEST(TokenPathTest, MicroBatchesThatFollowOneAnotherThroughStagesAllocateNothing) {
  EXPECT_EQ(AllocationsOf(SplitShape{.rounds = 2, .sequences = 4, .batch = 2}, {.temperature = 0.8, .top_k = 40, .top_p = 0.9}), 0);
}

// A quick thread may have had its messages one by one until now, and find two of them at once, for the
// step under way or the next one, whenever another thread is slow.
TEST(TokenPathTest, MessagesThatMeetForTheFirstTimeAllocateNothing) {
  Plan plan = {
      .context = 256, .sequences = 4, .microbatches = 2, .batch = 2, .prompt_tokens = 8, .prefill_chunk = 4, .chunks_per_sweep = 1};
  plan.devices.resize(2);
  plan.parts = {
      {.block = {BlockKind::kMlp, 0}}, {.block = {BlockKind::kMlp, 1}}, {.block = {BlockKind::kMlp, 2}}, {.block = {BlockKind::kMlp, 3}}};
  for (int32_t stage = 0; stage < 4; ++stage) plan.stages.push_back({.device = stage % 2, .lo = stage, .hi = stage + 1});
  const auto row_bytes = Bytes{64};
  StageInbox inbox(plan, /*device=*/1, {.vocab_size = 100, .row_bytes = row_bytes, .microbatches = 2});

  constexpr int64_t kMessagesOfAStep = 4, kStepsHere = 8;
  std::vector<ActivationMessage> messages;
  std::vector<std::vector<MicroBatch>> steps;
  for (int64_t step = 0; step < kStepsHere; ++step) {
    MicroBatch rows;
    for (const int32_t sequence : {0, 1}) rows.rows.push_back({.sequence = sequence, .token = 1, .position = static_cast<int32_t>(step)});
    steps.push_back({rows, rows});
    for (const auto& [stage, microbatch] : {std::pair{0, 0}, {0, 1}, {2, 0}, {2, 1}}) {
      ActivationMessage& message = messages.emplace_back();
      message.header = {.step = step, .stage = stage, .microbatch = microbatch, .bytes = plan.batch * row_bytes};
      message.payload.resize(static_cast<size_t>(message.header.bytes));
    }
  }
  size_t came = 0;
  const auto come = [&](size_t count) {
    for (; count > 0; --count) ASSERT_TRUE(inbox.OnActivation(std::move(messages[came++])).ok());
  };
  std::vector<std::vector<std::byte>> sent;
  sent.reserve(messages.size());
  const auto compute = [&](int32_t stage, int32_t microbatch) {
    inbox.AddSpare(inbox.PopInput({stage, microbatch}));
    sent.push_back(inbox.PopSpare(plan.batch * row_bytes));
  };
  for (size_t step = 0; step < kStepsHere; ++step) {
    const bool meet = step > kStepsHere / 2;
    if (meet) counting = true, come(kMessagesOfAStep);
    (void)inbox.BeginStep(std::move(steps[step]));
    for (const auto& [stage, microbatch] : {std::pair{1, 0}, {1, 1}, {3, 0}, {3, 1}}) {
      if (!meet) come(1);
      compute(stage, microbatch);
    }
    inbox.EndStep();
  }
  counting = false;
  EXPECT_EQ(came, messages.size());
  EXPECT_EQ(allocations.exchange(0), 0);
}

// All logits so far are handed on, or those that the token may be.
TEST(TokenPathTest, DevicesThatShareTheHeadAllocateNothing) {
  const SplitShape shape{.sequences = 2, .batch = 2, .split_head = true};
  EXPECT_EQ(AllocationsOf(shape, {}), 0);
  EXPECT_EQ(AllocationsOf(shape, {.temperature = 0.8, .top_k = 40}, /*hash_logits=*/false), 0);
}

}  // namespace
}  // namespace lime
