// Any words, one a line, as a call: an error in one sentence, or what CLI11 takes without an
// exception of another kind than its own.
#include <algorithm>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_split.h"
#include "common/input/command_line.h"
#include "planner/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string model, out, cluster;
  std::vector<std::string> prompts;
  std::vector<int64_t> tokens;
  uint64_t seed = 0;
  double temperature = 0;
  bool json = false;
  CLI::App app("", "lime");
  CLI::App* const run = app.add_subcommand("run");
  run->add_option("--model,-m", model);
  lime::Flag(run->add_option("--prompt,-p", prompts)).FreeText().Repeats();
  run->add_option("--max-tokens,-n", tokens)->delimiter(',')->allow_extra_args(false);
  run->add_option("--seed", seed);
  run->add_option("--temperature", temperature);
  run->add_option("--cluster,-c", cluster)->expected(0, 1);
  run->add_flag("--json", json);
  CLI::App* const prepare = app.add_subcommand("prepare");
  prepare->add_option("model,--model", model);
  prepare->add_option("--out", out);
  std::vector<std::string> words = absl::StrSplit(std::string(reinterpret_cast<const char*>(data), size), '\n');
  const absl::Status status = lime::CheckWords(app, words);
  if (!status.ok()) {
    LIME_CHECK(!status.message().empty());
    LIME_CHECK(status.message().find('\n') == absl::string_view::npos) << std::string(status.message());
    return 0;
  }
  std::ranges::reverse(words);
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    (void)lime::SentenceOf(app, error);
  }
  return 0;
}
