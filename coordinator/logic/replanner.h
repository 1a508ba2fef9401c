// When to look for another plan while a run goes on, and whether the one found is worth the pause of changing to it.
//
//   kWatching ── a link has been another one for `lasting` ──► kSearching ── OnFound: not worth it ──► kWatching, not before `rest`
//        ▲                                                         │
//        └────────────────────────── OnPlan ◄── OnFound: change ───┘
//
// A link is another one where its rate parts by more than `times`, up or down, from what the plan in use was made with. A search that
// finds nothing better confirms the plan for the rates that it was given.
//
// Pure.   Thread: the owner's.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"

namespace lime {

class Replanner {
 public:
  using Links = std::map<std::pair<std::string, std::string>, double>;  // from, to: bytes per second

  struct Options {
    double times = 1.3;                         // faster or slower, to be another link
    absl::Duration lasting = absl::Seconds(3);  // that it is
    absl::Duration rest = absl::Seconds(15);    // from one answer to the next search
    double margin = 1.25;                       // times its pause that a change saves at least
    double least_gain = 0.05;                   // of a step
  };

  // `planned`: what the plan in use was made with.
  Replanner(const Options& options, Links planned) : options_(options), planned_(std::move(planned)) {}

  // As they are measured now; those that are not known are left out, and links that the plan does not speak of do not matter. The rates to
  // search with, once it is time to: OnFound is next.  REQUIRES: rates above 0, no search is under way
  std::optional<Links> OnLinks(const Links& measured, absl::Time now);

  // By the rates that were searched with.
  struct Found {
    double current_ms = 0;   // a step of the plan in use
    double ms_per_step = 0;  // of the best plan that was found
    double pause_ms = 0;     // of changing to it, at most
  };
  // Whether to change, with so many steps to go. Nothing: no plan was found.  REQUIRES: a search is under way
  bool OnFound(const std::optional<Found>& found, double steps_left, absl::Time now);

  // Another plan is in use, of whatever cause.
  void OnPlan(Links planned, absl::Time now);

  bool searching() const { return searching_.has_value(); }
  // What was searched for: "link a -> b: 100 -> 20 Mbit/s", of the link that has changed most.
  const std::string& why() const { return why_; }

 private:
  bool IsAnother(double planned, double now) const;

  const Options options_;
  Links planned_;
  std::map<std::pair<std::string, std::string>, absl::Time> since_;  // that a link is another one
  std::optional<Links> searching_;                                   // with these
  absl::Time not_before_ = absl::InfinitePast();
  std::string why_;
};

}  // namespace lime
