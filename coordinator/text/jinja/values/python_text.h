// Python's str, on UTF-8. Positions and lengths are in characters unless a name says bytes.
//
// REQUIRES of all: well-formed UTF-8. Time: linear, also where matches overlap.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lime::jinja {

// Takes the first character off `text`. REQUIRES: !text.empty().
char32_t NextChar(std::string_view& text);

// Python's str.isspace(), which is also \s of its regular expressions.
bool IsPythonSpace(char32_t code);

int64_t Length(std::string_view text);
// Bytes before the character at `position`, at most all.
size_t BytesBefore(std::string_view text, int64_t position);

// The beginning of a text, for an error about it.
std::string Shortened(std::string_view text);

// The first occurrence from the byte `from` on, in bytes; npos if there is none.
size_t Find(std::string_view text, std::string_view part, size_t from = 0);
// The last one.
size_t FindLast(std::string_view text, std::string_view part);
int64_t Count(std::string_view text, std::string_view part);
// `most` negative: all.
std::string Replace(std::string_view text, std::string_view old, std::string_view by, int64_t most = -1);

enum class Side { kLeft, kRight, kBoth };
// Without `chars`, white space.
std::string_view Strip(std::string_view text, std::optional<std::string_view> chars, Side side);

// Without `separator`, at white space. From the right if `from_right`. `most` negative: all.
// REQUIRES: the separator is not empty.
std::vector<std::string_view> Split(std::string_view text, std::optional<std::string_view> separator, int64_t most = -1,
                                    bool from_right = false);
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends = false);

std::string Lower(std::string_view text);
std::string Upper(std::string_view text);
std::string Casefold(std::string_view text);
std::string SwapCase(std::string_view text);
std::string Capitalize(std::string_view text);
// A word begins after any character without case.
std::string Title(std::string_view text);

// Python's str.isX().
bool IsLower(std::string_view text);
bool IsUpper(std::string_view text);
bool IsTitle(std::string_view text);
bool IsAlpha(std::string_view text);
bool IsDigit(std::string_view text);
bool IsAlphanumeric(std::string_view text);
bool IsSpace(std::string_view text);

// Repr of a str: quoted, with escapes for what cannot be printed.
std::string Quoted(std::string_view text);

// "&", "<", ">" and quotes as HTML writes them.
std::string HtmlEscaped(std::string_view text);

// The text of an integer, and back; nothing if it is no integer of this base (2 to 36, or 0 for
// that of its prefix) or too large.
std::string IntText(__int128 value);
std::optional<__int128> ParseInt(std::string_view text, int base = 10);
// As Python's float() reads it.
std::optional<double> ParseFloat(std::string_view text);
// Python's repr of a float: the shortest that reads back the same.
std::string FloatText(double value);

}  // namespace lime::jinja
