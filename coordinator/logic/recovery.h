// Decides what to do when a running plan has failed: wait for the missing device, install again,
// plan without it, or give up.
//
//              ┌─ Answered: not all are there, patience is left ─┐
//              ▼                                                 │
//   kRunning ─ Failed ─► kAsking ─ Answered: all are there ──► kInstalling ─ Installed ─► kRunning
//                         ▲   └── Answered: patience is over ─► kPlanning ── Planned ──► kInstalling
//                         └────── NoPlan, InstallFailed ◄──────────┴──────────────────────┘
//
// The owner keeps the requests and their tokens. After GoOn it computes the known tokens again.
// If a person has taken the plan away, which a device reports as Unauthenticated, the run ends.
// After any other GiveUp the owner may end its requests and continue: after TryAgain this asks for
// the devices as before, for later requests.
// A device that reports an error of its own twice without a token in between counts as missing: a
// plan without it is made. But it still answers. If every plan needs it, a plan is installed on it
// again after `patience`: a full disk may have room by then.
//
// Pure.   Thread: the owner's.
// Bounds: `attempts` installations without a token in between; `give_up` from the last failure to
// the end; `rest` from the end to the next question.
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
    // The wait for a missing device, before planning without it.
    absl::Duration patience = absl::Seconds(10);
    absl::Duration give_up = absl::Seconds(60);     // the wait for a device that every plan needs
    absl::Duration look = absl::Milliseconds(200);  // between two questions
    int attempts = 4;                               // installations without a token in between
    absl::Duration rest = absl::Seconds(10);        // after giving up, before the next try
  };

  // ---- Events

  // The plan in use has failed. `device` reported the error or was lost; empty: not known.
  struct Failed {
    std::string device;
    absl::Status why;
  };
  // A token that was not known before.
  struct NewToken {};
  // The devices that answer and hold no plan.
  struct Answered {
    Devices free;
  };
  // A plan for all or some of the devices in MakePlan.
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
  // After GiveUp, when the requests that waited have ended.
  struct TryAgain {};
  using Event = std::variant<Failed, NewToken, Answered, Planned, NoPlan, Installed, InstallFailed, TryAgain>;

  // ---- Answers

  struct Nothing {};
  // Ask every device of the cluster for its state, after a delay.
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
    bool for_good = false;  // a person ended it: no TryAgain
    std::string device;     // that is missing, or that failed last
  };
  using Action = std::variant<Nothing, Ask, MakePlan, Install, GoOn, GiveUp>;
  struct Answer {
    Action action;
    std::string say;  // for users who wait; may be empty
  };

  // `uses`: the devices of the plan that the run begins with.
  Recovery(const Options& options, Devices uses) : options_(options), first_(uses), newest_(std::move(uses)) {}

  // REQUIRES: an event that the diagram allows in this state; NewToken at any time
  Answer OnEvent(const Event& event, absl::Time now);

  int64_t recoveries() const { return recoveries_; }

 private:
  enum class State {
    kRunning,     // no failure
    kAsking,      // finds out which devices are there
    kPlanning,    // waits for a plan without the missing devices
    kInstalling,  // waits for the installation of a plan
    kEnded,       // has given up, until TryAgain
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
  void Forget(absl::Time now);  // what was learned since the last failure
  Answer BeginInstall(bool first);
  Answer End(absl::Status why, const std::string& device);
  Answer PlanWithout(const Devices& free, bool all_answer);
  Devices Missing(const Devices& free) const;
  absl::Status WhoIsMissing() const;

  const Options options_;
  const Devices first_;
  Devices newest_;
  State state_ = State::kRunning;
  absl::Time since_;                    // time of the last failure
  absl::Status why_;                    // the last failure
  int attempts_ = 0;                    // since the last token
  std::map<std::string, int> strikes_;  // since the last token: errors of each device itself
  Devices planned_for_;                 // devices for which planning failed since the last failure
  absl::Status no_plan_;                // the error of that planning
  Devices missing_;                     // missing devices of the newest plan, and failing ones
  int64_t recoveries_ = 0;
};

}  // namespace lime
