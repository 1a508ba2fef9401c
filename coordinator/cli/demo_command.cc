#include "coordinator/cli/demo_command.h"

#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "coordinator/cli/command.h"
#include "coordinator/cli/generate.h"
#include "coordinator/cli/logits_hash.h"
#include "coordinator/cli/model_session.h"

namespace lime::cli {
namespace {

constexpr int64_t kStoryTokens = 96;
constexpr const char* kOpenings[] = {"Once upon a time, there was a little", "One day, a small bird", "The fox was sad because"};

absl::Status Demo(ModelFlags& flags) {
  LIME_RETURN_IF_ERROR(flags.Check());
  LIME_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::Open(flags.model));
  LIME_ASSIGN_OR_RETURN(const auto session, ModelSession::Open(flags, {.max_rows = kDefaultChunk,
                                                                       .max_logit_rows = 1,
                                                                       .max_sequences = 1,
                                                                       .context = files.spec.config.max_positions,
                                                                       .planned_steps = kStoryTokens * 3,
                                                                       .expected_positions = kStoryTokens}));
  absl::PrintF(
      "LIME runs large language models, losslessly, on the machines you own.\nHere is the small one it ships with, made from scratch by "
      "this project: %s of weights.\n\n",
      FormatBytes(files.spec.WeightBytes()));
  GenerateOptions options{.max_new_tokens = kStoryTokens, .chunk = kDefaultChunk - 1, .end_tokens = files.end_tokens, .hash_logits = true};
  options.cancel = &Interrupted();
  options.on_text = [](size_t, std::string_view text) { std::cout << text << std::flush; };
  for (const char* opening : kOpenings) {
    std::cout << "  " << opening << std::flush;
    LIME_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, files.EncodePrompt(opening));
    LIME_ASSIGN_OR_RETURN(const GenerateSummary summary, Generate(session->engine(), *files.tokenizer, {prompt}, 1, options));
    absl::PrintF("\n  [%d tokens, %.2f ms each; logits %s]\n\n", summary.results[0].token_ids.size(), summary.results[0].ms_per_token,
                 HashText(summary.results[0].logits_hash));
    if (summary.interrupted) return absl::OkStatus();
  }
  absl::PrintF("%s\n%s\n\n", session->LoadLine(), session->MemoryLine());
  absl::PrintF(
      "The number after `logits` is a hash of every logit of the run. It is the same with one thread or many, with either loader, alone or "
      "in a batch:\n"
      "nothing about how a model is run changes what it says. Try it with a checkpoint of your own:\n\n"
      "  build/release/bin/lime run --model path/to/checkpoint --prompt \"The capital of France is\"\n");
  return absl::OkStatus();
}

}  // namespace

void AddDemoCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ModelFlags>();
  CLI::App* command = app.add_subcommand("demo", "Let the shipped model tell a story and explain what happened");
  flags->AddTo(*command);
  command->callback([flags, &exit_code] { exit_code = Finish(Demo(*flags)); });
}

}  // namespace lime::cli
