// A request of a client becomes requests to Serving: prompts, sampling, masks.
//
//   ApiRequest ─► PrepareGeneration ─► Generation.requests ─► Serving::SubmitTogether
//                                 └──► AnswerReader (answer_reader.h) ─► AnswerWriter
//
// Pure. Rendering and encoding a long prompt takes up to a second: call it on the thread that
// tokenizes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/civil_time.h"
#include "coordinator/api/answers/answer_events.h"
#include "coordinator/api/api_error.h"
#include "coordinator/api/api_request.h"
#include "coordinator/api/endpoint.h"
#include "coordinator/generation/served_model.h"
#include "coordinator/serving/serving_request.h"
#include "coordinator/text/tools/thinking.h"
#include "coordinator/text/tools/tool_request.h"

namespace lime {

// Calls in the answer.
struct CallReading {
  bool reads = false;  // false: text that looks like a call is content
  ToolFormat format;
  ToolFunctions functions;
  bool parallel = true;  // false: the answer ends after one call
  // The schemas of the functions are too long for a mask, so the arguments of calls may be any.
  bool unmasked = false;
};

struct Generation {
  // One for each choice, in their order: prompts first, then `n`. Submit them together. They name no
  // stop strings: the reader finds them, and Serving needs no tokenizer.
  std::vector<ServingRequest> requests;
  int64_t prompts = 0;  // requests / prompts: `n`
  uint64_t seed = 0;
  std::string_view format_param;  // the field of the request that the format of its tokens is of

  // For the reader, the same for all choices.
  ThinkingSplitter::Start thinking = ThinkingSplitter::Start::kOff;
  bool divides_harmony = true;  // false: its reasoning is content
  // No stream: content is sent at the end of the answer, or before its first call. So if </think>
  // comes without <think>, the content in front of it can still become reasoning.
  bool divides_late = false;
  bool shows_think_tags = false;  // also where they are special tokens; and the marks of harmony
  CallReading calls;
  std::vector<std::string> stop;
  bool return_token_ids = false;
  bool has_scores = false;          // log-probabilities
  bool has_hash_state = false;      // behind a scored prompt, in the report
  bool scores_ends = false;         // of end tokens, too
  std::vector<std::string> echoed;  // the texts of the prompts, if they stand before the answers

  std::vector<int64_t> first_offsets;  // see AnswerHead

  int64_t prompt_tokens() const;  // each prompt once
};

// What a request depends on beside itself.
struct GenerationInput {
  absl::CivilSecond now;             // for the template
  std::function<uint64_t()> random;  // 64 random bits, for the seed
};

// Errors: what is wrong with the prompt or does not fit the context. `endpoint` names the field.
// REQUIRES: ParseRequest made `request` with model.parse_options(); it does not only_loads
ApiResult<Generation> PrepareGeneration(const ServedModel& model, Endpoint endpoint, const ApiRequest& request,
                                        const GenerationInput& input);

// For MakeAnswerWriter. `created`: seconds of Unix time.
AnswerHead HeadOf(const ServedModel& model, Endpoint endpoint, const ApiRequest& request, const Generation& generation, int64_t created,
                  const std::function<uint64_t()>& random);

}  // namespace lime
