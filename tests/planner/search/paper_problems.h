// The problems of the paper's environments and settings, and variants of them: other bandwidths,
// more requests, blocks in parts.
#pragma once

#include <string>

#include "planner/base/status.h"
#include "planner/plan/instance/instance.h"

namespace lime {

// One request with 2,048 tokens of context, in blocks of bf16: "E1" (Llama 2 13B), "E2" (Qwen3 32B,
// at 200 Mbit/s), "E3", "S1", "S2" and "S3" (Llama 3.3 70B). "S1b", "S2b" and "S3b" are the last
// three with five requests in one micro-batch. The devices are those of testbed/clusters. Numbers
// have six decimals, as in the files of ../shared/planner, so that both give the same plans.
// REQUIRES: one of these names
Instance PaperProblem(const std::string& name);
inline constexpr const char* kPaperProblems[] = {"E1", "E2", "E3", "S1", "S2", "S3", "S1b", "S2b", "S3b"};

// The instance of a file of `lime solve`.
absl::StatusOr<Instance> ReadProblem(const std::string& path);

// One of kPaperProblems by its name, or the instance of a file.
absl::StatusOr<Instance> ProblemOf(const std::string& name_or_path);

// Messages take `factor` times as long on the wire.
Instance WithSlowerWire(Instance instance, double factor);

// Runs `sequences` requests at once, in micro-batches of one or of all of them. Weights are read
// once for all requests. Each request reads its own KV, as fast as weights.  REQUIRES: attention,
// MLP and head blocks, of one request
Instance WithSequences(Instance instance, int sequences);

// Cuts blocks into parts of at most 64 MB, and lets devices read the embedding by rows. Such a read
// has the bytes of a hidden state, which the wire sends in tx_ms at `wire_mb_per_ms`. Call it after
// WithSequences, which needs whole blocks.
Instance InParts(const Instance& instance, double wire_mb_per_ms);

// Llama 3.1 405B, 126 layers of 1.1 and 5.2 GB and a head of 4.2, on eight machines of three kinds
// that hold about 0.7 of the model.
Instance LargeProblem();

// Equal layers on devices of several kinds that hold about 0.9 of them.
Instance LongProblem(int layers, int devices);

inline constexpr double kHundredMbitPerS = 0.0125;  // MB/ms

}  // namespace lime
