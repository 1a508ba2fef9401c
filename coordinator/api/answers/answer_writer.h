// Events of an answer become the bytes of its body, in the form of the endpoint.
//
//   request -> MakeAnswerWriter -> Add, Add, ... Finish or Fail -> Write: bytes, whenever the client
//   takes more
//
// Thread: one. Pure: the time in answers is given. Pieces that wait for Write are merged, so a slow
// client gets few large events. Each event is UTF-8 by itself and never splits a character.
//
// Bounds: memory grows with the text of the answer, which max_tokens bounds. Streams forget what is
// written, except for responses, whose last event repeats all.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "coordinator/api/answers/answer_events.h"
#include "coordinator/api/api_error.h"
#include "coordinator/api/api_request.h"
#include "coordinator/api/endpoint.h"

namespace lime {

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // Does nothing after Fail.  REQUIRES: `choice` has not ended; Finish was not called.
  virtual void Add(int64_t choice, ChoiceEvent event) = 0;
  // The answer is complete. Does nothing after Fail.  REQUIRES: all choices have ended
  virtual void Finish(const AnswerReport& report) = 0;
  // The answer fails after its status went out. Does nothing after the end.
  virtual void Fail(const ApiError& error) = 0;

  // Appends what can be sent now. Without `stream`, that is nothing before the end.
  virtual void Write(std::string& out) = 0;
  // A sign of life that changes nothing: a comment in a stream, a blank before an answer or a line.
  virtual std::string_view KeepAlive() const = 0;
  // Everything has been written.
  virtual bool done() const = 0;
  virtual std::string_view content_type() const = 0;
};

// REQUIRES: the endpoint generates: kChat, kCompletions, kResponses, kOllamaChat, kOllamaGenerate.
std::unique_ptr<AnswerWriter> MakeAnswerWriter(Endpoint endpoint, const ApiRequest& request, AnswerHead head);

}  // namespace lime
