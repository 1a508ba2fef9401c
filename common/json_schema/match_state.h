// All readings of the bytes so far. Where a schema has alternatives that begin alike, there are
// several. Each is a thread: a place in the grammar, and the containers around it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/json_schema/grammar.h"

namespace lime::json_schema {

// A container that is open. `parents`: a list of frames around it (FrameLists), or kNone.
struct Frame {
  enum class Kind : uint8_t {
    kAnswer,  // `position`: the step after the value or text
    kObject,  // `position`: the members that are behind
    kArray,   // `position`: the items that have begun
  };
  Kind kind = Kind::kAnswer;
  int32_t id = kNone;  // of the object or array
  int32_t position = 0;
  int32_t parents = kNone;
  bool operator==(const Frame&) const = default;
};

struct Thread {
  enum class Mode : uint8_t {
    kText,       // `state`: the step; `count`: bytes of it so far
    kValue,      // a value begins; `state`: which
    kScalar,     // `id`: the scalar, `state` of its automaton, `count` of characters
    kItemOrEnd,  // after "["
    kNameOrEnd,  // after "{"
    kName,       // after the comma in an object
    kKey,        // in the key of a member; `state`: the node
    kOthersKey,  // in another key; as kScalar
    kColon,      // after a key; `state`: the value that follows
    kAfter,      // after a member or item
    kEnd,        // of the answer
  };
  // Blanks between two tokens of JSON: none, a space, or a line feed and spaces.
  static constexpr uint8_t kNoBlank = 0, kSpace = 1, kLineFeed = 2, kMostBlanks = kLineFeed + 20;
  static constexpr uint8_t kOutside = 255;  // not between two tokens

  Frame frame;
  Mode mode = Mode::kEnd;
  uint8_t blanks = kOutside;
  uint8_t depth = 0;  // brackets that are open
  int32_t id = kNone;
  int32_t state = 0;
  int32_t count = 0;
  bool operator==(const Thread&) const = default;
};

// The frames around threads. Lists only grow at the end and shrink from there, so that a walk over
// tokens can go back.
class FrameLists {
 public:
  struct Size {
    size_t lists = 0, frames = 0;
  };

  int Add(std::span<const Frame> frames, int32_t least);
  std::span<const Frame> Frames(int list) const;
  // Fewest bytes from the end of a value in one of the frames to the end of the answer.
  int32_t Least(int list) const { return list == kNone ? 0 : lists_[static_cast<size_t>(list)].least; }

  Size size() const { return {lists_.size(), frames_.size()}; }
  void ShrinkTo(const Size& size);
  // Drops lists that no thread uses. Changes the threads' lists.
  void Compact(std::span<Thread> threads);

 private:
  struct List {
    uint32_t begin = 0, end = 0;
    int32_t least = 0;
  };
  std::vector<List> lists_;
  std::vector<Frame> frames_;
};

// Moves threads by one byte. Owner: one thread. Allocates nothing once its buffers have grown.
class Stepper {
 public:
  static constexpr size_t kMaxThreads = 512;  // beyond these, the ones furthest from an end are dropped

  // The threads at the beginning of an answer.
  void Start(const Grammar& grammar, const FrameLists& lists, std::vector<Thread>& out);
  // Appends the threads that `byte` leads to. New frames go to `lists`.
  void Step(const Grammar& grammar, std::span<const Thread> threads, uint8_t byte, FrameLists& lists, std::vector<Thread>& out);
  // Appends the threads after the scalar of `thread`, which ends here.
  void AfterScalar(const Grammar& grammar, const Thread& thread, const FrameLists& lists, std::vector<Thread>& out);

 private:
  struct Opening {
    Frame::Kind kind;
    int32_t id;
    uint8_t depth;
    Frame opener;
    bool IsLike(const Opening& other) const { return kind == other.kind && id == other.id && depth == other.depth; }
  };

  void StepThread(const Thread& thread, uint8_t byte);
  void StepText(Thread thread, uint8_t byte);
  void StepScalar(Thread thread, uint8_t byte);
  void StepOthersKey(Thread thread, uint8_t byte);
  void StepKey(Thread thread, uint8_t byte);
  void StepColon(Thread thread, uint8_t byte);
  void StepAfter(Thread thread, uint8_t byte);
  void BeginValue(const Thread& thread, int value, uint8_t byte);
  void BeginName(Thread thread);
  void Close(const Thread& thread);
  // Adds the thread after a value in `frame`.
  void Continue(const Frame& frame, uint8_t depth);
  void Enter(int step);
  void EnterStep(int step);
  void AddOpenings();
  void Add(const Thread& thread);
  void DropSurplus();

  // Of the call under way.
  const Grammar* grammar_ = nullptr;
  const FrameLists* lists_ = nullptr;
  FrameLists* growing_ = nullptr;
  std::vector<Thread>* out_ = nullptr;
  size_t first_ = 0;  // of the threads that this call adds

  std::vector<Opening> openings_;
  std::vector<Frame> openers_;
  std::vector<int> entered_;
  std::vector<Thread> ended_;
};

// Fewest bytes to the end of the answer.
int32_t LeastOf(const Grammar& grammar, const FrameLists& lists, const Thread& thread);
int32_t LeastOf(const Grammar& grammar, const FrameLists& lists, std::span<const Thread> threads);
// From the end of a value in `frame`.
int32_t RestOf(const Grammar& grammar, const FrameLists& lists, const Frame& frame);

}  // namespace lime::json_schema
