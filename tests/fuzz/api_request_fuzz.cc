// Hostile bodies of requests: a byte that chooses the endpoint, then the body. An error has a status
// and a sentence; a request becomes variables of a template, and its answer is UTF-8.
#include <cstdlib>

#include "coordinator/api/answers/answer_writer.h"
#include "coordinator/api/requests/parse_request.h"
#include "coordinator/text/unicode/utf8.h"
#include "planner/base/json_text.h"

namespace {

using lime::Endpoint;

constexpr Endpoint kEndpoints[] = {Endpoint::kChat,       Endpoint::kCompletions, Endpoint::kResponses,
                                   Endpoint::kTokenize,   Endpoint::kDetokenize,  Endpoint::kApplyTemplate,
                                   Endpoint::kOllamaShow, Endpoint::kOllamaChat,  Endpoint::kOllamaGenerate};

void Expect(bool holds) {
  if (!holds) std::abort();
}

bool IsPage(std::string_view path) {
  return path == "/";
}

bool Generates(Endpoint endpoint) {
  return endpoint == Endpoint::kChat || endpoint == Endpoint::kCompletions || endpoint == Endpoint::kResponses ||
         endpoint == Endpoint::kOllamaChat || endpoint == Endpoint::kOllamaGenerate;
}

void CheckError(const lime::ApiError& error) {
  Expect(error.status == 400 && !error.code.empty() && error.message.size() > 2 && error.message.back() == '.');
  Expect(lime::IsUtf8(lime::OpenAiErrorJson(error)) && lime::IsUtf8(lime::OllamaErrorJson(error)));
}

void CheckAnswer(Endpoint endpoint, const lime::ApiRequest& request, std::string_view text) {
  const auto writer = lime::MakeAnswerWriter(endpoint, request, {.id = "x_1", .created = 1, .model = request.model});
  std::string out;
  for (int64_t choice = 0; choice < request.choices(); ++choice) {
    writer->Add(choice, lime::ContentPiece{std::string(text)});
    writer->Write(out);
    writer->Add(choice, lime::ChoiceEnd{});
  }
  writer->Finish({});
  writer->Write(out);
  Expect(writer->done() && lime::IsUtf8(out));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Endpoint endpoint = kEndpoints[data[0] % std::size(kEndpoints)];
  (void)lime::FindRoute("GET", body, IsPage);
  const lime::ApiResult<lime::ApiRequest> request = lime::ParseRequest(endpoint, body, {.vocab_size = 1000});
  if (!request.ok()) {
    CheckError(request.error());
    return 0;
  }
  Expect(request->n >= 1 && request->n <= lime::kMaxChoices && request->choices() <= lime::kMaxAllChoices);
  if (request->chat() != nullptr) Expect(lime::IsUtf8(lime::JsonText(lime::TemplateVariables(*request->chat()))));
  if (Generates(endpoint)) CheckAnswer(endpoint, *request, body.substr(0, 100));
  return 0;
}
