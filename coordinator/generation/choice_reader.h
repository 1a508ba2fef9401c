// Tokens of one choice become events: thinking, content, calls, log-probabilities, ids, the end.
//
//   token ─► text ─► AnswerSplitter ─┬─► reasoning
//                                    └─► ToolCallParser ─┬─► calls
//                                                        └─► StopStrings ─► content
//
// With Generation::divides_late, content waits: </think> without <think> makes it reasoning.
//
// So a stop string is one of the content, never of the markup or the arguments of a call. A call
// divides the content: no stop string reaches across one.
// Special tokens give text only where they are markup: think tags, marks of harmony, markers of calls.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/api/answers/answer_events.h"
#include "coordinator/generation/generation.h"
#include "coordinator/generation/served_model.h"
#include "coordinator/generation/token_scores.h"
#include "coordinator/serving/serving_request.h"
#include "coordinator/text/detokenizer.h"
#include "coordinator/text/stop_strings.h"
#include "coordinator/text/tools/answer_splitter.h"
#include "coordinator/text/tools/thinking.h"
#include "coordinator/text/tools/tool_call_parser.h"

namespace lime {

// Owner: one answer.
class ChoiceReader {
 public:
  using OnEvent = std::function<void(ChoiceEvent)>;

  // Reads the request of `choice` at once; it may go to Serving afterwards.  `random`: 64 random bits,
  // for the ids of calls.
  // REQUIRES: `model` and `generation` outlive this object.
  ChoiceReader(const ServedModel& model, const Generation& generation, size_t choice, std::function<uint64_t()> random, OnEvent on_event);

  // False if the choice has ended. An end token behind a call ends it, also if the request goes on
  // after end tokens (ignore_eos).
  bool OnToken(const ServedToken& token);
  // The request has ended by itself. Does nothing if the choice has ended before.
  void OnEnd(FinishReason reason);

  bool has_ended() const { return ended_; }
  int64_t completion_tokens() const { return completion_tokens_; }
  int64_t reasoning_tokens() const { return has_reasoning_ ? thinking_tokens_ : 0; }
  // Of its tokens so far. The clock's epoch: it has none.
  ServingClock::time_point first_token() const { return first_token_; }
  ServingClock::time_point last_token() const { return last_token_; }

 private:
  // A score that goes out with the text of its token, which may still become part of a stop string.
  struct WaitingScore {
    size_t begin = 0;  // of the token's text, in bytes behind the reasoning
    TokenScore score;
  };

  void BeginPrompt(const std::vector<int32_t>& prompt, std::string echoed);
  void OnPromptToken(const ServedToken& token);
  void AddPromptScore(TokenScore score);
  void ReleasePromptScore(const cpu::RowScore* behind);
  void EndPrompt();
  bool GivesText(int32_t token) const;
  void AddScore(const ServedToken& token, bool gives_text);
  void ReleaseScores(bool all);
  void Read(std::string_view text);
  void Deliver(std::string_view reasoning, std::string_view content, bool is_last);
  void ReadContent(std::string_view content);
  void SendContent(std::string_view certain);
  void DivideLate(std::string_view certain);
  void ReleaseHeld();
  std::function<void(std::string_view)> CallTextReader();
  void OnCallText(std::string_view text);
  void SendCalls();
  void SendCall(const ToolEvent& event);
  void End(AnswerFinish finish);

  const ServedModel& model_;
  const Generation& generation_;
  const std::function<uint64_t()> random_;
  const OnEvent on_event_;
  const std::vector<int32_t> end_tokens_;
  const bool only_prompt_;  // it is scored, nothing is generated
  const bool adds_next_;    // its scores have TokenScore::next
  size_t prompt_left_ = 0;  // tokens of a scored prompt that have not come
  std::string echoed_;      // the text of a scored prompt, which waits for its tokens
  TokenScores scores_;
  std::optional<TokenScore> prompt_score_;  // with adds_next_: of the newest token, until the row behind it comes
  std::deque<WaitingScore> waiting_;

  StreamingDetokenizer text_;
  const std::unique_ptr<AnswerSplitter> splitter_;
  StopStrings stops_;
  std::unique_ptr<ToolCallParser> parser_;  // null: calls are content
  ToolEvents calls_;
  int complete_calls_ = 0;
  // With divides_late, until a call begins: content without </think>; and what divides it from then
  // on.
  bool holds_;
  std::string held_;
  std::unique_ptr<ThinkingSplitter> late_;
  // Behind the reasoning: bytes that came, and those of them that are no part of a stop string.
  size_t bytes_in_ = 0, bytes_out_ = 0;

  bool ended_ = false;
  uint64_t logits_hash_ = 0;
  int64_t completion_tokens_ = 0;
  int64_t thinking_tokens_ = 0;  // before the content
  bool has_reasoning_ = false;
  ServingClock::time_point first_token_, last_token_;
};

}  // namespace lime
