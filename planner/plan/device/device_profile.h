// The measured abilities of a device: rates of memory, arithmetic, disk and links, and the time of
// every kind of block. Runs use it to predict the time of a token.
//
// Pure. daemon/profile measures, reads and writes profiles.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/names.h"
#include "planner/base/status.h"
#include "planner/demand/bundle_reads.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

// Direct reads of one size at one queue depth.
struct DiskPoint {
  Bytes read_bytes = 0;  // of one request
  int64_t depth = 0;     // requests in flight
  double bytes_per_second = 0;
  double latency_ms = 0;  // median time of one request with the others in flight

  friend bool operator==(const DiskPoint&, const DiskPoint&) = default;
};

// A step with up to this many rows is a decode step, one row per sequence. With more, it is one
// chunk of a prompt.
inline constexpr int64_t kMaxDecodeRows = 16;

// The time of one block. `context` is the number of positions that the last row attends to; it is 0
// for blocks without KV.
struct ComputePoint {
  BlockKind kind = BlockKind::kAttention;
  int64_t rows = 0;  // of the step; for the head: rows that ask for logits
  int64_t context = 0;
  double ms = 0;

  friend bool operator==(const ComputePoint&, const ComputePoint&) = default;
};

// The mean time of each kind of block of one model, on the real backend. Weights come from memory,
// or from the caches if the whole model fits into them.
struct ModelCompute {
  std::string key;                   // ModelKey of its spec
  std::string name;                  // for people
  double step_overhead_ms = 0;       // of a decode step, beyond its blocks: hand-over and sampling
  std::vector<ComputePoint> points;  // sorted by kind, rows, context; unique

  friend bool operator==(const ModelCompute&, const ModelCompute&) = default;
};

// The link to another device.
struct LinkPoint {
  std::string peer;
  double bytes_per_second = 0;
  double latency_ms = 0;  // one way, for a small message

  friend bool operator==(const LinkPoint&, const LinkPoint&) = default;
};

struct DeviceProfile {
  std::string cpu;  // name from the system; a profile of another CPU is ignored
  std::string instruction_set;
  int64_t threads = 0;
  double read_bytes_per_second = 0;  // of memory, all threads
  double flops = 0;                  // fp32, a multiply-add is two, all threads; 0: not measured
  // Added to the estimated time of a block: waking threads, starting operators.
  double block_overhead_ms = 0.02;
  std::vector<DiskPoint> disk;  // sorted by read_bytes, depth; unique; empty: not measured
  // Of small direct reads at random offsets, many at once; missing: not measured.
  std::optional<BurstCost> bursts;
  std::vector<ModelCompute> models;  // by key
  std::vector<LinkPoint> links;      // by peer

  // The model's measurements, or nullptr.
  const ModelCompute* FindModel(std::string_view key) const;
  // Adds `model`, or replaces the one with the same key. Sorts its points.
  void SetModel(ModelCompute model);
  // Replaces what is known of the disk.
  void SetDisk(std::vector<DiskPoint> points, std::optional<BurstCost> small_reads = std::nullopt);
  // Makes the disk `times` as fast.
  void ScaleDisk(double times);

  // Rate in bytes per second, and latency in ms, of reads of `read_bytes` at queue depth `depth`. 0
  // if no disk was measured. Interpolates over the logarithms of size and depth; beyond them the
  // nearest point counts.
  double DiskRate(Bytes read_bytes, int64_t depth) const;
  double DiskLatencyMs(Bytes read_bytes, int64_t depth) const;

  // Milliseconds of one block, interpolated linearly between the measurements of its kind;
  // RooflineMs if the model was not measured.  REQUIRES: the model has the block
  double ComputeMs(const ModelSpec& spec, BlockId block, int64_t rows, int64_t context) const;

  // Time of one step with all blocks resident, and the step's overhead.
  struct Step {
    int64_t rows = 1;
    int64_t context = 1;
    int64_t logit_rows = 1;
  };
  double StepMs(const ModelSpec& spec, const Step& step) const;

  friend bool operator==(const DeviceProfile&, const DeviceProfile&) = default;
};

// Identifies everything that the time of a model's blocks depends on: geometry, dtypes, bytes of
// each kind of block.
std::string ModelKey(const ModelSpec& spec);

// Whether two blocks of a model take the same time: blocks of one kind, in layers that do not differ
// in what the kind computes.
bool TakeSameTime(const ModelSpec& spec, BlockId one, BlockId other);

// The share of a block's bytes that a step of `rows` rows reads. Of experts: those that one or more
// rows choose, on average if each row chooses evenly.
double ReadShare(const ModelSpec& spec, BlockId block, int64_t rows);

// The layer whose attention half is measured for all of this kind: the first with the longest
// window. -1: no layer has the kind.
int32_t MeasuredLayer(const ModelConfig& config, BlockKind kind);

// max(bytes / memory rate, operations / operation rate), plus the overhead. Large models come near
// this lower bound. Counts the mean bytes of the blocks of that kind, of their experts only those
// that the rows choose (planner/plan/model/unit_choice.h), and the sizes and the window of the
// block's own layer.
double RooflineMs(const DeviceProfile& profile, const ModelSpec& spec, BlockId block, int64_t rows, int64_t context);

// Names in JSON.
inline constexpr auto kKindNames = [] {
  Names<BlockKind, kNumBlockKinds> names{};
  for (size_t i = 0; i < kBlockKinds.size(); ++i) names.all[i] = {kBlockKinds[i].kind, kBlockKinds[i].name};
  return names;
}();

// JSON of a profile. The input is untrusted: sizes, numbers and strings are bounded, and the error
// names the first wrong field after `where`. Unknown fields are ignored. Field names end with their
// unit (bytes, bytes_per_second, ms); flops are per second.
absl::StatusOr<DeviceProfile> ParseDeviceProfile(std::string_view text, std::string_view where);
std::string ToJsonText(const DeviceProfile& profile);

}  // namespace lime
