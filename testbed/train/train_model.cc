// train_model: trains a small Llama on the corpus and writes its folder. Stops and resumes at
// checkpoints; one seed and one thread give one result on one kind of processor.
#if defined(__linux__)
#include <malloc.h>
#endif
#include <torch/optim/adamw.h>
#include <torch/utils.h>
#include <unistd.h>
// Needs those above.
#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numbers>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "planner/base/status.h"
#include "planner/base/strings.h"
#include "testbed/train/evaluate.h"
#include "testbed/train/model_files.h"

namespace lime::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kLogSteps = 50;  // a line of the log, where it is no terminal

struct Options {
  std::string grammar = "testbed/train/fables.grammar", root = "document", out, checkpoint, init_from;
  uint64_t seed = 1;
  int64_t steps = 2600, warmup = 100, long_steps = 200, decay_steps = 500, checkpoint_every = 250, practice_first = 0, practice_steps = 0;
  int batch = 8, context = 256, long_context = 512, tokenizer_documents = 20000, vocab_size = 1536, chat_vocab_size = 1792;
  double learning_rate = 3e-3, final_rate = 2e-5, weight_decay = 0.1, clip = 1.0, sparsity = 0;
  std::string hidden_act = "silu";
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The first course makes the tokenizer of all courses, whatever it reads itself.
std::string TokenizerRoot(const Options& o) {
  return std::string(o.root == kDialogueRoot ? kDialogueRoot : "document");
}

// Linear warm-up, a constant rate, then half a cosine down to final_rate. A run that is resumed
// with more steps is the run that asked for them from the start, as long as its decay had not
// begun.
double LearningRate(const Options& o, int64_t step) {
  if (step < o.warmup) return o.learning_rate * (step + 1) / o.warmup;
  const int64_t decayed = std::max<int64_t>(0, step - (o.steps - o.decay_steps));
  const double part = static_cast<double>(decayed) / o.decay_steps;
  return o.final_rate + (o.learning_rate - o.final_rate) * 0.5 * (1 + std::cos(std::numbers::pi * part));
}

// No decay for norms, which begin at one.
std::vector<torch::optim::OptimizerParamGroup> ParameterGroups(const Llama& model, double decay) {
  std::vector<at::Tensor> matrices, norms;
  for (const auto& [name, weight] : model.weights()) (weight.dim() == 1 ? norms : matrices).push_back(weight);
  const auto options = [](double d) {
    return std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(1e-3).betas({0.9, 0.98}).weight_decay(d));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, options(decay));
  groups.emplace_back(norms, options(0));
  return groups;
}

// Words of the first documents; the tokens of the chat template divide a text and are no words.
ByteBpe::WordCounts CountWords(const Corpus& corpus, const Options& o) {
  constexpr char kBetween = 1;
  std::vector<std::pair<absl::string_view, absl::string_view>> tokens;
  for (const ChatToken& token : kChatTokens) tokens.emplace_back(token.content, absl::string_view(&kBetween, 1));
  ByteBpe::WordCounts words;
  for (int i = 0; i < o.tokenizer_documents; ++i) {
    const std::string document = absl::StrReplaceAll(corpus.Document(i, TokenizerRoot(o)), tokens);
    for (const std::string& text : std::vector<std::string>(absl::StrSplit(document, kBetween))) {
      for (std::string_view word : SplitWords(text)) ++words[std::string(word)];
    }
  }
  return words;
}

// The weights with rows of the embedding for new tokens. A new merge begins as the mean of its
// parts; a token of the template as a random row of length one.
Llama::Named GrownWeights(const ModelFolder& start, const ByteBpe& tokenizer, const Options& o) {
  torch::NoGradGuard no_grad;
  torch::manual_seed(o.seed);
  Llama::Named weights = start.model.weights();
  at::Tensor& embedding = weights.front().second;
  const int64_t known = embedding.size(0), hidden = embedding.size(1);
  embedding =
      torch::cat({embedding.detach(), torch::randn({tokenizer.vocab_size() - known, hidden}) / std::sqrt(static_cast<double>(hidden))});
  for (int64_t id = known; id < tokenizer.first_added_id(); ++id) {
    const auto [left, right] = tokenizer.merges()[id - kFirstByteId - 256];
    embedding[id] = (embedding[left] + embedding[right]) / 2;
  }
  return weights;
}

// The same model with a tokenizer for dialogues.
ModelFolder ChatStart(ModelFolder start, const Corpus& corpus, const Options& o) {
  std::vector<ByteBpe::AddedToken> added;
  for (const ChatToken& token : kChatTokens) added.push_back({std::string(token.content), token.special});
  ByteBpe tokenizer = start.tokenizer.Extended(CountWords(corpus, o), o.chat_vocab_size, std::move(added));
  LlamaConfig config = start.model.config();
  config.vocab_size = tokenizer.vocab_size();
  return ModelFolder{Llama(config, GrownWeights(start, tokenizer, o)), std::move(tokenizer)};
}

absl::StatusOr<ModelFolder> StartingPoint(const Corpus& corpus, const Options& o) {
  LlamaConfig config;
  config.hidden_act = o.hidden_act;
  config.max_position_embeddings = o.long_context;
  if (o.init_from.empty()) {
    ByteBpe tokenizer = ByteBpe::Train(CountWords(corpus, o), o.vocab_size);
    config.vocab_size = tokenizer.vocab_size();
    return ModelFolder{Llama::Random(config, o.seed), std::move(tokenizer)};
  }
  LIME_ASSIGN_OR_RETURN(ModelFolder start, ReadModelFolder(o.init_from));
  if (o.root == kDialogueRoot && start.tokenizer.added().empty()) start = ChatStart(std::move(start), corpus, o);
  config = start.model.config();
  config.hidden_act = o.hidden_act;
  config.max_position_embeddings = std::max<int64_t>(config.max_position_embeddings, o.long_context);
  return ModelFolder{Llama(config, start.model.weights()), std::move(start.tokenizer)};
}

// What the folder of the first weights tells about its own training, so that the record of this one
// tells all of it.
absl::StatusOr<Json> EarlierRuns(const Options& o) try {
  if (o.init_from.empty()) return Json::array();
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadFile(o.init_from + "/training.json"));
  Json last = Json::parse(text), runs = last.value("earlier_runs", Json::array());
  last.erase("earlier_runs");
  runs.push_back(std::move(last));
  return runs;
} catch (const Json::exception& e) {
  return absl::InvalidArgumentError(absl::StrCat(o.init_from, "/training.json: is not a record of train_model: ", e.what()));
}

class Training {
 public:
  Training(const Options& options, Corpus corpus, Corpus held_out, ModelFolder start, Json earlier_runs)
      : o_(options),
        earlier_runs_(std::move(earlier_runs)),
        corpus_(std::move(corpus)),
        held_out_(std::move(held_out)),
        folder_(std::move(start)),
        optimizer_(ParameterGroups(folder_.model, options.weight_decay), torch::optim::AdamWOptions(options.learning_rate)) {}

  absl::Status Run() {
    if (!o_.checkpoint.empty() && std::filesystem::exists(o_.checkpoint)) {
      LIME_ASSIGN_OR_RETURN(first_step_, ReadCheckpoint(o_.checkpoint, folder_.model, optimizer_));
    }
    start_ = Now();
    double mean = 0;
    for (int64_t step = first_step_; step < o_.steps; ++step) {
      const double loss = Step(step);
      mean = step == first_step_ ? loss : 0.98 * mean + 0.02 * loss;
      Report(step + 1, mean);
      if ((step + 1) % o_.checkpoint_every == 0 && !o_.checkpoint.empty()) {
        LIME_RETURN_IF_ERROR(WriteCheckpoint(o_.checkpoint, folder_.model, optimizer_, step + 1));
        LIME_RETURN_IF_ERROR(WriteModelFolder(o_.checkpoint + ".model", folder_.model, folder_.tokenizer));
      }
    }
    LIME_RETURN_IF_ERROR(WriteModelFolder(o_.out, folder_.model, folder_.tokenizer));
    return WriteRecord(mean);
  }

 private:
  // The last long_steps use rows of long_context, so that all positions are trained; the tokens per
  // step stay the same.
  int Context(int64_t step) const { return step < o_.steps - o_.long_steps ? o_.context : o_.long_context; }
  int Rows(int64_t step) const { return o_.batch * o_.context / Context(step); }

  // Steps of practice in copying: without them the model learns all of the text around a name long
  // before the name.
  absl::string_view Root(int64_t step) const {
    const bool practice = step >= o_.practice_first && step < o_.practice_first + o_.practice_steps;
    if (practice) return o_.root == kDialogueRoot ? kDialoguePracticeRoot : "practice";
    return Text(o_.root);
  }

  double Step(int64_t step) {
    // Rows of one step begin at step * batch, so no row is seen twice and a resumed run sees the
    // same ones.
    const at::Tensor ids = DocumentRows(corpus_, folder_.tokenizer, step * o_.batch, Rows(step), Context(step) + 1, Root(step));
    for (auto& group : optimizer_.param_groups()) static_cast<torch::optim::AdamWOptions&>(group.options()).lr(LearningRate(o_, step));
    optimizer_.zero_grad();
    std::vector<at::Tensor> activations;
    const at::Tensor loss = NextTokenLoss(folder_.model, ids, Targets(folder_.tokenizer, ids), o_.sparsity > 0 ? &activations : nullptr);
    at::Tensor total = loss;
    for (const at::Tensor& a : activations) total = total + o_.sparsity * a.mean();
    total.backward();
    torch::nn::utils::clip_grad_norm_(Weights(), o_.clip);
    optimizer_.step();
    return loss.item<double>();
  }

  std::vector<at::Tensor> Weights() const {
    std::vector<at::Tensor> out;
    for (const auto& [name, weight] : folder_.model.weights()) out.push_back(weight);
    return out;
  }

  void Report(int64_t done, double loss) const {
    const bool terminal = isatty(STDERR_FILENO) != 0;
    if (!terminal && done % kLogSteps != 0 && done != o_.steps) return;
    const double seconds = Now() - start_, rate = (done - first_step_) / seconds;
    std::fprintf(stderr, "%sstep %ld/%ld  loss %.4f  %.0f tokens/s  %.1f min done  %.1f min left%s", terminal ? "\r" : "",
                 static_cast<long>(done), static_cast<long>(o_.steps), loss, rate * o_.batch * o_.context, seconds / 60,
                 (o_.steps - done) / rate / 60, terminal && done < o_.steps ? "  " : "\n");
  }

  absl::Status WriteRecord(double train_loss) const {
    torch::NoGradGuard no_grad;
    double held_out = 0;
    constexpr int kRows = 64;
    for (int i = 0; i < kRows; ++i) {
      const at::Tensor ids = DocumentRows(held_out_, folder_.tokenizer, i, 1, o_.context + 1, TokenizerRoot(o_));
      held_out += NextTokenLoss(folder_.model, ids, Targets(folder_.tokenizer, ids)).item<double>() / kRows;
    }
    const Json record{{"out", o_.out},
                      {"parameters", folder_.model.num_parameters()},
                      {"hidden_act", o_.hidden_act},
                      {"grammar", o_.grammar},
                      {"corpus_seed", o_.seed},
                      {"corpus_root", o_.root},
                      {"init_from", o_.init_from},
                      {"steps", o_.steps},
                      {"tokens_per_step", o_.batch * o_.context},
                      {"tokens_seen", o_.steps * o_.batch * o_.context},
                      {"context", o_.context},
                      {"long_context", o_.long_context},
                      {"long_steps", o_.long_steps},
                      {"learning_rate", o_.learning_rate},
                      {"warmup", o_.warmup},
                      {"decay_steps", o_.decay_steps},
                      {"weight_decay", o_.weight_decay},
                      {"practice_first", o_.practice_first},
                      {"practice_steps", o_.practice_steps},
                      {"sparsity_penalty", o_.sparsity},
                      {"final_train_loss", train_loss},
                      {"held_out_loss", held_out},
                      {"held_out_perplexity", std::exp(held_out)},
                      {"minutes_of_last_run", (Now() - start_) / 60},
                      {"earlier_runs", earlier_runs_}};
    return WriteFile(o_.out + "/training.json", record.dump(2) + "\n");
  }

  const Options o_;
  const Json earlier_runs_;  // the records of the runs that made the first weights, the oldest first
  const Corpus corpus_, held_out_;
  ModelFolder folder_;
  torch::optim::AdamW optimizer_;
  int64_t first_step_ = 0;
  double start_ = 0;
};

absl::Status Main(const Options& o) {
  LIME_ASSIGN_OR_RETURN(Corpus corpus, Corpus::Load(o.grammar, o.seed));
  LIME_ASSIGN_OR_RETURN(Corpus held_out, Corpus::Load(o.grammar, HeldOutSeed(o.seed)));
  LIME_ASSIGN_OR_RETURN(ModelFolder start, StartingPoint(corpus, o));
  LIME_ASSIGN_OR_RETURN(Json earlier_runs, EarlierRuns(o));
  return Training(o, std::move(corpus), std::move(held_out), std::move(start), std::move(earlier_runs)).Run();
}

}  // namespace
}  // namespace lime::train

int main(int argc, char** argv) {
  CLI::App app("Trains a small Llama on the corpus of a grammar.");
  lime::train::Options o;
  app.add_option("--out", o.out, "model folder to write")->required();
  app.add_option("--checkpoint", o.checkpoint, "file to resume from and to write; the present model goes to FILE.model");
  app.add_option("--init-from", o.init_from, "model folder to start from, with its tokenizer");
  app.add_option("--hidden-act", o.hidden_act, "silu or relu")->check(CLI::IsMember({"silu", "relu"}))->capture_default_str();
  app.add_option("--sparsity", o.sparsity, "weight of the mean activation in the loss")->capture_default_str();
  app.add_option("--grammar", o.grammar)->capture_default_str();
  app.add_option("--root", o.root, "rule of the grammar that a document expands: document, reader, pupil, scholar or dialogue")
      ->capture_default_str();
  app.add_option("--seed", o.seed, "seed of the corpus and of the first weights")->capture_default_str();
  app.add_option("--steps", o.steps)->capture_default_str();
  app.add_option("--long-steps", o.long_steps, "number of last steps, with rows of the long context")->capture_default_str();
  app.add_option("--decay-steps", o.decay_steps, "number of last steps, in which the learning rate falls")->capture_default_str();
  app.add_option("--practice-first", o.practice_first, "step at which practice in copying begins")->capture_default_str();
  app.add_option("--practice-steps", o.practice_steps, "steps of practice in copying")->capture_default_str();
  app.add_option("--context", o.context, "tokens of a row")->capture_default_str();
  app.add_option("--long-context", o.long_context, "tokens of a row of the last steps, and positions of the model")->capture_default_str();
  app.add_option("--batch", o.batch, "rows of the short context per step")->capture_default_str();
  app.add_option("--chat-vocab-size", o.chat_vocab_size, "vocabulary of a chat model that starts from another one")->capture_default_str();
  app.add_option("--learning-rate", o.learning_rate)->capture_default_str();
  app.add_option("--warmup", o.warmup)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  // Activations of a step are freed and made again: keep them from going back to the system each
  // time.
#if defined(__linux__)
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 2'000'000'000);
#endif
  at::set_num_threads(1);
  if (absl::Status status = lime::train::Main(o); !status.ok()) {
    std::fprintf(stderr, "train_model: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
