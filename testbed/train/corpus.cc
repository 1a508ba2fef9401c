#include "testbed/train/corpus.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "planner/base/check.h"
#include "planner/base/status.h"

namespace lime::train {
namespace {

absl::StatusOr<std::string> ReadGrammar(const std::string& file) {
  std::ifstream in(file);
  if (!in) return absl::NotFoundError(absl::StrCat(file, ": cannot read the grammar; name it with --grammar"));
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// The text of the file behind the texts of the files that it includes.
absl::StatusOr<std::string> ReadWithIncludes(const std::string& file) {
  LIME_ASSIGN_OR_RETURN(const std::string own, ReadGrammar(file));
  std::string text;
  for (absl::string_view line : absl::StrSplit(own, '\n')) {
    if (!absl::ConsumePrefix(&line, "%include ")) continue;
    const auto other = std::filesystem::path(file).replace_filename(std::string(line));
    LIME_ASSIGN_OR_RETURN(const std::string included, ReadGrammar(other.string()));
    absl::StrAppend(&text, included, "\n");
  }
  return text + own;
}

}  // namespace

absl::StatusOr<Corpus> Corpus::Load(const std::string& grammar_file, uint64_t seed) {
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadWithIncludes(grammar_file));
  LIME_ASSIGN_OR_RETURN(Grammar grammar, Grammar::Parse(text));
  return Corpus(std::move(grammar), seed);
}

std::string Corpus::Text(uint64_t index, absl::string_view root) const {
  CounterRng mix(CounterRng(seed_).Next() ^ index);
  return grammar_.Expand(root, mix.Next());
}

std::string Corpus::Document(uint64_t index, absl::string_view root) const {
  const bool is_dialogue = root == kDialogueRoot || root == kDialoguePracticeRoot;
  return is_dialogue ? DialogueText(DialogueAt(index, root)) : Text(index, root);
}

Dialogue Corpus::DialogueAt(uint64_t index, absl::string_view root) const {
  const std::string script = Text(index, root);
  auto dialogue = ParseDialogue(script);
  LIME_CHECK(dialogue.ok()) << dialogue.status().message() << ", in the script:\n" << script;
  return *std::move(dialogue);
}

}  // namespace lime::train
