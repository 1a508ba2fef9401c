// Filters whose input becomes text.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "coordinator/text/jinja/builtins/filters.h"
#include "coordinator/text/jinja/builtins/methods.h"
#include "coordinator/text/jinja/values/format.h"
#include "coordinator/text/jinja/values/operations.h"
#include "coordinator/text/jinja/values/printing.h"
#include "coordinator/text/jinja/values/python_text.h"
#include "coordinator/text/unicode/unicode.h"

namespace lime::jinja {
namespace {

template <std::string (*change)(std::string_view)>
Value Changed(Call& call) {
  return call.String(change(call.Text()), call.self.is_markup);
}

// Whether the next character begins a word of the filter "title".
bool BeginsWord(char32_t code) {
  return IsPythonSpace(code) || (code < 0x80 && std::string_view("-({[<").find(static_cast<char>(code)) != std::string_view::npos);
}

// Unlike the method, words begin behind white space, "-" and opening brackets alone.
std::string TitleWords(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    std::string_view rest = text;
    char32_t code = NextChar(rest);
    out.append(Upper(text.substr(0, text.size() - rest.size())));
    const std::string_view behind = rest;
    while (!rest.empty() && !BeginsWord(code)) code = NextChar(rest);
    out.append(Lower(behind.substr(0, behind.size() - rest.size())));
    text = rest;
  }
  return out;
}

Value Trimmed(Call& call) {
  const auto chars = call.Has(0) ? std::optional(call.TextAt(0)) : std::nullopt;
  return call.String(std::string(Strip(call.Text(), chars, Side::kBoth)), call.self.is_markup);
}

Value Replaced(Call& call) {
  const std::string &old = ViewOf(call.rendering, call.At(0)), &by = ViewOf(call.rendering, call.At(1));
  const Int most = call.IntAt(2, -1);
  const auto times = static_cast<size_t>(std::min<int64_t>(Count(call.Text(), old), kMaxValueBytes));
  if (!call.rendering.ChargeMemory(times * by.size())) return Value::Undefined();
  return call.String(Replace(call.Text(), old, by, most < 0 ? -1 : static_cast<int64_t>(std::min<Int>(most, INT64_MAX))));
}

Value AsString(Call& call) {
  return call.self.IsString() ? call.self : call.String(TextOf(call.rendering, call.self));
}

Value AsMarkup(Call& call) {
  return Value::String(&ViewOf(call.rendering, call.self), /*is_markup=*/true);
}

Value Escape(Call& call) {
  return Escaped(call.rendering, call.self);
}

Value ForceEscape(Call& call) {
  return Escaped(call.rendering, Value::String(&ViewOf(call.rendering, call.self)));
}

Value RefuseOther(Call& call) {
  return call.Fail("needs a string, not ", TypeName(call.self), "; convert it with \"|string\"");
}

Value Indented(Call& call) {
  if (!call.self.IsString()) return RefuseOther(call);
  const bool is_text = call.At(0).IsString();
  const Int width = is_text ? 0 : std::clamp<Int>(call.IntAt(0, 4), 0, kMaxValueBytes);
  const std::string text = *call.self.text + "\n";
  const auto lines = SplitLines(text);
  const size_t unit = is_text ? call.At(0).text->size() : static_cast<size_t>(width);
  if (!call.rendering.ChargeMemory(unit * (lines.size() + 1))) return Value::Undefined();
  const std::string indent = is_text ? *call.At(0).text : std::string(unit, ' ');
  std::string out = call.IsTrueAt(1) ? indent : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n").append(call.IsTrueAt(2) || !lines[i].empty() ? indent : "");
    out.append(lines[i]);
  }
  return call.String(std::move(out), call.self.is_markup);
}

Value Truncated(Call& call) {
  const auto size = LengthOf(call.self);
  if (!size.has_value()) return RefuseOther(call);
  const std::string_view end = call.Has(2) ? call.TextAt(2) : "...";
  const Int length = call.IntAt(0, 255), leeway = call.IntAt(3, 5), of_end = Length(end);
  if (call.rendering.failed()) return Value::Undefined();
  if (length < of_end || leeway < 0) return call.Fail("needs a length of at least that of its end, and no negative leeway; correct them");
  if (*size <= length + leeway) return call.self;
  if (!call.self.IsString()) return RefuseOther(call);
  const std::string_view text = call.Text();
  std::string_view kept = text.substr(0, BytesBefore(text, static_cast<int64_t>(length - of_end)));
  if (!call.IsTrueAt(1)) kept = Split(kept, " ", 1, /*from_right=*/true).front();
  return call.String(std::string(kept).append(end), call.self.is_markup);
}

Value WordCount(Call& call) {
  int64_t words = 0;
  bool in_word = false;
  for (std::string_view rest = call.Text(); !rest.empty();) {
    const bool is_word = IsUnicodeWord(NextChar(rest));
    words += is_word && !in_word ? 1 : 0;
    in_word = is_word;
  }
  return Value::Integer(words);
}

Value Centered(Call& call) {
  const Arguments width{.values = {Value::Integer(call.IntAt(0, 80))}};
  return CallBuiltin(call.rendering, *FindBuiltin(StringMethods(), "center"), AsString(call), width);
}

Value Formatted(Call& call) {
  const auto& [values, named] = call.arguments;
  if (!values.empty() && !named.empty()) return call.Fail("takes arguments either all with names or all without; change them");
  std::vector<std::pair<Value, Value>> entries;
  entries.reserve(named.size());
  for (const auto& [name, value] : named) entries.emplace_back(call.String(std::string(name)), value);
  const Value given = named.empty() ? call.rendering.MakeList(values, List::Form::kTuple) : call.rendering.MakeDict(std::move(entries));
  return FormatPercent(call.rendering, AsString(call), given);
}

// Everything but letters, digits and "_.-~/" as %XX.
Value UrlEncoded(Call& call) {
  if (call.self.Is(Kind::kList) || call.self.Is(Kind::kDict)) return RefuseOther(call);
  std::string out;
  for (const char c : call.Text()) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_plain = absl::ascii_isalnum(byte) || std::string_view("_.-~/").find(c) != std::string_view::npos;
    is_plain ? out.push_back(c) : absl::StrAppend(&out, "%", absl::AsciiStrToUpper(absl::StrCat(absl::Hex(byte, absl::kZeroPad2))));
  }
  return call.String(std::move(out));
}

// The style that the arguments of tojson ask for.
JsonStyle StyleOf(Call& call) {
  JsonStyle style{.ascii_only = call.IsTrueAt(0), .sort_keys = call.IsTrueAt(3)};
  if (call.Has(1)) {
    if (call.At(1).IsString()) {
      style.indent = *call.At(1).text;
    } else {
      style.indent = std::string(static_cast<size_t>(std::clamp<Int>(call.IntAt(1, 0), 0, kMaxFormatWidth)), ' ');
    }
    style.between_items = ",";
  }
  if (call.Has(2)) {
    const std::vector<Value> separators = Iterate(call.rendering, call.At(2));
    const bool is_pair = separators.size() == 2 && separators[0].IsString() && separators[1].IsString();
    if (!is_pair) {
      call.Fail("needs two strings as separators; write them as (\", \", \": \")");
    } else {
      style.between_items = *separators[0].text;
      style.after_key = *separators[1].text;
    }
  }
  return style;
}

Value ToJson(Call& call) {
  const JsonStyle style = StyleOf(call);
  return call.String(JsonOf(call.rendering, call.self, style));
}

constexpr Builtin kTextFilters[] = {
    {"capitalize", Changed<Capitalize>, ""},
    {"center", Centered, "width="},
    {"e", Escape, ""},
    {"escape", Escape, ""},
    {"forceescape", ForceEscape, ""},
    {"format", Formatted, "*"},
    {"indent", Indented, "width= first= blank="},
    {"lower", Changed<Lower>, ""},
    {"replace", Replaced, "old new count="},
    {"safe", AsMarkup, ""},
    {"string", AsString, ""},
    {"title", Changed<TitleWords>, ""},
    {"tojson", ToJson, "ensure_ascii= indent= separators= sort_keys="},
    {"trim", Trimmed, "chars="},
    {"truncate", Truncated, "length= killwords= end= leeway="},
    {"upper", Changed<Upper>, ""},
    {"urlencode", UrlEncoded, ""},
    {"wordcount", WordCount, ""},
};

}  // namespace

std::span<const Builtin> TextFilters() {
  return kTextFilters;
}

}  // namespace lime::jinja
