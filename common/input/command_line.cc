#include "common/input/command_line.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "planner/base/nearest.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr char kFreeText[] = "ANY TEXT";  // `--help` shows it as the type of the value
constexpr size_t kShownBytes = 80;

// The beginning of a word, without control characters.
std::string Begin(std::string_view word) {
  std::string begin(word.substr(0, kShownBytes));
  std::ranges::replace_if(
      begin, [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); }, '?');
  return word.size() > kShownBytes ? begin + "..." : begin;
}

std::string Quoted(std::string_view word) {
  return absl::StrCat("\"", Begin(word), "\"");
}

bool IsFreeText(const CLI::Option& option) {
  return option.get_type_name() == kFreeText;
}

bool ExpectsValue(const CLI::Option& option) {
  return option.get_items_expected_max() > 0;
}

// "run: " for a command, empty for the program itself.
std::string Opening(const CLI::App& app) {
  return app.get_parent() == nullptr ? "" : absl::StrCat(app.get_name(), ": ");
}

std::string HelpOf(const CLI::App& app) {
  std::string words = app.get_name();
  for (const CLI::App* parent = app.get_parent(); parent != nullptr; parent = parent->get_parent())
    words = absl::StrCat(parent->get_name(), " ", words);
  return absl::StrCat("`", words, " --help`");
}

std::vector<std::string> FlagsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> CommandsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) names.push_back(command->get_name());
  return names;
}

// Accepts a whole number: digits, with a minus sign only if the flag allows it.
absl::Status CheckWholeNumber(const std::string& flag, std::string_view value, bool has_sign) {
  std::string_view digits = value;
  if (has_sign && digits.starts_with('-')) digits.remove_prefix(1);
  const bool plain =
      !digits.empty() && std::ranges::all_of(digits, [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); });
  if (!plain) return Invalid(flag, " ", AsTyped(value), " is not a whole number", has_sign ? "" : " of 0 or more");
  if (digits.size() > 1 && digits.front() == '0') return Invalid(flag, " ", AsTyped(value), ": write the number without leading zeros");
  int64_t number = 0;
  uint64_t natural = 0;
  const bool fits = has_sign ? absl::SimpleAtoi(Text(value), &number) : absl::SimpleAtoi(Text(value), &natural);
  return fits ? absl::OkStatus() : Invalid(flag, " ", AsTyped(value), " does not fit in 64 bits; give a smaller number");
}

// Whether it is a decimal number: no hexadecimal, white space, infinity or NaN.
bool IsNumber(std::string_view value) {
  double number = 0;
  return value.find_first_not_of("0123456789.+-eE") == std::string_view::npos && absl::SimpleAtod(Text(value), &number) &&
         std::isfinite(number);
}

absl::Status CheckNumbers(const CLI::Option& option, const std::string& flag, const std::string& value) {
  const std::string type = option.get_type_name();
  const bool whole = type.starts_with("INT") || type.starts_with("UINT");
  if (!whole && !type.starts_with("FLOAT")) return absl::OkStatus();
  std::vector<std::string> items = {value};
  if (option.get_delimiter() != '\0') items = absl::StrSplit(value, option.get_delimiter());
  for (const std::string& item : items) {
    if (whole) LIME_RETURN_IF_ERROR(CheckWholeNumber(flag, item, type.starts_with("INT")));
    if (!whole && !IsNumber(item)) return Invalid(flag, " ", AsTyped(item), " is not a number");
  }
  return absl::OkStatus();
}

// Walks over the words in the same way as CLI11, command by command.
class WordCheck {
 public:
  WordCheck(const CLI::App& app, std::vector<std::string>& words) : app_(&app), words_(words) {}

  // Returns the first error. A request for help hides other errors, but not an unknown command.
  absl::Status Run() {
    absl::Status first;
    while (at_ < words_.size() && !unknown_command_) first.Update(OneWord());
    return help_ && !unknown_command_ ? absl::OkStatus() : first;
  }

 private:
  template <typename... What>
  absl::Status Wrong(const What&... what) const {
    return Invalid(Opening(*app_), what...);
  }

  absl::Status OneWord() {
    const std::string word = words_[at_++];
    if (word.size() > 2 && word.starts_with("--")) return LongFlag(word);
    if (word.size() > 1 && word[0] == '-' && word[1] != '-') return ShortFlag(word);
    return PlainWord(word);
  }

  const CLI::Option* Find(const std::string& name) const {
    for (const CLI::Option* option : app_->get_options()) {
      if (name.starts_with("--") ? option->check_lname(name.substr(2)) : option->check_sname(name.substr(1))) return option;
    }
    return nullptr;
  }

  absl::Status LongFlag(const std::string& word) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const CLI::Option* const option = Find(name);
    if (option == nullptr) return UnknownFlag(name);
    if (option == app_->get_help_ptr() || option == app_->get_version_ptr()) help_ = true;
    if (!ExpectsValue(*option))
      return equals == std::string::npos ? absl::OkStatus() : Wrong(name, " takes no value; leave ", AsTyped(word.substr(equals)), " out");
    if (equals == std::string::npos) return NextValue(*option, name);
    if (equals + 1 < word.size()) return Value(*option, name, word.substr(equals + 1));
    if (!IsFreeText(*option)) return Wrong(name, "= has no value; write ", name, " VALUE, or leave it out");
    words_[at_ - 1] = name;  // CLI11 would take the next word for the value
    words_.insert(words_.begin() + static_cast<ptrdiff_t>(at_), "");
    return NextValue(*option, name);
  }

  absl::Status ShortFlag(const std::string& word) {
    const std::string as_long = "-" + word;
    if (word.size() > 2 && Find(as_long.substr(0, as_long.find('='))) != nullptr)
      return Wrong("unknown flag ", AsTyped(word), "; did you mean -", AsTyped(word), "?");
    const std::string name = word.substr(0, 2);
    const CLI::Option* const option = Find(name);
    if (option == nullptr) return UnknownFlag(word);
    if (option == app_->get_help_ptr()) help_ = true;
    if (!ExpectsValue(*option)) return word.size() == 2 ? absl::OkStatus() : UnknownFlag(word);
    if (word.size() == 2) return NextValue(*option, name);
    if (word[2] == '=') return Wrong("write ", name, " ", AsTyped(word.substr(3)), " instead of ", AsTyped(word));
    return Value(*option, name, word.substr(2));
  }

  absl::Status UnknownFlag(const std::string& name) const {
    const std::vector<std::string> flags = FlagsOf(*app_);
    std::string advice = DidYouMean(name, flags);
    if (advice.empty()) advice = absl::StrCat("; ", HelpOf(*app_), " lists the flags");
    return Wrong("unknown flag ", AsTyped(name), advice);
  }

  absl::Status NextValue(const CLI::Option& option, const std::string& name) {
    const bool may_lack = option.get_items_expected_min() == 0;
    if (may_lack && (at_ == words_.size() || words_[at_].starts_with('-'))) return absl::OkStatus();
    if (at_ == words_.size()) return Wrong(name, " needs a value");
    LIME_RETURN_IF_ERROR(Value(option, name, words_[at_++]));
    while (option.get_items_expected_max() > 1 && option.get_allow_extra_args() && at_ < words_.size() && !words_[at_].starts_with('-'))
      LIME_RETURN_IF_ERROR(Value(option, name, words_[at_++]));
    return absl::OkStatus();
  }

  absl::Status Value(const CLI::Option& option, const std::string& name, const std::string& value) {
    // A list is a single value, so its flag may occur only once.
    const bool list = option.get_delimiter() != '\0',
               once = list || (option.get_items_expected_max() == 1 && option.get_multi_option_policy() == CLI::MultiOptionPolicy::Throw);
    if (++given_[&option] > 1 && once) return Wrong(name, " is given twice; give it once");
    if (IsFreeText(option)) return absl::OkStatus();
    if (value.empty()) return Wrong(name, " is empty; give a value, or leave it out");
    if (value.starts_with("--") && Find(value.substr(0, value.find('='))) != nullptr)
      return Wrong(name, " needs a value, but ", AsTyped(value), " is a flag");
    const absl::Status numbers = CheckNumbers(option, name, value);
    return numbers.ok() ? numbers : Wrong(Text(std::string(numbers.message())));
  }

  absl::Status PlainWord(const std::string& word) {
    const std::vector<std::string> commands = CommandsOf(*app_);
    if (!commands.empty()) return Command(word, commands);
    for (const CLI::Option* option : app_->get_options()) {
      if (option->get_positional() && option->get_items_expected_max() > given_[option])
        return Value(*option, option->get_name(/*positional=*/true), word);
    }
    std::error_code ignored;
    const bool folder = std::filesystem::is_directory(word, ignored);
    if (folder && Find("--model") != nullptr)
      return Wrong("unexpected folder ", AsTyped(word), "; the model is given as --model ", AsTyped(word));
    if (Find("--prompt") != nullptr) return Wrong("unexpected word ", Quoted(word), "; a prompt is given as --prompt \"TEXT\", in quotes");
    return Wrong("unexpected word ", Quoted(word), "; ", HelpOf(*app_), " shows the arguments");
  }

  absl::Status Command(const std::string& word, const std::vector<std::string>& commands) {
    for (const CLI::App* command : app_->get_subcommands([](const CLI::App*) { return true; })) {
      if (!command->check_name(word)) continue;
      app_ = command;
      return absl::OkStatus();
    }
    unknown_command_ = true;
    std::string advice = DidYouMean(word, commands, absl::StrCat(app_->get_name(), " "));
    if (advice.empty()) advice = absl::StrCat("; ", HelpOf(*app_), " lists the commands");
    return Wrong("unknown command ", Quoted(word), advice);
  }

  const CLI::App* app_;  // the current command
  std::vector<std::string>& words_;
  size_t at_ = 0;
  bool help_ = false;                        // help is requested
  bool unknown_command_ = false;             // the words after it cannot be read
  std::map<const CLI::Option*, int> given_;  // how often each was given
};

}  // namespace

// ---- Flags

const Flag& Flag::Required() const {
  option_->required();
  return *this;
}

const Flag& Flag::Needs(const Flag& other) const {
  option_->needs(other.option_);
  return *this;
}

const Flag& Flag::Shown() const {
  option_->capture_default_str();
  return *this;
}

const Flag& Flag::Repeats() const {
  option_->take_all()->expected(1)->allow_extra_args(false);
  return *this;
}

const Flag& Flag::Listed() const {
  option_->delimiter(',')->allow_extra_args(false);
  return *this;
}

const Flag& Flag::FreeText() const {
  option_->type_name(kFreeText);
  return *this;
}

template <typename T>
Flag CommandFlags::Add(const std::string& names, T* value, const std::string& what) const {
  if constexpr (std::is_same_v<T, bool>)
    return Flag(app_->add_flag(names, *value, what));
  else
    return Flag(app_->add_option(names, *value, what));
}
template Flag CommandFlags::Add(const std::string&, bool*, const std::string&) const;
template Flag CommandFlags::Add(const std::string&, int*, const std::string&) const;
template Flag CommandFlags::Add(const std::string&, int64_t*, const std::string&) const;
template Flag CommandFlags::Add(const std::string&, uint64_t*, const std::string&) const;
template Flag CommandFlags::Add(const std::string&, double*, const std::string&) const;
template Flag CommandFlags::Add(const std::string&, std::string*, const std::string&) const;
template Flag CommandFlags::Add(const std::string&, std::optional<int64_t>*, const std::string&) const;
template Flag CommandFlags::Add(const std::string&, std::optional<double>*, const std::string&) const;
template Flag CommandFlags::Add(const std::string&, std::optional<int>*, const std::string&) const;
template Flag CommandFlags::Add(const std::string&, std::optional<uint64_t>*, const std::string&) const;
template Flag CommandFlags::Add(const std::string&, std::optional<std::string>*, const std::string&) const;
template Flag CommandFlags::Add(const std::string&, std::vector<int64_t>*, const std::string&) const;
template Flag CommandFlags::Add(const std::string&, std::vector<std::string>*, const std::string&) const;

Flag CommandFlags::AddOptional(const std::string& names, const std::string& default_value,
                               std::function<absl::Status(const std::string&)> parse, const std::string& what) const {
  const auto checked = [names, parse = std::move(parse)](const std::string& value) {
    const absl::Status status = parse(value);
    if (!status.ok()) throw CLI::ValidationError(names.substr(0, names.find(',')), std::string(status.message()));
  };
  return Flag(app_->add_option_function<std::string>(names, checked, what)->expected(0, 1)->default_str(default_value));
}

void CommandFlags::Remove(const std::string& flag) const {
  app_->remove_option(app_->get_option(flag));
}

CommandFlags CommandFlags::AddCommand(const std::string& name, const std::string& what, const std::string& footer,
                                      std::function<void(const CommandFlags& command)> run) const {
  CLI::App* const command = app_->add_subcommand(name, what);
  if (!footer.empty()) command->footer(footer);  // else the program's footer
  command->callback([command, run = std::move(run)] { run(CommandFlags(*command)); });
  return CommandFlags(*command);
}

void CommandFlags::ShowUnder(const std::string& title, std::initializer_list<const char*> flags) const {
  for (const char* flag : flags) {
    if (CLI::Option* const option = app_->get_option_no_throw(flag); option != nullptr) option->group(title);
  }
}

std::string CommandFlags::name() const {
  return app_->get_name();
}

bool CommandFlags::Given(const std::string& flag) const {
  const CLI::Option* const option = app_->get_option_no_throw(flag);
  return option != nullptr && option->count() > 0;
}

std::vector<CommandFlags::Value> CommandFlags::Values() const {
  std::vector<Value> values;
  for (const CLI::Option* option : app_->get_options()) {
    if (IsFreeText(*option)) continue;
    for (const std::string& value : option->results()) values.push_back({option->get_name(), value});
  }
  return values;
}

std::vector<CommandFlags::Known> CommandFlags::KnownFlags() const {
  std::vector<Known> known;
  for (const CLI::Option* option : app_->get_options()) {
    if (option->get_group().empty() || option == app_->get_help_ptr()) continue;
    const std::string type = option->get_type_name();
    for (const std::string& name : option->get_lnames())
      known.push_back({.name = "--" + name,
                       .is_switch = !ExpectsValue(*option),
                       .is_number = type.starts_with("INT") || type.starts_with("UINT") || type.starts_with("FLOAT"),
                       .repeats = option->get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll});
  }
  return known;
}

absl::Status CommandFlags::Set(const std::string& flag, const std::vector<std::string>& values) const {
  CLI::Option* const option = app_->get_option(flag);
  for (const std::string& value : values) {
    if (value.empty() && !IsFreeText(*option)) return Invalid(flag, " is empty; give a value, or leave it out");
    LIME_RETURN_IF_ERROR(CheckNumbers(*option, flag, value));
  }
  try {
    for (const std::string& value : values) option->add_result(value);
    option->run_callback();
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return absl::OkStatus();
}

// ---- Words

std::string AsTyped(std::string_view word) {
  const bool plain = !word.empty() && std::ranges::all_of(word, [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
  return plain ? Begin(word) : Quoted(word);
}

absl::Status CheckWords(const CLI::App& app, std::vector<std::string>& words) {
  return WordCheck(app, words).Run();
}

std::string SentenceOf(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<const CLI::App*> commands = app.get_subcommands([](const CLI::App* command) { return command->parsed(); });
  if (commands.empty() && !CommandsOf(app).empty()) return absl::StrCat("no command is given; ", HelpOf(app), " lists the commands");
  return absl::StrCat(commands.empty() ? "" : Opening(*commands.front()), error.what());
}

std::vector<std::string> WithHelpWords(std::vector<std::string> words) {
  if (words.empty()) return words;
  if (words.front() == "version") words.front() = "--version";
  if (words.front() != "help") return words;
  words.erase(words.begin());
  words.push_back("--help");
  return words;
}

bool AsksForJson(std::span<const std::string> words) {
  return std::ranges::find(words, "--json") != words.end();
}

bool AnswerWritten() {
  std::cout.flush();
  return std::cout && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
}

}  // namespace lime
