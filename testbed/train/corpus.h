// The training text, in simple English: a grammar makes short fables, small facts, questions and
// dialogues from a seed.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "testbed/train/dialogue.h"
#include "testbed/train/grammar.h"

namespace lime::train {

// These rules of chat.grammar make scripts of dialogues.
inline constexpr absl::string_view kDialogueRoot = "dialogue", kDialoguePracticeRoot = "dialogue_practice";

class Corpus {
 public:
  // `grammar_file`: fables.grammar or chat.grammar. Its lines "%include NAME" stand for the rules of
  // another file in the same folder.
  static absl::StatusOr<Corpus> Load(const std::string& grammar_file, uint64_t seed);

  // Document `index` of the grammar's rule `root`: the same ASCII text on every machine. Of a rule for
  // dialogues, it is what a model reads: the dialogue as the chat template renders it.
  std::string Document(uint64_t index, absl::string_view root = "document") const;
  Dialogue DialogueAt(uint64_t index, absl::string_view root = kDialogueRoot) const;

 private:
  Corpus(Grammar grammar, uint64_t seed) : grammar_(std::move(grammar)), seed_(seed) {}
  std::string Text(uint64_t index, absl::string_view root) const;

  Grammar grammar_;
  uint64_t seed_;
};

// The seed of the held-out part that belongs to a training seed.
constexpr uint64_t HeldOutSeed(uint64_t seed) {
  return seed + 1'000'003;
}

}  // namespace lime::train
