// Any tokens as the answer to a request: the first byte chooses the request and the syntaxes, each
// other byte is a token. Every event has to fit its writer, and the body is UTF-8.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "coordinator/generation/answer_reader.h"
#include "coordinator/generation/generation.h"
#include "coordinator/generation/served_model.h"
#include "coordinator/text/unicode/utf8.h"

namespace lime {
namespace {

constexpr int32_t kEndId = 0;

// Bytes that are no special token decode to themselves.
std::shared_ptr<const Tokenizer> MakeTokenizer() {
  TokenizerJson vocab;
  for (int byte = 0; byte < 256; ++byte)
    vocab["<0x" + std::string(1, "0123456789ABCDEF"[byte / 16]) + "0123456789ABCDEF"[byte % 16] + ">"] = byte;
  TokenizerJson added = TokenizerJson::array();
  int32_t id = 256;
  for (const char* text : {"<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>"}) {
    added.push_back({{"id", id++}, {"content", text}, {"special", true}});
  }
  const TokenizerJson json = {{"added_tokens", added},
                              {"decoder", {{"type", "Sequence"}, {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}}},
                              {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", TokenizerJson::array()}, {"byte_fallback", true}}}};
  return Tokenizer::FromJson(json.dump(), "fuzz").value();
}

std::unique_ptr<ServedModel> MakeModel(ToolSyntax syntax) {
  auto model = ServedModel::Create({.listed = {.id = "m"},
                                    .tokenizer = MakeTokenizer(),
                                    .end_tokens = {kEndId},
                                    .vocab_size = 300,
                                    .chat_template = {.source = "{{ messages[0].content }}", .with_tools = "", .tokens = {}},
                                    .syntax = syntax})
                   .value();
  model->SetPlan(int64_t{1} << 20, {});
  return model;
}

std::string BodyOf(uint8_t choice) {
  std::string body = R"({"messages":[{"role":"user","content":")";
  body += (choice & 4) != 0 ? "<think>" : "hi";
  body += R"("}],"return_token_ids":true)";
  if ((choice & 8) != 0) {
    body += R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}])";
  }
  if ((choice & 16) != 0) body += R"(,"parallel_tool_calls":false)";
  if ((choice & 32) != 0) body += R"(,"stop":["aba","}"])";
  if ((choice & 64) != 0) body += R"(,"logprobs":true,"top_logprobs":1)";
  if ((choice & 128) != 0) body += R"(,"stream":true)";
  return body + "}";
}

void TryModel(const ServedModel& model, const uint8_t* data, size_t size) {
  const auto random = [] { return uint64_t{1} << 11; };
  const ApiRequest request = *ParseRequest(Endpoint::kChat, BodyOf(data[0]), model.parse_options());
  const Generation generation = *PrepareGeneration(model, Endpoint::kChat, request, {.now = {}, .random = random});
  const auto writer = MakeAnswerWriter(Endpoint::kChat, request, HeadOf(model, Endpoint::kChat, request, generation, 0, random));
  AnswerReader reader(model, generation, random, *writer);
  std::string out;
  bool goes_on = true, has_ended = false;
  for (size_t i = 1; i < size && goes_on && !has_ended; ++i) {
    const int32_t token = data[i] >= 0xF8 ? 256 + (data[i] - 0xF8) % 6 : data[i];  // no byte of UTF-8 is above
    const cpu::RowScore score = {.logprob = -1, .log_sum = 0, .top = {{token, -1.0F}}};
    goes_on = reader.OnToken(0, {.token = token, .text = {}, .score = &score});
    has_ended = token == kEndId;
    if (i % 3 == 0) writer->Write(out);
  }
  if (goes_on == reader.has_ended(0)) std::abort();
  reader.OnEnd(0, {.reason = has_ended ? FinishReason::kEndToken : FinishReason::kLength, .text = {}});
  if (!reader.has_ended(0) || !reader.is_over()) std::abort();
  writer->Finish(reader.Report());
  writer->Write(out);
  if (!writer->done() || !IsUtf8(out)) std::abort();
}

// Two models for each value of the first bits.
void Try(const uint8_t* data, size_t size) {
  static const std::unique_ptr<ServedModel> models[] = {
      MakeModel(ToolSyntax::kHermes),  MakeModel(ToolSyntax::kQwen3Coder), MakeModel(ToolSyntax::kLlama3), MakeModel(ToolSyntax::kMistral),
      MakeModel(ToolSyntax::kHarmony), MakeModel(ToolSyntax::kGlm),        MakeModel(ToolSyntax::kMiniMax)};
  if (size == 0) return;
  const size_t first = data[0] % 4;
  TryModel(*models[first], data, size);
  if (first < 3) TryModel(*models[first + 4], data, size);
}

}  // namespace
}  // namespace lime

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lime::Try(data, size);
  return 0;
}
