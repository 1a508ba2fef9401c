// make_corpus: prints documents of the corpus, one after another with a line of "----" between
// them.
#include <cstdio>
#include <exception>
#include <string>

#include "CLI/CLI.hpp"
#include "testbed/train/corpus.h"

int main(int argc, char** argv) try {
  CLI::App app("Prints documents of the training corpus.");
  std::string grammar = "testbed/train/fables.grammar", root = "document";
  uint64_t seed = 1, first = 0, count = 10;
  bool held_out = false;
  app.add_option("--grammar", grammar, "grammar file")->capture_default_str();
  app.add_option("--seed", seed, "corpus seed")->capture_default_str();
  app.add_option("--first", first, "index of the first document")->capture_default_str();
  app.add_option("--count", count, "number of documents")->capture_default_str();
  app.add_option("--root", root, "rule of the grammar: document, practice, dialogue, ...")->capture_default_str();
  app.add_flag("--held-out", held_out, "from the held-out part");
  CLI11_PARSE(app, argc, argv);
  const auto corpus = lime::train::Corpus::Load(grammar, held_out ? lime::train::HeldOutSeed(seed) : seed);
  if (!corpus.ok()) {
    std::fprintf(stderr, "make_corpus: %s\n", std::string(corpus.status().message()).c_str());
    return 1;
  }
  for (uint64_t i = 0; i < count; ++i) std::printf("%s%s\n", i == 0 ? "" : "----\n", corpus->Document(first + i, root).c_str());
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "make_corpus: %s\n", e.what());
  return 1;
}
