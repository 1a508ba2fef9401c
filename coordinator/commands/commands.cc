#include "coordinator/commands/commands.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/input/flag_file.h"
#include "common/input/toml_file.h"
#include "daemon/machine/files.h"

namespace lime::cli {
namespace {

struct FlagRule {
  const char* commands;
  const char* flags;   // flags without effect on these commands, and why
  const char* others;  // "--flag=value" is this flag with this value
  const char* why = "is for";
};

// Flags that have no effect without one of the others.
constexpr FlagRule kNeeds[] = {
    {"run trace serve chat",
     "--plan --push --without --patience --give-up --no-kv-lending --no-remote-attention --online --no-replan --no-memory-planner "
     "--insecure",
     "--cluster"},
    {"score", "--plan --push --without --insecure", "--cluster"},
    {"plan", "--without", "--cluster"},
    {"run trace score serve chat plan", "--neurons --window", "--sparsity=exact --sparsity=predicted"},
    {"run trace score serve chat plan", "--decider", "--sparsity=exact"},
    {"profile", "--link-seconds --insecure", "--cluster"},
    {"run score chat", "--api-key --tls-ca", "--url", "is for a server, which is named by"},
    {"run trace", "--token-times", "--json", "is a field of the answer of"},
    {"run simulate", "--overwrite", "--trace"},
    {"trace", "--overwrite", "--trace --routes"},
    {"plan prepare", "--overwrite", "--out"},
    {"prepare", "--calibration", "--bundles"},
    {"profile", "--overwrite", "--out --cluster"},
};

// Flags that have no effect beside one of the others.
constexpr FlagRule kNothingBeside[] = {
    {"run chat",
     "--cluster --threads --profile --numerics --loader --context --kv --kv-dir --no-kv-spill --chunk --memory --memory-mode --placement "
     "--pool --resident --experts --read-ahead --sparsity --neurons --decider --window --plan --without --push --patience --give-up "
     "--kv-tokens "
     "--no-kv-lending "
     "--no-remote-attention --online "
     "--no-replan --no-memory-planner --insecure --batch-with --token-times --trace --routes --overwrite",
     "--url", "is for a call that computes itself"},
    {"score",
     "--cluster --threads --profile --numerics --loader --kv --kv-dir --no-kv-spill --chunk --memory --memory-mode --placement --pool "
     "--resident --experts --read-ahead --sparsity --neurons --decider --window --plan --without --push --insecure --batch-with",
     "--url", "is for a call that computes itself"},
    {"trace", "--routes", "--cluster", "records this machine alone"},
    {"run serve", "--routes", "--plan", "is for planning now"},
    {"run trace score serve chat", "--experts --read-ahead --sparsity --neurons --decider --window", "--plan", "is for planning now"},
    {"run trace score serve chat",
     "--threads --loader --kv --kv-dir --chunk --memory --memory-mode --placement --pool --resident --profile --numerics", "--cluster",
     "is for this machine alone"},
    {"profile", "--out --profile --memory --threads", "--cluster", "is for this machine alone"},
    {"run trace score serve bench chat", "--memory-mode", "--memory", "is for a budget that LIME chooses"},
    {"run trace score serve chat", "--kv-dir", "--no-kv-spill", "is for KV on the disk"},
    {"run trace score serve chat plan", "--kv-tokens", "--sparsity=exact", "is for KV that grows"},
    {"run trace score serve chat", "--kv-dir", "--sparsity=exact", "is for KV on the disk"},
    {"score", "--no-kv-spill", "--plan", "is for planning now"},
    {"run trace serve chat", "--kv-tokens --no-kv-spill --no-kv-lending --no-remote-attention", "--plan", "is for planning now"},
    {"push", "--context --prompt-tokens --sequences", "--plan --all", "is for planning now"},
    {"simulate", "--steps --from-start", "--prompt", "is for decode steps"},
    {"trace", "--steps", "--json", "is for the picture"},
};

std::vector<std::string> Words(const char* words) {
  return absl::StrSplit(words, ' ');
}

bool IsOf(const FlagRule& rule, const CommandFlags& command) {
  return std::ranges::count(Words(rule.commands), command.name()) > 0;
}

bool IsGiven(const CommandFlags& command, const std::string& word) {
  const std::pair<std::string, std::string> flag = absl::StrSplit(word, absl::MaxSplits('=', 1));
  if (flag.second.empty()) return command.Given(flag.first);
  return std::ranges::any_of(command.Values(), [&](const auto& given) { return given.flag == flag.first && given.value == flag.second; });
}

std::string AsWritten(const std::string& word) {
  return absl::StrReplaceAll(word, {{"=", " "}});
}

// The first flag of the list that is given; empty: none.
std::string FirstGiven(const CommandFlags& command, const char* flags) {
  for (const std::string& flag : Words(flags)) {
    if (IsGiven(command, flag)) return AsWritten(flag);
  }
  return "";
}

// The error for the first flag that has no effect in this form of the call.
absl::Status CheckFlagRules(const CommandFlags& command) {
  for (const FlagRule& rule : kNeeds) {
    const std::string flag = IsOf(rule, command) ? FirstGiven(command, rule.flags) : "";
    if (flag.empty() || !FirstGiven(command, rule.others).empty()) continue;
    if (command.Given("--url")) continue;  // the rules below name the flags that it makes useless
    return Invalid(command.name(), ": ", flag, " ", rule.why, " ", AsWritten(absl::StrJoin(Words(rule.others), " or ")),
                   ", and changes nothing without it; give both, or leave it out");
  }
  for (const FlagRule& rule : kNothingBeside) {
    const std::string flag = IsOf(rule, command) ? FirstGiven(command, rule.flags) : "", other = FirstGiven(command, rule.others);
    if (flag.empty() || other.empty()) continue;
    return Invalid(command.name(), ": ", flag, " ", rule.why, ", and changes nothing with ", other, "; leave one of them out");
  }
  return absl::OkStatus();
}

// Flags of a --config file whose values are files and folders.
constexpr PathField kPathFields[] = {{"api-key-file"}, {"chat-template", {"auto", "plain"}},
                                     {"cluster"},      {"kv-dir"},
                                     {"model"},        {"plan"},
                                     {"profile"},      {"routes"},
                                     {"tls-cert"},     {"tls-key"}};

absl::Status ReadConfig(const CommandFlags& command) {
  if (!command.Given("--config")) return absl::OkStatus();
  const std::vector<CommandFlags::Value> values = command.Values();
  const std::string file = std::ranges::find(values, "--config", &CommandFlags::Value::flag)->value;
  const absl::StatusOr<std::string> text = ReadNamedText(file, kMaxTomlBytes + 1);
  if (!text.ok()) return absl::Status(text.status().code(), absl::StrCat("--config ", text.status().message()));
  return ReadFlagText(command, *text, file, kPathFields);
}

}  // namespace

CommandFlags Commands::AddCommand(const std::string& name, const std::string& what, const std::string& footer,
                                  std::function<absl::Status()> run) {
  return program_.AddCommand(name, what, footer, [this, run = std::move(run)](const CommandFlags& command) {
    AnswerInJson(command.Given("--json"));
    absl::Status checked = ReadConfig(command);
    AnswerInJson(command.Given("--json"));  // the file may give it
    if (checked.ok()) checked = CheckFlagRules(command);
    exit_code_ = Finish(checked.ok() ? run() : WrongCall(std::string(checked.message())));
  });
}

}  // namespace lime::cli
