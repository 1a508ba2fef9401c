// The values of a template: those of Python that chat templates use.
//
// A Value is small and copied freely. What it points to belongs to a Rendering, to the syntax of
// the template, or to the JSON that the template is given; all three outlive it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lime::jinja {

// Python's integers, up to 127 bits.
using Int = __int128;

class Rendering;
class Object;
struct List;
struct Dict;

enum class Kind : uint8_t {
  kUndefined,  // nothing: `text` is the name that has no value, or null
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,  // UTF-8
  kList,    // every ordered collection, see List::Form
  kDict,
  kObject,  // everything else: functions, methods, macros, namespaces, `loop`
};

struct Value {
  Kind kind = Kind::kUndefined;
  bool is_markup = false;  // of a string: after |safe, Python's Markup
  union {
    const std::string* text = nullptr;
    bool boolean;
    Int integer;
    double real;
    List* list;
    Dict* dict;
    Object* object;
  };

  // `name` may be null.
  static Value Undefined(const std::string* name = nullptr) { return Value{.kind = Kind::kUndefined, .text = name}; }
  static Value None() { return Value{.kind = Kind::kNone}; }
  static Value Bool(bool value) { return Value{.kind = Kind::kBool, .boolean = value}; }
  static Value Integer(Int value) { return Value{.kind = Kind::kInt, .integer = value}; }
  static Value Real(double value) { return Value{.kind = Kind::kFloat, .real = value}; }
  static Value String(const std::string* text, bool is_markup = false) {
    return Value{.kind = Kind::kString, .is_markup = is_markup, .text = text};
  }
  static Value Of(List* list) { return Value{.kind = Kind::kList, .list = list}; }
  static Value Of(Dict* dict) { return Value{.kind = Kind::kDict, .dict = dict}; }
  static Value Of(Object* object) { return Value{.kind = Kind::kObject, .object = object}; }

  bool Is(Kind other) const { return kind == other; }
  bool IsUndefined() const { return kind == Kind::kUndefined; }
  bool IsNone() const { return kind == Kind::kNone; }
  bool IsString() const { return kind == Kind::kString; }
  // Booleans count as 0 and 1.
  bool IsIntegral() const { return kind == Kind::kInt || kind == Kind::kBool; }
  bool IsNumber() const { return IsIntegral() || kind == Kind::kFloat; }
  // REQUIRES: IsIntegral().
  Int AsInt() const { return kind == Kind::kBool ? Int{boolean} : integer; }
  // REQUIRES: IsNumber().
  double AsDouble() const { return kind == Kind::kFloat ? real : static_cast<double>(AsInt()); }
};

struct List {
  enum class Form : uint8_t {
    kList,
    kTuple,
    kRange,
    kIterator,  // of filters such as map: can be read once, has no length and no items
    kKeys,      // views of a dict: have a length, but no items
    kValues,
    kItems,
  };
  Form form = Form::kList;
  std::vector<Value> items;  // an iterator that was read has none

  bool HasLength() const { return form != Form::kIterator; }
  bool HasItems() const { return form == Form::kList || form == Form::kTuple || form == Form::kRange; }
};

// In the order in which keys were added.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
};

// Arguments of a call.
struct Arguments {
  std::vector<Value> values;
  std::vector<std::pair<std::string_view, Value>> named;
};

class Object {
 public:
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;

  // As str() prints it.
  virtual std::string Text(Rendering& rendering) const = 0;
  // Nothing if there is no such attribute.
  virtual std::optional<Value> Attribute(Rendering&, std::string_view) { return std::nullopt; }
  virtual bool IsCallable() const { return true; }
  virtual Value Call(Rendering& rendering, const Arguments& arguments) = 0;
};

// What an error calls a value by its type: "none", "a list", "a string".
const char* TypeName(const Value& value);

// What an error calls an undefined value: its name in quotes, or "a value".
std::string NameOf(const Value& undefined);

// Whether the value is a collection of this form.
inline bool IsForm(const Value& value, List::Form form) {
  return value.kind == Kind::kList && value.list->form == form;
}

}  // namespace lime::jinja
