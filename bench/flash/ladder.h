// The ladder of "LLM in a flash" (Alizadeh et al., 2023, v1, Table 2): what each rung keeps in
// memory and reads for a token, how long the reads should take, and what the paper measured.
//
// Pure: counts and measured times in, figures out.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/demand/bundle_reads.h"

namespace lime::flash {

// ---- The rungs

enum class Rung : uint8_t {
  kNaive,      // all weights are read for each token
  kHybrid,     // attention, embedding and head stay in memory; the MLPs are read whole
  kNeurons,    // of the MLPs, the neurons of the mask are read: a row of up and one of down, two reads
  kWindow,     // neurons of the last masks stay in memory; new ones are read
  kBundles,    // a neuron is one read: its row of up and its column of down lie side by side
  kPath,       // neurons that are active together lie side by side, and near ones are one read
  kExact,      // like kPath, but the decider itself decides: masks are active neurons, and only down is read
  kCertified,  // like kPath, but a copy of the decider decides: masks are neurons without a proof
};

// As the paper has them: OPT 6.7B in 16 bits, half of it in memory, M1 Max.
struct PaperFigures {
  double memory_gb = 0;
  double read_gb = 0;  // a token
  double gb_per_s = 0;
  double io_ms = 0;
};

struct RungRule {
  Rung rung = Rung::kNaive;
  std::string_view name;
  bool neurons = false;  // of the MLPs, neurons are read
  bool window = false;
  bool bundled = false;
  bool joined = false;   // along the path
  bool decider = false;  // the decider's rows are in memory
  bool copy = false;     // a copy of the decider is in memory
  PaperFigures paper;    // zero: not in the paper
};

inline constexpr std::array<RungRule, 8> kLadder = {{
    {.rung = Rung::kNaive, .name = "naive", .paper = {0, 13.4, 6.10, 2130}},
    {.rung = Rung::kHybrid, .name = "hybrid", .paper = {6.7, 6.7, 6.10, 1090}},
    {.rung = Rung::kNeurons, .name = "+ predictor", .neurons = true, .paper = {4.8, 0.9, 1.25, 738}},
    {.rung = Rung::kWindow, .name = "+ window", .neurons = true, .window = true, .paper = {6.5, 0.2, 1.25, 164}},
    {.rung = Rung::kBundles, .name = "+ bundling", .neurons = true, .window = true, .bundled = true, .paper = {6.5, 0.2, 2.25, 87}},
    {.rung = Rung::kPath, .name = "+ path, joined reads", .neurons = true, .window = true, .bundled = true, .joined = true},
    {.rung = Rung::kExact,
     .name = "exact, dense decider",
     .neurons = true,
     .window = true,
     .bundled = true,
     .joined = true,
     .decider = true},
    {.rung = Rung::kCertified,
     .name = "exact, certified decider",
     .neurons = true,
     .window = true,
     .bundled = true,
     .joined = true,
     .copy = true},
}};

// ---- Memory

// Of a model, in bytes of its weights.
struct FlashShape {
  int32_t layers = 0;   // with bundles
  int32_t neurons = 0;  // of each
  Bytes weights = 0;    // of the whole model
  Bytes mlps = 0;       // of them, those of the MLPs
  Bytes decider = 0;    // of them, those that decide
  Bytes slot = 0;       // memory of a neuron in a window
  Bytes tail_slot = 0;  // the same without its row of the decider
  Bytes predictor = 0;  // that stays in memory
  Bytes copies = 0;     // of the deciders, that stay in memory; 0: not all layers have one
};

// What memory of `budget` bytes holds.
struct MemorySplit {
  int32_t rows = 0;    // neurons of each layer; at least 1/32 of them
  Bytes held = 0;      // by weights, predictor and rows
  Bytes streamed = 0;  // of what should stay but does not fit: read whole for each token
};

// The fixed part comes first: attention, embedding and head, and the decider, its copies or the
// predictor. The rest is for rows. InvalidArgument for a budget that is not positive.
absl::StatusOr<MemorySplit> SplitMemory(const FlashShape& shape, Bytes budget, const RungRule& rule);

// ---- Figures

// What the disk can do: bursts of reads, and ranges one after another.
struct DiskCost {
  BurstCost burst;
  double sequential_bytes_per_ms = 0;
};
// What was asked of the disk.
struct DiskLoad {
  int64_t bursts = 0, reads = 0;  // of neurons
  Bytes neurons = 0, streamed = 0;
};
double PredictedMs(const DiskLoad& load, const DiskCost& cost);
// A disk of a shared machine is not the same for long, so it is measured before and after what it predicts.
// The mean of both predictions.
struct DiskBeside {
  DiskCost before, after;

  double PredictedMs(const DiskLoad& load) const { return (flash::PredictedMs(load, before) + flash::PredictedMs(load, after)) / 2; }
};

// Of the tokens that count, all together.
struct RungCounts {
  int64_t tokens = 0;
  Bytes held = 0;       // memory
  int64_t neurons = 0;  // that were read
  int64_t reads = 0;    // of the streamed bytes, too
  DiskLoad load;
  double io_ms = 0;      // while any read was under way
  double manage_ms = 0;  // which neurons leave and come, and the copies of rows
  int64_t moves = 0;     // rows that were copied
};

// Of a token.
struct RungFigures {
  double held_gb = 0, read_mb = 0, gb_per_s = 0;
  double neurons = 0, reads = 0;
  double io_ms = 0, predicted_ms = 0, ratio = 0;  // measured / predicted
  double manage_ms = 0, moves = 0;
};
// REQUIRES: at least one token
RungFigures FiguresOf(const RungCounts& counts, const DiskBeside& disk);

// A whole token, if computing takes so long. Weights that are read whole come while others are
// computed, so the longer of the two counts. Neurons are known only when their layer is computed,
// so reads, the management of memory and computing add up. Neurons that are held could be computed
// during the reads: an upper bound.
double WholeMs(const RungRule& rule, const RungFigures& figures, double computing_ms);

}  // namespace lime::flash
