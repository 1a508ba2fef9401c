// What a device can do, measured once and kept: rates of memory, arithmetic, disk and links, and the time of every kind of block. From it
// every run says in advance how long a token takes.
//
// Pure: daemon/profile measures, reads and writes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/names.h"
#include "planner/base/status.h"
#include "planner/plan/model_spec.h"

namespace lime {

// Direct reads of one request size, so many in flight.
struct DiskPoint {
  Bytes read_bytes = 0;  // of one request
  int64_t depth = 0;     // requests in flight
  double bytes_per_second = 0;
  double latency_ms = 0;  // from the start of a request to its end, with the others in flight; median

  friend bool operator==(const DiskPoint&, const DiskPoint&) = default;
};

// Rows of a step, as far as their cost goes: up to this many are sequences that decode, one row each; more are a chunk of one prompt.
inline constexpr int64_t kMaxDecodeRows = 16;

// One block computed once. For attention, `context` is the positions that the last row attends to; other kinds do not depend on it, and
// state 0.
struct ComputePoint {
  BlockKind kind = BlockKind::kAttention;
  int64_t rows = 0;  // of the step; of the head: rows that ask for logits
  int64_t context = 0;
  double ms = 0;

  friend bool operator==(const ComputePoint&, const ComputePoint&) = default;
};

// The mean block of each kind of one model, on the real backend with weights that come from memory (or from the caches where the whole
// model lies in them, as it will).
struct ModelCompute {
  std::string key;                   // ModelKey of its spec
  std::string name;                  // for people
  double step_overhead_ms = 0;       // of a decode step beside its blocks: hand-over and sampling
  std::vector<ComputePoint> points;  // sorted by kind, rows, context; none twice

  friend bool operator==(const ModelCompute&, const ModelCompute&) = default;
};

// To another device.
struct LinkPoint {
  std::string peer;
  double bytes_per_second = 0;
  double latency_ms = 0;  // one way, of a small message

  friend bool operator==(const LinkPoint&, const LinkPoint&) = default;
};

struct DeviceProfile {
  std::string cpu;  // as the system names it; a profile of another CPU is not used
  std::string instruction_set;
  int64_t threads = 0;
  double read_bytes_per_second = 0;  // of memory, all threads
  double flops = 0;                  // fp32 multiply-adds, counting two, all threads; 0: not measured
  double block_overhead_ms = 0.02;   // of a block whose time is estimated: waking the threads, going from operator to operator
  std::vector<DiskPoint> disk;       // sorted by read_bytes, depth; none twice; empty where none was measured
  std::vector<ModelCompute> models;  // by key
  std::vector<LinkPoint> links;      // by peer

  // The model's measurements, or nullptr.
  const ModelCompute* FindModel(std::string_view key) const;
  // Puts `model` in, in the place of one with the same key, its points in order.
  void SetModel(ModelCompute model);
  // Puts `points` in, in the place of all there were.
  void SetDisk(std::vector<DiskPoint> points);

  // Bytes per second of reads of `read_bytes`, `depth` in flight, and milliseconds of one of them; 0 where no disk was measured.
  // Between measured sizes and depths linear in their logarithms, beyond them as the nearest.
  double DiskRate(Bytes read_bytes, int64_t depth) const;
  double DiskLatencyMs(Bytes read_bytes, int64_t depth) const;

  // Milliseconds of one block: linear between measured points, RooflineMs where the model was not measured.
  double ComputeMs(const ModelSpec& spec, BlockKind kind, int64_t rows, int64_t context) const;

  // One step of `rows` rows at `context` of which `logit_rows` ask for logits: all blocks, resident, and the overhead beside them.
  struct Step {
    int64_t rows = 1;
    int64_t context = 1;
    int64_t logit_rows = 1;
  };
  double StepMs(const ModelSpec& spec, const Step& step) const;

  friend bool operator==(const DeviceProfile&, const DeviceProfile&) = default;
};

// Names what the time of a model's blocks depends on: geometry, dtypes, bytes of each kind of block.
std::string ModelKey(const ModelSpec& spec);

// max(bytes / memory rate, operations / multiply-add rate) of the mean block of that kind, and the overhead. What the device cannot
// beat, and large models come near.
double RooflineMs(const DeviceProfile& profile, const ModelSpec& spec, BlockKind kind, int64_t rows, int64_t context);

// In JSON.
inline constexpr Names<BlockKind, 4> kKindNames = {
    {{BlockKind::kEmbedding, "embedding"}, {BlockKind::kAttention, "attention"}, {BlockKind::kMlp, "mlp"}, {BlockKind::kHead, "head"}}};

// From and to JSON. From outside it is hostile: sizes, depth, numbers and strings are bounded, and the first wrong field is named after
// `where`. Unknown fields are ignored. Fields end with their unit: bytes, bytes_per_second, ms; flops per second.
absl::StatusOr<DeviceProfile> ParseDeviceProfile(std::string_view text, std::string_view where);
std::string ToJsonText(const DeviceProfile& profile);

}  // namespace lime
