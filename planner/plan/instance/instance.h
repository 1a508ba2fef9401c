// A planning problem: the blocks of a model, the available devices and their network.
//
// Units in the planner: MB = 1e6 bytes, ms, MB/ms (= GB/s), tokens.
//
// A block that may stream in parts is listed as its parts: consecutive Blocks of one kind and
// layer, whose mb, kv_mb and compute times add up to those of the model block.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/base/status.h"
#include "planner/plan/device/limits.h"

namespace lime {

// Tolerance of every memory comparison.
inline constexpr double kMemorySlackMb = 1e-6;

struct Instance {
  enum class Kind : uint8_t {
    kAttention,  // "A": attention half of a layer
    kMlp,        // "M": MLP half of a layer
    kHead,       // "H": final norm and output projection
    kLayer,      // "L": a whole layer, if halves do not matter
  };

  struct Block {
    Kind kind = Kind::kLayer;
    int32_t layer = 0;
    double mb = 0;     // weights
    double kv_mb = 0;  // KV cache at the planned context, all sequences, and other pinned memory
    // The part of kv_mb that does not depend on the context: states of all sequences, and places of
    // a part on demand.
    double state_mb = 0;
  };

  struct Device {
    std::string name;
    double mem_mb = 0;          // for weights, KV and the ring of streamed blocks
    double disk_mb_per_ms = 0;  // 0: the device cannot stream
    double disk_lat_ms = 0;     // per block read
    // Time of each block for one micro-batch, including reading its KV.
    std::vector<double> comp_ms;
    // By sequences per micro-batch; empty: unknown.
    std::map<int32_t, std::vector<double>> comp_ms_by_batch;
    // Time to read one micro-batch's embedding rows from disk, if the device can. The reads run in
    // parallel, so the number of sequences does not matter.
    std::optional<double> embed_rows_ms;
  };

  struct Net {
    double tx_ms = 0;   // one micro-batch's hidden states on the wire
    double lat_ms = 0;  // one way
    std::map<int32_t, double> tx_ms_by_batch;
  };

  std::vector<Device> devices;
  std::vector<Block> blocks;  // in execution order
  Net net;
  double embed_mb = 0;  // counts for the device of the first stage, unless it reads rows
  int32_t microbatches = 1;
  int32_t sequences = 0;  // requests to serve with any micro-batches x batch; 0: unknown

  // Checks that numbers are finite and in bounds and lists have the right length. The error names
  // the first problem. With a valid instance, every sum and product in the planner is finite.
  absl::Status Validate() const;

  int NumBlocks() const { return static_cast<int>(blocks.size()); }
  int NumDevices() const { return static_cast<int>(devices.size()); }
  // Whether blocks b and b - 1 are parts of one model block. A whole layer (kLayer) has no parts.
  bool ContinuesBlock(int b) const {
    return b > 0 && blocks[b].kind != Kind::kLayer && blocks[b].kind == blocks[b - 1].kind && blocks[b].layer == blocks[b - 1].layer;
  }
};

// Limits of Validate(), in addition to kMaxPlanDevices. They bound an evaluation to a few seconds.
inline constexpr int kMaxPlanBlocks = 1 << 16;
inline constexpr int kMaxMicrobatches = 1024;
inline constexpr int64_t kMaxBlockRunsPerStep = int64_t{1} << 22;  // blocks x micro-batches
inline constexpr double kMaxPlanNumber = 1e15;                     // of any MB, ms or MB/ms
// MB/ms, for a disk that can be read.
inline constexpr double kMinDiskRate = 1e-9;

// "A", "M", "H", "L".
char KindLetter(Instance::Kind kind);

// For messages: device 1 ("b").
std::string DeviceLabel(const Instance& instance, int device);

}  // namespace lime
