#include "coordinator/text/jinja/builtins/globals.h"

#include <algorithm>
#include <ctime>

#include "coordinator/text/jinja/values/operations.h"
#include "coordinator/text/jinja/values/printing.h"
#include "coordinator/text/jinja/values/python_text.h"

namespace lime::jinja {
namespace {

Value RaiseException(Call& call) {
  return call.rendering.FailWith(TextOf(call.rendering, call.At(0)));
}

std::tm TimeOf(absl::CivilSecond now) {
  std::tm time{};
  time.tm_year = static_cast<int>(now.year() - 1900);
  time.tm_mon = now.month() - 1;
  time.tm_mday = now.day();
  time.tm_hour = now.hour();
  time.tm_min = now.minute();
  time.tm_sec = now.second();
  time.tm_wday = (static_cast<int>(absl::GetWeekday(now)) + 1) % 7;  // Abseil's week begins on Monday
  time.tm_yday = absl::GetYearDay(absl::CivilDay(now)) - 1;
  return time;
}

// The letter behind a "%" and its flags.
std::string Formatted(char letter, const std::string& directive, const std::tm& time) {
  if (letter == 'f') return "000000";
  if (letter == 'z' || letter == 'Z' || letter == 's') return "";  // the time has no zone
  char text[256];
  return {text, std::strftime(text, sizeof(text), directive.c_str(), &time)};
}

Value StrftimeNow(Call& call) {
  const std::string_view format = call.TextAt(0);
  const std::tm time = TimeOf(call.rendering.now());
  std::string out;
  for (size_t i = 0; i < format.size() && call.rendering.ChargeMemory(0); ++i) {
    size_t end = i + 1;
    if (format[i] == '%') end = std::min(format.find_first_not_of("-_0^#EO", end), format.size());
    const bool is_directive = format[i] == '%' && end < format.size() && static_cast<unsigned char>(format[end]) < 0x80;
    if (is_directive) {
      out.append(Formatted(format[end], std::string(format.substr(i, end + 1 - i)), time));
      i = end;
    } else {
      out.push_back(format[i]);
    }
  }
  return call.String(std::move(out));
}

Value Range(Call& call) {
  constexpr Int kMost = 100'000;  // as in Jinja's sandbox
  const bool has_start = call.bound[1].has_value();
  const Int start = has_start ? call.IntAt(0, 0) : 0, stop = call.IntAt(has_start ? 1 : 0, 0), step = call.IntAt(2, 1);
  for (const auto& argument : call.bound) {
    if (argument.has_value() && !argument->IsIntegral())
      return call.Fail("needs integers, not ", TypeName(*argument), "; convert it with \"|int\"");
  }
  if (step == 0) return call.Fail("has the step 0; use another");
  const Int limit = Int{1} << 100;  // so that differences fit
  if (start > limit || start < -limit || stop > limit || stop < -limit)
    return call.Fail("has a bound that is too large; use a smaller one");
  const Int distance = step > 0 ? stop - start : start - stop, stride = step > 0 ? step : -(step + 1) + 1;
  const Int count = distance <= 0 ? 0 : (distance - 1) / stride + 1;
  if (count > kMost) return call.Fail("has more than ", static_cast<int64_t>(kMost), " numbers; use fewer");
  std::vector<Value> items;
  for (Int i = 0; i < count; ++i) items.push_back(Value::Integer(start + i * step));
  return call.rendering.MakeList(std::move(items), List::Form::kRange);
}

// dict(other, name=value): `other` is a dict, or pairs.
Value MakeDict(Call& call) {
  const auto& [values, named] = call.arguments;
  if (values.size() > 1) return call.Fail("takes one argument without a name; give names to the others");
  const Value made = call.rendering.MakeDict();
  if (!values.empty() && values.front().Is(Kind::kDict)) {
    if (!call.rendering.ChargeMemory(values.front().dict->entries.size() * 2 * sizeof(Value))) return made;
    made.dict->entries = values.front().dict->entries;
  } else if (!values.empty()) {
    for (const Value& pair : Iterate(call.rendering, values.front())) {
      const auto items = Iterate(call.rendering, pair);
      if (items.size() != 2) return call.Fail("needs a dict, or pairs of key and value; give one of them");
      SetKey(call.rendering, *made.dict, items[0], items[1]);
      if (call.rendering.failed()) break;
    }
  }
  for (const auto& [name, value] : named) SetKey(call.rendering, *made.dict, call.String(std::string(name)), value);
  return made;
}

Value MakeNamespace(Call& call) {
  const Value values = MakeDict(call);
  return values.Is(Kind::kDict) ? Value::Of(call.rendering.Make<Namespace>(values)) : values;
}

constexpr Builtin kGlobals[] = {
    {"dict", MakeDict, "*"},
    {"namespace", MakeNamespace, "*"},
    {"raise_exception", RaiseException, "message"},
    {"range", Range, "start stop= step="},
    {"strftime_now", StrftimeNow, "format"},
};

}  // namespace

std::optional<Value> FindGlobal(Rendering& rendering, std::string_view name) {
  const Builtin* found = FindBuiltin(kGlobals, name);
  return found == nullptr ? std::nullopt : std::optional(Value::Of(rendering.Make<Function>(*found)));
}

void Namespace::Set(Rendering& rendering, const std::string& name, const Value& value) {
  SetKey(rendering, *values_.dict, Value::String(&name), value);
}

std::string Namespace::Text(Rendering& rendering) const {
  return "<Namespace " + ReprOf(rendering, values_) + ">";
}

std::optional<Value> Namespace::Attribute(Rendering& rendering, std::string_view name) {
  const std::string key(name);
  const Value* found = FindKey(rendering, *values_.dict, Value::String(&key));
  return found == nullptr ? std::nullopt : std::optional(*found);
}

Value Namespace::Call(Rendering& rendering, const Arguments&) {
  return rendering.Fail("a namespace is called, and it is no function; use its members");
}

}  // namespace lime::jinja
