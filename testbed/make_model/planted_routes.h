// Plants the embedding and the head of a model with experts, so that the text that the model samples
// makes routes like those that others have recorded: recent experts return, and none is a favourite
// for long.
//
// Token t has topic z = t modulo kPlantedTopics. With a normal vector u for each topic and n for
// each token, by seed, both with deviation 1, and a hidden size H:
//
//   embedding[t] = scale (sqrt(shared) u[z] + sqrt(1 - shared) n[t])
//   head[t]      = pull / (H sqrt(shared)) u[z],  pull = ln(stay (topics - 1) / (1 - stay))
//
// Routers are random, like all other matrices: their rows are independent of each other and of
// other layers. So a topic makes the share `shared` of the variance of a router's products, and
// tokens of one topic have many experts in common. The head's products with an x of topic z are
// `pull` for tokens of that topic, and about 0 for others. Text that is sampled at temperature 1 then
// stays in its topic with chance `stay`, and has the tokens of a topic equally often. As `scale` is
// large, each half of a layer adds a few percent to x. So routes follow the tokens at every depth,
// and the next layer's router guesses right for most experts: about 86 % of 8 among 128, calculated
// from what the weights of norms (0.1) and both halves between the routers add.
//
// Recency comes from sampling: greedy text soon repeats a few tokens and their experts. So use
// --temperature 1, and at least 4,096 tokens, so that they hardly repeat. Measured with 8 of 128
// experts for a token, LRU (planner/demand/replay.h), 512 tokens and 3 seeds of sampling, beside the
// figures of published models: experts of the token before 40 to 41 % (35 to 43); hits with 12 % of
// the experts kept 60 to 61 % (53 to 67), with 25 % kept 77 to 78 % (76 to 81), with 60 % kept from
// cold 89 % (84). Nothing is said of quality: the text has no meaning.
#pragma once

#include <cstdint>

#include "planner/base/status.h"
#include "planner/plan/model/model_config.h"

namespace lime {

inline constexpr int64_t kPlantedTopics = 64;
inline constexpr double kPlantedShared = 0.74;  // of an embedding's variance, by all tokens of a topic
inline constexpr double kPlantedStay = 0.93;    // chance that the next token has the same topic
inline constexpr double kPlantedScale = 4;      // deviation of the embedding; halves of layers add about 0.2

// The deviations of what rows of one topic share and of what each row has alone.
struct PlantedRows {
  float shared = 0;
  float own = 0;
};
PlantedRows PlantedEmbedding();
PlantedRows PlantedHead(int64_t hidden_size);

// InvalidArgument, with the reason, unless the model has experts, and an embedding and a head of its
// own that are not packed.
absl::Status CheckPlantedRoutes(const ModelConfig& config);

}  // namespace lime
