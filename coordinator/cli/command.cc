#include "coordinator/cli/command.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/command_line.h"
#include "coordinator/cli/screen.h"
#include "daemon/engine/call_limits.h"
#include "daemon/weights/block_store_manifest.h"
#include "daemon/weights/loader_choice.h"
#include "nlohmann/json.hpp"

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

// What a signal broke off ends with errors of all kinds; only those that say so are worth reading.
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
  std::cout << answer.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
}

}  // namespace

absl::Status WrongCall(std::string message) {
  absl::Status status = absl::InvalidArgumentError(std::move(message));
  status.SetPayload(kWrongCallMark, absl::Cord("1"));
  return status;
}

absl::Status CheckModelFolder(const std::string& model, const std::string& says) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  constexpr char kAdvice[] = "give the folder of a Hugging Face checkpoint: config.json, *.safetensors and the tokenizer's files";
  if (fs::is_directory(model, ignored)) {
    // Without one, but begun: the store says what is to be done.
    if (fs::exists(model + "/config.json", ignored) || fs::exists(model + "/" + kStoreJournalName, ignored)) return absl::OkStatus();
    return WrongCall(absl::StrCat(says, " ", model, " holds no config.json; ", kAdvice));
  }
  if (model.ends_with(".gguf")) return WrongCall(absl::StrCat(says, " ", model, ": GGUF files are not read; ", kAdvice));
  if (fs::exists(model, ignored)) return WrongCall(absl::StrCat(says, " ", model, " is a file; ", kAdvice));
  const size_t slash = model.find('/');
  const bool hub_name = slash != std::string::npos && slash > 0 && slash + 1 < model.size() &&
                        model.find('/', slash + 1) == std::string::npos && model.front() != '.';
  return WrongCall(absl::StrCat(
      says, " ", model, " is not a folder; ",
      hub_name
          ? absl::StrCat("LIME downloads nothing: if this is a model's name, get it first, such as with `git clone https://huggingface.co/",
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

absl::Status WithAnswer(absl::Status status, std::string json) {
  status.SetPayload(kAnswerMark, absl::Cord(std::move(json)));
  return status;
}

void AnswerInJson(bool json) {
  answer_in_json = json;
  SetInterruptJson(json);
}

int Finish(const absl::Status& status) {
  const int exit_code = ExitCodeOf(status);
  if (exit_code == kDone) return kDone;
  alarm(0);  // what was interrupted has ended
  const std::string sentence = SentenceOf(status, exit_code);
  Screen::Say(sentence);
  if (answer_in_json) PrintJsonError(status, sentence, exit_code);
  return exit_code;
}

absl::Status ModelFlags::Check(bool on_cluster) const {
  if (!cluster.empty() && !on_cluster)
    return WrongCall("--cluster: this command runs on one device only; `lime run` and `lime score` take it");
  if (model.empty()) return WrongCall("--model is required: the folder of a Hugging Face checkpoint");
  if (!LoaderNamed(loader)) return WrongCall(absl::StrCat("--loader ", AsTyped(loader), " is unknown; use auto, read or mmap"));
  if (kv != "reserve" && kv != "grow") return WrongCall(absl::StrCat("--kv ", AsTyped(kv), " is unknown; use reserve or grow"));
  if (numerics != "auto" && numerics != "portable")
    return WrongCall(absl::StrCat("--numerics ", AsTyped(numerics), " is unknown; use auto or portable"));
  LIME_RETURN_IF_ERROR(OfUser(CheckThreads("--threads", threads)));
  if (context < 0) return WrongCall(absl::StrCat("--context ", context, " is negative"));
  if (chunk < 0 || chunk > 65536) return WrongCall(absl::StrCat("--chunk ", chunk, " is outside 0 to 65536"));
  LocalPlanRequest checked;
  return residency.Apply(checked);
}

absl::StatusOr<int64_t> ModelFlags::MostPositions(const ModelSpec& spec) const {
  const int64_t most = spec.config.max_positions;
  if (context > most) return WrongCall(absl::StrCat("--context ", context, " is outside 1 to the ", most, " positions of the model"));
  return context > 0 ? context : most;
}

}  // namespace lime::cli
