// eval_model: judges a folder that train_model wrote, from its bf16 weights. Writes eval.json, TRAINING.md and, where they are missing,
// heldout.txt into it.
#include <ATen/Parallel.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "planner/base/status.h"
#include "testbed/train/evaluate.h"
#include "testbed/train/model_files.h"

namespace lime::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kHeldOutBytes = 6000;
constexpr int kLossRows = 64;
constexpr uint64_t kDocumentsSearched = 16;  // of each row: more than its tokens hold

struct Options {
  std::string model, grammar = "testbed/train/fables.grammar", prompts;
  int max_tokens = 120;
};

struct Sample {
  std::string prompt, text;
};

// Held-out documents with an empty line between them. Their rows are not those of the held-out loss.
std::string HeldOutText(const Corpus& held_out) {
  std::string text;
  for (uint64_t i = 0; text.size() < kHeldOutBytes; ++i) absl::StrAppend(&text, i == 0 ? "" : "\n\n", held_out.Document((1u << 30) + i));
  return text + "\n";
}

// Whether any document that training may have seen holds one of the prompts.
absl::Status CheckUnseen(const Corpus& corpus, const std::vector<std::string>& prompts, uint64_t rows) {
  for (uint64_t row = 0; row < rows; ++row) {
    for (uint64_t i = 0; i < kDocumentsSearched; ++i) {
      const std::string text = corpus.Document(row * kDocumentsPerRow + i);
      for (const std::string& prompt : prompts) {
        if (text.find(prompt) != std::string::npos)
          return absl::FailedPreconditionError(absl::StrCat("the corpus holds the prompt: ", prompt));
      }
    }
  }
  return absl::OkStatus();
}

double HeldOutLoss(const Llama& model, const ByteBpe& tokenizer, const Corpus& held_out, int context) {
  at::NoGradGuard no_grad;
  double loss = 0;
  for (int i = 0; i < kLossRows; ++i)
    loss += NextTokenLoss(model, DocumentRows(held_out, tokenizer, i, 1, context + 1)).item<double>() / kLossRows;
  return loss;
}

std::string Commands(const Json& t, const LlamaConfig& c, const std::string& name) {
  const int64_t context = t["context"], per_step = t["tokens_per_step"], long_steps = t["long_steps"], steps = t["steps"],
                seed = t["corpus_seed"];
  const double rate = t["learning_rate"], sparsity = t["sparsity_penalty"];
  const std::string init = t["init_from"], out = "models/" + name;
  std::string train = absl::StrFormat(
      "build/release/bin/train_model --out %s --checkpoint build/%s.checkpoint --seed %d --steps %d --long-steps %d --decay-steps %d "
      "--batch %d "
      "--learning-rate %g",
      out, name, seed, steps, long_steps, t["decay_steps"].get<int64_t>(), per_step / context, rate);
  if (t["practice_steps"] > 0)
    absl::StrAppend(&train, " --practice-first ", t["practice_first"].dump(), " --practice-steps ", t["practice_steps"].dump());
  if (!init.empty()) absl::StrAppend(&train, " --init-from ", init, " --hidden-act ", c.hidden_act, " --sparsity ", sparsity);
  return absl::StrCat("    export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1\n    ", train, "\n    build/release/bin/eval_model --model ",
                      out, " --prompts models/lime-fables/prompts.txt\n");
}

std::string Report(const std::string& name, const LlamaConfig& c, const Json& training, const Json& eval,
                   const std::vector<Sample>& samples) {
  std::string text = absl::StrCat("# ", name,
                                  ": how it was trained and what it writes\n\nWritten by `eval_model`; the figures of the training are in "
                                  "`training.json`, those of the exported bf16 weights in `eval.json`.\n\n");
  absl::StrAppend(&text, "| what | value |\n|---|---|\n");
  for (const auto& [key, value] : training.items())
    absl::StrAppend(&text, "| ", absl::StrReplaceAll(key, {{"_", " "}}), " | ", value.dump(), " |\n");
  for (const auto& [key, value] : eval.items())
    absl::StrAppend(&text, "| ", absl::StrReplaceAll(key, {{"_", " "}}), " (bf16) | ", value.dump(), " |\n");
  absl::StrAppend(&text, "\nTo make it again, from the project's folder (one thread; the same bits on the same kind of processor):\n\n",
                  Commands(training, c, name));
  absl::StrAppend(
      &text, "\n## Greedy continuations\n\nNo document of the training corpus holds any of these prompts: `eval_model` searches it.\n\n");
  for (const Sample& s : samples) absl::StrAppend(&text, "- **", s.prompt, "**", absl::StrReplaceAll(s.text, {{"\n", " / "}}), "\n");
  return text;
}

absl::StatusOr<Json> Evaluate(const ModelFolder& folder, const Corpus& held_out, const std::string& text, int context) {
  const LlamaConfig& config = folder.model.config();
  const double loss = HeldOutLoss(folder.model, folder.tokenizer, held_out, context);
  const Score score = ScoreText(folder.model, folder.tokenizer, text, config.max_position_embeddings);
  Json eval{{"held_out_loss", loss},
            {"held_out_perplexity", std::exp(loss)},
            {"heldout_txt_perplexity", score.perplexity},
            {"heldout_txt_tokens", score.tokens},
            {"heldout_txt_window", config.max_position_embeddings}};
  if (config.hidden_act == "relu")
    eval["zero_activation_share_by_layer"] = ZeroShares(folder.model, DocumentRows(held_out, folder.tokenizer, 0, 8, context));
  return eval;
}

absl::Status Main(const Options& o) {
  LIME_ASSIGN_OR_RETURN(const ModelFolder folder, ReadModelFolder(o.model));
  LIME_ASSIGN_OR_RETURN(const std::string record, ReadFile(o.model + "/training.json"));
  LIME_ASSIGN_OR_RETURN(const std::string prompt_text, ReadFile(o.prompts));
  const Json training = Json::parse(record);
  const uint64_t seed = training.at("corpus_seed");
  LIME_ASSIGN_OR_RETURN(const Corpus corpus, Corpus::Load(o.grammar, seed));
  LIME_ASSIGN_OR_RETURN(const Corpus held_out, Corpus::Load(o.grammar, HeldOutSeed(seed)));
  const int context = training.at("context");

  const std::vector<std::string> prompts = absl::StrSplit(prompt_text, '\n', absl::SkipEmpty());
  const uint64_t rows = training.at("tokens_seen").get<uint64_t>() / context;
  LIME_RETURN_IF_ERROR(CheckUnseen(corpus, prompts, rows));
  if (!std::filesystem::exists(o.model + "/heldout.txt")) LIME_RETURN_IF_ERROR(WriteFile(o.model + "/heldout.txt", HeldOutText(held_out)));
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadFile(o.model + "/heldout.txt"));
  LIME_ASSIGN_OR_RETURN(const Json eval, Evaluate(folder, held_out, text, context));
  std::printf("%s\n", eval.dump(2).c_str());

  std::vector<Sample> samples;
  for (const std::string& prompt : prompts) {
    samples.push_back({prompt, GreedyText(folder.model, folder.tokenizer, prompt, o.max_tokens)});
    std::printf("\n%s ->%s\n", prompt.c_str(), samples.back().text.c_str());
  }
  const std::string name = std::filesystem::path(o.model).filename();
  LIME_RETURN_IF_ERROR(WriteFile(o.model + "/eval.json", eval.dump(2) + "\n"));
  return WriteFile(o.model + "/TRAINING.md", Report(name, folder.model.config(), training, eval, samples));
}

}  // namespace
}  // namespace lime::train

int main(int argc, char** argv) {
  CLI::App app("Judges a model that train_model wrote.");
  lime::train::Options o;
  app.add_option("--model", o.model, "model folder")->required();
  app.add_option("--prompts", o.prompts, "file with one prompt a line")->required();
  app.add_option("--grammar", o.grammar)->capture_default_str();
  app.add_option("--max-tokens", o.max_tokens, "of a continuation")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  if (absl::Status status = lime::train::Main(o); !status.ok()) {
    std::fprintf(stderr, "eval_model: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
