// Who reads what of the KV that a plan has left, where hosts have some of it.
#include "common/kv_takeover_plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/kv_spill.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Three layers: two of device a, one of b; c has none. Two sequences of 1,024 positions.
class KvTakeoverPlanTest : public ::testing::Test {
 protected:
  KvTakeoverPlanTest() {
    plan_.epoch = 3;
    plan_.context = 1024, plan_.sequences = 2, plan_.batch = 1, plan_.microbatches = 1, plan_.prefill_chunk = 16,
    plan_.chunks_per_sweep = 1;
    plan_.devices = {{.name = "a", .kv_pages = 120}, {.name = "b", .kv_pages = 60}, {.name = "c"}};
    for (int32_t layer = 0; layer < 3; ++layer) plan_.parts.push_back({.block = {BlockKind::kAttention, layer}, .kv_pages = 128});
    plan_.stages = {{.device = 0, .lo = 0, .hi = 2}, {.device = 1, .lo = 2, .hi = 3}};
  }

  static Plan Lending(Plan plan, int32_t owner, int32_t host) {
    plan.devices[owner].max_layer_pages = 60, plan.devices[owner].kv_host = host;
    EXPECT_GT(HostedPieces(plan, plan.devices[owner]), 0);
    return plan;
  }
  KvTakeoverPlan Takeover(const Plan& next, int32_t device, const Plan& before, const KvLentBy& lent) const {
    return MakeKvTakeoverPlan(next, device, before, sequences_, lent, {{"a", "a:1"}, {"b", "b:2"}, {"c", "c:3"}});
  }

  Plan plan_;
  const std::vector<KvSequence> sequences_ = {{.from = 1, .to = 0, .positions = 1000}, {.from = 0, .to = 1, .positions = 300}};
};

TEST_F(KvTakeoverPlanTest, LayersThatStayAreReadHereAndByNoOtherDevice) {
  const KvTakeoverPlan takeover = Takeover(plan_, 0, plan_, {});
  EXPECT_EQ(takeover.epoch, 3);
  EXPECT_EQ(takeover.sequences, sequences_);
  EXPECT_THAT(takeover.holders, ElementsAre(KvHolder{.name = "a", .address = "a:1", .layers = {0, 1}, .lent = {}}));
  EXPECT_THAT(takeover.kv_readers, IsEmpty());
  EXPECT_THAT(Takeover(plan_, 2, plan_, {}).holders, IsEmpty());
}

TEST_F(KvTakeoverPlanTest, StatesAreReadWithTheirLayersAsKvIs) {
  plan_.parts[1] = {.block = {BlockKind::kLinearAttention, 1}, .state_bytes = 4096};
  EXPECT_THAT(Takeover(plan_, 0, plan_, {}).holders, ElementsAre(KvHolder{.name = "a", .address = "a:1", .layers = {0, 1}, .lent = {}}));
  Plan next = plan_;
  next.stages = {{.device = 0, .lo = 0, .hi = 1}, {.device = 1, .lo = 1, .hi = 3}};  // layer 1 is b's now
  EXPECT_THAT(Takeover(next, 1, plan_, {}).holders, ElementsAre(KvHolder{.name = "a", .address = "a:1", .layers = {1}, .lent = {}},
                                                                KvHolder{.name = "b", .address = "b:2", .layers = {2}, .lent = {}}));
  EXPECT_THAT(Takeover(next, 0, plan_, {}).kv_readers, ElementsAre(KvReaders{.layer = 1, .readers = 1}));
}

TEST_F(KvTakeoverPlanTest, WhatWasLentIsReadFromTheHostAndTheRestFromTheOwner) {
  const Plan before = Lending(plan_, 0, 2);
  const KvLentBy lent = {{"a", {{.sequence = 1, .pieces = 2, .life = 5}}}};
  Plan next = plan_;
  next.stages = {{.device = 0, .lo = 0, .hi = 1}, {.device = 1, .lo = 1, .hi = 3}};  // layer 1 is b's now
  const KvHolder owner{.name = "a", .address = "a:1", .layers = {1}, .lent = lent.at("a")};
  const KvHolder host{.name = "c", .address = "c:3", .layers = {1}, .hosts = true, .lent = lent.at("a")};
  const KvHolder own{.name = "b", .address = "b:2", .layers = {2}, .lent = {}};
  EXPECT_THAT(Takeover(next, 1, before, lent).holders, ElementsAre(owner, host, own));
  EXPECT_THAT(Takeover(next, 0, before, lent).kv_readers, ElementsAre(KvReaders{.layer = 1, .readers = 1}));
  EXPECT_THAT(Takeover(next, 2, before, lent).kv_readers,
              ElementsAre(KvReaders{.layer = 0, .hosts = true, .readers = 1}, KvReaders{.layer = 1, .hosts = true, .readers = 1}));
  const std::vector<KvExtent> wanted = {{.sequence = 1, .first = 0, .end = 63}, {.sequence = 0, .first = 0, .end = 19}};
  EXPECT_THAT(HeldBy(owner, wanted),
              ElementsAre(KvExtent{.sequence = 1, .first = 32, .end = 63}, KvExtent{.sequence = 0, .first = 0, .end = 19}));
  EXPECT_THAT(HeldBy(host, wanted), ElementsAre(KvExtent{.sequence = 1, .first = 0, .end = 32, .life = 5}));
  EXPECT_THAT(HeldBy(host, std::vector<KvExtent>{{.sequence = 1, .first = 32, .end = 63}}), IsEmpty());
}

TEST_F(KvTakeoverPlanTest, AHostReadsTheFirstPiecesOfWhatItIsToHave) {
  const Plan next = Lending(plan_, 0, 2);
  const KvTakeoverPlan takeover = Takeover(next, 2, plan_, {});
  EXPECT_THAT(takeover.holders, ElementsAre(KvHolder{.name = "a", .address = "a:1", .layers = {0, 1}, .lent = {}}));
  EXPECT_THAT(Takeover(next, 0, plan_, {}).kv_readers,
              ElementsAre(KvReaders{.layer = 0, .readers = 1}, KvReaders{.layer = 1, .readers = 1}));
  // Lent before, too, of a sequence that does not go on: nothing is read of it.
  EXPECT_EQ(Takeover(next, 2, Lending(plan_, 0, 1), {{"a", {{.sequence = 7, .pieces = 1}}}}), takeover);
}

TEST_F(KvTakeoverPlanTest, AsLittleIsAwayAtFirstAsLeavesRoom) {
  const auto away = [&](const Plan& plan) { return AwayAtFirst(plan, 0, sequences_); };
  Plan next = plan_;
  next.devices[0].kv_pages = 2 * 82;  // 63 and 19 pages of two layers
  EXPECT_THAT(*away(next), ElementsAre(0, 0));
  next.devices[0].kv_pages = 2 * 82 - 1;
  EXPECT_TRUE(absl::IsResourceExhausted(away(next).status())) << "none may go";
  next = Lending(plan_, 0, 2);
  EXPECT_THAT(*away(next), ElementsAre(1, 1)) << "of those in turn that have the least away";
  next.devices[0].kv_pages = 2 * 18;
  EXPECT_THAT(*away(next), ElementsAre(3, 1)) << "all that is full";
  next.devices[0].kv_pages = 2 * 18 - 1;
  EXPECT_TRUE(absl::IsResourceExhausted(away(next).status()));
  EXPECT_THAT(*AwayAtFirst(next, 2, sequences_), ElementsAre(0, 0)) << "it has no layers";
}

}  // namespace
}  // namespace lime
