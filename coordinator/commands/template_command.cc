#include "coordinator/text/jinja/template_command.h"

#include <iostream>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/cli/model_files.h"
#include "coordinator/cli/user_text.h"
#include "coordinator/commands/commands.h"
#include "daemon/machine/files.h"

namespace lime::cli {

namespace {

// These files are enough; a model is not needed.
bool HasTemplate(const std::string& folder) {
  return FileExists(folder + "/chat_template.jinja") || FileExists(folder + "/tokenizer_config.json");
}

struct TemplateFlags {
  std::string model;
  TemplateOptions options;
};

absl::Status Template(const TemplateFlags& flags) {
  LIME_RETURN_IF_ERROR(CheckStdin());
  ModelTemplate model;
  if (!flags.model.empty()) {
    if (!HasTemplate(flags.model)) LIME_RETURN_IF_ERROR(CheckModelFolder(flags.model));
    LIME_ASSIGN_OR_RETURN(model, ReadModelTemplate(flags.model));
  }
  return OfUser(RunTemplate(model, absl::ToCivilSecond(absl::Now(), absl::LocalTimeZone()), std::cin, std::cout, flags.options));
}

}  // namespace

void AddTemplateCommand(Commands& commands) {
  const auto [command, flags] =
      commands.Add<TemplateFlags>("template", "A chat template and its variables on stdin to the text of a prompt",
                                  "Example: lime template --model Qwen3-0.6B < chat.json", Template);
  command.Add("--model,-m", &flags.model, "Folder of the model whose chat template is used where none is given");
  command.Add("--jsonl", &flags.options.jsonl, "Read one object from each line, and write one {\"text\"} or {\"error\"} object for each");
  command.Add("--json", &flags.options.json, "Print one JSON object");
}

}  // namespace lime::cli
