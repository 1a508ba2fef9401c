// What a model takes of a device's memory, decided before anything is allocated: which blocks stay, how large the ring is, what is left.
#pragma once

#include <optional>
#include <string>

#include "daemon/weights/piece_reader.h"
#include "kernels/backend.h"
#include "planner/base/status.h"
#include "planner/memory_budget.h"
#include "planner/plan/backend_names.h"
#include "planner/plan/device_profile.h"
#include "planner/plan/model_spec.h"
#include "planner/residency.h"

namespace lime {

// How weights that stream are read: by requests of 1 MiB, as many in flight that cores which compute, and so submit late, leave the disk no
// gap. (A daemon of a pipeline has fewer: its rings are smaller, and a row of the embedding waits behind what is in flight.)
inline constexpr Bytes kStreamedRead = 1 * kMiB;
inline constexpr int kStreamedReads = 16;

// By kind; together at most the budget (design.md, section 7).
struct EngineMemory {
  Bytes weights = 0;  // resident blocks, and the norms and biases of the others
  Bytes ring = 0;     // for streamed pieces; 0 where everything is resident
  Bytes kv = 0;
  Bytes activations = 0;  // with the rows of an embedding that is not resident
  Bytes runtime = 0;      // resident beside those: the process and its libraries, before weights are loaded
  Bytes margin = 0;       // kept free, for page tables and what a run allocates beside the above

  Bytes total() const { return weights + ring + kv + activations + runtime + margin; }
};

struct MemoryRequest {
  std::string backend = kCpuBackend;                    // of kernels/registry/registry.h
  Bytes budget = 0;                                     // of the process; 0: derived from what the machine has
  MemoryPriority priority = MemoryPriority::kBalanced;  // then
  Placement placement = Placement::kAuto;
  std::optional<Bytes> ring;               // --pool in bytes
  std::optional<int64_t> ring_pieces;      // --pool in pieces of the largest kind
  std::optional<double> resident_share;    // --resident
  const DeviceProfile* profile = nullptr;  // null: memory and disk of a small machine are assumed
  int64_t positions = 0;                   // of a sequence on average, for predictions; 0: the context
  std::string model;                       // opens every error
};

struct MemoryPlan {
  EngineMemory memory;
  ResidencyPlan residency;
  std::optional<ResidencyProblem> problem;  // that `residency` solves, where something streams
  Bytes budget = 0;
  std::string budget_text;  // how it was derived; empty where it was asked for
};

// What is to be computed, where the length of prompt chunks is free.
struct Workload {
  int64_t prompt_tokens = 0;  // of all prompts
  int64_t new_tokens = 0;     // steps of decoding
};

// Opens the kernels module, so that its share of memory is counted. ResourceExhausted with the numbers by kind where not even two pieces
// of streamed weights fit beside the rest.
absl::StatusOr<MemoryPlan> PlanEngineMemory(const ModelSpec& spec, const BackendOptions& backend, const PieceReader& reader,
                                            const MemoryRequest& request);

// The same with the chunk length that computes `work` soonest: sets backend.max_rows to it and a row for every sequence. A model that is
// all resident takes `usual` tokens. Where something streams, every chunk costs a sweep over the disk, longer chunks take memory from what
// stays resident, and shorter ones let a model run in a budget that is too small for the usual one.
absl::StatusOr<MemoryPlan> PlanMemoryAndChunk(const ModelSpec& spec, const PieceReader& reader, const MemoryRequest& request,
                                              const Workload& work, int64_t usual, BackendOptions& backend);

// K and V of 16 positions of one layer.
Bytes KvPageBytes(const ModelSpec& spec);

}  // namespace lime
