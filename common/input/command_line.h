// Commands and their flags. The words of a call are checked before CLI11 reads them, so that a
// typing error is reported and never becomes a value.
//
// Commands use CommandFlags. Only programs include CLI11's header, because it takes seconds to
// compile.
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

// One flag of a command. Its methods add properties.
class Flag {
 public:
  explicit Flag(CLI::Option* option) : option_(option) {}

  // The call is invalid without this flag.
  const Flag& Required() const;
  // The call is invalid with this flag but without `other`.
  const Flag& Needs(const Flag& other) const;
  // --help shows the default value.
  const Flag& Shown() const;
  // The flag may be repeated, with one value each.
  const Flag& Repeats() const;
  // The values are one word, separated by commas.
  const Flag& Listed() const;
  // The value may be any text that a model reads, also empty or like a flag.
  const Flag& FreeText() const;

 private:
  CLI::Option* option_;
};

// The flags of a command, or of a program without commands. A handle: copies refer to the same
// flags.
class CommandFlags {
 public:
  // REQUIRES: `app` outlives this.
  explicit CommandFlags(CLI::App& app) : app_(&app) {}

  // Adds a flag, or a word without a flag, whose value goes to `value` (`names` as in CLI11:
  // "model,--model,-m"). A bool flag takes no value. T is bool, int, int64_t, uint64_t, double,
  // std::string, or a std::optional or std::vector of some of them.
  template <typename T>
  Flag Add(const std::string& names, T* value, const std::string& what) const;
  // Adds a flag with an optional value. `parse` gets the value or `default_value`; its error
  // becomes the error of the call.
  Flag AddOptional(const std::string& names, const std::string& default_value, std::function<absl::Status(const std::string&)> parse,
                   const std::string& what) const;
  void Remove(const std::string& flag) const;
  // Adds a command. `footer` ends its --help. `run` is called after the words of the command were
  // read.
  CommandFlags AddCommand(const std::string& name, const std::string& what, const std::string& footer,
                          std::function<void(const CommandFlags& command)> run) const;

  // Groups these flags of the command under a title in --help. An empty title hides them.
  void ShowUnder(const std::string& title, std::initializer_list<const char*> flags) const;

  // ---- After the words of the call were read

  std::string name() const;  // of the command
  bool Given(const std::string& flag) const;
  struct Value {
    std::string flag, value;
  };
  // All given flags, except free texts.
  std::vector<Value> Values() const;
  struct Known {
    std::string name;  // with its dashes
    bool is_switch = false, is_number = false, repeats = false;
  };
  // The flags that --help shows, without --help.
  std::vector<Known> KnownFlags() const;
  // As if the call gave the flag once with each of these values; "true" for a switch.
  // InvalidArgument if the flag does not take them.  REQUIRES: it is known, and the call does not
  // give it
  absl::Status Set(const std::string& flag, const std::vector<std::string>& values) const;

 private:
  CLI::App* app_;
};

// A word of the call for error messages: its beginning, without control characters, in quotes if
// its ends would not be visible.
std::string AsTyped(std::string_view word);

// Rejects words that are no command, flag or value of `app`. The error is one sentence about the
// first such word, with the nearest known one. OK if help is requested, whatever else is written.
// `words` does not include the program's name. Rewrites --prompt= as --prompt "", which CLI11
// understands.
absl::Status CheckWords(const CLI::App& app, std::vector<std::string>& words);

// Rewrites an error of CLI11, such as a missing required flag, as a sentence of LIME.
std::string SentenceOf(const CLI::App& app, const CLI::ParseError& error);

// Converts the words `help`, `help COMMAND` and `version` to the flags of that name.
std::vector<std::string> WithHelpWords(std::vector<std::string> words);

// True if the call asks for --json, even if the call is invalid.
bool AsksForJson(std::span<const std::string> words);

// Flushes stdout. False if some output was lost; the call then has no answer.
bool AnswerWritten();

}  // namespace lime
