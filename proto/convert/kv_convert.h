// Conversion of KV that goes from one plan to the next, for both services; see convert.h.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/kv_takeover_plan.h"
#include "planner/base/status.h"
#include "planner/plan/plan.h"
#include "proto/convert/messages.h"

namespace lime {

class MessageFields;

// Slots, positions and layers must be those of `plan`. No slot may occur twice.
void List(MessageFields& f, KvTakeoverPlan& takeover, v1::KvTakeoverPlan& m, const Plan& plan);

struct UnloadCall {
  int64_t epoch = 0;
  bool hand_over_kv = false;
  bool interrupted = false;  // the plan has failed, so its KV is kept for kKvLeftPatience only
  friend bool operator==(const UnloadCall&, const UnloadCall&) = default;
};
void ToProto(const UnloadCall& call, v1::UnloadRequest& message);
absl::StatusOr<UnloadCall> FromProto(const v1::UnloadRequest& message);

struct UnloadedPlan {
  bool handed_over = false;                             // its KV is kept, as requested
  std::vector<std::pair<int32_t, std::string>> hashes;  // by slot: LogitsHash::State
  std::vector<KvLent> lent;                             // pieces on its host
  friend bool operator==(const UnloadedPlan&, const UnloadedPlan&) = default;
};
void ToProto(const UnloadedPlan& unloaded, v1::UnloadReply& message);
absl::StatusOr<UnloadedPlan> FromProto(const v1::UnloadReply& message);

void ToProto(const KvReadCall& call, v1::KvRequest& message);
absl::StatusOr<KvReadCall> FromProto(const v1::KvRequest& message);

struct KvPagesRead {
  int32_t sequence = 0;
  int64_t first = 0;  // page
  std::string data;
  uint64_t xxh3 = 0;

  bool intact() const;
  friend bool operator==(const KvPagesRead&, const KvPagesRead&) = default;
};
void ToProto(KvPagesRead pages, v1::KvPages& message);
// Moves data out of `message`.
absl::StatusOr<KvPagesRead> FromProto(v1::KvPages& message);

}  // namespace lime
