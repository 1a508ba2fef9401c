// The whole benchmark: masks of real tokens, the disk, the ladder of "LLM in a flash", and what it
// asks of the memory and of the disk besides.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/flash/disk.h"
#include "bench/flash/ladder.h"
#include "bench/flash/masks.h"
#include "nlohmann/json_fwd.hpp"
#include "planner/base/status.h"

namespace lime::flash {

struct FlashOptions {
  std::string store;      // folder of a block store with bundles
  bool predict = true;    // masks of rungs before kExact: predicted, or active
  Bytes memory = 0;       // of rungs with a window; 0: half of the weights
  int32_t window = 4096;  // masks; memory bounds it too
  int64_t learn = 384;    // tokens from which thresholds and the path come
  int64_t warm = 32;      // tokens that fill the window
  int64_t tokens = 64;    // that count
  int64_t whole = 3;      // of them, for the rungs that read MLPs whole
  std::vector<double> sweep = {0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8};  // memory, of the weights
  // Measure Figure 2b.
  bool rates = true;
  // Few points of the disk, for tests.
  bool quick = false;
  // Reads in flight, as NeuronReader has them.
  int channels = 32;
  int num_threads = 1;
  std::vector<int32_t> ids;                                   // tokens of a text: learn, warm and tokens of them; empty: random ones
  uint64_t seed = 1;                                          // of random ids, and of the offsets at which the disk is measured
  std::function<void(const std::string& what)> at = nullptr;  // what is measured now; may be null
  const std::atomic<bool>* cancelled = nullptr;
};

// InvalidArgument for numbers out of range.
absl::Status CheckFlash(const FlashOptions& options);

struct MeasuredRung {
  RungRule rule;
  MemorySplit memory;
  RungFigures figures;
};
// I/O of the rung kPath with so much memory.
struct MeasuredMemory {
  double share = 0;
  MeasuredRung rung;
};
// The rung kBundles, in either way of giving rows.
struct MeasuredPlacement {
  std::string placement;
  RungFigures figures;
  Bytes row_bytes = 0;  // of a move
};

// Steps of the engine itself, beside the replays.
struct EngineRung {
  std::string name;
  Bytes memory = 0;  // of the process; 0: not limited
  double read_mb = 0, reads = 0, neurons = 0;
  double io_ms = 0, predicted_ms = 0;  // as of a rung
  double whole_ms = 0;                 // of a step, computing included
  std::string why_not = {};            // instead of figures: why it could not run
};
// What the engine has done in `steps` steps.
struct EngineCounts {
  int64_t steps = 0;
  DiskLoad load;
  int64_t neurons = 0;                  // that were read
  double stream_ms = 0, neuron_ms = 0;  // while the disk worked for either
  double whole_ms = 0;                  // all steps together
};
EngineRung EngineFigures(const EngineCounts& counts, const DiskBeside& disk);

struct FlashReport {
  std::string disk;  // how it was read
  FlashShape shape;
  bool of_text = false;  // masks are of the tokens of a text; false: of random ids
  Bytes memory = 0;      // of the rungs with a window
  int32_t window = 0;
  Bytes bundle_bytes = 0;      // of a neuron
  int64_t predictor_rank = 0;  // the largest one; 0: masks are active neurons
  std::string predictor;       // the hash of the trained one; empty: the best one of a planted model
  MaskShares shares;
  std::vector<double> unions;  // entry k - 1: share of the neurons in k masks, of the masks that are read
  std::vector<BurstPoint> bursts;
  BurstCost burst;
  double fit_error = 0;
  double sequential_gb_per_s = 0;
  std::vector<RatePoint> rates;
  std::vector<MeasuredRung> ladder;
  std::vector<EngineRung> engine;
  double computing_ms = 0;  // of a token, in memory; 0: not known
  std::vector<MeasuredMemory> sweep;
  std::vector<MeasuredPlacement> placements;
};

// As many ids as the options ask for. REQUIRES: CheckFlash
std::vector<int32_t> FlashIds(const FlashOptions& options, int64_t vocab_size);

// The disk of a store with bundles, as it is now: bursts, and at most 1 GiB one after another. `call`: another
// number for each call, for other offsets.
absl::StatusOr<DiskCost> MeasureDisk(const FlashOptions& options, int call);

// Takes minutes with a large model. Cancelled soon after *cancelled is set.
absl::StatusOr<FlashReport> RunFlash(const FlashOptions& options);

// For people, and as one JSON object.
std::string TextOf(const FlashReport& report);
nlohmann::json JsonOf(const FlashReport& report);

}  // namespace lime::flash
