#include "tests/sim/sim_request.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lime {
namespace {

const char* NameOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "goes on";
    case FinishReason::kEndToken:
      return "ends for its token";
    case FinishReason::kLength:
      return "ends for its length";
    default:
      return "ends for another reason";
  }
}

}  // namespace

SimRequest::SimRequest(const ModelSpec& spec, const Request& request)
    : reference_(spec, request.prompt), next_(std::ssize(request.prompt)), last_(next_ + request.max_new_tokens - 1) {
  for (int64_t position = next_; position <= last_; ++position) {
    if (std::ranges::find(request.end_tokens, reference_.TokenAt(position)) == request.end_tokens.end()) continue;
    last_ = position;
    ends_ = FinishReason::kEndToken;
  }
}

std::string SimRequest::OnToken(int32_t position, int32_t token, bool again, FinishReason reason) {
  if (over_) return absl::StrCat("has a token at position ", position, " and is over");
  const int32_t ought = reference_.TokenAt(position);
  if (token != ought) return absl::StrCat("has token ", token, " at position ", position, ", not ", ought);
  if (again) return position < next_ && reason == FinishReason::kNone ? "" : absl::StrCat("has not had position ", position, " before");
  if (position != next_) return absl::StrCat("has a token at position ", position, ", and ", next_, " is the next");
  ++next_;
  over_ = position == last_;
  const FinishReason right = over_ ? ends_ : FinishReason::kNone;
  if (reason != right) return absl::StrCat("at position ", position, " ", NameOf(reason), ", where it ", NameOf(right));
  return "";
}

bool SimRequest::Stop() {
  return !std::exchange(over_, true);
}

}  // namespace lime
