#include "proto/finding_convert.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "proto/convert.h"
#include "proto/fields.h"

namespace lime {
namespace {

constexpr size_t kMaxFindings = 64, kMaxFindingText = 1024, kMaxCheckName = 64;

// Protobuf's strings are UTF-8, and a finding may quote the name of a file.
std::string Cut(std::string_view text) {
  std::string sentence(text.substr(0, kMaxFindingText));
  std::ranges::replace_if(
      sentence, [](char c) { return static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e; }, '?');
  return sentence;
}

}  // namespace

void ToProto(const InspectCall& call, v1::InspectRequest& message) {
  message.set_weights(call.weights);
  message.set_seconds(call.seconds);
}

absl::StatusOr<InspectCall> FromProto(const v1::InspectRequest& message) {
  LIME_RETURN_IF_ERROR(fields::Printable("weights", message.weights(), kMaxWirePath));
  if (!(message.seconds() >= 0 && message.seconds() <= kMaxInspectSeconds))
    return fields::Wrong("field \"seconds\" = ", message.seconds(), " is outside 0 to ", kMaxInspectSeconds);
  return InspectCall{.weights = message.weights(), .seconds = message.seconds()};
}

void ToProto(const std::vector<Finding>& findings, v1::InspectReply& message) {
  for (size_t i = 0; i < std::min(findings.size(), kMaxFindings); ++i) {
    v1::Finding& out = *message.add_findings();
    out.set_check(Cut(findings[i].check).substr(0, kMaxCheckName));
    out.set_grade(static_cast<uint32_t>(findings[i].grade));
    out.set_what(Cut(findings[i].what));
    out.set_remedy(Cut(findings[i].remedy));
  }
}

absl::StatusOr<std::vector<Finding>> FromProto(const v1::InspectReply& message) {
  LIME_RETURN_IF_ERROR(fields::Within("findings", message.findings_size(), 0, kMaxFindings));
  std::vector<Finding> findings;
  for (const v1::Finding& in : message.findings()) {
    LIME_RETURN_IF_ERROR(fields::Printable("check", in.check(), kMaxCheckName));
    LIME_RETURN_IF_ERROR(fields::Within("grade", in.grade(), 0, static_cast<int64_t>(Grade::kFail)));
    LIME_RETURN_IF_ERROR(fields::Printable("what", in.what(), kMaxFindingText));
    LIME_RETURN_IF_ERROR(fields::Printable("remedy", in.remedy(), kMaxFindingText));
    findings.push_back({in.check(), static_cast<Grade>(in.grade()), in.what(), in.remedy()});
  }
  return findings;
}

}  // namespace lime
