#include "coordinator/text/jinja/values/format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "coordinator/text/jinja/values/operations.h"
#include "coordinator/text/jinja/values/printing.h"
#include "coordinator/text/jinja/values/python_text.h"
#include "coordinator/text/unicode/utf8.h"
#include "planner/base/strings.h"

namespace lime::jinja {
namespace {

bool IsOneOf(char c, std::string_view chars) {
  return c != 0 && chars.find(c) != std::string_view::npos;
}

char Front(std::string_view text) {
  return text.empty() ? '\0' : text.front();
}

// Takes digits off `text`. -1: there are none. Beyond kMaxFormatWidth the number is not exact.
int64_t TakeNumber(std::string_view& text) {
  int64_t number = -1;
  for (; Front(text) >= '0' && Front(text) <= '9'; text.remove_prefix(1)) {
    number = std::min<int64_t>(std::max<int64_t>(number, 0) * 10 + (text.front() - '0'), kMaxFormatWidth + 1);
  }
  return number;
}

bool CheckBounds(Rendering& rendering, const FormatSpec& spec) {
  if (spec.width <= kMaxFormatWidth && spec.precision <= kMaxFormatWidth) {
    return rendering.ChargeMemory(static_cast<size_t>(spec.width + std::max<int64_t>(spec.precision, 0)));
  }
  rendering.Fail("a format has a width or precision above ", kMaxFormatWidth, "; use a smaller one");
  return false;
}

std::string WithBase(Int value, unsigned base, bool upper) {
  auto rest = value < 0 ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  std::string digits;
  do {
    const auto digit = static_cast<int>(rest % base);
    digits.push_back(static_cast<char>(digit < 10 ? '0' + digit : (upper ? 'A' : 'a') + digit - 10));
    rest /= base;
  } while (rest != 0);
  return {digits.rbegin(), digits.rend()};
}

// The digits without a sign.
std::string IntDigits(Int value, const FormatSpec& spec) {
  switch (spec.type) {
    case 'b':
      return (spec.alternate ? "0b" : "") + WithBase(value, 2, false);
    case 'o':
      return (spec.alternate ? "0o" : "") + WithBase(value, 8, false);
    case 'x':
      return (spec.alternate ? "0x" : "") + WithBase(value, 16, false);
    case 'X':
      return (spec.alternate ? "0X" : "") + WithBase(value, 16, true);
    default:
      return WithBase(value, 10, false);
  }
}

std::string FloatDigits(double value, const FormatSpec& spec) {
  value = std::fabs(value);
  if (spec.type == 0 && spec.precision < 0) return FloatText(value);
  const bool percent = spec.type == '%';
  const char type = spec.type == 0 || spec.type == 'n' ? 'g' : percent ? 'f' : spec.type;
  const std::string format = std::string(spec.alternate ? "%#.*" : "%.*") + type;
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  const double shown = percent ? value * 100 : value;
  std::string text(std::snprintf(nullptr, 0, format.c_str(), precision, shown), '\0');
  std::snprintf(text.data(), text.size() + 1, format.c_str(), precision, shown);
  return percent ? text + "%" : text;
}

void GroupDigits(char separator, std::string& digits) {
  size_t end = digits.find_first_not_of("0123456789");
  if (end == std::string::npos) end = digits.size();
  for (size_t at = end; at > 3; at -= 3) digits.insert(at - 3, 1, separator);
}

std::string WithSign(bool negative, std::string digits, const FormatSpec& spec) {
  if (spec.grouping != 0) GroupDigits(spec.grouping, digits);
  const std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  if (spec.align != '=') return Padded(sign + digits, spec.width, spec.fill, spec.align == 0 ? '>' : spec.align);
  return sign + Padded(digits, spec.width - static_cast<int64_t>(sign.size()), spec.fill, '>');
}

std::string FormatText(std::string_view text, const FormatSpec& spec) {
  const std::string_view cut = spec.precision < 0 ? text : text.substr(0, BytesBefore(text, spec.precision));
  return Padded(cut, spec.width, spec.fill, spec.align == 0 ? '<' : spec.align);
}

std::string FormatChar(Rendering& rendering, const Value& value, const FormatSpec& spec) {
  std::string one;
  const Int code = value.IsIntegral() ? value.AsInt() : -1;
  if (value.IsString() && Length(*value.text) == 1) {
    one = *value.text;
  } else if (code >= 0 && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF)) {
    AppendUtf8(static_cast<char32_t>(code), one);
  } else {
    rendering.Fail("a format of type \"c\" has a value that is no character; give one character or its code");
  }
  return FormatText(one, spec);
}

// Reads the places of a "%" format one after another.
class PercentFormat {
 public:
  PercentFormat(Rendering& rendering, std::string_view text, const Value& values)
      : rendering_(rendering), text_(text), values_(values), is_tuple_(IsForm(values, List::Form::kTuple)) {}

  std::string Run() {
    while (!text_.empty() && !rendering_.failed()) {
      const size_t plain = std::min(text_.find('%'), text_.size());
      out_.append(text_.substr(0, plain));
      text_.remove_prefix(plain);
      if (text_.empty()) break;
      text_.remove_prefix(1);
      if (rendering_.Charge()) FormatPlace();
    }
    const bool has_keys = values_.Is(Kind::kDict) || values_.IsUndefined() ||
                          (values_.Is(Kind::kList) && values_.list->HasItems() && !is_tuple_);  // as Python asks
    const bool all_used = has_keys || used_ == (is_tuple_ ? values_.list->items.size() : 1);
    if (!all_used) rendering_.Fail("a \"%\" format has fewer places than values; give one value for each place");
    return std::move(out_);
  }

 private:
  void FormatPlace() {
    std::optional<Value> named;
    if (Front(text_) == '(') named = TakeNamed();
    FormatSpec spec;
    bool zeros = false;
    for (; IsOneOf(Front(text_), "#0- +"); text_.remove_prefix(1)) {
      const char flag = text_.front();
      spec.alternate = spec.alternate || flag == '#';
      zeros = zeros || flag == '0';
      if (flag == '-') spec.align = '<';
      if (flag == '+' || (flag == ' ' && spec.sign == '-')) spec.sign = flag;
    }
    spec.width = TakeWidth(0);
    if (Front(text_) == '.') {
      text_.remove_prefix(1);
      spec.precision = TakeWidth(0);
    }
    while (IsOneOf(Front(text_), "hlL")) text_.remove_prefix(1);
    spec.type = Front(text_);
    if (!text_.empty()) text_.remove_prefix(1);
    if (spec.type == '%') return void(out_.push_back('%'));
    if (!CheckBounds(rendering_, spec)) return;
    if (spec.align == 0 && zeros && IsOneOf(spec.type, "diuoxXeEfFgG")) {
      spec.align = '=';
      spec.fill = "0";
    }
    if (spec.align == 0) spec.align = '>';
    Append(named.has_value() ? *named : Next(), spec);
  }

  Value TakeNamed() {
    const size_t end = text_.find(')');
    if (end == std::string_view::npos || !values_.Is(Kind::kDict)) {
      return rendering_.Fail("a \"%\" format names a value; give a dict");
    }
    const Value key = rendering_.MakeString(std::string(text_.substr(1, end - 1)));
    text_.remove_prefix(end + 1);
    const Value* found = FindKey(rendering_, *values_.dict, key);
    return found != nullptr ? *found : rendering_.Fail("a \"%\" format names \"", Shortened(*key.text), "\", which is not in the dict");
  }

  int64_t TakeWidth(int64_t fallback) {
    if (Front(text_) != '*') return std::max(TakeNumber(text_), fallback);
    text_.remove_prefix(1);
    const Value value = Next();
    if (!value.IsIntegral()) rendering_.Fail("the \"*\" of a format has no integer; give one");
    return value.IsIntegral() ? static_cast<int64_t>(std::clamp<Int>(value.AsInt(), 0, kMaxFormatWidth + 1)) : 0;
  }

  Value Next() {
    if (!is_tuple_ && used_ == 0) {
      ++used_;
      return values_;
    }
    if (is_tuple_ && used_ < values_.list->items.size()) return values_.list->items[used_++];
    return rendering_.Fail("a \"%\" format has more places than values; give one value for each place");
  }

  void Append(const Value& value, FormatSpec& spec) {
    if (rendering_.failed()) return;
    if (IsOneOf(spec.type, "sra")) {
      const std::string text = spec.type == 's' ? TextOf(rendering_, value) : ReprOf(rendering_, value);
      out_.append(FormatText(text, spec));
    } else if (IsOneOf(spec.type, "diuoxX") && value.IsNumber()) {
      AppendInt(value, spec);
    } else if (IsOneOf(spec.type, "eEfFgG") && value.IsNumber()) {
      out_.append(FormatValue(rendering_, Value::Real(value.AsDouble()), spec));
    } else if (spec.type == 'c') {
      out_.append(FormatChar(rendering_, value, spec));
    } else {
      rendering_.Fail("a \"%\" format cannot show ", TypeName(value), " that way; use \"%s\"");
    }
  }

  void AppendInt(const Value& value, FormatSpec& spec) {
    if (IsOneOf(spec.type, "diu")) spec.type = 'd';
    spec.precision = -1;
    const double whole = value.Is(Kind::kFloat) ? std::trunc(value.real) : 0;
    if (!(std::fabs(whole) < 1e38)) return void(rendering_.Fail("a number is too large for an integer; use smaller numbers"));
    out_.append(FormatValue(rendering_, Value::Integer(value.Is(Kind::kFloat) ? static_cast<Int>(whole) : value.AsInt()), spec));
  }

  Rendering& rendering_;
  std::string_view text_;
  const Value& values_;
  const bool is_tuple_;
  size_t used_ = 0;
  std::string out_;
};

}  // namespace

std::string Padded(std::string_view text, int64_t width, std::string_view fill, char align) {
  const int64_t missing = std::max<int64_t>(width - Length(text), 0);
  const int64_t before = align == '<' ? 0 : align == '>' ? missing : missing / 2;
  std::string out;
  for (int64_t i = 0; i < before; ++i) out.append(fill);
  out.append(text);
  for (int64_t i = before; i < missing; ++i) out.append(fill);
  return out;
}

std::optional<FormatSpec> ParseFormatSpec(Rendering& rendering, std::string_view text) {
  constexpr std::string_view kAligns = "<>^=";
  FormatSpec spec;
  std::string_view behind_fill = text;
  if (!text.empty()) NextChar(behind_fill);
  if (!behind_fill.empty() && IsOneOf(behind_fill.front(), kAligns)) {
    spec.fill = std::string(text.substr(0, text.size() - behind_fill.size()));
    text = behind_fill;
  }
  const auto take = [&text](std::string_view chars, char fallback) {
    if (!IsOneOf(Front(text), chars)) return fallback;
    const char c = text.front();
    text.remove_prefix(1);
    return c;
  };
  spec.align = take(kAligns, 0);
  spec.sign = take("+- ", '-');
  spec.alternate = take("#", 0) != 0;
  if (take("0", 0) != 0 && spec.align == 0) {
    spec.align = '=';
    spec.fill = "0";
  }
  spec.width = std::max<int64_t>(TakeNumber(text), 0);
  spec.grouping = take(",_", 0);
  if (take(".", 0) != 0) spec.precision = TakeNumber(text);
  spec.type = take("bcdeEfFgGnosxX%", 0);
  if (!text.empty()) {
    rendering.Fail("a format has \"", Shortened(text), "\", which has no meaning there; see Python's str.format");
    return std::nullopt;
  }
  return CheckBounds(rendering, spec) ? std::optional(spec) : std::nullopt;
}

std::string FormatValue(Rendering& rendering, const Value& value, const FormatSpec& spec) {
  constexpr std::string_view kOfInts = "bdoxXn", kOfFloats = "eEfFgGn%";
  if (spec.type == 'c') return FormatChar(rendering, value, spec);
  const bool as_number = value.IsNumber() && (!value.Is(Kind::kBool) || spec.type != 0);
  if (as_number && !value.Is(Kind::kFloat) && (spec.type == 0 || IsOneOf(spec.type, kOfInts))) {
    return WithSign(value.AsInt() < 0, IntDigits(value.AsInt(), spec), spec);
  }
  if (as_number && (spec.type == 0 || IsOneOf(spec.type, kOfFloats))) {
    return WithSign(std::signbit(value.AsDouble()), FloatDigits(value.AsDouble(), spec), spec);
  }
  if (spec.type == 0 || (spec.type == 's' && value.IsString())) return FormatText(ViewOf(rendering, value), spec);
  rendering.Fail("a format of type \"", std::string(1, spec.type), "\" cannot show ", TypeName(value), "; convert it first");
  return "";
}

Value FormatPercent(Rendering& rendering, const Value& text, const Value& values) {
  if (!rendering.Charge(text.text->size())) return Value::Undefined();
  return rendering.MakeString(PercentFormat(rendering, *text.text, values).Run(), text.is_markup);
}

}  // namespace lime::jinja
