// Which units of its layers a device keeps in memory, reads on demand, and reads ahead.
//
// A layer chooses its units in the middle of a step (planner/demand/route_log.h). The engine asks
// for them, computes those that are there, goes on with other work, and computes the others as they
// come. The compute thread never waits here.
//
//   Begin(layer, chosen) ── hits ─────────────────────────────► NextReady ──► OnComputed ──┐
//                        └─ misses ──► NextRead ──► OnRead ───► NextReady ──► OnComputed ──┤
//                              ▲   failed once: again                 the visit is over ◄──┘
//                              │   failed twice: a Status
//   Suggest(layer, units) ── only while no other read is waited for or under way
//
// A unit is in one place at most. The places of a layer, and those that a visit uses, are
// described in planner/demand/layer_places.h. A place is named by its layer and number; the memory
// is the owner's.
//
// Thread: the owner's.   Owner: the driver of a stage.   Pure, deterministic, and allocates nothing
// after Create.
// Invariants: a unit that a visit needs keeps its place until it is computed; every chosen unit is
// ready exactly once in a visit; a layer has no more places than it was given, but for those that
// NextGivenBack still has to return.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "planner/base/status.h"
#include "planner/demand/layer_places.h"
#include "planner/demand/unit_policy.h"

namespace lime {

class DemandCache {
 public:
  struct Shape {
    int32_t units = 0;                  // of each layer
    std::vector<int32_t> places;        // of each layer at first, and at most; the device's layers in order
    int32_t ring_places = kRingPlaces;  // of a sweep; a layer keeps at least as many
    int32_t reads_at_once = 2;          // that the disk is given
    int32_t ahead_places = 4;           // of each layer, for units that are read ahead; 0: no read-ahead
    UnitPolicy policy = UnitPolicy::kLru;
    // Of each layer, instead of `policy` and `ahead_places`; empty: all have these.
    std::vector<UnitPolicy> policies;
    std::vector<int32_t> ahead;
  };

  // A unit in a place.
  struct Unit {
    int32_t layer = 0;
    int32_t unit = 0;
    int32_t place = 0;
    friend bool operator==(const Unit&, const Unit&) = default;
  };
  struct Read {
    int64_t number = 0;  // names the read
    Unit what;           // is read into its place
    bool ahead = false;  // no computation needs it yet
    friend bool operator==(const Read&, const Read&) = default;
  };

  // Of one layer, since Create.
  struct Counts {
    int64_t visits = 0;
    int64_t rows = 0;        // of all visits
    int64_t hits = 0;        // chosen units that were there, those that were read ahead included
    int64_t misses = 0;      // chosen units that had to be read, or were still being read ahead
    int64_t suggested = 0;   // units that Suggest took and that were not there
    int64_t ahead_read = 0;  // units that were read ahead
    int64_t ahead_used = 0;  // of them, those that a visit chose before they left
    int64_t read_again = 0;  // reads that failed and were repeated
    friend bool operator==(const Counts&, const Counts&) = default;
  };

  // InvalidArgument for numbers outside their bounds.
  static absl::StatusOr<std::unique_ptr<DemandCache>> Create(const Shape& shape);

  int32_t num_layers() const { return static_cast<int32_t>(layers_.size()); }

  // ---- A visit

  // A layer's router has chosen these units for the rows of a visit. InvalidArgument if they do not
  // ascend, or the layer does not have them; nothing has changed then.
  // REQUIRES: no other visit of this layer is under way. Visits of several layers may be.
  absl::Status Begin(int32_t layer, std::span<const int32_t> chosen, int32_t rows);

  // The next unit to compute: it is in its place, and stays there until OnComputed. The hits come
  // first, in ascending order, then the misses in the order in which they were read. Nothing while
  // the others are not there yet.
  std::optional<Unit> NextReady(int32_t layer);

  // A unit of NextReady is computed. True if it was the visit's last one: the visit is over.
  bool OnComputed(int32_t layer, int32_t unit);

  // A visit of this layer is under way.
  bool IsUnderWay(int32_t layer) const { return !At(layer).chosen.empty(); }
  // Its units that are not computed yet.
  int64_t Left(int32_t layer) const { return std::ssize(At(layer).chosen) - At(layer).computed; }

  // Ends a visit whose step has failed, if one is under way. Its reads under way end as other reads.
  // REQUIRES: no unit that NextReady returned is being computed.
  void Cancel(int32_t layer);

  // ---- Reads

  // The next read to start. Visits come in the order in which they began, and their misses in
  // ascending order; a read waits until its place is free. A read ahead comes only if no visit waits
  // for a read, none is under way, and the disk is idle. Nothing if no read can start now.
  std::optional<Read> NextRead();

  // The read ahead to cancel, because a visit waits for a read or the disk has other work. The owner
  // answers with OnRead as ever, whether the read was cancelled or not. Returns each read once.
  std::optional<int64_t> NextCancel();
  // NextCancel has returned this read.  REQUIRES: it is under way
  bool IsCancelled(int64_t number) const { return UnderWayAt(number).cancelled; }

  // Whether the disk has other work than these reads.
  void SetDiskBusy(bool busy) { disk_busy_ = busy; }

  // A read has ended. `result`: of the disk. If it failed, a read that a visit needs is repeated
  // once; a read ahead that failed is forgotten. If a repeated read fails, returns DataLoss in one
  // sentence: the step has failed, and the owner cancels the visit.
  // REQUIRES: the read is under way.
  absl::Status OnRead(int64_t number, const absl::Status& result);

  int64_t reads_under_way() const { return std::ssize(reads_); }

  // ---- Read-ahead

  // The layer's next visit probably chooses these units, the likeliest first. They replace earlier
  // suggestions for this layer, and are forgotten when its next visit begins. Those that are there
  // stay; of the others the first `ahead_places` may be read. Units that are not of the layer are
  // left out. Does nothing during a visit of the layer, or if it may read nothing ahead.
  void Suggest(int32_t layer, std::span<const int32_t> units);

  // ---- Memory

  int32_t num_places(int32_t layer) const { return At(layer).places.num_places(); }  // with memory
  bool HasMemory(int32_t layer, int32_t place) const { return At(layer).places.HasMemory(place); }

  // Gives the layer this many places; never fewer than the ring of a sweep, nor more than at Create.
  // With fewer: returns the places whose memory the owner may free now. Units that a visit needs
  // stay; the rest of the places comes from NextGivenBack when they no longer do. With more: returns
  // the places whose memory the owner makes before its next call. Valid until the next call.
  std::span<const int32_t> SetPlaces(int32_t layer, int32_t places);

  // A place whose memory the owner may free now, after a SetPlaces that could not take all at once.
  struct GivenBack {
    int32_t layer = 0;
    int32_t place = 0;
  };
  std::optional<GivenBack> NextGivenBack();

  // ---- Reports

  const Counts& counts(int32_t layer) const { return At(layer).counts; }
  // The place of a unit that is completely there, or nothing.
  std::optional<int32_t> Find(int32_t layer, int32_t unit) const;

 private:
  static constexpr int32_t kNone = LayerPlaces::kNone;

  struct UnderWay {
    Read read;
    bool wanted = false;     // a visit needs it
    bool cancelled = false;  // NextCancel has returned it
    bool again = false;      // it has failed once
  };

  // A read of a visit that has failed. Its place stays busy.
  struct Failed {
    Unit what;
    bool again = false;  // the next failure is the last
  };

  struct Layer {
    explicit Layer(const LayerPlaces::Options& options)
        : places(options),
          read_ahead(static_cast<size_t>(options.most_places)),
          needed(static_cast<size_t>(options.units)),
          computing(static_cast<size_t>(options.units)) {}

    LayerPlaces places;
    int32_t target = 0;              // places that it may have
    int32_t most_ahead = 0;          // places for units that are read ahead
    std::vector<bool> read_ahead;    // places whose unit was read ahead and not used since
    int32_t num_ahead = 0;           // of them
    std::vector<int32_t> suggested;  // that are there, or may be read
    Counts counts;

    // The visit under way; `chosen` is empty without one.
    std::vector<int32_t> chosen;
    std::vector<bool> needed;     // units: chosen and not computed
    std::vector<bool> computing;  // units: NextReady has returned it
    std::vector<int32_t> ready;   // units, in order
    size_t next_ready = 0;        // of `ready`
    size_t next_miss = 0;         // the next of places.misses() to read
    int64_t computed = 0;         // units
  };

  explicit DemandCache(const Shape& shape);

  Layer& At(int32_t layer) { return layers_[static_cast<size_t>(layer)]; }
  const Layer& At(int32_t layer) const { return layers_[static_cast<size_t>(layer)]; }

  bool CanRead(const Layer& layer) const;
  bool VisitsWait() const;
  const UnderWay& UnderWayAt(int64_t number) const;
  Read Start(const Unit& what, bool ahead, bool again);
  std::optional<Read> NextReadAhead();
  void EndVisit(int32_t layer);
  int32_t PlaceAhead(const Layer& layer) const;
  void SetReadAhead(Layer& layer, int32_t place, bool ahead);
  void CountHit(Layer& layer, int32_t place);
  absl::Status OnFailed(const UnderWay& ended, const absl::Status& result);

  const Shape shape_;
  std::vector<Layer> layers_;
  std::vector<int32_t> visits_;   // layers, in the order in which their visits began
  std::vector<UnderWay> reads_;   // in the order in which they began
  std::vector<Failed> failed_;    // to be read again
  std::vector<int32_t> changed_;  // places that SetPlaces returns
  int64_t next_number_ = 0;
  int32_t last_layer_ = 0;  // whose visit began last
  bool disk_busy_ = false;
};

}  // namespace lime
