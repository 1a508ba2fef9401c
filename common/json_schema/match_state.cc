#include "common/json_schema/match_state.h"

#include <algorithm>
#include <utility>

namespace lime::json_schema {
namespace {

using Mode = Thread::Mode;

// False if the byte is no blank, or one too many.
bool AdvanceBlanks(uint8_t& blanks, uint8_t byte) {
  if (blanks == Thread::kNoBlank && byte == ' ')
    blanks = Thread::kSpace;
  else if (blanks == Thread::kNoBlank && byte == '\n')
    blanks = Thread::kLineFeed;
  else if (blanks >= Thread::kLineFeed && blanks < Thread::kMostBlanks && byte == ' ')
    ++blanks;
  else
    return false;
  return true;
}

// Near the bound of the depth, only what is required is offered.
bool OnlyRequired(const Object& object, int depth) {
  return depth + object.deepest > kMaxDepth;
}

bool MayHaveItem(const Grammar& grammar, const Array& array, int32_t count, int depth) {
  if (count >= array.max) return false;
  return count < array.min || depth + grammar.values[At(array.ItemAt(count))].shortest.depth <= kMaxDepth;
}

}  // namespace

int FrameLists::Add(std::span<const Frame> frames, int32_t least) {
  const auto begin = static_cast<uint32_t>(frames_.size());
  frames_.insert(frames_.end(), frames.begin(), frames.end());
  lists_.push_back({begin, static_cast<uint32_t>(frames_.size()), least});
  return static_cast<int>(lists_.size()) - 1;
}

std::span<const Frame> FrameLists::Frames(int list) const {
  if (list == kNone) return {};
  const List& found = lists_[At(list)];
  return std::span(frames_).subspan(found.begin, found.end - found.begin);
}

void FrameLists::ShrinkTo(const Size& size) {
  lists_.resize(size.lists);
  frames_.resize(size.frames);
}

// A list is older than those inside it, so one way backwards finds all that are used.
void FrameLists::Compact(std::span<Thread> threads) {
  std::vector<int> numbers(lists_.size(), kNone);
  const auto use = [&numbers](int list) {
    if (list != kNone) numbers[At(list)] = 0;
  };
  for (const Thread& thread : threads) use(thread.frame.parents);
  for (size_t i = lists_.size(); i-- > 0;) {
    if (numbers[i] == kNone) continue;
    for (const Frame& frame : Frames(static_cast<int>(i))) use(frame.parents);
  }
  FrameLists kept;
  const auto renumber = [&numbers](Frame frame) {
    if (frame.parents != kNone) frame.parents = numbers[At(frame.parents)];
    return frame;
  };
  std::vector<Frame> frames;
  for (size_t i = 0; i < lists_.size(); ++i) {
    if (numbers[i] == kNone) continue;
    frames.clear();
    std::ranges::transform(Frames(static_cast<int>(i)), std::back_inserter(frames), renumber);
    numbers[i] = kept.Add(frames, lists_[i].least);
  }
  for (Thread& thread : threads) thread.frame = renumber(thread.frame);
  *this = std::move(kept);
}

int32_t RestOf(const Grammar& grammar, const FrameLists& lists, const Frame& frame) {
  const int32_t outside = lists.Least(frame.parents);
  switch (frame.kind) {
    case Frame::Kind::kAnswer:
      return grammar.steps[At(frame.position)].least;
    case Frame::Kind::kObject:
      return AddLeast(grammar.objects[At(frame.id)].rest[At(frame.position)], outside);
    case Frame::Kind::kArray:
      return AddLeast(grammar.arrays[At(frame.id)].Rest(frame.position), outside);
  }
  return kEndless;
}

int32_t LeastOf(const Grammar& grammar, const FrameLists& lists, const Thread& thread) {
  const Frame& frame = thread.frame;
  const auto with_rest = [&](int32_t least) { return AddLeast(least, RestOf(grammar, lists, frame)); };
  const auto with_outside = [&](int32_t least) { return AddLeast(least, lists.Least(frame.parents)); };
  switch (thread.mode) {
    case Mode::kText:
      return grammar.steps[At(thread.state)].least - thread.count;
    case Mode::kValue:
      return with_rest(grammar.values[At(thread.state)].shortest.bytes);
    case Mode::kScalar:
      return with_rest(grammar.scalars[At(thread.id)].Least(static_cast<uint16_t>(thread.state), thread.count));
    case Mode::kItemOrEnd:
      return with_outside(std::max(1, grammar.arrays[At(frame.id)].Rest(0) - 1));
    case Mode::kNameOrEnd:
      return with_outside(std::max(1, grammar.objects[At(frame.id)].rest[0] - 1));
    case Mode::kName: {
      const Object& object = grammar.objects[At(frame.id)];
      return with_outside(object.LeastFromComma(frame.position, OnlyRequired(object, thread.depth)));
    }
    case Mode::kKey: {
      const Object& object = grammar.objects[At(frame.id)];
      return with_outside(object.LeastFromKey(thread.state, frame.position, OnlyRequired(object, thread.depth), grammar.values));
    }
    case Mode::kOthersKey: {
      const int32_t value = grammar.values[At(grammar.objects[At(frame.id)].others)].shortest.bytes;
      const int32_t key = grammar.scalars[At(thread.id)].Least(static_cast<uint16_t>(thread.state), thread.count);
      return with_rest(AddLeast(key, value + 1));
    }
    case Mode::kColon:
      return with_rest(grammar.values[At(thread.state)].shortest.bytes + 1);
    case Mode::kAfter:
      return with_rest(0);
    case Mode::kEnd:
      return 0;
  }
  return kEndless;
}

int32_t LeastOf(const Grammar& grammar, const FrameLists& lists, std::span<const Thread> threads) {
  int32_t least = kEndless;
  for (const Thread& thread : threads) least = std::min(least, LeastOf(grammar, lists, thread));
  return least;
}

void Stepper::Start(const Grammar& grammar, const FrameLists& lists, std::vector<Thread>& out) {
  grammar_ = &grammar;
  lists_ = &lists;
  out_ = &out;
  first_ = out.size();
  Enter(grammar.start);
}

void Stepper::Step(const Grammar& grammar, std::span<const Thread> threads, uint8_t byte, FrameLists& lists, std::vector<Thread>& out) {
  grammar_ = &grammar;
  lists_ = growing_ = &lists;
  out_ = &out;
  first_ = out.size();
  openings_.clear();
  for (const Thread& thread : threads) StepThread(thread, byte);
  if (!openings_.empty()) AddOpenings();
  if (out.size() - first_ > kMaxThreads) DropSurplus();
}

void Stepper::AfterScalar(const Grammar& grammar, const Thread& thread, const FrameLists& lists, std::vector<Thread>& out) {
  grammar_ = &grammar;
  lists_ = &lists;
  out_ = &out;
  first_ = out.size();
  if (thread.mode == Mode::kScalar)
    Continue(thread.frame, thread.depth);
  else
    Add({.frame = thread.frame,
         .mode = Mode::kColon,
         .blanks = Thread::kNoBlank,
         .depth = thread.depth,
         .state = grammar.objects[At(thread.frame.id)].others});
}

void Stepper::Add(const Thread& thread) {
  const auto begin = out_->begin() + static_cast<std::ptrdiff_t>(first_);
  if (std::find(begin, out_->end(), thread) == out_->end()) out_->push_back(thread);
}

void Stepper::DropSurplus() {
  const auto begin = out_->begin() + static_cast<std::ptrdiff_t>(first_);
  std::stable_sort(begin, out_->end(),
                   [this](const Thread& a, const Thread& b) { return LeastOf(*grammar_, *lists_, a) < LeastOf(*grammar_, *lists_, b); });
  out_->resize(first_ + kMaxThreads);
}

void Stepper::StepThread(const Thread& thread, uint8_t byte) {
  Thread next = thread;
  if (thread.blanks != Thread::kOutside && AdvanceBlanks(next.blanks, byte)) return Add(next);
  switch (thread.mode) {
    case Mode::kText:
      return StepText(thread, byte);
    case Mode::kValue:
      return BeginValue(thread, thread.state, byte);
    case Mode::kScalar:
      return StepScalar(thread, byte);
    case Mode::kItemOrEnd: {
      const Array& array = grammar_->arrays[At(thread.frame.id)];
      if (byte == ']') return array.min == 0 ? Close(thread) : void();
      if (!MayHaveItem(*grammar_, array, 0, thread.depth)) return;
      next.frame.position = array.Clamp(1);
      return BeginValue(next, array.ItemAt(0), byte);
    }
    case Mode::kNameOrEnd: {
      if (byte == '"') return BeginName(thread);
      if (byte == '}' && grammar_->objects[At(thread.frame.id)].NeedsNoMore(0)) Close(thread);
      return;
    }
    case Mode::kName:
      if (byte == '"') BeginName(thread);
      return;
    case Mode::kKey:
      return StepKey(thread, byte);
    case Mode::kOthersKey:
      return StepOthersKey(thread, byte);
    case Mode::kColon:
      return StepColon(thread, byte);
    case Mode::kAfter:
      return StepAfter(thread, byte);
    case Mode::kEnd:
      return;
  }
}

void Stepper::StepText(Thread thread, uint8_t byte) {
  const AnswerStep& step = grammar_->steps[At(thread.state)];
  if (static_cast<uint8_t>(step.text[At(thread.count)]) != byte) return;
  if (++thread.count == static_cast<int32_t>(step.text.size())) return Enter(step.next[0]);
  Add(thread);
}

void Stepper::StepScalar(Thread thread, uint8_t byte) {
  const Scalar& scalar = grammar_->scalars[At(thread.id)];
  auto state = static_cast<uint16_t>(thread.state);
  const uint16_t before = state;
  if (scalar.Advance(state, thread.count, byte)) {
    if (scalar.dfa->IsEnd(state)) return Continue(thread.frame, thread.depth);
    thread.state = state;
    return Add(thread);
  }
  if (!scalar.dfa->Accepts(before)) return;
  // A number ends with the byte behind it.
  std::vector<Thread>* const out = std::exchange(out_, &ended_);
  const size_t first = std::exchange(first_, 0);
  ended_.clear();
  Continue(thread.frame, thread.depth);
  out_ = out;
  first_ = first;
  for (const Thread& after : ended_) StepThread(after, byte);
}

void Stepper::StepOthersKey(Thread thread, uint8_t byte) {
  const Scalar& scalar = grammar_->scalars[At(thread.id)];
  auto state = static_cast<uint16_t>(thread.state);
  if (!scalar.Advance(state, thread.count, byte)) return;
  thread.state = state;
  if (!scalar.dfa->IsEnd(state)) return Add(thread);
  Add({.frame = thread.frame,
       .mode = Mode::kColon,
       .blanks = Thread::kNoBlank,
       .depth = thread.depth,
       .state = grammar_->objects[At(thread.frame.id)].others});
}

void Stepper::StepKey(Thread thread, uint8_t byte) {
  const Object& object = grammar_->objects[At(thread.frame.id)];
  const auto children = object.Children(thread.state);
  const auto child = std::ranges::find(children, byte, &std::pair<uint8_t, int>::first);
  if (child == children.end()) return;
  thread.state = child->second;
  if (object.LeastFromKey(thread.state, thread.frame.position, OnlyRequired(object, thread.depth), grammar_->values) == kEndless) return;
  const int member = object.keys[At(thread.state)].member;
  if (member == kNone) return Add(thread);
  thread.frame.position = member + 1;
  Add({.frame = thread.frame,
       .mode = Mode::kColon,
       .blanks = Thread::kNoBlank,
       .depth = thread.depth,
       .state = object.members[At(member)].value});
}

void Stepper::StepColon(Thread thread, uint8_t byte) {
  if (byte != ':') return;
  thread.mode = Mode::kValue;
  thread.blanks = Thread::kNoBlank;
  Add(thread);
}

void Stepper::StepAfter(Thread thread, uint8_t byte) {
  thread.blanks = Thread::kNoBlank;
  if (thread.frame.kind == Frame::Kind::kObject) {
    const Object& object = grammar_->objects[At(thread.frame.id)];
    const bool only_required = OnlyRequired(object, thread.depth);
    if (byte == '}' && object.NeedsNoMore(thread.frame.position)) Close(thread);
    if (byte != ',' || object.LeastFromComma(thread.frame.position, only_required) == kEndless) return;
    thread.mode = Mode::kName;
    return Add(thread);
  }
  const Array& array = grammar_->arrays[At(thread.frame.id)];
  const int32_t count = thread.frame.position;
  if (byte == ']' && count >= array.min) Close(thread);
  if (byte != ',' || !MayHaveItem(*grammar_, array, count, thread.depth)) return;
  thread.mode = Mode::kValue;
  thread.state = array.ItemAt(count);
  thread.frame.position = array.Clamp(count + 1);
  Add(thread);
}

void Stepper::BeginValue(const Thread& thread, int value, uint8_t byte) {
  const Value& begins = grammar_->values[At(value)];
  for (const int id : begins.scalars) {
    const Scalar& scalar = grammar_->scalars[At(id)];
    uint16_t state = scalar.dfa->start();
    int32_t count = 0;
    if (scalar.Least(state, 0) == kEndless || !scalar.Advance(state, count, byte)) continue;
    if (scalar.dfa->IsEnd(state))
      Continue(thread.frame, thread.depth);
    else
      Add({.frame = thread.frame, .mode = Mode::kScalar, .depth = thread.depth, .id = id, .state = state, .count = count});
  }
  if (byte != '{' && byte != '[') return;
  const Frame::Kind kind = byte == '{' ? Frame::Kind::kObject : Frame::Kind::kArray;
  for (const int id : byte == '{' ? begins.objects : begins.arrays) {
    const Shortest& shortest = byte == '{' ? grammar_->objects[At(id)].shortest : grammar_->arrays[At(id)].shortest;
    if (shortest.bytes == kEndless || thread.depth + shortest.depth > kMaxDepth) continue;
    openings_.push_back({kind, id, static_cast<uint8_t>(thread.depth + 1), thread.frame});
  }
}

void Stepper::BeginName(Thread thread) {
  const Object& object = grammar_->objects[At(thread.frame.id)];
  const bool only_required = OnlyRequired(object, thread.depth);
  thread.blanks = Thread::kOutside;
  if (object.LeastFromKey(0, thread.frame.position, only_required, grammar_->values) < kEndless) {
    thread.mode = Mode::kKey;
    thread.state = 0;
    Add(thread);
  }
  if (object.others == kNone || only_required || !object.NeedsNoMore(thread.frame.position)) return;
  const Scalar& key = grammar_->scalars[At(object.others_key)];
  uint16_t state = key.dfa->start();
  thread.count = 0;
  if (!key.Advance(state, thread.count, '"')) return;
  thread.mode = Mode::kOthersKey;
  thread.id = object.others_key;
  thread.state = state;
  thread.frame.position = object.Count();
  Add(thread);
}

void Stepper::Close(const Thread& thread) {
  for (const Frame& frame : lists_->Frames(thread.frame.parents)) Continue(frame, static_cast<uint8_t>(thread.depth - 1));
}

void Stepper::Continue(const Frame& frame, uint8_t depth) {
  if (frame.kind == Frame::Kind::kAnswer) return Enter(frame.position);
  Add({.frame = frame, .mode = Mode::kAfter, .blanks = Thread::kNoBlank, .depth = depth});
}

void Stepper::Enter(int step) {
  entered_.clear();
  EnterStep(step);
}

void Stepper::EnterStep(int step) {
  const AnswerStep& entered = grammar_->steps[At(step)];
  const Frame frame = {.position = entered.next.empty() ? 0 : entered.next[0]};
  switch (entered.kind) {
    case AnswerStep::Kind::kText:
      return Add({.frame = frame, .mode = Mode::kText, .state = step});
    case AnswerStep::Kind::kValue:
      return Add({.frame = frame, .mode = Mode::kValue, .state = entered.id});
    case AnswerStep::Kind::kScalar:
      return Add({.frame = frame, .mode = Mode::kScalar, .id = entered.id, .state = grammar_->scalars[At(entered.id)].dfa->start()});
    case AnswerStep::Kind::kEnd:
      return Add({.mode = Mode::kEnd});
    case AnswerStep::Kind::kSplit:
      break;
  }
  if (std::ranges::find(entered_, step) != entered_.end()) return;
  entered_.push_back(step);
  for (const int next : entered.next) {
    if (grammar_->steps[At(next)].least < kEndless) EnterStep(next);
  }
}

// Openers of one kind of container share its frame, so that readings that differ outside only are
// one inside.
void Stepper::AddOpenings() {
  for (size_t i = 0; i < openings_.size(); ++i) {
    const Opening& opening = openings_[i];
    const auto is_like = [&opening](const Opening& other) { return opening.IsLike(other); };
    if (std::find_if(openings_.begin(), openings_.begin() + static_cast<std::ptrdiff_t>(i), is_like) !=
        openings_.begin() + static_cast<std::ptrdiff_t>(i))
      continue;
    openers_.clear();
    int32_t least = kEndless;
    for (const Opening& other : openings_) {
      if (!opening.IsLike(other)) continue;
      if (std::ranges::find(openers_, other.opener) != openers_.end()) continue;
      openers_.push_back(other.opener);
      least = std::min(least, RestOf(*grammar_, *lists_, other.opener));
    }
    const Frame frame = {.kind = opening.kind, .id = opening.id, .parents = growing_->Add(openers_, least)};
    Add({.frame = frame,
         .mode = opening.kind == Frame::Kind::kObject ? Mode::kNameOrEnd : Mode::kItemOrEnd,
         .blanks = Thread::kNoBlank,
         .depth = opening.depth});
  }
}

}  // namespace lime::json_schema
