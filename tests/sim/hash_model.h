// A model that hashes instead of computing: a hidden state is a hash of its token, its position,
// the weights of every block so far and the K and V of every position that its sequence has had. A
// weight, a page, a message or an order out of place shows in all tokens after it.
//
// What a part of a block adds is the same in sum however the block is cut, so the tokens do not
// depend on the plan.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"

namespace lime {

class HashModel {
 public:
  static uint64_t Mix(uint64_t one, uint64_t other);

  // What the rows of a part in memory are.
  static uint64_t Weights(const PlanPart& part);
  static uint64_t Embed(int32_t token, int32_t position) { return Mix(static_cast<uint64_t>(token) + 1, static_cast<uint64_t>(position)); }
  // K and V of a position in a layer, and what it adds to what attention makes.
  static uint64_t Kv(uint64_t hidden, int32_t layer) { return Mix(hidden, 1000 + static_cast<uint64_t>(layer)); }
  static uint64_t Attended(uint64_t kv, int64_t position) { return Mix(kv, static_cast<uint64_t>(position) + 7); }
  // Behind a block, whose weights these are in sum.
  static uint64_t Block(uint64_t hidden, uint64_t weights, uint64_t attended) { return Mix(Mix(hidden, weights), attended); }
  static int32_t Token(uint64_t hidden, int64_t vocab) { return static_cast<int32_t>(hidden % static_cast<uint64_t>(vocab)); }
};

// What a request's tokens are to be, one after another.
class HashReference {
 public:
  HashReference(const ModelSpec& spec, const std::vector<int32_t>& prompt);
  // The token at `position`, from the prompt's end on.
  int32_t TokenAt(int64_t position);

 private:
  void Compute(int32_t token);

  const ModelSpec& spec_;
  std::vector<int32_t> tokens_;
  std::vector<uint64_t> weights_;   // by block, the embedding left out
  std::vector<uint64_t> attended_;  // by layer, of the positions so far
  int64_t computed_ = 0;
  uint64_t hidden_ = 0;
};

}  // namespace lime
