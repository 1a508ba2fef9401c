#include "coordinator/cli/tokenize_command.h"

#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>

#include "CLI/CLI.hpp"
#include "coordinator/cli/command.h"
#include "coordinator/cli/user_text.h"
#include "coordinator/text/tokenize_command.h"
#include "daemon/weights/files.h"

namespace lime::cli {

namespace {

// Its files alone suffice, without a model.
bool HasTokenizer(const std::string& folder) {
  return FileExists(folder + "/tokenizer.json") || FileExists(folder + "/tokenizer.model") || FileExists(folder + "/vocab.json");
}

absl::Status Tokenize(const std::string& model, const TokenizeOptions& options) {
  LIME_RETURN_IF_ERROR(CheckStdin());
  if (!HasTokenizer(model)) LIME_RETURN_IF_ERROR(CheckModelFolder(model));
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(model));
  if (options.jsonl || options.decode) return RunTokenize(*tokenizer, std::cin, std::cout, options);
  std::istringstream text(std::string(std::istreambuf_iterator<char>(std::cin), {}));
  LIME_RETURN_IF_ERROR(CheckIsUtf8("stdin", text.view()));
  return RunTokenize(*tokenizer, text, std::cout, options);
}

}  // namespace

void AddTokenizeCommand(CLI::App& app, int& exit_code) {
  auto model = std::make_shared<std::string>();
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "Text on stdin to token ids, or ids back to text");
  command->footer("Example: echo -n Hello | lime tokenize --model Llama-3.2-1B --json");
  command->add_option("--model,-m", *model, "Folder that holds the tokenizer's files")->required();
  command->add_flag("--decode", options->decode, "Ids to text");
  command->add_flag("--no-special", options->no_special, "Add no BOS, and take special tokens in the text as ordinary text");
  command->add_flag("--jsonl", options->jsonl, "One {\"text\"} or {\"ids\"} object a line in, one object a line out");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([model, options, &exit_code] { exit_code = Finish(Tokenize(*model, *options)); });
}

}  // namespace lime::cli
