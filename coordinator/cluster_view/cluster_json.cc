#include "coordinator/cluster_view/cluster_json.h"

#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "planner/base/json_text.h"

namespace lime {
namespace {

using Json = nlohmann::ordered_json;

// Microseconds and hundredths are enough for people, and keep the text short.
double Rounded(double value, double per) {
  return std::round(value * per) / per;
}

Json Milliseconds(double ms) {
  return Rounded(ms, 1000);
}

Json Rate(const std::optional<double>& bytes_per_second) {
  return bytes_per_second ? Json(std::llround(*bytes_per_second)) : Json();
}

const char* NameOf(DeviceFacts::State state) {
  switch (state) {
    case DeviceFacts::State::kOk:
      return "ok";
    case DeviceFacts::State::kLoading:
      return "loading";
    case DeviceFacts::State::kLost:
      return "lost";
  }
  return "";
}

Json PlanJson(const std::optional<ClusterFacts::PlanFacts>& plan) {
  if (!plan) return Json();
  return {{"epoch", plan->epoch},
          {"stages", plan->stages},
          {"predicted_ms_per_token", Milliseconds(plan->ms_per_token)},
          {"predicted_ttft_ms", Milliseconds(plan->ttft_ms)}};
}

Json ExpertsJson(const ExpertsFacts& experts) {
  const std::optional<double>& measured = experts.measured_hit_share;
  return {{"kept", experts.kept},
          {"of", experts.of},
          {"expected_hit_share", Rounded(experts.expected_hit_share, 10000)},
          {"measured_hit_share", measured ? Json(Rounded(*measured, 10000)) : Json()}};
}

Json DeviceJson(const DeviceFacts& device) {
  Json streamed = Json::array();
  for (const StreamedBlock& block : device.streamed) streamed.push_back({{"name", block.name}, {"bytes", block.bytes}});
  Json json = {{"name", device.name},
               {"address", device.address},
               {"state", NameOf(device.state)},
               {"backend", device.backend},
               {"numerics_id", device.numerics_id},
               {"budget_bytes", device.budget},
               {"rss_bytes", device.resident > 0 ? Json(device.resident) : Json()},
               {"memory",
                {{"weights", device.memory.weights},
                 {"kv", device.memory.kv},
                 {"ring", device.memory.ring},
                 {"activations", device.memory.activations},
                 {"runtime", device.memory.runtime}}},
               {"blocks", device.blocks},
               {"streamed_blocks", std::move(streamed)},
               {"disk_bytes_per_second", Rate(device.disk_bytes_per_second)},
               {"planned_disk_bytes_per_second", Rate(device.planned_disk_bytes_per_second)}};
  if (device.experts) json["experts"] = ExpertsJson(*device.experts);
  return json;
}

Json LinkJson(const LinkFacts& link) {
  return {{"from", link.from},
          {"to", link.to},
          {"planned_bytes_per_second", Rate(link.planned_bytes_per_second)},
          {"measured_bytes_per_second", Rate(link.measured_bytes_per_second)},
          {"age_ms", link.measured_bytes_per_second ? Json(std::llround(link.age_ms)) : Json()}};
}

Json SpansJson(const std::vector<SpanFacts>& spans) {
  Json list = Json::array();
  for (const SpanFacts& span : spans) {
    list.push_back({{"device", span.device},
                    {"kind", span.kind},
                    {"what", span.what},
                    {"begin_ms", Milliseconds(span.begin_ms)},
                    {"end_ms", Milliseconds(span.end_ms)}});
  }
  return list;
}

}  // namespace

std::string ClusterJson(const ClusterFacts& facts) {
  Json devices = Json::array(), links = Json::array();
  for (const DeviceFacts& device : facts.devices) devices.push_back(DeviceJson(device));
  for (const LinkFacts& link : facts.links) links.push_back(LinkJson(link));
  Json cluster{
      {"name", facts.name},
      {"model", facts.model},
      {"plan", PlanJson(facts.plan)},
      {"measured_ms_per_token", facts.measured_ms_per_token ? Milliseconds(*facts.measured_ms_per_token) : Json()},
      {"tokens_per_second", Rounded(facts.tokens_per_second, 100)},
      {"requests", {{"running", facts.running}, {"waiting", facts.waiting}}},
      {"recoveries", facts.recoveries},
      {"plan_changes", facts.plan_changes},
      {"devices", std::move(devices)},
      {"links", std::move(links)},
      {"timeline",
       {{"step", facts.step ? Json(*facts.step) : Json()}, {"spans", SpansJson(facts.spans)}, {"predicted", SpansJson(facts.predicted)}}}};
  if (!facts.plan) cluster["progress"] = Rounded(facts.progress, 100);
  return JsonText(cluster);
}

std::string ClusterEvent(const std::string& json) {
  return absl::StrCat("event: cluster\ndata: ", json, "\n\n");
}

}  // namespace lime
