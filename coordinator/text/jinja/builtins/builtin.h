// Functions that the language has: filters, tests, methods and global functions.
//
// A table names each with its parameters as Python writes them: "old new count=" has two that must
// be given and one that may be. "*" takes any arguments, which the function reads itself.
#pragma once

#include <span>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "coordinator/text/jinja/values/rendering.h"
#include "planner/base/strings.h"

namespace lime::jinja {

struct Call;

struct Builtin {
  std::string_view name;
  Value (*function)(Call& call);
  std::string_view parameters;
};

// One call. Arguments have the numbers of their parameters.
struct Call {
  Rendering& rendering;
  const Builtin& builtin;
  Value self;  // the input of a filter or test, or the object of a method
  const Arguments& arguments;
  std::vector<std::optional<Value>> bound;

  // Given, and not none.
  bool Has(size_t i) const { return i < bound.size() && bound[i].has_value() && !bound[i]->IsNone(); }
  // None where it is not given.
  Value At(size_t i) const { return i < bound.size() && bound[i].has_value() ? *bound[i] : Value::None(); }
  bool IsTrueAt(size_t i) const;
  // An error and `fallback` for another type.
  Int IntAt(size_t i, Int fallback) const;
  // The text of a string; for another type an error and "".
  std::string_view TextAt(size_t i) const;
  // str() of the input.
  std::string_view Text() const;

  Value String(std::string text, bool is_markup = false) const { return rendering.MakeString(std::move(text), is_markup); }
  template <typename... What>
  Value Fail(const What&... what) const {
    return rendering.Fail("\"", lime::Text(builtin.name), "\" ", what...);
  }
};

// Null if there is none.
const Builtin* FindBuiltin(std::span<const Builtin> table, std::string_view name);

// An error for arguments that do not match the parameters.
Value CallBuiltin(Rendering& rendering, const Builtin& builtin, const Value& self, const Arguments& arguments);

// A builtin as a value, bound to its object.
class Function : public Object {
 public:
  explicit Function(const Builtin& builtin, const Value& self = Value::None()) : builtin_(builtin), self_(self) {}
  std::string Text(Rendering&) const override { return absl::StrCat("<function ", lime::Text(builtin_.name), ">"); }
  Value Call(Rendering& rendering, const Arguments& arguments) override { return CallBuiltin(rendering, builtin_, self_, arguments); }

 private:
  const Builtin& builtin_;
  const Value self_;
};

}  // namespace lime::jinja
