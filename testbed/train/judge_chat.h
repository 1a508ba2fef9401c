// Judges a chat model by held-out dialogues: it writes each answer greedily, behind the dialogue's
// own messages before it.
#pragma once

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "testbed/train/bpe_trainer.h"
#include "testbed/train/dialogue.h"
#include "testbed/train/llama.h"

namespace lime::train {

// An answer, and whether it is right; one without a check is right if it calls nothing.
struct JudgedAnswer {
  const DialogueMessage* message = nullptr;  // of the dialogue, which outlives this
  std::string text;                          // as the model writes it
  bool after_result = false;                 // it has to tell what a tool said
  bool right = false;
};

// All answers of a dialogue, in order.
std::vector<JudgedAnswer> JudgeAnswers(const Llama& model, const ByteBpe& tokenizer, const Dialogue& dialogue);

// For each kind of answer their number, and the share that is right.
nlohmann::ordered_json ChatFigures(const std::vector<JudgedAnswer>& answers);

// Whether `text` is a right answer instead of `message`.
bool IsRight(const DialogueMessage& message, const std::string& text);

}  // namespace lime::train
