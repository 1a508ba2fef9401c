#include "coordinator/text/tokenize_command.h"

#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>

#include "coordinator/cli/user_text.h"
#include "coordinator/commands/commands.h"
#include "daemon/machine/files.h"

namespace lime::cli {

namespace {

// The tokenizer's files are enough; a model is not needed.
bool HasTokenizer(const std::string& folder) {
  return FileExists(folder + "/tokenizer.json") || FileExists(folder + "/tokenizer.model") || FileExists(folder + "/vocab.json");
}

struct TokenizeFlags {
  std::string model;
  TokenizeOptions options;
};

absl::Status Tokenize(const TokenizeFlags& flags) {
  const auto& [model, options] = flags;
  LIME_RETURN_IF_ERROR(CheckStdin());
  if (!HasTokenizer(model)) LIME_RETURN_IF_ERROR(CheckModelFolder(model));
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(model));
  if (options.jsonl || options.decode) return RunTokenize(*tokenizer, std::cin, std::cout, options);
  std::istringstream text(std::string(std::istreambuf_iterator<char>(std::cin), {}));
  LIME_RETURN_IF_ERROR(CheckIsUtf8("stdin", text.view()));
  return RunTokenize(*tokenizer, text, std::cout, options);
}

}  // namespace

void AddTokenizeCommand(Commands& commands) {
  const auto [command, flags] = commands.Add<TokenizeFlags>("tokenize", "Text on stdin to token ids, or ids back to text",
                                                            "Example: echo -n Hello | lime tokenize --model Llama-3.2-1B --json", Tokenize);
  command.Add("--model,-m", &flags.model, "Folder that holds the tokenizer's files").Required();
  command.Add("--decode", &flags.options.decode, "Ids to text");
  command.Add("--no-special", &flags.options.no_special, "Add no BOS, and treat special tokens in the text as ordinary text");
  command.Add("--jsonl", &flags.options.jsonl, "Read one {\"text\"} or {\"ids\"} object from each line, and write one object for each");
  command.Add("--json", &flags.options.json, "Print one JSON object");
}

}  // namespace lime::cli
