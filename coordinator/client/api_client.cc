#include "coordinator/client/api_client.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/client/sse_reader.h"
#include "planner/base/json_text.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr Bytes kMaxAnswerBytes = 256 * kMiB;  // a scored text has many numbers
constexpr std::string_view kDone = "[DONE]";

absl::StatusCode CodeOf(const ApiError& error) {
  if (error.code == "context_length_exceeded") return absl::StatusCode::kResourceExhausted;
  if (error.status == 401 || error.status == 403) return absl::StatusCode::kPermissionDenied;
  if (error.status == 404) return absl::StatusCode::kNotFound;
  if (error.status == 408 || error.status == 429 || error.status >= 500) return absl::StatusCode::kUnavailable;
  return absl::StatusCode::kInvalidArgument;
}

// What to do beside what the server says.
const char* AdviceFor(const ApiError& error) {
  if (error.status == 401) return "; give its key by LIME_API_KEY or --api-key";
  if (error.status >= 300 && error.status < 400) return "; give --url the address to which it points";
  return "";
}

// Chunks of a stream, whatever pieces its bytes come in.
class ChunkStreamReader {
 public:
  // `url` is for errors.
  ChunkStreamReader(std::string url, const ApiClient::OnChunk& on_chunk) : url_(std::move(url)), on_chunk_(on_chunk) {}

  absl::Status Read(std::string_view piece) {
    std::vector<SseReader::Event> events;
    if (const absl::Status read = sse_.Read(piece, events); !read.ok()) return Broken(read.message());
    for (const SseReader::Event& event : events) {
      if (done_) break;
      if (event.data == kDone) {
        done_ = true;
        break;
      }
      LIME_RETURN_IF_ERROR(Take(event.data));
    }
    return absl::OkStatus();
  }
  absl::Status End() const { return done_ ? absl::OkStatus() : Broken("it ended without its last event"); }

 private:
  absl::Status Take(const std::string& data) {
    absl::StatusOr<AnswerChunk> chunk = ReadAnswerChunk(data);
    if (!chunk.ok()) return Broken(chunk.status().message());
    if (chunk->error) return absl::UnavailableError(absl::StrCat(url_, " could not complete the answer: ", chunk->error->message));
    return on_chunk_(*chunk);
  }
  absl::Status Broken(absl::string_view what) const {
    return absl::UnavailableError(absl::StrCat("the stream of ", url_, " broke off: ", what));
  }

  const std::string url_;
  const ApiClient::OnChunk& on_chunk_;
  SseReader sse_;
  bool done_ = false;
};

}  // namespace

absl::Status ApiClient::ErrorOf(const ApiError& error) const {
  std::string said = error.message;
  while (said.ends_with('.') || said.ends_with(' ')) said.pop_back();
  const std::string status = error.code.empty() && error.type.empty() ? absl::StrCat(" with status ", error.status) : "";
  return absl::Status(CodeOf(error), absl::StrCat(Url(), " refused the request", status, ": ", said, AdviceFor(error)));
}

absl::StatusOr<nlohmann::json> ApiClient::ObjectOf(const absl::StatusOr<HttpReply>& reply) const {
  LIME_RETURN_IF_ERROR(reply.status());
  if (reply->status != 200) return ErrorOf(ReadApiError(reply->status, reply->body));
  return ParseJsonObject(reply->body, absl::StrCat("the answer of ", Url()), kMaxAnswerBytes);
}

absl::StatusOr<nlohmann::json> ApiClient::Post(std::string_view path, const nlohmann::json& body, const std::atomic<bool>* cancel) const {
  return ObjectOf(http_->Call({.method = "POST", .path = std::string(path), .body = JsonText(body)}, {}, cancel));
}

absl::StatusOr<std::vector<RemoteModel>> ApiClient::Models(const std::atomic<bool>* cancel) const {
  LIME_ASSIGN_OR_RETURN(const nlohmann::json answer, ObjectOf(http_->Call({.method = "GET", .path = "/v1/models"}, {}, cancel)));
  const auto data = answer.find("data");
  if (data == answer.end() || !data->is_array()) return Invalid(Url(), " lists no models; see whether it is a server of OpenAI's API");
  std::vector<RemoteModel> models;
  for (const nlohmann::json& entry : *data) {
    const auto id = entry.is_object() ? entry.find("id") : entry.end();
    if (id == entry.end() || !id->is_string()) continue;
    const auto context = entry.find("max_model_len");
    const bool has_context = context != entry.end() && context->is_number_integer() && context->get<int64_t>() > 0;
    models.push_back({.id = id->get<std::string>(), .context = has_context ? context->get<int64_t>() : 0});
  }
  if (models.empty()) return Invalid(Url(), " serves no model");
  return models;
}

absl::StatusOr<RemoteModel> ApiClient::Model(std::string_view wanted, const std::atomic<bool>* cancel) const {
  LIME_ASSIGN_OR_RETURN(const std::vector<RemoteModel> models, Models(cancel));
  if (wanted.empty()) return models.front();
  const auto found = std::ranges::find(models, wanted, &RemoteModel::id);
  if (found != models.end()) return *found;
  const std::string names = absl::StrJoin(models, ", ", [](std::string* out, const RemoteModel& model) { absl::StrAppend(out, model.id); });
  return absl::NotFoundError(
      absl::StrCat(Url(), " does not serve --model ", Text(wanted), "; it serves ", names, "; leave out --model for the first one"));
}

absl::Status ApiClient::Generate(std::string_view path, std::string body, const OnChunk& on_chunk, const std::atomic<bool>* cancel) const {
  ChunkStreamReader stream(Url(), on_chunk);
  const auto on_piece = [&](std::string_view piece) { return stream.Read(piece); };
  LIME_ASSIGN_OR_RETURN(const HttpReply reply,
                        http_->Call({.method = "POST", .path = std::string(path), .body = std::move(body)}, on_piece, cancel));
  if (reply.status != 200) return ErrorOf(ReadApiError(reply.status, reply.body));
  if (reply.is_stream()) return stream.End();
  const absl::StatusOr<AnswerChunk> chunk = ReadAnswerChunk(reply.body, kMaxAnswerBytes);
  if (!chunk.ok()) return Invalid(Url(), ": ", std::string(chunk.status().message()));
  if (chunk->error) return ErrorOf(*chunk->error);
  return on_chunk(*chunk);
}

}  // namespace lime
