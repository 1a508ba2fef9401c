#include "coordinator/cli/score_command.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "coordinator/cli/cluster_file.h"
#include "coordinator/cli/cluster_session.h"
#include "coordinator/cli/command.h"
#include "coordinator/cli/companions.h"
#include "coordinator/cli/local_session.h"
#include "coordinator/cli/model_files.h"
#include "coordinator/cli/progress.h"
#include "coordinator/cli/score.h"
#include "coordinator/cli/user_text.h"
#include "planner/base/strings.h"

namespace lime::cli {
namespace {

using nlohmann::json;

constexpr Bytes kLogitsBytes = 64 * kMiB;  // of one step: bounds the chunk of large vocabularies
constexpr size_t kMaxCompanions = 255;
constexpr Bytes kMaxTextBytes = kGiB;
constexpr int64_t kTopInJson = 5;

struct ScoreFlags {
  ModelFlags model;
  std::string ids;
  std::string text_file;
  std::string batch_with;
  std::optional<int64_t> top;        // not said: kTopInJson for --json, none for a person
  std::string cluster_plan;          // with --cluster
  std::vector<std::string> without;  // likewise
  bool push = false;                 // likewise
  bool insecure = false;             // likewise

  bool top_asked() const { return top.value_or(0) > 0; }
};

// BOS and then window - 1 ids, side by side over the text.
std::vector<std::vector<int32_t>> Windows(const std::vector<int32_t>& ids, std::optional<int32_t> bos, int64_t window) {
  std::vector<std::vector<int32_t>> windows;
  const int64_t step = bos ? window - 1 : window;
  for (int64_t begin = 0; begin < static_cast<int64_t>(ids.size()); begin += step) {
    std::vector<int32_t>& here = windows.emplace_back();
    if (bos) here.push_back(*bos);
    here.insert(here.end(), ids.begin() + begin, ids.begin() + std::min<int64_t>(begin + step, static_cast<int64_t>(ids.size())));
  }
  return windows;
}

absl::StatusOr<std::vector<std::vector<int32_t>>> ToScore(const ScoreFlags& flags, const ModelFiles& files) {
  LIME_ASSIGN_OR_RETURN(const int64_t limit, flags.model.MostPositions(files.spec));
  if (!flags.ids.empty()) {
    LIME_ASSIGN_OR_RETURN(std::vector<int32_t> ids, ParseIds(flags.ids, files.spec.config.vocab_size, "--ids"));
    if (static_cast<int64_t>(ids.size()) > limit) {
      return absl::ResourceExhaustedError(absl::StrCat("--ids holds ", ids.size(), " ids and the context is ", limit, "; score fewer"));
    }
    return std::vector<std::vector<int32_t>>{std::move(ids)};
  }
  if (limit < 2) return WrongCall("--context must be at least 2 to score a text");
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadUserText("--text-file", flags.text_file, kMaxTextBytes));
  LIME_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, files.tokenizer->Encode(text, {.add_special = false}));
  if (ids.empty()) return WrongCall(absl::StrCat("--text-file ", flags.text_file, " holds no text"));
  for (const int32_t id : ids) {
    if (id >= files.spec.config.vocab_size)
      return absl::InvalidArgumentError(absl::StrCat("the tokenizer gives id ", id, ", which the model does not have"));
  }
  return Windows(ids, files.bos(), limit);
}

// None where nothing was scored: nothing says how likely the first id was.
std::optional<double> Perplexity(const std::vector<ScoredPosition>& positions) {
  double sum = 0;
  int64_t count = 0;
  for (const ScoredPosition& position : positions) {
    if (!position.logprob) continue;
    sum -= *position.logprob;
    ++count;
  }
  if (count == 0) return std::nullopt;
  return std::exp(sum / static_cast<double>(count));
}

void PrintJson(json root, const std::vector<ScoredPosition>& positions, uint64_t hash) {
  const std::optional<double> perplexity = Perplexity(positions);
  root["perplexity"] = perplexity ? json(*perplexity) : json();
  root["logits_xxh3"] = HashText(hash);
  json& list = root["positions"] = json::array();
  for (const ScoredPosition& position : positions) {
    json top = json::array();
    for (const auto& [id, logit] : position.top) top.push_back(json::array({id, logit}));
    list.push_back({{"id", position.id}, {"logprob", position.logprob ? json(*position.logprob) : json()}, {"top", std::move(top)}});
  }
  std::cout << root.dump() << std::endl;
}

// A line for each position: its id, how likely that was, and the likeliest ids behind it with their logits.
void PrintTop(const std::vector<ScoredPosition>& positions) {
  absl::PrintF("%8s %8s %10s  likeliest next: id (logit)\n", "position", "id", "logprob");
  for (size_t i = 0; i < positions.size(); ++i) {
    const ScoredPosition& position = positions[i];
    const std::string logprob = position.logprob ? absl::StrFormat("%.4f", *position.logprob) : "-";
    absl::PrintF("%8d %8d %10s ", i, position.id, logprob);
    for (const auto& [id, logit] : position.top) absl::PrintF(" %d (%.3f)", id, logit);
    absl::PrintF("\n");
  }
}

void PrintText(const std::vector<ScoredPosition>& positions, size_t windows, double seconds, uint64_t hash) {
  const std::optional<double> perplexity = Perplexity(positions);
  absl::PrintF("%d positions in %d windows, %.1f s\nperplexity  %s\nlogits_xxh3 %s\n", positions.size(), windows, seconds,
               perplexity ? absl::StrFormat("%.4f", *perplexity) : "none; an id is scored behind another one", HashText(hash));
}

// The longest window, and each companion with the token that it makes after its ids.
int64_t ContextOf(const ScoreOptions& options, int64_t longest) {
  int64_t context = longest;
  for (const auto& companion : options.companions) context = std::max<int64_t>(context, static_cast<int64_t>(companion.size()) + 1);
  return context;
}

void Tell(const ScoreFlags& flags, const Scores& scores, size_t windows, double seconds) {
  if (flags.top_asked()) PrintTop(scores.positions);
  PrintText(scores.positions, windows, seconds, scores.logits_hash);
}

// A window at a time, in prompt chunks; with the logits of one row of each micro-batch, which is what devices are made for.
absl::Status ScoreOnCluster(const ScoreFlags& flags, const std::vector<std::vector<int32_t>>& windows, const ScoreOptions& options,
                            int64_t longest) {
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<ClusterSession> session,
                        ClusterSession::Open({.cluster = flags.model.cluster,
                                              .model = flags.model.model,
                                              .without = flags.without,
                                              .push = flags.push,
                                              .plan = flags.cluster_plan,
                                              .context = ContextOf(options, longest),
                                              .sequences = 1 + static_cast<int64_t>(options.companions.size()),
                                              .prompt_tokens = longest,
                                              .insecure = flags.insecure,
                                              .cancel = &Interrupted()}));
  const auto start = absl::Now();
  LIME_ASSIGN_OR_RETURN(const Scores scores, session->Score(windows, options));
  if (flags.model.json) {
    PrintJson(session->Describe(), scores.positions, scores.logits_hash);
  } else {
    Tell(flags, scores, windows.size(), absl::ToDoubleSeconds(absl::Now() - start));
    absl::FPrintF(stderr, "%s", session->DeviceLines());
  }
  return absl::OkStatus();
}

// In prompt chunks, with the logits of as many of their rows in a step as memory has room for.
absl::Status ScoreHere(ScoreFlags& flags, const std::vector<std::vector<int32_t>>& windows, const ScoreOptions& options, int64_t longest,
                       int64_t chunk) {
  flags.model.chunk = chunk * (1 + std::ssize(options.companions));  // which have a share of each step
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<LocalSession> session,
                        LocalSession::Open(flags.model, {.context = ContextOf(options, longest),
                                                         .expected_positions = longest / 2,
                                                         .sequences = 1 + static_cast<int64_t>(options.companions.size()),
                                                         .prompt_tokens = longest,
                                                         .all_prompt_tokens = longest * std::ssize(windows),
                                                         .logit_rows = chunk}));
  const auto start = absl::Now();
  LIME_ASSIGN_OR_RETURN(const Scores scores, session->Score(windows, options));
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  if (flags.model.json) {
    PrintJson(session->Describe(), scores.positions, scores.logits_hash);
    return absl::OkStatus();
  }
  absl::FPrintF(stderr, "%s\n%s\n", session->LoadLine(), session->MemoryLine());
  Tell(flags, scores, windows.size(), seconds);
  return absl::OkStatus();
}

absl::Status Score(ScoreFlags& flags) {
  LIME_RETURN_IF_ERROR(TakeModelOf(flags.model.cluster, flags.model.model));
  LIME_RETURN_IF_ERROR(flags.model.Check(/*on_cluster=*/true));
  if (flags.ids.empty() == flags.text_file.empty()) return WrongCall("give either --ids 1,2,3 or --text-file FILE");
  const int64_t top = flags.top.value_or(kTopInJson);
  if (top < 0 || top > 1000) return WrongCall(absl::StrCat("--top ", top, " is outside 0 to 1000"));
  LIME_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::Open(flags.model.model, /*with_text=*/flags.ids.empty()));
  LIME_ASSIGN_OR_RETURN(const auto windows, ToScore(flags, files));
  ScoreOptions options;
  LIME_ASSIGN_OR_RETURN(options.companions, ReadCompanions(flags.batch_with, files.spec.config.vocab_size, kMaxCompanions));
  for (std::vector<int32_t>& companion : options.companions) {  // it makes a token after its ids, which is thrown away
    if (std::ssize(companion) == files.spec.config.max_positions) companion.pop_back();
  }
  int64_t longest = static_cast<int64_t>(windows.front().size());
  for (const auto& companion : options.companions) longest = std::max<int64_t>(longest, static_cast<int64_t>(companion.size()));
  const int64_t affordable = std::max<int64_t>(1, kLogitsBytes / (4 * files.spec.config.vocab_size));
  const int64_t chunk = std::min(longest, flags.model.chunk > 0 ? flags.model.chunk : std::min(kUsualChunk, affordable));
  options.top = std::min(top, files.spec.config.vocab_size);
  options.cancel = &Interrupted();
  if (!flags.model.cluster.empty()) return ScoreOnCluster(flags, windows, options, longest);
  return ScoreHere(flags, windows, options, longest, chunk);
}

}  // namespace

void AddScoreCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ScoreFlags>();
  CLI::App* command = app.add_subcommand("score", "Log-probabilities and perplexity of given ids or text");
  command->footer("Example: lime score --model Llama-3.2-1B --text-file book.txt --context 2048");
  flags->model.AddTo(*command);
  command->add_option("--ids", flags->ids, "Ids to score, like 1,2,3; nothing is added to them");
  command->add_option("--text-file", flags->text_file, "Text to score in windows of the context: BOS, then context - 1 ids, side by side");
  command->add_option("--top", flags->top, "Likeliest ids to print after each position; without it 5 with --json, and else none");
  command->add_option("--batch-with", flags->batch_with,
                      "File of sequences, ids like 1,2,3 a line, computed in the same steps; no bit of the answer may change");
  command->add_option("--plan", flags->cluster_plan, "With --cluster, the file of `lime plan --out` instead of planning now");
  AddWithoutFlag(*command, flags->without);
  command->add_flag("--push", flags->push, "With --cluster, send the devices what they lack of the plan first");
  command->add_flag("--insecure", flags->insecure, "With --cluster, talk to other machines without keys");
  command->callback([flags, &exit_code] { exit_code = Finish(Score(*flags)); });
}

}  // namespace lime::cli
