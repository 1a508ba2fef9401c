// A cluster of three boards, as a watch sees it, for tests of its views.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "coordinator/cluster_view/cluster_facts.h"
#include "coordinator/cluster_view/plan_view.h"
#include "planner/base/bytes.h"
#include "tests/planner/small_plan.h"

namespace lime {

inline Plan SmallServedPlan() {
  Plan plan = *SmallPlan(1, 1, 58 * kMiB);
  plan.epoch = 3;
  return plan;
}

// Board "b" streams, "c" is lost, and "d" has no part in the plan.
inline ClusterFacts SmallFacts(const Plan& plan) {
  ClusterFacts facts{
      .name = "shelf",
      .model = "small",
      .plan =
          ClusterFacts::PlanFacts{
              .epoch = plan.epoch, .stages = std::ssize(plan.stages), .ms_per_token = 20.05, .ttft_ms = plan.predicted.ttft_ms},
      .measured_ms_per_token = 21.23456,
      .tokens_per_second = 47.0932,
      .running = 1,
      .waiting = 2,
      .recoveries = 1,
      .plan_changes = 4,
      .kv_pages_cached = 16};
  for (const std::string name : {"a", "b", "c", "d"}) {
    DeviceFacts device{.name = name, .address = name + ":7001", .state = DeviceFacts::State::kOk, .backend = "cpu"};
    DescribeByPlan(plan, device);
    facts.devices.push_back(std::move(device));
  }
  facts.devices[0].resident = 70 * kMiB;
  facts.devices[0].kv_pages = 128, facts.devices[0].kv_pages_free = 96;
  facts.devices[1].disk_bytes_per_second = 1.5e9;
  facts.devices[1].totals = {.disk_read = 123'456'789, .wait_weights_seconds = 1.25, .compute_seconds = 9.5};
  facts.devices[2].state = DeviceFacts::State::kLost;
  facts.links = LinksOf(plan);
  facts.links[0].planned_bytes_per_second = 12.5e6;
  facts.links[0].measured_bytes_per_second = 11.25e6;
  facts.links[0].age_ms = 240.4;
  facts.links[0].sent = 4096;
  facts.step = 412;
  facts.spans = {{.device = "a", .kind = "compute", .what = "attention 0", .begin_ms = 0, .end_ms = 1.23456}};
  facts.predicted = PredictedStep(plan);
  return facts;
}

}  // namespace lime
