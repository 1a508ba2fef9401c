// The syntaxes whose calls are JSON objects: hermes, llama3, mistral.
#include "coordinator/text/tools/call_reader.h"
#include "coordinator/text/tools/json_call_reader.h"

namespace lime {
namespace {

using Step = CallReader::Step;

// One object, and `suffix` behind it, which may be missing.
class ObjectReader final : public CallReader {
 public:
  // `name_first`: as JsonCallReader has it.
  ObjectReader(CallWriter& calls, std::string_view suffix, bool name_first) : calls_(calls), object_(calls, name_first), suffix_(suffix) {}

  void Start() override {
    in_suffix_ = false;
    matched_ = 0;
    object_.Start();
  }

  Step Read(char c) override {
    if (in_suffix_) return ReadSuffix(c);
    // A model may forget the last brace.
    if (object_.HasAllArguments() && !suffix_.empty() && c == suffix_[0] && !object_.IsWithinWord()) {
      calls_.End(/*complete=*/true);
      in_suffix_ = true;
      return ReadSuffix(c);
    }
    const Step step = object_.Read(c);
    if (step != Step::kOver || suffix_.empty()) return step;
    in_suffix_ = true;
    return Step::kDecided;
  }

  bool HasAllArguments() const override { return object_.HasAllArguments(); }
  bool IsClosing() const override { return in_suffix_; }

 private:
  Step ReadSuffix(char c) {
    if (matched_ == 0 && IsBlank(c)) return Step::kUndecided;
    if (c != suffix_[matched_]) return Step::kRefused;
    return ++matched_ == suffix_.size() ? Step::kOver : Step::kUndecided;
  }

  CallWriter& calls_;
  JsonCallReader object_;
  const std::string_view suffix_;
  bool in_suffix_ = false;
  size_t matched_ = 0;  // bytes of the suffix
};

// A list of objects, or a name and its arguments: N[ARGS]{...}, N[CALL_ID]id[ARGS]{...}.
class MistralReader final : public CallReader {
 public:
  explicit MistralReader(CallWriter& calls) : calls_(calls), object_(calls) {}

  void Start() override {
    state_ = State::kStart;
    name_.clear();
    marker_.clear();
  }

  Step Read(char c) override {
    switch (state_) {
      case State::kObject:
        return ReadObject(c);
      case State::kName:
        return c == '[' ? BeginMarker() : ReadName(c);
      case State::kMarker:
        return ReadMarker(c);
      case State::kId:
        return c == '[' ? BeginMarker() : ReadId(c);
      case State::kArguments:
        return ReadArguments(c);
      default:
        break;
    }
    if (IsBlank(c)) return Step::kUndecided;
    if (state_ == State::kStart) return ReadStart(c);
    if (state_ == State::kAfterMarker) return BeginArguments(c);
    if (c == ']') return Step::kOver;
    return c == ',' ? BeginObject() : Step::kRefused;
  }

  bool HasAllArguments() const override { return state_ == State::kObject && object_.HasAllArguments(); }
  bool IsClosing() const override { return state_ == State::kAfterObject; }

 private:
  enum class State {
    kStart,        // behind [TOOL_CALLS]
    kObject,       // of a list, or blanks in front of it
    kAfterObject,  // a comma or the end of the list follows
    kName,
    kMarker,       // [ARGS] or [CALL_ID]
    kId,           // behind [CALL_ID]
    kAfterMarker,  // behind [ARGS]
    kArguments,
  };
  static constexpr std::string_view kArgs = "[ARGS]", kCallId = "[CALL_ID]";
  static constexpr size_t kMaxId = 64;

  Step ReadStart(char c) {
    if (c == '[') return BeginObject();
    state_ = State::kName;
    return ReadName(c);
  }

  Step BeginObject() {
    state_ = State::kObject;
    object_.Start();
    return Step::kUndecided;
  }

  Step ReadObject(char c) {
    const Step step = object_.Read(c);
    if (step != Step::kOver) return step;
    state_ = State::kAfterObject;
    return Step::kDecided;
  }

  Step ReadName(char c) {
    if (!IsNameCharacter(c) || name_.size() >= kMaxFunctionName) return Step::kRefused;
    name_ += c;
    return Step::kUndecided;
  }

  Step BeginMarker() {
    if (name_.empty()) return Step::kRefused;
    has_id_ = state_ == State::kId;
    state_ = State::kMarker;
    marker_ = "[";
    return Step::kUndecided;
  }

  Step ReadMarker(char c) {
    marker_ += c;
    const bool may_be_id = !has_id_ && kCallId.starts_with(marker_);
    if (!kArgs.starts_with(marker_) && !may_be_id) return Step::kRefused;
    if (marker_ == kArgs) state_ = State::kAfterMarker;
    if (marker_ == kCallId) state_ = State::kId;
    id_bytes_ = 0;
    return Step::kUndecided;
  }

  Step ReadId(char c) { return IsNameCharacter(c) && ++id_bytes_ <= kMaxId ? Step::kUndecided : Step::kRefused; }

  Step BeginArguments(char c) {
    if (c != '{') return Step::kRefused;
    state_ = State::kArguments;
    scanner_.Reset();
    calls_.Begin(name_);
    return ReadArguments(c);
  }

  Step ReadArguments(char c) {
    const JsonScanner::Step step = scanner_.Read(c);
    if (step == JsonScanner::Step::kRefused) return Step::kRefused;
    calls_.Arguments(std::string_view(&c, 1));
    if (step == JsonScanner::Step::kMore) return Step::kDecided;
    calls_.End(/*complete=*/true);
    return Step::kOver;
  }

  CallWriter& calls_;
  JsonCallReader object_;
  JsonScanner scanner_;
  State state_ = State::kStart;
  std::string name_, marker_;
  bool has_id_ = false;
  size_t id_bytes_ = 0;
};

}  // namespace

CallSyntax HermesCalls(CallWriter& calls) {
  return {{{"<tool_call>"}}, false, std::make_unique<ObjectReader>(calls, "</tool_call>", /*name_first=*/false)};
}

CallSyntax Llama3Calls(CallWriter& calls) {
  return {{{"<|python_tag|>"}, {"{", /*is_read=*/true}}, /*at_start=*/true, std::make_unique<ObjectReader>(calls, "", /*name_first=*/true)};
}

CallSyntax MistralCalls(CallWriter& calls) {
  return {{{"[TOOL_CALLS]"}}, false, std::make_unique<MistralReader>(calls)};
}

}  // namespace lime
