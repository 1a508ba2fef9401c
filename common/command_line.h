// Commands and their flags, and the words of a call: checked before CLI11 reads them, so that a slip of
// the typist is named, and never becomes a value.
//
// Only programs see CLI11's header, whose code takes every file that calls it seconds to compile:
// commands have CommandFlags.
#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/status.h"

namespace CLI {
class App;
class Option;
class ParseError;
}  // namespace CLI

namespace lime {

// One flag of a command, to say more of it.
class Flag {
 public:
  explicit Flag(CLI::Option* option) : option_(option) {}

  // The call is wrong without it.
  const Flag& Required() const;
  // ... where it is given without the other.
  const Flag& Needs(const Flag& other) const;
  // --help shows the value that it has where the call does not give it.
  const Flag& Shown() const;
  // It may be given several times, with one value each.
  const Flag& Repeats() const;
  // Its values follow each other in one word, with commas between them.
  const Flag& Listed() const;
  // Its value may be any text, empty or like a flag: what a model reads.
  const Flag& FreeText() const;

 private:
  CLI::Option* option_;
};

// The flags of a command, or of a program without commands. A handle: a copy is of the same.
class CommandFlags {
 public:
  // REQUIRES: `app` outlives this.
  explicit CommandFlags(CLI::App& app) : app_(&app) {}

  // A flag, or a word without one (`names` as of CLI11: "model,--model,-m"), whose value goes to `value`. bool: it takes none.
  // T: bool, int, int64_t, uint64_t, double, std::string, or std::optional or std::vector of some of them.
  template <typename T>
  Flag Add(const std::string& names, T* value, const std::string& what) const;
  // A flag whose value may be left out: `take` gets it, or `default_value`. Its error is the call's.
  Flag AddOptional(const std::string& names, const std::string& default_value, std::function<absl::Status(const std::string&)> take,
                   const std::string& what) const;
  void Remove(const std::string& flag) const;
  // A command of this program. `footer` stands at the end of its --help, `run` is called once its words are read.
  CommandFlags AddCommand(const std::string& name, const std::string& what, const std::string& footer,
                          std::function<void(const CommandFlags& command)> run) const;

  // Those of these flags that the command has stand together under a title in --help; without one, --help leaves them out.
  void ShowUnder(const std::string& title, std::initializer_list<const char*> flags) const;

  // ---- Once the words of the call are read

  std::string name() const;  // of the command
  bool Given(const std::string& flag) const;
  struct Value {
    std::string flag, value;
  };
  // All that are given, free texts aside.
  std::vector<Value> Values() const;

 private:
  CLI::App* app_;
};

// A word of the call as errors show it: its begin, without control characters, in quotes where one
// would not see where it begins and ends.
std::string AsTyped(std::string_view word);

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

}  // namespace lime
