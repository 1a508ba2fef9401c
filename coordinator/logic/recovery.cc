#include "coordinator/logic/recovery.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/base/check.h"

namespace lime {
namespace {

constexpr int kStrikes = 2;  // of one device, until it is planned without

// Whether the error came between two devices, not from the device that reports it.
bool IsLoss(const absl::Status& why) {
  return absl::IsUnavailable(why) || absl::IsDeadlineExceeded(why) || absl::IsCancelled(why) || absl::IsAborted(why) ||
         absl::IsFailedPrecondition(why);
}

std::string QuotedNames(const Recovery::Devices& devices) {
  const char* const word = devices.size() == 1 ? "device \"" : "devices \"";
  return absl::StrCat(word, absl::StrJoin(devices, "\", \""), "\"");
}

}  // namespace

Recovery::Answer Recovery::OnEvent(const Event& event, absl::Time now) {
  return std::visit([&](const auto& typed) { return On(typed, now); }, event);
}

Recovery::Answer Recovery::On(const Failed& event, absl::Time now) {
  LIME_CHECK(state_ == State::kRunning) << "a failure in state " << static_cast<int>(state_);
  ++recoveries_;
  return BeginAgain(event.device, event.why, now);
}

Recovery::Answer Recovery::On(const NewToken&, absl::Time) {
  attempts_ = 0;
  strikes_.clear();
  return {};
}

Recovery::Answer Recovery::On(const InstallFailed& event, absl::Time now) {
  LIME_CHECK(state_ == State::kInstalling) << static_cast<int>(state_);
  return BeginAgain(event.device, event.why, now);
}

// Asks first which devices are there, for any failure. But if a person has revoked the plan
// (kRevoked in proto/convert/convert.h), the run ends.
Recovery::Answer Recovery::BeginAgain(const std::string& device, const absl::Status& why, absl::Time now) {
  why_ = why;
  Forget(now);
  if (absl::IsUnauthenticated(why)) return End(why, device);
  if (!IsLoss(why)) ++strikes_[device];
  if (attempts_ >= options_.attempts) {
    return End(absl::Status(why.code(), absl::StrCat(why.message(), "; the plan was installed ", attempts_,
                                                     " times without a token in between, so another try would not help")),
               device);
  }
  state_ = State::kAsking;
  return {Ask{}, absl::StrCat(why.message(), "; the requests wait for at most ", absl::FormatDuration(options_.patience),
                              " until all devices are back")};
}

void Recovery::Forget(absl::Time now) {
  since_ = now;
  planned_for_.clear();
  no_plan_ = absl::OkStatus();
}

Recovery::Devices Recovery::Missing(const Devices& free) const {
  Devices missing;
  std::ranges::set_difference(newest_, free, std::inserter(missing, missing.end()));
  return missing;
}

Recovery::Answer Recovery::On(const Answered& event, absl::Time now) {
  LIME_CHECK(state_ == State::kAsking) << static_cast<int>(state_);
  Devices free = event.free;
  for (const auto& [device, strikes] : strikes_) {
    if (strikes >= kStrikes) free.erase(device);
  }
  missing_ = Missing(free);
  if (std::ranges::includes(free, first_)) return BeginInstall(/*first=*/true);
  if (missing_.empty()) return BeginInstall(/*first=*/false);
  if (now - since_ < options_.patience) return {Ask{options_.look}, ""};
  const Devices absent = Missing(event.free);
  if (!free.empty() && free != planned_for_) return PlanWithout(free, absent.empty());
  if (std::ranges::includes(event.free, first_)) return BeginInstall(/*first=*/true);
  if (absent.empty()) return BeginInstall(/*first=*/false);
  if (now - since_ < options_.give_up) return {Ask{options_.look}, ""};
  missing_ = absent;
  return End(WhoIsMissing(), *absent.begin());
}

Recovery::Answer Recovery::PlanWithout(const Devices& free, bool all_answer) {
  state_ = State::kPlanning;
  planned_for_ = free;
  const bool one = missing_.size() == 1;
  const std::string what = all_answer ? (one ? " fails again and again; planning for the other devices"
                                             : " fail again and again; planning for the other devices")
                                      : absl::StrCat(one ? " has" : " have", " not come back for ", absl::FormatDuration(options_.patience),
                                                     "; planning for the other devices");
  return {MakePlan{free}, absl::StrCat(QuotedNames(missing_), what)};
}

absl::Status Recovery::WhoIsMissing() const {
  const std::string what = absl::StrCat(QuotedNames(missing_), missing_.size() == 1 ? " is" : " are", " missing (", why_.message(), ")");
  if (no_plan_.ok()) return absl::UnavailableError(absl::StrCat(what, ", and no other device works; start limed there and run again"));
  return absl::UnavailableError(
      absl::StrCat(what, ", and there is no plan for the other devices: ", no_plan_.message(), "; start limed there and run again"));
}

Recovery::Answer Recovery::On(const NoPlan& event, absl::Time) {
  LIME_CHECK(state_ == State::kPlanning) << static_cast<int>(state_);
  state_ = State::kAsking;
  no_plan_ = event.why;
  return {Ask{options_.look}, absl::StrCat("there is no plan without ", QuotedNames(missing_), " (", event.why.message(),
                                           "); the requests wait for it, at most ", absl::FormatDuration(options_.give_up), " in all")};
}

Recovery::Answer Recovery::On(const Planned& event, absl::Time) {
  LIME_CHECK(state_ == State::kPlanning) << static_cast<int>(state_);
  newest_ = event.uses;
  return BeginInstall(/*first=*/false);
}

Recovery::Answer Recovery::BeginInstall(bool first) {
  state_ = State::kInstalling;
  if (first) newest_ = first_;
  ++attempts_;
  return {Install{first}, first ? "installs the plan again" : absl::StrCat("installs a plan for ", QuotedNames(newest_))};
}

Recovery::Answer Recovery::On(const Installed&, absl::Time) {
  LIME_CHECK(state_ == State::kInstalling) << static_cast<int>(state_);
  state_ = State::kRunning;
  return {GoOn{}, "continues with the tokens known so far"};
}

Recovery::Answer Recovery::On(const TryAgain&, absl::Time now) {
  LIME_CHECK(state_ == State::kEnded && !absl::IsUnauthenticated(why_)) << static_cast<int>(state_);
  Forget(now);
  attempts_ = 0;
  strikes_.clear();
  state_ = State::kAsking;
  return {Ask{options_.rest}, ""};
}

Recovery::Answer Recovery::End(absl::Status why, const std::string& device) {
  state_ = State::kEnded;
  return {GiveUp{std::move(why), absl::IsUnauthenticated(why_), device}, ""};
}

}  // namespace lime
