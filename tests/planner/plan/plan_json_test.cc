// Instances and plans survive the way through JSON.
#include "planner/plan/instance/plan_json.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/planner/random_plans.h"

namespace lime {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using ::testing::HasSubstr;

ordered_json DeviceToJson(const Instance::Device& device) {
  ordered_json out = {{"name", device.name},
                      {"mem_mb", device.mem_mb},
                      {"disk_mb_per_ms", device.disk_mb_per_ms},
                      {"disk_lat_ms", device.disk_lat_ms},
                      {"comp_ms", device.comp_ms}};
  for (const auto& [batch, comp_ms] : device.comp_ms_by_batch) out["comp_ms_by_batch"][absl::StrCat(batch)] = comp_ms;
  if (device.embed_rows_ms) out["embed_rows_ms"] = *device.embed_rows_ms;
  return out;
}

ordered_json ToJson(const Instance& instance) {
  ordered_json devices = ordered_json::array();
  for (const Instance::Device& device : instance.devices) devices.push_back(DeviceToJson(device));
  ordered_json blocks = ordered_json::array();
  for (const Instance::Block& block : instance.blocks) {
    blocks.push_back({{"kind", std::string(1, KindLetter(block.kind))}, {"layer", block.layer}, {"mb", block.mb}, {"kv_mb", block.kv_mb}});
  }
  ordered_json net = {{"tx_ms", instance.net.tx_ms}, {"lat_ms", instance.net.lat_ms}};
  for (const auto& [batch, tx_ms] : instance.net.tx_ms_by_batch) net["tx_ms_by_batch"][absl::StrCat(batch)] = tx_ms;
  ordered_json out = {{"devices", std::move(devices)},
                      {"blocks", std::move(blocks)},
                      {"embed_mb", instance.embed_mb},
                      {"net", std::move(net)},
                      {"microbatches", instance.microbatches}};
  if (instance.sequences > 0) out["sequences"] = instance.sequences;
  return out;
}

TEST(PlanJsonTest, WhatIsWrittenIsReadBack) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomPlans random(seed);
    Instance instance = random.MakeInstance(12, 4, 3);
    if (random.Chance(50)) {
      instance.sequences = 5;
      instance.net.tx_ms_by_batch = {{1, 0.5}, {5, 2.5}};
      for (Instance::Device& device : instance.devices) device.comp_ms_by_batch[5] = device.comp_ms;
    }
    const StagePlan plan = random.MakePlan(instance);
    const std::string text = ToJson(instance).dump();
    const auto read = InstanceFromJson(json::parse(text));
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(ToJson(*read).dump(), text);
    const auto read_plan = StagePlanFromJson(json::parse(ToJson(plan).dump()), *read);
    ASSERT_TRUE(read_plan.ok()) << read_plan.status().message();
    EXPECT_EQ(*read_plan, plan);
  }
}

json InstanceOfBatches() {
  return json::parse(R"({"devices": [{"mem_mb": 10, "disk_mb_per_ms": 1, "comp_ms_by_batch": {"1": [3], "5": [4]}}],
                         "blocks": [{"kind": "H", "mb": 2}], "net": {"lat_ms": 1, "tx_ms_by_batch": {"1": 0.5, "5": 2.5}}, "sequences": 5})");
}

TEST(PlanJsonTest, TimesMayBeStatedByBatchAlone) {
  const auto instance = InstanceFromJson(InstanceOfBatches());
  ASSERT_TRUE(instance.ok()) << instance.status().message();
  EXPECT_EQ(instance->devices[0].comp_ms, std::vector<double>{3});
  EXPECT_EQ(instance->devices[0].comp_ms_by_batch.at(5), std::vector<double>{4});
  EXPECT_EQ(instance->net.tx_ms, 0.5);
  EXPECT_EQ(instance->sequences, 5);
}

TEST(PlanJsonTest, BatchSizesAreChecked) {
  const auto error = [](const char* pointer, const json& value) {
    json instance = InstanceOfBatches();
    instance[json::json_pointer(pointer)] = value;
    return std::string(InstanceFromJson(instance).status().message());
  };
  EXPECT_THAT(error("/devices/0/comp_ms_by_batch/x", {1}), HasSubstr("\"x\" is not a batch size of 1 to 1024"));
  EXPECT_THAT(error("/devices/0/comp_ms_by_batch/0", {1}), HasSubstr("\"0\" is not a batch size"));
  EXPECT_THAT(error("/devices/0/comp_ms_by_batch/5", {1, 2}), HasSubstr("comp_ms_by_batch.5\" has 2 times for 1 blocks"));
  EXPECT_THAT(error("/net/tx_ms_by_batch/5", -1), HasSubstr("\"net.tx_ms_by_batch.5\" = -1 is outside"));
}

TEST(InstanceTest, NamesNumbersThatAreNotFinite) {
  const auto error = [](auto change) {
    Instance instance = RandomPlans(1).MakeInstance(4, 2, 1);
    EXPECT_TRUE(instance.Validate().ok());
    change(instance);
    return std::string(instance.Validate().message());
  };
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  EXPECT_THAT(error([&](Instance& i) { i.devices[0].mem_mb = nan; }), HasSubstr("\"devices[0].mem_mb\" = nan"));
  EXPECT_THAT(error([&](Instance& i) { i.devices[0].disk_lat_ms = inf; }), HasSubstr("\"devices[0].disk_lat_ms\" = inf"));
  EXPECT_THAT(error([&](Instance& i) { i.devices[0].comp_ms[0] = nan; }), HasSubstr("\"devices[0].comp_ms[0]\" = nan"));
  EXPECT_THAT(error([&](Instance& i) { i.devices[0].embed_rows_ms = nan; }), HasSubstr("\"devices[0].embed_rows_ms\" = nan"));
  EXPECT_THAT(error([&](Instance& i) { i.devices[0].embed_rows_ms = -1; }), HasSubstr("\"devices[0].embed_rows_ms\" = -1"));
  EXPECT_THAT(error([&](Instance& i) { i.blocks[0].kv_mb = -1; }), HasSubstr("\"blocks[0].kv_mb\" = -1"));
  EXPECT_THAT(error([&](Instance& i) { i.net.lat_ms = nan; }), HasSubstr("\"net.lat_ms\" = nan"));
  EXPECT_THAT(error([&](Instance& i) { i.embed_mb = inf; }), HasSubstr("\"embed_mb\" = inf"));
  EXPECT_THAT(error([&](Instance& i) { i.blocks.resize(kMaxPlanBlocks + 1); }), HasSubstr("\"blocks\": 65537 is outside"));
  EXPECT_THAT(error([&](Instance& i) { i.microbatches = 0; }), HasSubstr("\"microbatches\": 0 is outside"));
}

}  // namespace
}  // namespace lime
