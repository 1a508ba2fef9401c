#include "testbed/train/corpus.h"

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "planner/base/status.h"

namespace lime::train {

absl::StatusOr<Corpus> Corpus::Load(const std::string& grammar_file, uint64_t seed) {
  std::ifstream in(grammar_file);
  if (!in) return absl::NotFoundError(absl::StrCat(grammar_file, ": cannot read the grammar; name it with --grammar"));
  std::stringstream text;
  text << in.rdbuf();
  LIME_ASSIGN_OR_RETURN(Grammar grammar, Grammar::Parse(text.str()));
  return Corpus(std::move(grammar), seed);
}

std::string Corpus::Document(uint64_t index, absl::string_view root) const {
  CounterRng mix(CounterRng(seed_).Next() ^ index);
  return grammar_.Expand(root, mix.Next());
}

}  // namespace lime::train
