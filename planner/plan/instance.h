// A planning problem: the blocks of a model, the devices that may run them, the network between them.
//
// Units everywhere in the planner: MB = 1e6 bytes, ms, MB/ms (= GB/s), tokens.
//
// A block that may stream in pieces is given in pieces: consecutive Blocks of one kind and layer are the pieces of one model block, its
// mb, kv_mb and computing divided over them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/base/status.h"
#include "planner/plan/limits.h"

namespace lime {

// Slack of every comparison of memory.
inline constexpr double kMemorySlackMb = 1e-6;

struct Instance {
  enum class Kind : uint8_t {
    kAttention,  // "A": attention half of a layer
    kMlp,        // "M": MLP half of a layer
    kHead,       // "H": final norm and output projection
    kLayer,      // "L": a whole layer, where the caller does not care for halves
  };

  struct Block {
    Kind kind = Kind::kLayer;
    int32_t layer = 0;
    double mb = 0;     // weights
    double kv_mb = 0;  // KV cache at the planned context, all sequences
  };

  struct Device {
    std::string name;
    double mem_mb = 0;                                        // for weights, KV and the pool of streamed blocks
    double disk_mb_per_ms = 0;                                // 0: nothing can stream here
    double disk_lat_ms = 0;                                   // per block read
    std::vector<double> comp_ms;                              // of each block, one micro-batch, reading its KV included
    std::map<int32_t, std::vector<double>> comp_ms_by_batch;  // by sequences in the micro-batch; empty: not said
    // Reading the embedding's rows of one micro-batch from disk, where that is possible. The reads of a micro-batch go on side by side, so
    // that several sequences take what one takes.
    std::optional<double> embed_rows_ms;
  };

  struct Net {
    double tx_ms = 0;   // one micro-batch's hidden state on the wire
    double lat_ms = 0;  // one way
    std::map<int32_t, double> tx_ms_by_batch;
  };

  std::vector<Device> devices;
  std::vector<Block> blocks;  // in execution order
  Net net;
  double embed_mb = 0;  // charged to the device of the first stage, unless it reads rows
  int32_t microbatches = 1;
  int32_t sequences = 0;  // requests to serve by any micro-batches x batch; 0: not said

  // Names the first number that is negative, not finite or out of bounds, the first list of a wrong length. Every sum and product the
  // planner forms of a valid instance is finite.
  absl::Status Validate() const;

  int NumBlocks() const { return static_cast<int>(blocks.size()); }
  int NumDevices() const { return static_cast<int>(devices.size()); }
  // Whether block b is a piece of the model block that b - 1 is a piece of. A whole layer is given whole.
  bool IsLaterPiece(int b) const {
    return b > 0 && blocks[b].kind != Kind::kLayer && blocks[b].kind == blocks[b - 1].kind && blocks[b].layer == blocks[b - 1].layer;
  }
};

// What Validate() allows at most, beside kMaxPlanDevices. They keep an evaluation under a few seconds whatever the problem says.
inline constexpr int kMaxPlanBlocks = 1 << 16;
inline constexpr int kMaxMicrobatches = 1024;
inline constexpr int64_t kMaxBlockRunsPerStep = int64_t{1} << 22;  // blocks x micro-batches
inline constexpr double kMaxPlanNumber = 1e15;                     // any MB, ms or MB/ms
inline constexpr double kMinDiskRate = 1e-9;                       // MB/ms, of a disk that reads at all

// "A", "M", "H", "L".
char KindLetter(Instance::Kind kind);

// For sentences: device 1 ("b").
std::string DeviceLabel(const Instance& instance, int device);

}  // namespace lime
