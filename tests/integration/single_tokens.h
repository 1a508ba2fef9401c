// A generation token by token, during which a test changes what is resident.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "daemon/engine/engine.h"
#include "gtest/gtest.h"
#include "planner/base/bytes.h"

namespace lime {

// Logits of a generation of single tokens; `change` is called before each of them.
template <typename Change>
std::vector<float> Generate(Engine& engine, const std::vector<int32_t>& ids, Change change) {
  std::vector<float> all;
  EXPECT_TRUE(engine.StartSequence(0, static_cast<int64_t>(ids.size())).ok());
  MicroBatch batch;
  for (size_t i = 0; i < ids.size(); ++i) {
    change(i);
    batch.rows = {{.sequence = 0, .token = ids[i], .position = static_cast<int32_t>(i), .wants_logits = i % 3 != 1}};
    const auto logits = engine.Step(batch);
    EXPECT_TRUE(logits.ok()) << logits.status();
    if (!logits.ok()) break;
    all.insert(all.end(), logits->begin(), logits->end());
  }
  engine.EndSequence(0);
  return all;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline void RegainAll(Streamer& streamer) {
  while (true) {
    const absl::StatusOr<bool> taken = streamer.Regain(64 * kMiB);
    ASSERT_TRUE(taken.ok()) << taken.status();
    if (!*taken) return;
  }
}

}  // namespace lime
