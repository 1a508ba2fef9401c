// Decides when to search for another plan during a run, and whether a plan that was found is worth
// the pause of the change.
//
//   kWatching ── a rate lasts, or KV has grown ──► kSearching ── OnFound: not worth it ──► kWatching, not before `rest`
//        ▲                                              │
//        └─────────────── OnPlan ◄── OnFound: change ───┘
//
// A rate has changed if it differs by more than the factor `times` from the rate that the plan in
// use was made with. A search that finds nothing better confirms the plan for the rates of the
// search, and the next rest is twice as long.
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

// A part of the time from the last token of one plan to the first token of another.
struct Pause {
  double fixed_ms = 0;
  double position_ms = 0;  // for each position of every sequence

  absl::Duration Of(int64_t positions) const { return absl::Milliseconds(fixed_ms + position_ms * static_cast<double>(positions)); }
};

class Replanner {
 public:
  struct Options {
    double times = 1.3;                            // factor by which a link's rate has to change
    double speed_times = 1.5;                      // for disks and computing, which vary more
    absl::Duration lasting = absl::Seconds(3);     // a change must last, by its measurements
    absl::Duration forgotten = absl::Seconds(30);  // a change without measurements is forgotten
    absl::Duration rest = absl::Seconds(15);       // first pause from one answer to the next search
    absl::Duration most_rest = absl::Minutes(4);   // longest such pause
    double kv_times = 1.5;                         // growth of KV that starts a search
    // A change saves at least this multiple of its pause.
    double margin = 1.25;
    double least_gain = 0.05;  // minimum gain, as a share of a step
  };

  // `planned`: the rates that the plan in use was made with.
  Replanner(const Options& options, ClusterRates planned) : options_(options), planned_(std::move(planned)), rest_(options.rest) {}

  // `measured`: the rates that are known now. Rates that the plan does not depend on are ignored.
  // Returns the rates to search with when it is time to; then OnFound or OnStale follows.
  // REQUIRES: rates above 0, no search is under way
  std::optional<ClusterRates> OnRates(const ClusterRates& measured, absl::Time now, const RateAges& ages = {});

  // Requests now use `pages` KV pages per layer, under a plan whose KV grows. That plan was made
  // for few pages; with more, stages on other devices may be better.
  void OnKv(int64_t pages);

  // Times with the rates of the search.
  struct Found {
    double current_ms = 0;   // of a step of the plan in use
    double ms_per_step = 0;  // of the best plan that was found
    double pause_ms = 0;     // maximum pause of the change
  };
  // Whether to change, with `steps_left` steps to go. nullopt: the search found no plan.
  // REQUIRES: a search is under way
  bool OnFound(const std::optional<Found>& found, double steps_left, absl::Time now);

  // The result does not fit the state of the requests any more. Searches again, as if this search
  // had not been.  REQUIRES: as OnFound
  void OnStale(absl::Time now);

  // Another plan is in use, for any reason.
  void OnPlan(ClusterRates planned, absl::Time now);

  bool searching() const { return searching_.has_value(); }
  // The reason for the search: "link a -> b: 100 -> 20 Mbit/s", for the rate that has changed most.
  const std::string& why() const { return why_; }

 private:
  void Rest(absl::Time now);
  bool IsAnother(const RateKey& key, double planned, double now) const;

  const Options options_;
  ClusterRates planned_;
  int64_t kv_pages_ = 0, kv_known_ = 0;  // now; at the last search or plan; 0: unknown
  int64_t kv_before_ = 0;                // kv_known_ before the last search
  struct Seen {
    absl::Time first, last;
  };
  std::map<RateKey, Seen> others_;         // changed rates: first, last measurement
  std::optional<ClusterRates> searching_;  // the rates of the search
  absl::Time not_before_ = absl::InfinitePast();
  absl::Duration rest_;  // after the next answer
  std::string why_;
};

}  // namespace lime
