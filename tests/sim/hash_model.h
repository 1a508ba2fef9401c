// A model that hashes instead of computing: a hidden state is a hash of its token, its position,
// the weights of every block so far, and K and V of all earlier positions of its sequence. A layer
// with linear attention has a state instead of K and V: a hash of all rows in order. A misplaced
// weight, page, state, message or order changes all later tokens.
//
// The parts of a block have the same sum however the block is cut, so the tokens do not depend on
// the plan. A row of a layer with experts adds the weights of the experts that it chooses. A row of an
// MLP with ReLU adds a hash of each neuron that is active for it, whatever of the MLP is computed.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"

namespace lime {

class HashModel {
 public:
  static uint64_t Mix(uint64_t one, uint64_t other);

  // Hashes of weights in memory.
  struct Weights {
    uint64_t shared = 0;                 // that every row uses
    std::map<int32_t, uint64_t> expert;  // by expert

    void Add(const Weights& other);
  };
  static Weights WeightsOf(BlockId block, std::span<const MatrixRows> rows);
  // The experts that a row chooses, ascending.
  static std::vector<int32_t> Chosen(uint64_t hidden, int32_t layer, const ExpertsConfig& experts);
  // Neurons of a block that may be sparse; 0: it has none.
  static int64_t NeuronsOf(const ModelConfig& config, BlockId block);
  // The neurons that are active for a row, ascending: a random source in the place of the decider. Rows
  // share some of them; for a few rows none is active, for others most are.
  static std::vector<int32_t> Active(uint64_t hidden, int32_t layer, int64_t neurons);
  // What an active neuron adds to the weights that a row uses.
  static uint64_t Neuron(BlockId block, int32_t neuron) {
    return Mix(4'000'000 + static_cast<uint64_t>(block.layer), static_cast<uint64_t>(neuron));
  }
  static uint64_t Embed(int32_t token, int32_t position) { return Mix(static_cast<uint64_t>(token) + 1, static_cast<uint64_t>(position)); }
  // Kv: K and V of a position in a layer. Attended: the value that this position adds to the sum of
  // attention.
  static uint64_t Kv(uint64_t hidden, int32_t layer) { return Mix(hidden, 1000 + static_cast<uint64_t>(layer)); }
  static uint64_t Attended(uint64_t kv, int64_t position) { return Mix(kv, static_cast<uint64_t>(position) + 7); }
  // The state after one more row, from the state before; 0 before the first row.
  static uint64_t State(uint64_t state, uint64_t hidden, int32_t layer) {
    return Mix(state, Mix(hidden, 2000 + static_cast<uint64_t>(layer)));
  }
  // The hidden state after a block. `weights`: the sum of those that the row uses. `attended`: also the
  // state.
  static uint64_t Block(uint64_t hidden, uint64_t weights, uint64_t attended) { return Mix(Mix(hidden, weights), attended); }
  static int32_t Token(uint64_t hidden, int64_t vocab) { return static_cast<int32_t>(hidden % static_cast<uint64_t>(vocab)); }
};

// The correct tokens of a request.
class HashReference {
 public:
  HashReference(const ModelSpec& spec, const std::vector<int32_t>& prompt);
  // The token at `position`, at or after the prompt's end.
  int32_t TokenAt(int64_t position);

 private:
  void Compute(int32_t token);

  const ModelSpec& spec_;
  std::vector<int32_t> tokens_;
  std::vector<HashModel::Weights> weights_;  // by block, the embedding left out
  std::vector<uint64_t> attended_;           // by layer, of the positions so far; or the state
  int64_t computed_ = 0;
  uint64_t hidden_ = 0;
};

}  // namespace lime
