// The words of a call, checked before CLI11 reads them: a slip of the typist is named, and never
// becomes a value.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/cli11.h"
#include "planner/base/status.h"

namespace lime {

// A word of the call as errors show it: its begin, without control characters, in quotes where one
// would not see where it begins and ends.
std::string AsTyped(std::string_view word);

// Marks an option whose value may be any text, empty or like a flag: what a model reads.
CLI::Option* FreeText(CLI::Option* option);

// Refuses words of the call that are no command, flag or value of `app`, the first of them in one
// sentence with the nearest known word. OK where help is asked for, whatever else is written.
// `words` does not hold the program's name. Writes --prompt= as --prompt "", which CLI11 understands.
absl::Status CheckWords(const CLI::App& app, std::vector<std::string>& words);

// What CLI11 found wrong afterwards, such as a required flag that is missing, in our words.
std::string SentenceOf(const CLI::App& app, const CLI::ParseError& error);

// `help`, `help COMMAND` and `version` as the flags of that name.
std::vector<std::string> WithHelpWords(std::vector<std::string> words);

// Whether the call asks for --json, as far as can be told of one that is wrong.
bool AsksForJson(std::span<const std::string> words);

// Flushes stdout. False where something that was printed did not reach it: then there is no answer.
bool AnswerWritten();

// Whether the option's value is text of any kind, a prompt for example.
bool IsFreeText(const CLI::Option& option);

}  // namespace lime
