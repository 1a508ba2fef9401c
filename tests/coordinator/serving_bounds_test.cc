// Nothing is kept of requests that have ended: this program counts the bytes that its allocations
// hold.

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "coordinator/serving/serving.h"
#include "gtest/gtest.h"
#include "tests/coordinator/fake_devices.h"

namespace {
std::atomic<int64_t> held{0};

void* Allocate(size_t size) {
  void* const memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  held.fetch_add(static_cast<int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  return memory;
}
void Free(void* memory) {
  if (memory != nullptr) held.fetch_sub(static_cast<int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  std::free(memory);
}
}  // namespace

void* operator new(size_t size) {
  return Allocate(size);
}
void operator delete(void* memory) noexcept {
  Free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  Free(memory);
}

namespace lime {
namespace {

// Counts tokens, and lets the next request come when its own has ended.
class Chain final : public RequestSink {
 public:
  Chain(Serving& serving, int64_t requests, size_t ids) : serving_(serving), ids_(ids), remaining_(requests) {}

  void Begin(const std::shared_ptr<Chain>& self) {
    self_ = self;
    Next();
  }
  void OnToken(const ServedToken&) override { ++tokens_; }
  void OnEnd(const RequestEnd& end) override {
    EXPECT_TRUE(end.status.ok()) << end.status;
    if (--remaining_ > 0) return Next();
    self_.reset();
    done_.Notify();
  }
  int64_t Wait() {
    done_.WaitForNotification();
    return tokens_;
  }

 private:
  void Next() {
    ServingRequest request{.prompt = {1, static_cast<int32_t>(remaining_ % 200)},
                           .max_new_tokens = 2,
                           .end_tokens = {},
                           .stop_strings = {},
                           .sampling = {},
                           .cache_prompt = true};
    request.prompt.resize(ids_, 1);
    EXPECT_TRUE(serving_.Submit(std::move(request), self_).ok());
  }

  Serving& serving_;
  const size_t ids_;  // of a prompt
  int64_t remaining_, tokens_ = 0;
  std::shared_ptr<Chain> self_;
  absl::Notification done_;
};

int64_t HeldAfter(Serving& serving, int64_t requests, size_t ids = 2) {
  std::vector<std::shared_ptr<Chain>> chains(5);
  for (auto& chain : chains) chain = std::make_shared<Chain>(serving, requests / 5, ids);
  for (const auto& chain : chains) chain->Begin(chain);
  int64_t tokens = 0;
  for (const auto& chain : chains) tokens += chain->Wait();
  EXPECT_EQ(tokens, 2 * requests);
  chains.clear();
  const auto last = std::make_shared<Chain>(serving, 1, ids);  // once it has come, those before have gone
  last->Begin(last);
  last->Wait();
  return held.load();
}

TEST(ServingBoundsTest, AHundredThousandRequestsLeaveMemoryAsItWas) {
  FakeDevices devices(OneStage(3));
  Serving serving(devices, {});
  const int64_t before = HeldAfter(serving, 1'000);
  const int64_t after = HeldAfter(serving, 100'000);
  EXPECT_LE(after - before, 16 * 1024) << "which is less than a byte for each";
}

TEST(ServingBoundsTest, IdleSlotsHoldNoMoreThanTheirIds) {
  FakeDevices devices(OneStage(3));
  Serving serving(devices, {.prompt_cache = kGiB});
  const int64_t before = HeldAfter(serving, 1'000, 40);
  const int64_t after = HeldAfter(serving, 20'000, 40);
  EXPECT_LE(after - before, 16 * 1024);
}

}  // namespace
}  // namespace lime
