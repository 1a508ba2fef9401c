#include "coordinator/generation/choice_reader.h"

#include <algorithm>
#include <utility>

#include "coordinator/text/tools/harmony_header.h"

namespace lime {
namespace {

std::unique_ptr<ToolCallParser> ParserOf(const CallReading& calls, std::function<void(std::string_view)> on_call_text) {
  if (!calls.reads) return nullptr;
  return ToolCallParser::Create(
      {.syntax = calls.format.syntax, .functions = &calls.functions, .parallel = calls.parallel, .on_call_text = std::move(on_call_text)});
}

bool IsIn(const std::vector<int32_t>& tokens, int32_t token) {
  return std::ranges::find(tokens, token) != tokens.end();
}

std::unique_ptr<AnswerSplitter> SplitterOf(const Generation& generation) {
  const CallReading& calls = generation.calls;
  return MakeAnswerSplitter({.start = generation.thinking,
                             .divides = generation.divides_harmony,
                             .keeps_calls = calls.reads && calls.format.syntax == ToolSyntax::kHarmony});
}

}  // namespace

ChoiceReader::ChoiceReader(const ServedModel& model, const Generation& generation, size_t choice, std::function<uint64_t()> random,
                           OnEvent on_event)
    : model_(model),
      generation_(generation),
      random_(std::move(random)),
      on_event_(std::move(on_event)),
      end_tokens_(generation.requests[choice].end_tokens),
      only_prompt_(generation.requests[choice].max_new_tokens == 0),
      adds_next_(only_prompt_ && generation.has_scores && generation.return_token_ids),
      scores_(model.tokenizer()),
      text_(model.tokenizer(), {.skip_special = false}),
      splitter_(SplitterOf(generation)),
      stops_(generation.stop),
      parser_(ParserOf(generation.calls, CallTextReader())),
      holds_(generation.divides_late) {
  const ServingRequest& request = generation.requests[choice];
  const size_t n = generation.requests.size() / static_cast<size_t>(generation.prompts);
  if (request.sampling.score_top) prompt_left_ = request.prompt.size() - 1;
  BeginPrompt(request.prompt, generation.echoed.empty() ? "" : generation.echoed[choice / n]);
}

// The text of the answer goes on behind the prompt's.
void ChoiceReader::BeginPrompt(const std::vector<int32_t>& prompt, std::string echoed) {
  for (const int32_t token : prompt) {
    if (!model_.tokenizer().IsSpecial(token)) text_.Push(token);
  }
  if (!generation_.has_scores || (prompt_left_ == 0 && !only_prompt_)) {
    for (const int32_t token : prompt) scores_.Skip(token);
  } else if (!prompt.empty()) {
    AddPromptScore(scores_.Next(prompt[0], nullptr, GivesText(prompt[0])));
  }
  echoed_ = std::move(echoed);
  if (prompt_left_ == 0 && !adds_next_) EndPrompt();
}

void ChoiceReader::OnPromptToken(const ServedToken& token) {
  if (prompt_left_ == 0) return;  // a recovery has computed it again
  logits_hash_ = token.logits_hash;
  ReleasePromptScore(token.score);
  if (generation_.has_scores) AddPromptScore(scores_.Next(token.token, token.score, GivesText(token.token)));
  if (--prompt_left_ == 0 && !adds_next_) EndPrompt();
}

void ChoiceReader::AddPromptScore(TokenScore score) {
  if (!adds_next_) return on_event_(std::move(score));
  prompt_score_ = std::move(score);
}

// `behind`: of the row behind the token, whose likeliest ids are those of the next token's place.
void ChoiceReader::ReleasePromptScore(const cpu::RowScore* behind) {
  if (!prompt_score_) return;
  if (behind != nullptr) prompt_score_->next.assign(behind->top.begin(), behind->top.end());
  on_event_(*std::exchange(prompt_score_, std::nullopt));
}

// Log-probabilities go out with the text that follows them.
void ChoiceReader::EndPrompt() {
  ReleasePromptScore(nullptr);
  if (!echoed_.empty()) on_event_(ContentPiece{std::exchange(echoed_, {})});
}

bool ChoiceReader::OnToken(const ServedToken& token) {
  if (ended_) return false;
  if (token.known) {
    OnPromptToken(token);
    return true;
  }
  logits_hash_ = token.logits_hash;
  if (only_prompt_) {
    ReleasePromptScore(token.score);
    return true;
  }
  if (completion_tokens_++ == 0) first_token_ = token.at;
  last_token_ = token.at;
  if (generation_.return_token_ids) on_event_(TokenId{token.token});
  if (!splitter_->is_over()) ++thinking_tokens_;
  const bool ends_request = IsIn(end_tokens_, token.token);
  const bool ends_calls = !ends_request && complete_calls_ > 0 && IsIn(model_.end_tokens(), token.token);
  const bool is_end = ends_request || ends_calls;
  const bool gives_text = !is_end && GivesText(token.token);
  if (generation_.has_scores && (!is_end || generation_.scores_ends)) AddScore(token, gives_text);
  if (gives_text) Read(text_.Push(token.token));
  if (ends_calls) OnEnd(FinishReason::kEndToken);
  return !ended_;
}

void ChoiceReader::OnEnd(FinishReason reason) {
  if (ended_) return;
  if (only_prompt_) {
    if (adds_next_) EndPrompt();
    return End(AnswerFinish::kLength);
  }
  std::string reasoning, content;
  splitter_->Push(text_.Finish(), reasoning, content);
  splitter_->Finish(reasoning, content);
  Deliver(reasoning, content, /*is_last=*/true);
  if (!ended_) End(reason == FinishReason::kLength ? AnswerFinish::kLength : AnswerFinish::kStop);
}

bool ChoiceReader::GivesText(int32_t token) const {
  if (!model_.tokenizer().IsSpecial(token)) return true;
  const std::string_view text = model_.tokenizer().IdToText(token);
  if (generation_.shows_think_tags && IsThinkTag(text)) return true;
  if (IsHarmony(generation_.thinking) && IsHarmonyMark(text)) return true;
  return parser_ != nullptr && IsCallMarkup(generation_.calls.format.syntax, text);
}

void ChoiceReader::AddScore(const ServedToken& token, bool gives_text) {
  TokenScore score = scores_.Next(token.token, token.score, gives_text);
  const bool may_stop = !generation_.stop.empty() && (splitter_->is_over() || !waiting_.empty());
  if (may_stop) {
    waiting_.push_back({bytes_in_, std::move(score)});
  } else {
    on_event_(std::move(score));
  }
}

// Of tokens whose text has begun to go out, or of all.
void ChoiceReader::ReleaseScores(bool all) {
  for (; !waiting_.empty() && (all || waiting_.front().begin < bytes_out_); waiting_.pop_front()) {
    on_event_(std::move(waiting_.front().score));
  }
}

void ChoiceReader::Read(std::string_view text) {
  std::string reasoning, content;
  splitter_->Push(text, reasoning, content);
  Deliver(reasoning, content, /*is_last=*/false);
}

void ChoiceReader::Deliver(std::string_view reasoning, std::string_view content, bool is_last) {
  if (!reasoning.empty()) {
    has_reasoning_ = true;
    on_event_(ReasoningPiece{std::string(reasoning)});
  }
  bytes_in_ += content.size();
  if (parser_ == nullptr) {
    ReadContent(content);
  } else {
    parser_->Push(content, calls_);
    if (is_last) parser_->Finish(calls_);
    SendCalls();
  }
  if (is_last) SendContent(stops_.Finish());
  if (stops_.stopped()) return End(AnswerFinish::kStop);
  if (is_last) ReleaseScores(/*all=*/true);
  if (parser_ != nullptr && parser_->done()) End(AnswerFinish::kToolCalls);
}

// Only scores that wait need to know where the text of calls stands.
std::function<void(std::string_view)> ChoiceReader::CallTextReader() {
  if (!generation_.has_scores || generation_.stop.empty()) return nullptr;
  return [this](std::string_view text) { OnCallText(text); };
}

void ChoiceReader::ReadContent(std::string_view content) {
  SendContent(stops_.Push(content));
}

// No part of a stop string.
void ChoiceReader::SendContent(std::string_view certain) {
  bytes_out_ += certain.size();
  ReleaseScores(/*all=*/false);
  if (certain.empty()) return;
  if (splitter_->has_opened()) holds_ = false;
  if (holds_ || late_ != nullptr) return DivideLate(certain);
  on_event_(ContentPiece{std::string(certain)});
}

void ChoiceReader::DivideLate(std::string_view certain) {
  if (holds_) {
    // The tag may have begun in an earlier piece.
    const size_t from = held_.size() - std::min(held_.size(), kThinkEndTag.size() - 1);
    held_ += certain;
    if (held_.find(kThinkEndTag, from) == std::string::npos) return;
    holds_ = false;
    has_reasoning_ = true;
    thinking_tokens_ = completion_tokens_;
    late_ = std::make_unique<ThinkingSplitter>(ThinkingStart::kInside);
    return DivideLate(std::exchange(held_, {}));
  }
  std::string reasoning, content;
  late_->Push(certain, reasoning, content);
  if (!reasoning.empty()) on_event_(ReasoningPiece{std::move(reasoning)});
  if (!content.empty()) on_event_(ContentPiece{std::move(content)});
}

void ChoiceReader::ReleaseHeld() {
  holds_ = false;
  if (!held_.empty()) on_event_(ContentPiece{std::exchange(held_, {})});
}

// The parser has found text of a call. All its events so far are of text before, or of this call.
void ChoiceReader::OnCallText(std::string_view text) {
  SendCalls();
  if (stops_.stopped()) return;
  bytes_out_ += text.size();
  ReleaseScores(/*all=*/false);
}

void ChoiceReader::SendCalls() {
  for (const ToolEvent& event : calls_.events()) {
    if (stops_.stopped()) break;  // the answer ends before what follows
    if (event.kind == ToolEvent::Kind::kContent) {
      ReadContent(event.text);
    } else {
      SendCall(event);
    }
  }
  calls_.Clear();
}

void ChoiceReader::SendCall(const ToolEvent& event) {
  switch (event.kind) {
    case ToolEvent::Kind::kContent:
      break;
    case ToolEvent::Kind::kBegin:
      SendContent(stops_.Finish());
      ReleaseHeld();
      on_event_(CallBegin{NewCallId(generation_.calls.format.syntax, random_), event.text});
      break;
    case ToolEvent::Kind::kArguments:
      on_event_(CallArguments{event.text});
      break;
    case ToolEvent::Kind::kEnd:
      if (event.complete) ++complete_calls_;
      on_event_(CallEnd{});
      break;
  }
}

void ChoiceReader::End(AnswerFinish finish) {
  ended_ = true;
  ReleaseHeld();
  if (finish == AnswerFinish::kStop && complete_calls_ > 0) finish = AnswerFinish::kToolCalls;
  on_event_(ChoiceEnd{.finish = finish, .logits_hash = logits_hash_});
}

}  // namespace lime
