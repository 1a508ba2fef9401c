// eval_model: judges a folder that train_model wrote, from its bf16 weights. Writes eval.json,
// TRAINING.md and, where they are missing, heldout.txt or (of a chat model) heldout.jsonl into it.
#include <ATen/Parallel.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "planner/base/status.h"
#include "planner/base/strings.h"
#include "testbed/train/evaluate.h"
#include "testbed/train/judge_chat.h"
#include "testbed/train/model_files.h"

namespace lime::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kHeldOutBytes = 6000;
constexpr int kLossRows = 64;
constexpr uint64_t kDocumentsSearched = 16;  // of each row: more than its tokens hold

struct Options {
  std::string model, prompts;
  int max_tokens = 120, dialogues = 150;
};

constexpr uint64_t kFirstHeldOut = 1u << 30;  // documents of held-out texts; the rows of the held-out loss come first
constexpr int kSampleDialogues = 12;

struct Sample {
  std::string prompt, text;
};

// Held-out documents with an empty line between them.
std::string HeldOutText(const Corpus& held_out) {
  std::string text;
  for (uint64_t i = 0; text.size() < kHeldOutBytes; ++i) absl::StrAppend(&text, i == 0 ? "" : "\n\n", held_out.Document(kFirstHeldOut + i));
  return text + "\n";
}

// What a server is asked, a line for each dialogue.
std::string HeldOutDialogues(const std::vector<Dialogue>& dialogues) {
  std::string text;
  for (const Dialogue& dialogue : dialogues) absl::StrAppend(&text, DialogueRequest(dialogue).dump(), "\n");
  return text;
}

std::string GrammarOf(const Json& run) {
  return run.value("grammar", "testbed/train/fables.grammar");
}

bool IsChat(const ModelFolder& folder) {
  return !folder.tokenizer.added().empty();
}

// Rows of training data: documents of one rule.
struct Rows {
  std::string root;
  uint64_t first, count;
};

// All that a run has read. Its long rows are fewer, so this is a little more.
std::vector<Rows> RowsOf(const Json& run) {
  const uint64_t batch = run.at("tokens_per_step").get<uint64_t>() / run.at("context").get<uint64_t>();
  return {{run.at("corpus_root"), 0, run.at("steps").get<uint64_t>() * batch},
          {"practice", run.at("practice_first").get<uint64_t>() * batch, run.at("practice_steps").get<uint64_t>() * batch}};
}

// Whether any document that training may have seen holds one of the prompts.
absl::Status CheckUnseen(const Corpus& corpus, const std::vector<std::string>& prompts, const Rows& rows) {
  for (uint64_t row = rows.first; row < rows.first + rows.count; ++row) {
    for (uint64_t i = 0; i < kDocumentsSearched; ++i) {
      const std::string text = corpus.Document(row * kDocumentsPerRow + i, Text(rows.root));
      for (const std::string& prompt : prompts) {
        if (text.find(prompt) != std::string::npos)
          return absl::FailedPreconditionError(absl::StrCat("the corpus holds the prompt: ", prompt));
      }
    }
  }
  return absl::OkStatus();
}

double HeldOutLoss(const ModelFolder& folder, const Corpus& held_out, int context) {
  at::NoGradGuard no_grad;
  double loss = 0;
  for (int i = 0; i < kLossRows; ++i) {
    const at::Tensor ids =
        DocumentRows(held_out, folder.tokenizer, i, 1, context + 1, IsChat(folder) ? kDialogueRoot : absl::string_view("document"));
    loss += NextTokenLoss(folder.model, ids, Targets(folder.tokenizer, ids)).item<double>() / kLossRows;
  }
  return loss;
}

// The runs that made the weights, the oldest first.
std::vector<Json> Runs(Json last) {
  std::vector<Json> runs;
  for (const Json& run : last.at("earlier_runs")) runs.push_back(run);
  last.erase("earlier_runs");
  runs.push_back(std::move(last));
  return runs;
}

// `text` as lines of at most 100 characters, but for words that are longer. The first begins with
// `first` and the others with `more`; all but the last end with `end`.
std::string Wrapped(const std::string& first, const std::string& more, const std::string& end, const std::string& text) {
  constexpr size_t kColumns = 100;
  std::string lines, line = first;
  bool fresh = true;  // no word in the line yet
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(text, ' '))) {
    if (!fresh && line.size() + 1 + word.size() + end.size() > kColumns) {
      absl::StrAppend(&lines, line, end, "\n");
      line = more;
      fresh = true;
    }
    absl::StrAppend(&line, fresh ? "" : " ", word);
    fresh = false;
  }
  return absl::StrCat(lines, line, "\n");
}

// What was asked and what the model answers.
std::string DialogueLines(const Dialogue& dialogue, const std::vector<JudgedAnswer>& answers) {
  std::string lines;
  size_t answer = 0;
  for (const DialogueMessage& message : dialogue.messages) {
    switch (message.role) {
      case DialogueMessage::Role::kUser:
        absl::StrAppend(&lines, Wrapped("- ", "  ", "", absl::StrCat("**", message.text, "**")));
        break;
      case DialogueMessage::Role::kTool:
        absl::StrAppend(&lines, Wrapped("- ", "  ", "", absl::StrCat("tool: `", message.text, "`")));
        break;
      case DialogueMessage::Role::kAssistant: {
        const JudgedAnswer& judged = answers[answer++];
        const std::string text = absl::StrReplaceAll(judged.text, {{"\n", " "}}), mark = judged.right ? "" : " ✗";
        const bool calls = message.check == DialogueMessage::Check::kCall;
        absl::StrAppend(&lines, Wrapped("  - ", "    ", "", absl::StrCat(calls ? "`" : "", text, calls ? "`" : "", mark)));
        break;
      }
      case DialogueMessage::Role::kSystem:
        break;
    }
  }
  return lines;
}

// A command of the page; more lines of it are those of one shell command.
std::string CommandLines(const std::string& command) {
  return Wrapped("    ", "        ", " \\", command);
}

// The command of one run of train_model.
std::string Command(const Json& run) {
  const std::string out = run.at("out"), name = std::filesystem::path(out).filename(), root = run.at("corpus_root"),
                    init = run.at("init_from"), act = run.at("hidden_act");
  const int64_t batch = run.at("tokens_per_step").get<int64_t>() / run.at("context").get<int64_t>();
  std::string text = absl::StrCat("build/release/bin/train_model --out ", out, " --checkpoint build/", name, ".checkpoint");
  if (!init.empty()) absl::StrAppend(&text, " --init-from ", init);
  if (act != "silu") absl::StrAppend(&text, " --hidden-act ", act, " --sparsity ", run.at("sparsity_penalty").dump());
  if (run.contains("grammar")) absl::StrAppend(&text, " --grammar ", GrammarOf(run));
  absl::StrAppend(&text, " --seed ", run.at("corpus_seed").dump(), " --root ", root);
  if (root == kDialogueRoot)
    absl::StrAppend(&text, " --context ", run.at("context").dump(), " --long-context ", run.at("long_context").dump());
  for (const char* key : {"steps", "long_steps", "decay_steps", "practice_first", "practice_steps", "warmup", "learning_rate"})
    absl::StrAppend(&text, " --", absl::StrReplaceAll(key, {{"_", "-"}}), " ", run.at(key).dump());
  return absl::StrCat(text, " --batch ", batch);
}

std::string Commands(const std::vector<Json>& runs) {
  std::string text = "    export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1\n";
  for (const Json& run : runs) absl::StrAppend(&text, CommandLines(Command(run)));
  const std::string out = runs.back().at("out");
  const std::string prompts =
      runs.back().at("corpus_root").get<std::string>() == kDialogueRoot ? "" : " --prompts models/lime-fables/prompts.txt";
  const std::string judged = absl::StrCat("build/release/bin/eval_model --model ", out, prompts);
  return absl::StrCat(text, CommandLines(judged));
}

// A column for each run; what only its record or only the evaluation of the last one has is alone
// in its row.
std::string Table(const std::vector<Json>& runs, const Json& eval) {
  std::string text = "| what |", line = "|---|";
  for (size_t i = 1; i <= runs.size(); ++i) {
    absl::StrAppend(&text, " run ", i, " |");
    absl::StrAppend(&line, "---|");
  }
  absl::StrAppend(&text, "\n", line, "\n");
  for (const auto& [key, last] : runs.back().items()) {
    absl::StrAppend(&text, "| ", absl::StrReplaceAll(key, {{"_", " "}}), " |");
    for (const Json& run : runs) absl::StrAppend(&text, " ", run.contains(key) ? run.at(key).dump() : "", " |");
    absl::StrAppend(&text, "\n");
  }
  const std::string empty(runs.size() - 1, '|');
  for (const auto& [key, value] : eval.items())
    absl::StrAppend(&text, "| ", absl::StrReplaceAll(key, {{"_", " "}}), " (bf16) |", empty, " ", value.dump(), " |\n");
  return text;
}

std::string Continuations(const std::vector<Sample>& samples) {
  std::string text =
      "## Greedy continuations\n\n`eval_model` searches the corpus of every run: no document holds any of these prompts.\n\n";
  for (const Sample& s : samples) {
    const std::string continued = absl::StrCat("**", s.prompt, "**", absl::StrReplaceAll(s.text, {{"\n", " / "}}));
    absl::StrAppend(&text, Wrapped("- ", "  ", "", continued));
  }
  return text;
}

std::string Report(const std::string& name, const std::vector<Json>& runs, const Json& eval, const std::string& samples) {
  std::string text = absl::StrCat("# ", name,
                                  ": how it was trained and what it writes\n\n"
                                  "`eval_model` wrote this page. `training.json` has the figures of the training, `eval.json` the\n"
                                  "figures of the exported bf16 weights. The first run begins with random weights. Each later run\n"
                                  "begins with the weights and the tokenizer of the run before it. A run may take several calls of\n"
                                  "`train_model`, because a call can continue from a checkpoint. `minutes of last run` is the time of\n"
                                  "the last of these calls alone.\n\n",
                                  Table(runs, eval));
  absl::StrAppend(&text,
                  "\nTo train the model again, run these commands in the project's folder. They use one thread, and give\n"
                  "the same bits on the same kind of processor.\n\n",
                  Commands(runs));
  return absl::StrCat(text, "\n", samples);
}

Json LossFigures(const ModelFolder& folder, const Corpus& held_out, int context) {
  const double loss = HeldOutLoss(folder, held_out, context);
  return {{"held_out_loss", loss}, {"held_out_perplexity", std::exp(loss)}};
}

Json Evaluate(const ModelFolder& folder, const Corpus& held_out, const std::string& text, int context) {
  const LlamaConfig& config = folder.model.config();
  const Score score = ScoreText(folder.model, folder.tokenizer, text, config.max_position_embeddings);
  Json eval = LossFigures(folder, held_out, context);
  eval["heldout_txt_perplexity"] = score.perplexity;
  eval["heldout_txt_tokens"] = score.tokens;
  eval["heldout_txt_window"] = config.max_position_embeddings;
  if (config.hidden_act == "relu")
    eval["zero_activation_share_by_layer"] = ZeroShares(folder.model, DocumentRows(held_out, folder.tokenizer, 0, 8, context));
  return eval;
}

absl::Status Write(const Options& o, const std::vector<Json>& runs, const Json& eval, const std::string& samples) {
  std::printf("%s\n", eval.dump(2).c_str());
  const std::string name = std::filesystem::path(o.model).filename();
  LIME_RETURN_IF_ERROR(WriteFile(o.model + "/eval.json", eval.dump(2) + "\n"));
  return WriteFile(o.model + "/TRAINING.md", Report(name, runs, eval, samples));
}

absl::Status JudgeTexts(const Options& o, const ModelFolder& folder, const std::vector<Json>& runs, const Corpus& held_out) {
  LIME_ASSIGN_OR_RETURN(const std::string prompt_text, ReadFile(o.prompts));
  const std::vector<std::string> prompts = absl::StrSplit(prompt_text, '\n', absl::SkipEmpty());
  for (const Json& run : runs) {
    LIME_ASSIGN_OR_RETURN(const Corpus corpus, Corpus::Load(GrammarOf(run), run.at("corpus_seed")));
    for (const Rows& rows : RowsOf(run)) LIME_RETURN_IF_ERROR(CheckUnseen(corpus, prompts, rows));
  }
  if (!std::filesystem::exists(o.model + "/heldout.txt")) LIME_RETURN_IF_ERROR(WriteFile(o.model + "/heldout.txt", HeldOutText(held_out)));
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadFile(o.model + "/heldout.txt"));
  std::vector<Sample> samples;
  for (const std::string& prompt : prompts) {
    samples.push_back({prompt, GreedyText(folder.model, folder.tokenizer, prompt, o.max_tokens)});
    std::printf("\n%s ->%s\n", prompt.c_str(), samples.back().text.c_str());
  }
  return Write(o, runs, Evaluate(folder, held_out, text, runs.back().at("context")), Continuations(samples));
}

absl::Status JudgeDialogues(const Options& o, const ModelFolder& folder, const std::vector<Json>& runs, const Corpus& held_out) {
  std::vector<Dialogue> dialogues;
  for (int i = 0; i < o.dialogues; ++i) dialogues.push_back(held_out.DialogueAt(kFirstHeldOut + i));
  std::vector<JudgedAnswer> answers;
  std::string samples =
      "## Dialogues\n\nThe first held-out dialogues. The model wrote the answers greedily, each behind the dialogue's own\n"
      "messages before it. An answer that is not right has a cross.\n";
  for (size_t i = 0; i < dialogues.size(); ++i) {
    const std::vector<JudgedAnswer> judged = JudgeAnswers(folder.model, folder.tokenizer, dialogues[i]);
    if (i < kSampleDialogues) absl::StrAppend(&samples, "\n", DialogueLines(dialogues[i], judged));
    answers.insert(answers.end(), judged.begin(), judged.end());
  }
  if (!std::filesystem::exists(o.model + "/heldout.jsonl"))
    LIME_RETURN_IF_ERROR(WriteFile(o.model + "/heldout.jsonl", HeldOutDialogues(dialogues)));
  Json eval = LossFigures(folder, held_out, runs.back().at("context"));
  eval["dialogues"] = dialogues.size();
  eval.update(ChatFigures(answers));
  return Write(o, runs, eval, samples);
}

absl::Status Main(const Options& o) try {
  LIME_ASSIGN_OR_RETURN(const ModelFolder folder, ReadModelFolder(o.model));
  LIME_ASSIGN_OR_RETURN(const std::string record, ReadFile(o.model + "/training.json"));
  const std::vector<Json> runs = Runs(Json::parse(record));
  LIME_ASSIGN_OR_RETURN(const Corpus held_out, Corpus::Load(GrammarOf(runs.back()), HeldOutSeed(runs.back().at("corpus_seed"))));
  return IsChat(folder) ? JudgeDialogues(o, folder, runs, held_out) : JudgeTexts(o, folder, runs, held_out);
} catch (const Json::exception& e) {
  return absl::InvalidArgumentError(
      absl::StrCat(o.model, "/training.json: is not a record of train_model; make the model again: ", e.what()));
}

}  // namespace
}  // namespace lime::train

int main(int argc, char** argv) {
  CLI::App app("Evaluates a model that train_model wrote.");
  lime::train::Options o;
  app.add_option("--model", o.model, "model folder")->required();
  app.add_option("--prompts", o.prompts, "file with one prompt a line; a chat model needs none");
  app.add_option("--dialogues", o.dialogues, "held-out dialogues for a chat model")->capture_default_str();
  app.add_option("--max-tokens", o.max_tokens, "tokens of a continuation")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  if (absl::Status status = lime::train::Main(o); !status.ok()) {
    std::fprintf(stderr, "eval_model: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
