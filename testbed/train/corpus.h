// The training text, in simple English: a grammar makes short fables, small facts and questions
// from a seed.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "testbed/train/grammar.h"

namespace lime::train {

class Corpus {
 public:
  // `grammar_file`: fables.grammar.
  static absl::StatusOr<Corpus> Load(const std::string& grammar_file, uint64_t seed);

  // Document `index` of the grammar's rule `root`: the same ASCII text on every machine.
  std::string Document(uint64_t index, absl::string_view root = "document") const;

 private:
  Corpus(Grammar grammar, uint64_t seed) : grammar_(std::move(grammar)), seed_(seed) {}
  Grammar grammar_;
  uint64_t seed_;
};

// The seed of the held-out part that belongs to a training seed.
constexpr uint64_t HeldOutSeed(uint64_t seed) {
  return seed + 1'000'003;
}

}  // namespace lime::train
