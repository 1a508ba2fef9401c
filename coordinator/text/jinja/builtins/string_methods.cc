// Python's methods of str.
#include <algorithm>

#include "coordinator/text/jinja/builtins/methods.h"
#include "coordinator/text/jinja/values/format.h"
#include "coordinator/text/jinja/values/operations.h"
#include "coordinator/text/jinja/values/printing.h"
#include "coordinator/text/jinja/values/python_text.h"

namespace lime::jinja {
namespace {

// A string of the same kind as the method's object.
Value Same(const Call& call, std::string_view text) {
  return call.String(std::string(text), call.self.is_markup);
}

template <std::string (*change)(std::string_view)>
Value Changed(Call& call) {
  return Same(call, change(call.Text()));
}

template <bool (*is_so)(std::string_view)>
Value Asked(Call& call) {
  return Value::Bool(is_so(call.Text()));
}

bool IsAscii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

template <Side side>
Value Stripped(Call& call) {
  const auto chars = call.Has(0) ? std::optional(call.TextAt(0)) : std::nullopt;
  return Same(call, Strip(call.Text(), chars, side));
}

Value ListOf(const Call& call, const std::vector<std::string_view>& parts, List::Form form = List::Form::kList) {
  std::vector<Value> items;
  for (const std::string_view part : parts) {
    if (call.rendering.failed()) break;
    items.push_back(Same(call, part));
  }
  return call.rendering.MakeList(std::move(items), form);
}

template <bool from_right>
Value SplitText(Call& call) {
  const auto separator = call.Has(0) ? std::optional(call.TextAt(0)) : std::nullopt;
  const Int most = call.IntAt(1, -1);
  if (call.rendering.failed()) return Value::Undefined();
  if (separator.has_value() && separator->empty()) return call.Fail("has an empty separator; give another");
  // Each part takes a string and a place in a list; this many may not exist.
  if (!call.rendering.ChargeMemory(call.self.text->size())) return Value::Undefined();
  return ListOf(call, Split(call.Text(), separator, most < 0 ? -1 : static_cast<int64_t>(std::min<Int>(most, INT64_MAX)), from_right));
}

Value Lines(Call& call) {
  return ListOf(call, SplitLines(call.Text(), call.IsTrueAt(0)));
}

template <bool from_right>
Value Partition(Call& call) {
  const std::string_view text = call.Text(), separator = call.TextAt(0);
  if (!call.rendering.failed() && separator.empty()) call.Fail("has an empty separator; give another");
  if (call.rendering.failed()) return Value::Undefined();
  const size_t at = from_right ? FindLast(text, separator) : Find(text, separator);
  if (at == std::string_view::npos && from_right) return ListOf(call, {"", "", text}, List::Form::kTuple);
  if (at == std::string_view::npos) return ListOf(call, {text, "", ""}, List::Form::kTuple);
  return ListOf(call, {text.substr(0, at), separator, text.substr(at + separator.size())}, List::Form::kTuple);
}

// The part of the text between the positions that arguments `i` and `i` + 1 give, and its first
// byte.
std::pair<std::string_view, size_t> Range(const Call& call, size_t i) {
  const std::string_view text = call.Text();
  const Int length = Length(text);
  const auto position = [&](size_t argument, Int fallback) {
    const Int value = call.IntAt(argument, fallback);
    return static_cast<int64_t>(std::clamp<Int>(value < 0 ? value + length : value, 0, length));
  };
  const size_t begin = BytesBefore(text, position(i, 0)), end = BytesBefore(text, position(i + 1, length));
  return {text.substr(begin, end < begin ? 0 : end - begin), begin};
}

template <bool at_end>
Value StartsOrEnds(Call& call) {
  const auto text = Range(call, 1).first;
  const auto matches = [&](const Value& value) {
    if (!value.IsString()) {
      call.Fail("needs strings to look for, not ", TypeName(value), "; convert them with \"|string\"");
      return false;
    }
    return at_end ? text.ends_with(*value.text) : text.starts_with(*value.text);
  };
  if (!IsForm(call.At(0), List::Form::kTuple)) return Value::Bool(matches(call.At(0)));
  return Value::Bool(std::ranges::any_of(call.At(0).list->items, matches));
}

// The character position of an argument in the text, or -1.
int64_t PositionOf(const Call& call, bool from_right) {
  const std::string_view part = call.TextAt(0);
  const auto [text, begin] = Range(call, 1);
  const size_t at = from_right ? FindLast(text, part) : Find(text, part);
  return at == std::string_view::npos ? -1 : Length(call.Text().substr(0, begin + at));
}

template <bool from_right>
Value FindText(Call& call) {
  return Value::Integer(PositionOf(call, from_right));
}

template <bool from_right>
Value IndexOfText(Call& call) {
  const int64_t at = PositionOf(call, from_right);
  return at < 0 ? call.Fail("does not find its argument in the string; use \"find\", or test it with \"in\" first") : Value::Integer(at);
}

Value CountText(Call& call) {
  return Value::Integer(Count(Range(call, 1).first, call.TextAt(0)));
}

Value ReplaceText(Call& call) {
  const std::string_view old = call.TextAt(0), by = call.TextAt(1);
  const Int most = call.IntAt(2, -1);
  if (call.rendering.failed()) return Value::Undefined();
  const auto times = static_cast<size_t>(Count(call.Text(), old));
  if (!call.rendering.ChargeMemory(std::min<size_t>(times, kMaxValueBytes) * by.size())) return Value::Undefined();
  return Same(call, Replace(call.Text(), old, by, most < 0 ? -1 : static_cast<int64_t>(std::min<Int>(most, INT64_MAX))));
}

Value JoinItems(Call& call) {
  std::string out;
  bool is_first = true;
  for (const Value& item : Iterate(call.rendering, call.At(0))) {
    if (!item.IsString()) return call.Fail("needs strings to join, not ", TypeName(item), "; use the filter \"join\"");
    if (!call.rendering.ChargeMemory(item.text->size() + call.Text().size())) return Value::Undefined();
    if (!is_first) out.append(call.Text());
    out.append(*item.text);
    is_first = false;
  }
  return Same(call, out);
}

// Width and filling of the methods that pad. Nothing after an error.
std::optional<std::pair<int64_t, std::string_view>> Padding(const Call& call) {
  const Int width = call.IntAt(0, 0);
  const std::string_view fill = call.Has(1) ? call.TextAt(1) : " ";
  if (!call.rendering.failed() && Length(fill) != 1) call.Fail("needs one character to fill with; give one");
  const auto checked = static_cast<int64_t>(std::clamp<Int>(width, 0, kMaxValueBytes));
  if (call.rendering.failed() || !call.rendering.ChargeMemory(static_cast<size_t>(checked) * fill.size())) return std::nullopt;
  return std::pair(checked, fill);
}

template <char align>
Value Justified(Call& call) {
  const auto padding = Padding(call);
  return padding.has_value() ? Same(call, Padded(call.Text(), padding->first, padding->second, align)) : Value::Undefined();
}

Value Centered(Call& call) {
  const auto padding = Padding(call);
  if (!padding.has_value()) return Value::Undefined();
  const auto [width, fill] = *padding;
  const int64_t length = Length(call.Text()), missing = std::max<int64_t>(width - length, 0);
  const int64_t before = missing / 2 + (missing & width & 1);  // as CPython rounds it
  return Same(call, Padded(Padded(call.Text(), length + before, fill, '>'), length + missing, fill, '<'));
}

Value ZeroFilled(Call& call) {
  const auto padding = Padding(call);
  if (!padding.has_value()) return Value::Undefined();
  std::string_view text = call.Text();
  const bool has_sign = text.starts_with('-') || text.starts_with('+');
  const std::string sign(text.substr(0, has_sign ? 1 : 0));
  return Same(call, sign + Padded(text.substr(sign.size()), padding->first - static_cast<int64_t>(sign.size()), "0", '>'));
}

template <bool at_end>
Value WithoutAffix(Call& call) {
  std::string_view text = call.Text();
  const std::string_view affix = call.TextAt(0);
  if (at_end && text.ends_with(affix)) text.remove_suffix(affix.size());
  if (!at_end && text.starts_with(affix)) text.remove_prefix(affix.size());
  return Same(call, text);
}

constexpr Builtin kStringMethods[] = {
    {"capitalize", Changed<Capitalize>, ""},
    {"casefold", Changed<Casefold>, ""},
    {"center", Centered, "width fillchar="},
    {"count", CountText, "sub start= end="},
    {"endswith", StartsOrEnds<true>, "suffix start= end="},
    {"find", FindText<false>, "sub start= end="},
    {"format", FormatBraces, "*"},
    {"index", IndexOfText<false>, "sub start= end="},
    {"isalnum", Asked<IsAlphanumeric>, ""},
    {"isalpha", Asked<IsAlpha>, ""},
    {"isascii", Asked<IsAscii>, ""},
    {"isdecimal", Asked<IsDigit>, ""},
    {"isdigit", Asked<IsDigit>, ""},
    {"islower", Asked<IsLower>, ""},
    {"isnumeric", Asked<IsDigit>, ""},
    {"isspace", Asked<IsSpace>, ""},
    {"istitle", Asked<IsTitle>, ""},
    {"isupper", Asked<IsUpper>, ""},
    {"join", JoinItems, "iterable"},
    {"ljust", Justified<'<'>, "width fillchar="},
    {"lower", Changed<Lower>, ""},
    {"lstrip", Stripped<Side::kLeft>, "chars="},
    {"partition", Partition<false>, "sep"},
    {"removeprefix", WithoutAffix<false>, "prefix"},
    {"removesuffix", WithoutAffix<true>, "suffix"},
    {"replace", ReplaceText, "old new count="},
    {"rfind", FindText<true>, "sub start= end="},
    {"rindex", IndexOfText<true>, "sub start= end="},
    {"rjust", Justified<'>'>, "width fillchar="},
    {"rpartition", Partition<true>, "sep"},
    {"rsplit", SplitText<true>, "sep= maxsplit="},
    {"rstrip", Stripped<Side::kRight>, "chars="},
    {"split", SplitText<false>, "sep= maxsplit="},
    {"splitlines", Lines, "keepends="},
    {"startswith", StartsOrEnds<false>, "prefix start= end="},
    {"strip", Stripped<Side::kBoth>, "chars="},
    {"swapcase", Changed<SwapCase>, ""},
    {"title", Changed<Title>, ""},
    {"upper", Changed<Upper>, ""},
    {"zfill", ZeroFilled, "width"},
};

}  // namespace

std::span<const Builtin> StringMethods() {
  return kStringMethods;
}

}  // namespace lime::jinja
