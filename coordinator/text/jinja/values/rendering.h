// One rendering of a template: owns its values, counts its work, and remembers its first error.
//
// Thread: one.
//
// An error does not unwind. Fail() notes it and returns an undefined value, and everything that
// computes returns soon, because Charge() is false from then on. So functions of values return
// values, and only Template::Render returns a Status.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/civil_time.h"
#include "coordinator/text/jinja/values/value.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime::jinja {

// Bounds of one rendering. The largest template and conversation of real models stay far below.
inline constexpr int64_t kMaxSteps = 10'000'000;
inline constexpr Bytes kMaxValueBytes = 256 * kMiB;  // of all values made, also those no longer used
inline constexpr Bytes kMaxOneValueBytes = 32 * kMiB;
inline constexpr Bytes kMaxOutputBytes = 4 * kMiB;
// Levels of statements, expressions, macro calls and values inside each other.
inline constexpr int kMaxNesting = 500;

class Rendering {
 public:
  explicit Rendering(absl::CivilSecond now) : now_(now) {}
  Rendering(const Rendering&) = delete;
  Rendering& operator=(const Rendering&) = delete;

  absl::CivilSecond now() const { return now_; }

  // The line that is carried out; errors name it.
  void set_line(int line) { line_ = line; }
  int line() const { return line_; }

  // Notes an error unless there is one, and returns an undefined value. The words together say what
  // is wrong and what to do; the line comes before them.
  template <typename... What>
  Value Fail(const What&... what) {
    return FailWith(absl::StrCat("line ", line_, " of the chat template: ", what...));
  }
  // The same with the whole sentence.
  Value FailWith(const std::string& sentence);
  bool failed() const { return !status_.ok(); }
  const absl::Status& status() const { return status_; }

  // Counts work: a step, and one more for each 32 bytes that are read. False after an error, also
  // that of too many steps.
  bool Charge(size_t bytes = 0);

  // Values that live as long as this object. The makers count their memory; after an error they may
  // return anything, but never a null pointer.
  Value MakeString(std::string text, bool is_markup = false);
  Value MakeList(std::vector<Value> items, List::Form form = List::Form::kList);
  Value MakeDict(std::vector<std::pair<Value, Value>> entries = {});
  template <typename T, typename... Args>
  T* Make(Args&&... args) {
    ChargeMemory(sizeof(T));
    auto made = std::make_unique<T>(std::forward<Args>(args)...);
    T* object = made.get();
    objects_.push_back(std::move(made));
    return object;
  }

  // Whether this many more bytes may be made. Asked before something large is made.
  bool ChargeMemory(size_t bytes);

  // One level deeper for as long as it lives. Not ok(): too deep, which is an error.
  class Level {
   public:
    explicit Level(Rendering& rendering);
    ~Level() { --rendering_.levels_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    bool ok() const { return !rendering_.failed(); }

   private:
    Rendering& rendering_;
  };

 private:
  const absl::CivilSecond now_;
  int line_ = 0;
  int levels_ = 0;
  int64_t steps_ = 0;
  Bytes value_bytes_ = 0;
  absl::Status status_;
  std::deque<std::string> strings_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::vector<std::unique_ptr<Object>> objects_;
};

}  // namespace lime::jinja
