// What to do when a running plan has failed: wait for the device that is missing, install again, plan without it, or give up.
//
//              ┌─ Answered: not all are there, patience is left ─┐
//              ▼                                                 │
//   kRunning ─ Failed ─► kAsking ─ Answered: all are there ──► kInstalling ─ Installed ─► kRunning
//                         ▲   └── Answered: patience is over ─► kPlanning ── Planned ──► kInstalling
//                         └────── NoPlan, InstallFailed ◄──────────┴──────────────────────┘
//
// Whatever it answers, the requests and their tokens are their owner's: after GoOn they are computed again as far as they are known.
// Where a person has taken the plan away, which a device tells as Unauthenticated, the run ends. Any other end may be one of the requests
// alone: after TryAgain it looks for the devices as before, for requests that come later.
// A device that says itself what is wrong with it, and does so twice without a token in between, counts as missing.
//
// Pure.   Thread: the owner's.
// Bounds: `attempts` installations without a token in between; `give_up` from the last failure to the end; `rest` from there to the next
// question.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <variant>

#include "absl/time/time.h"
#include "planner/base/status.h"

namespace lime {

class Recovery {
 public:
  using Devices = std::set<std::string>;  // names

  struct Options {
    absl::Duration patience = absl::Seconds(10);    // with a device that is missing, before it is planned without it
    absl::Duration give_up = absl::Seconds(60);     // with one that cannot be done without
    absl::Duration look = absl::Milliseconds(200);  // between two questions
    int attempts = 4;                               // installations without a token in between
    absl::Duration rest = absl::Seconds(10);        // after giving up, before it tries again
  };

  // ---- Events

  // The plan in use is no use any more. `device`: that reported it, or was lost; empty where nobody knows.
  struct Failed {
    std::string device;
    absl::Status why;
  };
  // A token that was not known before.
  struct NewToken {};
  // Those that answer and hold no plan.
  struct Answered {
    Devices free;
  };
  // A plan for (some of) the devices that MakePlan named.
  struct Planned {
    Devices uses;
  };
  struct NoPlan {
    absl::Status why;
  };
  struct Installed {};
  struct InstallFailed {
    std::string device;
    absl::Status why;
  };
  // After it has given up: who waited has been told.
  struct TryAgain {};
  using Event = std::variant<Failed, NewToken, Answered, Planned, NoPlan, Installed, InstallFailed, TryAgain>;

  // ---- Answers

  struct Nothing {};
  // Ask every device of the cluster how it is, after a while.
  struct Ask {
    absl::Duration after;
  };
  struct MakePlan {
    Devices devices;  // at most these
  };
  struct Install {
    bool first = false;  // the plan that the run began with; else the newest
  };
  struct GoOn {};
  struct GiveUp {
    absl::Status why;
    bool for_good = false;  // a person wants it so: no TryAgain
  };
  using Action = std::variant<Nothing, Ask, MakePlan, Install, GoOn, GiveUp>;
  struct Answer {
    Action action;
    std::string say;  // for whoever waits; may be empty
  };

  // `uses`: the devices of the plan that the run begins with.
  Recovery(const Options& options, Devices uses) : options_(options), first_(uses), newest_(std::move(uses)) {}

  // REQUIRES: an event that its state allows, as drawn above; NewToken at any time
  Answer OnEvent(const Event& event, absl::Time now);

  int64_t recoveries() const { return recoveries_; }

 private:
  enum class State {
    kRunning,     // nothing to do
    kAsking,      // who is there?
    kPlanning,    // without those that are not
    kInstalling,  // a plan
    kEnded,       // given up, until TryAgain
  };
  Answer On(const Failed& event, absl::Time now);
  Answer On(const NewToken& event, absl::Time now);
  Answer On(const Answered& event, absl::Time now);
  Answer On(const Planned& event, absl::Time now);
  Answer On(const NoPlan& event, absl::Time now);
  Answer On(const Installed& event, absl::Time now);
  Answer On(const InstallFailed& event, absl::Time now);
  Answer On(const TryAgain& event, absl::Time now);

  Answer BeginAgain(const std::string& device, const absl::Status& why, absl::Time now);
  void Forget(absl::Time now);  // what was found out since the last failure
  Answer BeginInstall(bool first);
  Answer End(absl::Status why);
  Devices Missing(const Devices& free) const;
  absl::Status WhoIsMissing() const;

  const Options options_;
  const Devices first_;
  Devices newest_;
  State state_ = State::kRunning;
  absl::Time since_;                    // the last failure
  absl::Status why_;                    // likewise
  int attempts_ = 0;                    // since the last token
  std::map<std::string, int> strikes_;  // likewise: failures that a device has reported of itself
  Devices planned_for_;                 // since the last failure there was no plan for these
  absl::Status no_plan_;                // and this is why
  Devices missing_;                     // of the newest plan, when they were asked last
  int64_t recoveries_ = 0;
};

}  // namespace lime
