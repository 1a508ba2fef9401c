// When to look for another plan while a run goes on, and whether the one found is worth the pause of changing to it.
//
//   kWatching ── a rate lasts, or KV has grown ──► kSearching ── OnFound: not worth it ──► kWatching, not before `rest`
//        ▲                                              │
//        └─────────────── OnPlan ◄── OnFound: change ───┘
//
// A rate is another one where it parts by more than `times`, up or down, from what the plan in use was made with. A search that finds
// nothing better confirms the plan for the rates that it was given, and the rest after it is twice the one before.
//
// Pure.   Thread: the owner's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "coordinator/logic/cluster_rates.h"

namespace lime {

// Some of the way from the last token by one plan to the first by another.
struct Pause {
  double fixed_ms = 0;
  double position_ms = 0;  // for each position of every sequence

  absl::Duration Of(int64_t positions) const { return absl::Milliseconds(fixed_ms + position_ms * static_cast<double>(positions)); }
};

class Replanner {
 public:
  struct Options {
    double times = 1.3;                            // faster or slower, to be another link
    double speed_times = 1.5;                      // to be another disk or another computing: these vary more by themselves
    absl::Duration lasting = absl::Seconds(3);     // from the first measurement that says so to the last, with none between that does not
    absl::Duration forgotten = absl::Seconds(30);  // that nothing was measured
    absl::Duration rest = absl::Seconds(15);       // from one answer to the next search, at first
    absl::Duration most_rest = absl::Minutes(4);   // and at most
    double kv_times = 1.5;                         // as much KV as the last search, or the plan, knew
    double margin = 1.25;                          // times its pause that a change saves at least
    double least_gain = 0.05;                      // of a step
  };

  // `planned`: what the plan in use was made with.
  Replanner(const Options& options, ClusterRates planned) : options_(options), planned_(std::move(planned)), rest_(options.rest) {}

  // As they are measured now; those that are not known are left out, and rates that the plan does not depend on do not matter. The rates to
  // search with, once it is time to: OnFound is next.  REQUIRES: rates above 0, no search is under way
  std::optional<ClusterRates> OnRates(const ClusterRates& measured, absl::Time now, const RateAges& ages = {});

  // Requests have so many KV pages of a layer now, under a plan whose KV grows. It was made for few of them: as they get more, stages on
  // other devices may be better.
  void OnKv(int64_t pages);

  // By the rates that were searched with.
  struct Found {
    double current_ms = 0;   // a step of the plan in use
    double ms_per_step = 0;  // of the best plan that was found
    double pause_ms = 0;     // of changing to it, at most
  };
  // Whether to change, with so many steps to go. Nothing: no plan was found.  REQUIRES: a search is under way
  bool OnFound(const std::optional<Found>& found, double steps_left, absl::Time now);

  // What was found is for another state of the requests by now: searched for again, as if it had not been.  REQUIRES: as OnFound
  void OnStale(absl::Time now);

  // Another plan is in use, of whatever cause.
  void OnPlan(ClusterRates planned, absl::Time now);

  bool searching() const { return searching_.has_value(); }
  // What was searched for: "link a -> b: 100 -> 20 Mbit/s", of the rate that has changed most.
  const std::string& why() const { return why_; }

 private:
  void Rest(absl::Time now);
  bool IsAnother(const RateKey& key, double planned, double now) const;

  const Options options_;
  ClusterRates planned_;
  int64_t kv_pages_ = 0, kv_known_ = 0;  // now, and by the last search or the plan in use; 0: not said
  int64_t kv_before_ = 0;                // what was known before the last search
  struct Seen {
    absl::Time first, last;
  };
  std::map<RateKey, Seen> others_;         // measurements that a rate is another one, the first of those and the last
  std::optional<ClusterRates> searching_;  // with these
  absl::Time not_before_ = absl::InfinitePast();
  absl::Duration rest_;  // after the next answer
  std::string why_;
};

}  // namespace lime
