#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/cli/model_files.h"
#include "coordinator/cli/url_flags.h"
#include "coordinator/cli/user_text.h"
#include "coordinator/commands/commands.h"
#include "coordinator/devices/cluster_file.h"
#include "coordinator/sessions/cluster_session.h"
#include "coordinator/sessions/local_session.h"
#include "coordinator/sessions/remote_session.h"
#include "coordinator/sessions/score.h"
#include "coordinator/sessions/sparse_flags.h"

namespace lime::cli {
namespace {

using nlohmann::json;

constexpr Bytes kLogitsBytes = 64 * kMiB;  // of one step: bounds the chunk of large vocabularies
constexpr size_t kMaxCompanions = 255, kMaxSequences = size_t{1} << 20;
constexpr int64_t kTopInJson = 5;

struct ScoreFlags {
  ModelFlags model;
  UrlFlags server;
  std::string ids;
  std::string ids_file;
  std::string text_file;
  std::string batch_with;
  std::optional<int64_t> top;          // not given: kTopInJson with --json, else none
  ClusterSession::Options on_cluster;  // with --cluster
};

// The sequences of --ids or --ids-file; empty with --text-file.
absl::StatusOr<std::vector<std::vector<int32_t>>> GivenIds(const ScoreFlags& flags, int64_t vocab) {
  if (!flags.ids_file.empty()) return ReadIdLists("--ids-file", flags.ids_file, vocab, kMaxSequences, kMaxTextBytes);
  if (flags.ids.empty()) return std::vector<std::vector<int32_t>>();
  LIME_ASSIGN_OR_RETURN(std::vector<int32_t> ids, ParseIds(flags.ids, vocab, "--ids"));
  return std::vector<std::vector<int32_t>>{std::move(ids)};
}

absl::StatusOr<std::vector<std::vector<int32_t>>> ToScore(const ScoreFlags& flags, const ModelFiles& files) {
  LIME_ASSIGN_OR_RETURN(const int64_t limit, flags.model.MostPositions(files.spec));
  LIME_ASSIGN_OR_RETURN(std::vector<std::vector<int32_t>> given, GivenIds(flags, files.spec.config.vocab_size));
  for (size_t i = 0; i < given.size(); ++i) {
    if (std::ssize(given[i]) <= limit) continue;
    const std::string where = flags.ids_file.empty() ? "--ids" : absl::StrCat("--ids-file ", flags.ids_file, " line ", i + 1);
    return absl::ResourceExhaustedError(
        absl::StrCat(where, " holds ", given[i].size(), " ids, but the context is ", limit, "; score fewer"));
  }
  if (!given.empty()) return given;
  if (limit < 2) return WrongCall("--context must be at least 2 to score a text");
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadUserText("--text-file", flags.text_file, kMaxTextBytes));
  LIME_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, files.tokenizer->Encode(text, {.add_special = false}));
  if (ids.empty()) return WrongCall(absl::StrCat("--text-file ", flags.text_file, " holds no text"));
  for (const int32_t id : ids) {
    if (id >= files.spec.config.vocab_size) return Invalid("the tokenizer gives id ", id, ", which the model does not have");
  }
  return CutIntoWindows(ids, files.bos(), limit);
}

absl::Status PrintJson(json root, const std::vector<ScoredPosition>& positions, std::optional<uint64_t> hash) {
  const std::optional<double> perplexity = PerplexityOf(positions);
  root["perplexity"] = perplexity ? json(*perplexity) : json();
  root["logits_xxh3"] = hash ? json(HashText(*hash)) : json();
  json& list = root["positions"] = json::array();
  for (const ScoredPosition& position : positions) {
    json top = json::array();
    for (const auto& [id, logit] : position.top) top.push_back(json::array({id, logit}));
    list.push_back({{"id", position.id}, {"logprob", position.logprob ? json(*position.logprob) : json()}, {"top", std::move(top)}});
  }
  return Answered(root, /*as_json=*/true);
}

// One line per position: its id, its log-probability, and the likeliest next ids with their logits.
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

void PrintText(const std::vector<ScoredPosition>& positions, size_t windows, double seconds, std::optional<uint64_t> hash) {
  const std::optional<double> perplexity = PerplexityOf(positions);
  absl::PrintF("%d positions in %d windows, %.1f s\nperplexity  %s\nlogits_xxh3 %s\n", positions.size(), windows, seconds,
               perplexity ? absl::StrFormat("%.4f", *perplexity) : "none, because the first id has no score",
               hash ? HashText(*hash) : "none, because the server hashes each window by itself");
}

// The positions of the longest window, and of each companion with the one token that it makes.
int64_t ContextOf(const ScoreOptions& options, int64_t longest) {
  int64_t context = longest;
  for (const auto& companion : options.companions) context = std::max<int64_t>(context, static_cast<int64_t>(companion.size()) + 1);
  return context;
}

// `Session`: a ClusterSession or a LocalSession. `lines`: its report for users.
template <typename Session>
absl::Status ScoreIn(Session& session, const ScoreFlags& flags, const std::vector<std::vector<int32_t>>& windows,
                     const ScoreOptions& options, std::string (*lines)(const Session&)) {
  const auto start = absl::Now();
  LIME_ASSIGN_OR_RETURN(const Scores scores, session.Score(windows, options));
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  if (flags.model.json) return PrintJson(session.Describe(), scores.positions, scores.logits_hash);
  absl::FPrintF(stderr, "%s", lines(session));
  if (flags.top.value_or(0) > 0) PrintTop(scores.positions);
  PrintText(scores.positions, windows.size(), seconds, scores.logits_hash);
  return absl::OkStatus();
}

// One window at a time, in prompt chunks. One row per micro-batch asks for logits, because devices
// have memory for one.
absl::Status ScoreOnCluster(const ScoreFlags& flags, const std::vector<std::vector<int32_t>>& windows, const ScoreOptions& options,
                            int64_t longest) {
  ClusterSession::Options cluster = flags.on_cluster;
  LIME_ASSIGN_OR_RETURN(cluster.unit_places, ParseExperts(flags.model.experts));
  LIME_ASSIGN_OR_RETURN(cluster.ahead_places, ParseReadAhead(flags.model.read_ahead));
  cluster.cluster = flags.model.cluster;
  cluster.model = flags.model.model;
  cluster.context = ContextOf(options, longest);
  cluster.sequences = 1 + std::ssize(options.companions);
  cluster.prompt_tokens = longest;
  cluster.kv.no_spill = flags.model.no_kv_spill;
  if (cluster.plan.empty()) {
    LIME_ASSIGN_OR_RETURN(cluster.sparse, ReadSparseInputs(flags.model, flags.model.model));
  }
  cluster.cancel = &Interrupted();
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<ClusterSession> session, ClusterSession::Open(cluster));
  return ScoreIn<ClusterSession>(*session, flags, windows, options, [](const ClusterSession& of) { return of.DeviceLines(); });
}

// In prompt chunks. As many rows per step ask for logits as memory allows.
absl::Status ScoreHere(ScoreFlags& flags, const std::vector<std::vector<int32_t>>& windows, const ScoreOptions& options, int64_t longest,
                       int64_t chunk) {
  flags.model.chunk = chunk * (1 + std::ssize(options.companions));  // companions share each step
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<LocalSession> session,
                        LocalSession::Open(flags.model, {.context = ContextOf(options, longest),
                                                         .expected_positions = longest / 2,
                                                         .sequences = 1 + static_cast<int32_t>(options.companions.size()),
                                                         .prompt_tokens = longest,
                                                         .all_prompt_tokens = longest * std::ssize(windows),
                                                         .logit_rows = chunk}));
  return ScoreIn<LocalSession>(*session, flags, windows, options,
                               [](const LocalSession& of) { return absl::StrCat(of.LoadLine(), "\n", of.MemoryLine(), "\n"); });
}

// The windows of the call, with the ids and the context of the server.
absl::StatusOr<std::vector<std::vector<int32_t>>> ToScoreRemotely(const ScoreFlags& flags, const RemoteSession& session) {
  LIME_ASSIGN_OR_RETURN(std::vector<std::vector<int32_t>> given, GivenIds(flags, std::numeric_limits<int32_t>::max()));
  if (!given.empty()) return given;
  const int64_t window = flags.model.context > 0 ? flags.model.context : session.context();
  if (window < 2) return WrongCall("--context must be at least 2 to score a text; the server does not say what its context is");
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadUserText("--text-file", flags.text_file, kMaxTextBytes));
  LIME_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, session.Encode(text));
  if (ids.empty()) return WrongCall(absl::StrCat("--text-file ", flags.text_file, " holds no text"));
  LIME_ASSIGN_OR_RETURN(const std::optional<int32_t> bos, session.Bos());
  return CutIntoWindows(ids, bos, window);
}

absl::Status CheckScored(const ScoreFlags& flags, int64_t top) {
  const int given =
      static_cast<int>(!flags.ids.empty()) + static_cast<int>(!flags.ids_file.empty()) + static_cast<int>(!flags.text_file.empty());
  if (given != 1) return WrongCall("give one of --ids 1,2,3, --ids-file FILE and --text-file FILE");
  if (top < 0 || top > 1000) return WrongCall(absl::StrCat("--top ", top, " is outside 0 to 1000"));
  return absl::OkStatus();
}

absl::Status ScoreRemotely(const ScoreFlags& flags, int64_t top) {
  LIME_RETURN_IF_ERROR(CheckScored(flags, top));
  if (top > RemoteSession::kMostTop) {
    return WrongCall(absl::StrCat("--top ", top, " is more than the ", RemoteSession::kMostTop,
                                  " likeliest ids that a server gives; give at most that with --url"));
  }
  if (flags.model.context < 0) return WrongCall(absl::StrCat("--context ", flags.model.context, " is negative"));
  const GracefulStop graceful;
  LIME_ASSIGN_OR_RETURN(std::unique_ptr<ApiClient> client, flags.server.Open());
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<RemoteSession> session,
                        OfUser(RemoteSession::Open(std::move(client), flags.model.model, &Interrupted())));
  LIME_ASSIGN_OR_RETURN(const auto windows, OfUser(ToScoreRemotely(flags, *session)));
  return OfUser(ScoreIn<RemoteSession>(*session, flags, windows, {.top = top, .companions = {}, .cancel = &Interrupted()},
                                       [](const RemoteSession&) { return std::string(); }));
}

absl::Status Score(ScoreFlags& flags) {
  const int64_t top = flags.top.value_or(kTopInJson);
  if (flags.server.given()) return ScoreRemotely(flags, top);
  LIME_RETURN_IF_ERROR(UseModelOf(flags.model.cluster, flags.model.model));
  LIME_RETURN_IF_ERROR(flags.model.Check());
  LIME_RETURN_IF_ERROR(CheckScored(flags, top));
  LIME_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::Open(flags.model.model, /*with_text=*/!flags.text_file.empty()));
  LIME_ASSIGN_OR_RETURN(const auto windows, ToScore(flags, files));
  ScoreOptions options;
  LIME_ASSIGN_OR_RETURN(options.companions, ReadCompanions(flags.batch_with, files.spec.config.vocab_size, kMaxCompanions));
  // A companion makes one token, which is dropped.
  for (std::vector<int32_t>& companion : options.companions) {
    if (std::ssize(companion) == files.spec.config.max_positions) companion.pop_back();
  }
  int64_t longest = 0;
  for (const auto& window : windows) longest = std::max(longest, std::ssize(window));
  for (const auto& companion : options.companions) longest = std::max<int64_t>(longest, static_cast<int64_t>(companion.size()));
  const int64_t affordable = std::max<int64_t>(1, kLogitsBytes / (4 * files.spec.config.vocab_size));
  const int64_t chunk = std::min(longest, flags.model.chunk > 0 ? flags.model.chunk : std::min(kUsualChunk, affordable));
  options.top = std::min(top, files.spec.config.vocab_size);
  options.cancel = &Interrupted();
  if (!flags.model.cluster.empty()) return ScoreOnCluster(flags, windows, options, longest);
  return ScoreHere(flags, windows, options, longest, chunk);
}

}  // namespace

void AddScoreCommand(Commands& commands) {
  const auto [command, flags] =
      commands.Add<ScoreFlags>("score", "Log-probabilities and perplexity of given ids or text",
                               "Example: lime score --model Llama-3.2-1B --text-file book.txt --context 2048", Score);
  flags.model.AddTo(command);
  flags.model.AddSparsityTo(command);
  command.Add("--ids", &flags.ids, "Ids to score, like 1,2,3; LIME adds none");
  command.Add("--ids-file", &flags.ids_file, "File of sequences to score one after another: a line of ids such as 1,2,3 for each");
  command.Add("--text-file", &flags.text_file,
              "Text to score, cut into windows as long as the context: each has BOS, then the next context - 1 ids");
  command.Add("--top", &flags.top, "Likeliest ids to print after each position; without it 5 with --json, otherwise none");
  command.Add("--batch-with", &flags.batch_with,
              "File of other sequences, which are computed in the same steps: a line of ids such as 1,2,3 for each; they change no bit "
              "of the answer");
  flags.on_cluster.AddTo(command);
  flags.server.AddTo(command);
}

}  // namespace lime::cli
