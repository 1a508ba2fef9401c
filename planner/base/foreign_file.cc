#include "planner/base/foreign_file.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

std::string_view WithoutLeadingSpace(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  while (!text.empty() && absl::ascii_isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  return text;
}

bool StartsWithWord(std::string_view text, std::string_view word) {
  return absl::StartsWithIgnoreCase(Text(text), Text(word));
}

}  // namespace

absl::Status RefuseForeignFile(std::string_view beginning, std::string_view name) {
  const auto refuse = [&](std::string_view what) { return Invalid(Text(name), ": ", Text(what)); };
  const std::string_view text = WithoutLeadingSpace(beginning.substr(0, kForeignFileBytes));
  if (text.starts_with("version http") && (absl::StrContains(Text(text), "/git-lfs") || absl::StrContains(Text(text), "oid sha256:")))
    return refuse("is a pointer of git-lfs, not the file itself; fetch it with `git lfs pull` in its folder, or download the file again");
  if (text.starts_with("# xet version")) return refuse("is a pointer of git-xet, not the file itself; download the file again");
  if (text.starts_with("/annex/objects/"))
    return refuse("is a pointer of git-annex, not the file itself; fetch it with `git annex get` in its folder");
  if (StartsWithWord(text, "<!doctype html") || StartsWithWord(text, "<html"))
    return refuse("is a web page, not the file itself; download the file again, with a login if needed");
  if (StartsWithWord(text, "<?xml")) return refuse("is an XML document, such as servers answer with errors; download the file again");
  if (beginning.starts_with("GGUF")) return refuse("is a GGUF file; LIME reads the safetensors that it was made from");
  if (beginning.starts_with("PK\x03\x04")) return refuse("is a zip archive, as PyTorch writes its weights; convert it to safetensors");
  return absl::OkStatus();
}

absl::Status RefuseTextFile(std::string_view beginning, std::string_view name) {
  LIME_RETURN_IF_ERROR(RefuseForeignFile(beginning, name));
  const auto in_text = [](unsigned char c) { return c >= 0x20 ? c != 0x7f : absl::ascii_isspace(c); };
  if (beginning.empty() || !std::ranges::all_of(beginning, in_text)) return absl::OkStatus();
  const std::string_view line = WithoutLeadingSpace(beginning);
  const std::string shown = absl::CHexEscape(Text(line.substr(0, std::min<size_t>(line.find('\n'), 60))));
  return Invalid(Text(name), ": is a text file that begins with \"", shown, "\", not weights; download the file again");
}

std::string_view WideMark(std::string_view text) {
  using namespace std::string_view_literals;
  if (text.starts_with("\xFF\xFE\0\0"sv) || text.starts_with("\0\0\xFE\xFF"sv)) return "UTF-32";
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) return "UTF-16";
  return "";
}

std::string_view WideJson(std::string_view text) {
  if (const std::string_view marked = WideMark(text); !marked.empty()) return marked;
  if (text.size() < 2) return "";
  const auto zero = [&](size_t at) { return at < text.size() && text[at] == '\0'; };
  if ((zero(0) && zero(1)) || (zero(1) && zero(2) && zero(3))) return "UTF-32";
  return zero(0) || zero(1) ? "UTF-16" : "";
}

}  // namespace lime
