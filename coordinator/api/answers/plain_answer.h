// An answer in one piece of JSON: blanks before it are signs of life.
#pragma once

#include "coordinator/api/answers/writer_base.h"

namespace lime {

class PlainAnswer : public WriterBase {
 public:
  std::string_view KeepAlive() const final { return " "; }
  std::string_view content_type() const final { return "application/json"; }

 protected:
  using WriterBase::WriterBase;

  virtual Json Answer(const AnswerReport& report) = 0;

 private:
  void WriteWaiting(std::string&) final {}
  void WriteEnd(const AnswerReport& report, std::string& out) final;
  void WriteError(const ApiError& error, std::string& out) final;
};

// Server-sent events.
class SseAnswer : public WriterBase {
 public:
  std::string_view KeepAlive() const final;
  std::string_view content_type() const final { return "text/event-stream"; }

 protected:
  using WriterBase::WriterBase;
};

}  // namespace lime
