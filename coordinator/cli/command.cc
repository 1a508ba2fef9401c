#include "coordinator/cli/command.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/cli/default_cluster.h"
#include "coordinator/reports/screen.h"
#include "daemon/engine/call_limits.h"
#include "daemon/formats/block_store_manifest.h"
#include "daemon/weights/loader_choice.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_text.h"

namespace lime::cli {
namespace {

using nlohmann::json;

constexpr char kWrongCallMark[] = "lime/wrong-call";
constexpr char kAnswerMark[] = "lime/answer";
constexpr char kInterruptedWord[] = "interrupted";

bool answer_in_json = false;

int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kDone;
  if (Interrupted()) return kInterrupted;
  return status.GetPayload(kWrongCallMark) ? kWrongCall : kFailed;
}

const char* KindOf(int exit_code) {
  return exit_code == kWrongCall ? "wrong_call" : exit_code == kInterrupted ? kInterruptedWord : "failed";
}

// After a signal, commands end with many kinds of errors. Only errors that name the interrupt are
// shown.
std::string SentenceOf(const absl::Status& status, int exit_code) {
  const std::string message(status.message());
  const bool says_so = absl::IsCancelled(status) && absl::StrContains(message, kInterruptedWord);
  return exit_code == kInterrupted && !says_so ? kInterruptedWord : message;
}

void PrintJsonError(const absl::Status& status, const std::string& sentence, int exit_code) {
  json answer = json::object();
  if (const auto before = status.GetPayload(kAnswerMark)) answer = json::parse(std::string(*before), nullptr, false);
  if (!answer.is_object()) answer = json::object();
  answer["error"] = {{"message", sentence}, {"kind", KindOf(exit_code)}, {"exit_code", exit_code}};
  std::cout << JsonText(answer) << std::endl;
}

constexpr int64_t kMaxParts = 1024;  // larger numbers are taken as bytes

// "0.5" or "50%", 0 to 1.
absl::StatusOr<double> ParseShare(const std::string& said) {
  std::string text = said;
  const bool percent = !text.empty() && text.back() == '%';
  if (percent) text.pop_back();
  double value = 0;
  if (text.find_first_not_of("0123456789.+-eE") != std::string::npos || !absl::SimpleAtod(text, &value) || !std::isfinite(value))
    return WrongCall(absl::StrCat("--resident ", AsTyped(said), " is not a share; give one such as 0.5 or 50%"));
  if (percent) value /= 100;
  if (value < 0 || value > 1) return WrongCall(absl::StrCat("--resident ", said, " is outside 0 to 1"));
  return value;
}

}  // namespace

absl::Status WrongCall(const std::string& message) {
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kWrongCallMark, absl::Cord("1"));
  return status;
}

absl::Status CheckModelFolder(const std::string& model, const std::string& says) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  constexpr char kAdvice[] = "give the folder of a Hugging Face checkpoint: config.json, *.safetensors and the tokenizer's files";
  if (fs::is_directory(model, ignored)) {
    // Without config.json, but a store was begun: opening the store will say what to do.
    if (fs::exists(model + "/config.json", ignored) || fs::exists(model + "/" + kStoreJournalName, ignored)) return absl::OkStatus();
    return WrongCall(absl::StrCat(says, " ", model, " holds no config.json; ", kAdvice));
  }
  if (model.ends_with(".gguf")) return WrongCall(absl::StrCat(says, " ", model, ": LIME does not read GGUF files; ", kAdvice));
  if (fs::exists(model, ignored)) return WrongCall(absl::StrCat(says, " ", model, " is a file; ", kAdvice));
  const size_t slash = model.find('/');
  const bool hub_name = slash != std::string::npos && slash > 0 && slash + 1 < model.size() &&
                        model.find('/', slash + 1) == std::string::npos && model.front() != '.';
  return WrongCall(absl::StrCat(
      says, " ", model, " is not a folder; ",
      hub_name
          ? absl::StrCat(
                "LIME downloads nothing: if this is a model's name, download it first, such as with `git clone https://huggingface.co/",
                model, "` (git-lfs), and give the folder")
          : std::string(kAdvice)));
}

absl::Status AllOf(std::span<const absl::Status> statuses) {
  absl::Status all;
  std::vector<std::string> sentences;
  for (const absl::Status& status : statuses) {
    if (status.ok() || std::ranges::count(sentences, std::string(status.message())) > 0) continue;
    sentences.push_back(std::string(status.message()));
    all.Update(status);
  }
  if (sentences.size() < 2) return all;
  absl::Status joined(all.code(), absl::StrJoin(sentences, "; "));
  all.ForEachPayload([&joined](absl::string_view type, const absl::Cord& payload) { joined.SetPayload(type, payload); });
  return joined;
}

absl::Status OfUser(absl::Status status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
      status.SetPayload(kWrongCallMark, absl::Cord("1"));
      return status;
    default:
      return status;
  }
}

absl::Status WithAnswer(absl::Status status, const json& json) {
  status.SetPayload(kAnswerMark, absl::Cord(JsonText(json)));
  return status;
}

absl::Status Answered(const json& answer, bool as_json, const absl::Status& problem) {
  if (!problem.ok()) return WithAnswer(problem, answer);
  if (as_json) std::cout << JsonText(answer) << std::endl;
  return absl::OkStatus();
}

void AnswerInJson(bool json) {
  answer_in_json = json;
  SetInterruptJson(json);
}

int Finish(const absl::Status& status) {
  const int exit_code = ExitCodeOf(status);
  if (exit_code == kDone) return kDone;
  alarm(0);  // the interrupted work has ended
  const std::string sentence = SentenceOf(status, exit_code);
  Screen::Say(sentence);
  if (answer_in_json) PrintJsonError(status, sentence, exit_code);
  return exit_code;
}

void AddWithoutFlag(const CommandFlags& command, std::vector<std::string>& without) {
  command.Add("--without", &without, "With --cluster, a device to leave out; may be given several times").Repeats();
}

void AddExpertsFlags(const CommandFlags& command, std::string& experts, std::string& read_ahead) {
  command
      .Add("--experts", &experts,
           "Experts of each layer that have a place in memory, if not all fit; the others are read when a token chooses them. 0: stream "
           "all of them; auto: as many as make it fastest")
      .Shown();
  command
      .Add("--read-ahead", &read_ahead,
           "While the disk has nothing else to do, read experts that the next layer will probably choose, into this many of its places; 0: "
           "read none; auto: only if devices divide the experts of a layer")
      .Shown();
}

void AddRoutesFlag(const CommandFlags& command, std::string& routes) {
  command.Add("--routes", &routes,
              "File of `lime trace --routes`: plan with the experts that this model chose there, instead of a generic expectation");
}

absl::StatusOr<std::optional<int64_t>> ParseExperts(const std::string& experts) {
  int64_t places = 0;
  if (experts == "auto") return std::nullopt;
  if (absl::SimpleAtoi(experts, &places) && places >= 0 && places <= kMaxUnits) return places;
  return WrongCall(absl::StrCat("--experts ", AsTyped(experts), " is neither auto nor a number from 0 to ", kMaxUnits));
}

absl::StatusOr<std::optional<int32_t>> ParseReadAhead(const std::string& read_ahead) {
  int32_t places = 0;
  if (read_ahead == "auto") return std::nullopt;
  if (absl::SimpleAtoi(read_ahead, &places) && places >= 0 && places <= kMaxAheadPlaces) return places;
  return WrongCall(absl::StrCat("--read-ahead ", AsTyped(read_ahead), " is neither auto nor a number from 0 to ", kMaxAheadPlaces));
}

void ModelFlags::AddTo(const CommandFlags& command, bool clusters) {
  command.Add("--model,-m", &model,
              clusters ? "Folder of a Hugging Face checkpoint; with --cluster, the default is the model that the cluster's file names"
                       : "Folder of a Hugging Face checkpoint");
  command.Add("--threads", &threads, "Compute threads; 0: one for every core this process may use").Shown();
  command.Add("--loader", &loader, "How weights reach memory: read (direct reads), mmap (zero copy) or auto").Shown();
  command.Add("--context", &context, "Positions of KV cache reserved for each sequence; 0: as many as the call needs");
  command
      .Add("--kv", &kv,
           "Memory of the KV cache: reserve all of it up front, or let it grow as it is written; if parts stream, more of them stream "
           "as it grows")
      .Shown();
  command.Add("--kv-dir", &kv_dir, "Folder on a fast disk for KV that does not fit in memory; without it the folder of the model");
  command.Add("--no-kv-spill", &no_kv_spill, kNoKvSpill);
  command.Add("--chunk", &chunk, "Tokens of a prompt computed in one step; 0: chosen for the machine");
  command.Add("--memory", &memory, "Memory budget of the process, such as 2GiB; weights that do not fit stream from the disk");
  command
      .Add("--memory-mode", &priority,
           "Without --memory, how much KV to leave memory for: max-tps (512 tokens), balanced (1,024) or max-context (the model's "
           "context)")
      .Shown();
  command
      .Add("--placement", &placement,
           "Which blocks stay in memory if not all fit: first_n, last_n, interleaved, attention_first, or auto for the fastest of the "
           "first three")
      .Shown();
  command.Add("--pool", &pool,
              "Ring for streamed parts: a number of parts or a size such as 128MiB, at least two parts; without it LIME chooses");
  command.Add("--resident", &resident, "Largest share of the weights to keep in memory, such as 50%; without it as much as fits");
  AddExpertsFlags(command, experts, read_ahead);
  command.Add("--profile", &profile, "File of `lime profile --out` to predict from, instead of the stored profile of this machine");
  command.Add("--numerics", &numerics, "auto, or portable: the one order of reduction that every CPU implements").Shown();
  if (clusters) AddOptionalClusterFlag(command, cluster, "cluster.toml: run on its devices instead of this one");
  command.Add("--json", &json, "Print one JSON object and nothing else on stdout");
}

void ModelFlags::AddSparsityTo(const CommandFlags& command) {
  sparsity = "auto";
  command
      .Add("--sparsity", &sparsity,
           "exact: with bundles of `lime prepare --bundles`, a token reads and computes only those neurons of an MLP with ReLU that are "
           "not zero; the results are the same. off: all neurons. auto: exact if `lime calibrate` has learned what the model activates "
           "and it is predicted to be faster. predicted: the neurons that the predictor of `lime calibrate --predictor` names, and no "
           "others; "
           "results change")
      .Shown();
  command
      .Add("--neurons", &neurons,
           "With --sparsity exact, neurons of each layer for which memory has room; auto: those that a calibration says are worth it, or, "
           "without one, as many as the rest of the model leaves room for")
      .Shown();
  command
      .Add("--decider", &decider,
           "With --sparsity exact, what decides which neurons are zero: dense, the weights themselves; certified, where bundles have them, "
           "low-bit copies of these that prove it, so that the weights need not be read; auto: what is predicted to be faster")
      .Shown();
  command.Add("--window", &window, "With --sparsity exact, neurons that none of the last so many tokens has used leave memory").Shown();
}

absl::Status ModelFlags::Check() const {
  if (model.empty()) return WrongCall("--model is required: the folder of a Hugging Face checkpoint");
  if (!LoaderNamed(loader)) return WrongCall(absl::StrCat("--loader ", AsTyped(loader), " is unknown; use auto, read or mmap"));
  if (kv != "reserve" && kv != "grow") return WrongCall(absl::StrCat("--kv ", AsTyped(kv), " is unknown; use reserve or grow"));
  if (numerics != "auto" && numerics != "portable")
    return WrongCall(absl::StrCat("--numerics ", AsTyped(numerics), " is unknown; use auto or portable"));
  LIME_RETURN_IF_ERROR(OfUser(CheckThreads("--threads", threads)));
  if (!kv_dir.empty()) LIME_RETURN_IF_ERROR(OfUser(CheckWritable(absl::StrCat("--kv-dir ", kv_dir), kv_dir)));
  if (context < 0) return WrongCall(absl::StrCat("--context ", context, " is negative"));
  if (chunk < 0 || chunk > 65536) return WrongCall(absl::StrCat("--chunk ", chunk, " is outside 0 to 65536"));
  LocalPlanRequest checked;
  return Apply(checked);
}

absl::StatusOr<int64_t> ModelFlags::MostPositions(const ModelSpec& spec) const {
  const int64_t most = spec.config.max_positions;
  if (context > most) return WrongCall(absl::StrCat("--context ", context, " is outside 1 to the ", most, " positions of the model"));
  return context > 0 ? context : most;
}

absl::Status ModelFlags::ApplySparsity(LocalPlanRequest& request) const {
  const std::optional<SparsityWish> wish = ParseSparsity(sparsity);
  if (!wish) return WrongCall(absl::StrCat("--sparsity ", AsTyped(sparsity), " is unknown; use auto, off, exact or predicted"));
  request.sparsity = *wish;
  if (window < 1 || window > kMaxWindowMasks) return WrongCall(absl::StrCat("--window ", window, " is outside 1 to ", kMaxWindowMasks));
  request.window_masks = window;
  const std::optional<DeciderWish> by = ParseDecider(decider);
  if (!by) return WrongCall(absl::StrCat("--decider ", AsTyped(decider), " is unknown; use auto, dense or certified"));
  request.decider = *by;
  if (*wish == SparsityWish::kPredicted && *by != DeciderWish::kAuto)
    return WrongCall("--decider is for --sparsity exact; with predicted, the predictor decides");
  int64_t rows = 0;
  if (neurons == "auto") return absl::OkStatus();
  if (!absl::SimpleAtoi(neurons, &rows) || rows < 1 || rows > kMaxNeurons)
    return WrongCall(absl::StrCat("--neurons ", AsTyped(neurons), " is neither auto nor a number from 1 to ", kMaxNeurons));
  request.neuron_rows = rows;
  return absl::OkStatus();
}

absl::Status ModelFlags::Apply(LocalPlanRequest& request) const {
  request.spills_kv = !no_kv_spill;
  if (!memory.empty()) {
    const absl::StatusOr<Bytes> bytes = ParseBytes(memory);
    if (!bytes.ok()) return WrongCall(absl::StrCat("--memory: ", bytes.status().message()));
    if (*bytes < 1) return WrongCall(absl::StrCat("--memory ", memory, " is too small; give a size such as 2GiB"));
    LIME_RETURN_IF_ERROR(OfUser(CheckBudget(absl::StrCat("--memory ", memory), *bytes)));
    request.budget = *bytes;
  }
  const absl::StatusOr<MemoryPriority> mode = ParseMemoryPriority(priority);
  if (!mode.ok()) return WrongCall(absl::StrCat("--memory-mode: ", mode.status().message()));
  request.priority = *mode;
  const absl::StatusOr<Placement> parsed = ParsePlacement(placement);
  if (!parsed.ok()) return WrongCall(absl::StrCat("--placement: ", parsed.status().message()));
  request.placement = *parsed;
  if (!resident.empty()) {
    LIME_ASSIGN_OR_RETURN(request.resident_share, ParseShare(resident));
  }
  LIME_RETURN_IF_ERROR(ApplySparsity(request));
  LIME_ASSIGN_OR_RETURN(request.unit_places, ParseExperts(experts));
  LIME_ASSIGN_OR_RETURN(const std::optional<int32_t> ahead, ParseReadAhead(read_ahead));
  request.ahead_places = ahead.value_or(0);
  int64_t parts = 0;
  if (pool.empty()) return absl::OkStatus();
  if (absl::SimpleAtoi(pool, &parts) && parts <= kMaxParts) {
    if (parts < 2) return WrongCall(absl::StrCat("--pool ", pool, " is too few; the ring needs at least two parts"));
    request.ring_parts = parts;
    return absl::OkStatus();
  }
  const absl::StatusOr<Bytes> bytes = ParseBytes(pool);
  if (!bytes.ok()) return WrongCall(absl::StrCat("--pool: ", bytes.status().message()));
  request.ring = *bytes;
  return absl::OkStatus();
}

}  // namespace lime::cli
