// `lime bench flash`: the ladder of "LLM in a flash" on the disk of this machine (bench/flash).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/input/command_line.h"
#include "coordinator/cli/command.h"
#include "planner/base/status.h"

namespace lime::cli {

// Flags of `lime bench flash` beside those of the model. Without a value: the default.
struct FlashFlags {
  std::optional<std::string> masks, text_file;
  std::optional<int> window;
  std::optional<int64_t> tokens, learn;
  std::optional<uint64_t> seed;
  bool no_engine = false, quick = false;

  void AddTo(const CommandFlags& command);
  // The first one that the call gives; empty: none.
  std::string Given() const;
};

inline constexpr char kFlashFooter[] =
    "Examples:\n"
    "  lime bench --model llama --memory 2GiB         decode and prefill beside the rate of the disk\n"
    "  lime bench flash --model opt.store             what a token of a ReLU model reads, at half memory\n"
    "`lime bench flash` needs a store of `lime prepare --bundles`. It computes a text, or random ids, and takes the neurons that each\n"
    "layer needs.\n"
    "Then each rung of the ladder reads for these neurons what the method of that rung reads: all weights, the MLPs, single rows, new\n"
    "rows, bundles, joined bundles. Reads are direct, at their offsets in the files, through LIME's reader. Beside the time in which\n"
    "reads are under way stand the prediction from bursts that are measured before, and the figure of the paper. At last the engine\n"
    "itself decodes with --memory: all weights streamed, as many resident as fit, and sparse MLPs.";

// REQUIRES: `model` was checked
absl::Status BenchFlash(const ModelFlags& model, const FlashFlags& flags);

}  // namespace lime::cli
