#include "daemon/formats/safetensors.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/machine/files.h"
#include "planner/base/foreign_file.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr size_t kLongestDType = 32;  // of an unknown dtype, in an error message

// A name as it appears in an error message: printable and short, whatever the file says.
std::string Quoted(std::string_view name) {
  constexpr size_t kLongest = 120;
  return absl::StrCat("\"", absl::CEscape(Text(name.substr(0, kLongest))), name.size() > kLongest ? "..." : "", "\"");
}

// One entry of the header, as written.
struct RawTensor {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

// Collects the header's entries from the events of the JSON parser. So it sees duplicate keys, and
// a hostile header of 100 MB builds no tree. Depth 1 is the header, depth 2 a tensor or the
// metadata, depth 3 an array of numbers.
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderHandler(std::string_view file) : file_(file) {}

  std::vector<RawTensor> tensors;
  std::map<std::string, std::string> metadata;
  absl::Status status;

  bool start_object(std::size_t) override {
    if (array_ != nullptr || depth_ > 1) return Unexpected("an object");
    ++depth_;
    if (depth_ == 2) {
      in_metadata_ = key_ == "__metadata__";
      if (!in_metadata_) tensors.push_back({.name = key_});
    }
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || array_ != nullptr) return Unexpected("an array");
    RawTensor& tensor = tensors.back();
    if (key_ != "shape" && key_ != "data_offsets") return Unexpected("an array");
    std::optional<std::vector<uint64_t>>& target = key_ == "shape" ? tensor.shape : tensor.offsets;
    array_ = &target.emplace();
    return true;
  }
  bool end_array() override {
    array_ = nullptr;
    return true;
  }
  bool key(string_t& name) override {
    key_ = name;
    if (depth_ == 1) {
      if (!names_.insert(name).second) return Fail(absl::StrCat("lists tensor ", Quoted(name), " twice"));
      return true;
    }
    if (in_metadata_) {
      if (!metadata.emplace(name, "").second) return Fail(absl::StrCat("has metadata ", Quoted(name), " twice"));
      return true;
    }
    const RawTensor& tensor = tensors.back();
    if (name != "dtype" && name != "shape" && name != "data_offsets") {
      return Fail(absl::StrCat("tensor ", Quoted(tensor.name), " has the unknown field ", Quoted(name)));
    }
    const bool seen = name == "dtype" ? tensor.dtype.has_value() : name == "shape" ? tensor.shape.has_value() : tensor.offsets.has_value();
    if (seen) return Fail(absl::StrCat("tensor ", Quoted(tensor.name), " has field ", name, " twice"));
    return true;
  }
  bool string(string_t& value) override {
    if (depth_ == 2 && in_metadata_) {
      metadata[key_] = value;
      return true;
    }
    if (depth_ != 2 || array_ != nullptr || key_ != "dtype") return Unexpected("a string");
    tensors.back().dtype = value;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (array_ == nullptr) return Unexpected("a number");
    array_->push_back(value);
    return true;
  }
  bool number_integer(number_integer_t value) override {
    if (value >= 0) return number_unsigned(static_cast<number_unsigned_t>(value));
    return Unexpected("the negative number " + std::to_string(value));
  }
  bool number_float(number_float_t, const string_t&) override { return Unexpected("a number that is not a 64-bit integer"); }
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return Fail(absl::StrCat("is not valid JSON in UTF-8 at byte ", position, " of the header"));
  }

 private:
  bool Fail(std::string_view what) {
    if (status.ok()) status = Invalid(file_, ": safetensors header ", Text(what));
    return false;
  }
  bool Unexpected(std::string_view what) {
    const std::string where = depth_ == 0   ? "at the top, where an object belongs"
                              : depth_ == 1 ? absl::StrCat("for tensor ", Quoted(key_))
                              : in_metadata_
                                  ? absl::StrCat("for metadata ", Quoted(key_), ", where a string belongs")
                                  : absl::StrCat("in field ", key_, " of tensor ", Quoted(tensors.empty() ? "" : tensors.back().name));
    return Fail(absl::StrCat("has ", Text(what), " ", where));
  }

  std::string file_;
  std::set<std::string, std::less<>> names_;
  int depth_ = 0;
  bool in_metadata_ = false;
  std::string key_;
  std::vector<uint64_t>* array_ = nullptr;
};

absl::Status TensorError(std::string_view file, std::string_view tensor, std::string_view what) {
  return Invalid(Text(file), ": tensor ", Quoted(tensor), " ", Text(what));
}

// `element`: bytes of one element.
absl::StatusOr<TensorInfo> CheckShape(const RawTensor& raw, DType dtype, int64_t element, std::string_view file) {
  TensorInfo info{.dtype = dtype, .bytes = element};
  constexpr uint64_t kLargest = std::numeric_limits<int64_t>::max();
  for (const uint64_t dim : *raw.shape) {
    if (dim > kLargest || __builtin_mul_overflow(info.bytes, static_cast<int64_t>(dim), &info.bytes)) {
      return TensorError(file, raw.name, absl::StrCat("has a shape whose size overflows 64 bits, at dimension ", dim));
    }
    info.shape.push_back(static_cast<int64_t>(dim));
  }
  return info;
}

absl::StatusOr<SafetensorsTensor> CheckTensor(const RawTensor& raw, int64_t data_begin, int64_t data_bytes, std::string_view file) {
  if (!raw.dtype || !raw.shape || !raw.offsets) {
    return TensorError(file, raw.name, absl::StrCat("lacks the field ", !raw.dtype ? "dtype" : !raw.shape ? "shape" : "data_offsets"));
  }
  if (raw.offsets->size() != 2) {
    return TensorError(file, raw.name, absl::StrCat("has ", raw.offsets->size(), " data_offsets, need begin and end"));
  }
  const std::optional<DType> dtype = kDTypeNames.Find(*raw.dtype);
  LIME_ASSIGN_OR_RETURN(TensorInfo info, CheckShape(raw, dtype.value_or(DType::kU8), dtype ? ElementBytes(*dtype) : 1, file));
  const uint64_t begin = (*raw.offsets)[0], end = (*raw.offsets)[1];
  const std::string range = absl::StrCat("data_offsets [", begin, ", ", end, ")");
  if (begin > end) return TensorError(file, raw.name, absl::StrCat("has ", range, " that run backwards"));
  if (end > static_cast<uint64_t>(data_bytes)) {
    return TensorError(file, raw.name,
                       absl::StrCat("has ", range, " beyond the file's ", data_bytes, " data bytes; the file is truncated or damaged"));
  }
  // For an unknown dtype the element's size is not known, so the size cannot be checked.
  if (!dtype) info.bytes = static_cast<Bytes>(end - begin);
  if (end - begin != static_cast<uint64_t>(info.bytes)) {
    return TensorError(file, raw.name,
                       absl::StrCat("has ", range, " of ", end - begin, " bytes, but dtype and shape need ", info.bytes, " bytes"));
  }
  return SafetensorsTensor{.name = raw.name,
                           .info = std::move(info),
                           .offset = data_begin + static_cast<int64_t>(begin),
                           .unknown_dtype = dtype ? "" : raw.dtype->substr(0, kLongestDType)};
}

// Tensors must cover the data without overlaps and holes. A hole could hide anything; an overlap
// means that the header is wrong.
absl::Status CheckCoverage(const SafetensorsHeader& header, std::string_view file) {
  int64_t end = header.data_begin;
  std::string_view before = "the header";
  for (const SafetensorsTensor& tensor : header.tensors) {
    if (tensor.offset != end) {
      const std::string offsets = absl::StrCat("begins at file offset ", tensor.offset, ", but ", Text(before), " ends at ", end);
      return TensorError(file, tensor.name,
                         absl::StrCat(offsets, tensor.offset < end ? ": they overlap" : ": there is a hole between them"));
    }
    end = tensor.offset + tensor.info.bytes;
    before = tensor.name;
  }
  if (end != header.file_bytes) {
    return Invalid(Text(file), ": the last tensor ends at offset ", end, ", but the file has ", header.file_bytes, " bytes");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> ParseSafetensorsLength(std::span<const std::byte> prefix, int64_t file_bytes, std::string_view name) {
  if (file_bytes < kSafetensorsLengthBytes || prefix.size() < kSafetensorsLengthBytes) {
    return Invalid(Text(name), ": has ", file_bytes, " bytes, too few for a safetensors file");
  }
  uint64_t length = 0;
  for (int i = kSafetensorsLengthBytes - 1; i >= 0; --i) length = length << 8 | std::to_integer<uint64_t>(prefix[i]);
  if (length > static_cast<uint64_t>(file_bytes - kSafetensorsLengthBytes)) {
    return Invalid(Text(name), ": says its safetensors header has ", length, " bytes, but the file has ", file_bytes,
                   "; it is truncated or not a safetensors file");
  }
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return Invalid(Text(name), ": says its safetensors header has ", length, " bytes, the limit is ", kMaxSafetensorsHeaderBytes);
  }
  return static_cast<int64_t>(length);
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view header_json, int64_t file_bytes, std::string_view name) {
  SafetensorsHeader header;
  header.data_begin = kSafetensorsLengthBytes + static_cast<int64_t>(header_json.size());
  header.file_bytes = file_bytes;
  if (header.data_begin > file_bytes) {
    return Invalid(Text(name), ": has ", file_bytes, " bytes, fewer than its header of ", header.data_begin);
  }
  HeaderHandler handler(name);
  if (!nlohmann::json::sax_parse(header_json.begin(), header_json.end(), &handler)) {
    return handler.status.ok() ? Invalid(Text(name), ": safetensors header is not valid JSON") : handler.status;
  }
  header.metadata = std::move(handler.metadata);
  for (const RawTensor& raw : handler.tensors) {
    LIME_ASSIGN_OR_RETURN(SafetensorsTensor tensor, CheckTensor(raw, header.data_begin, file_bytes - header.data_begin, name));
    header.tensors.push_back(std::move(tensor));
  }
  // An empty tensor comes before the tensor at the same offset.
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
    return std::pair(a.offset, a.info.bytes) < std::pair(b.offset, b.info.bytes);
  });
  LIME_RETURN_IF_ERROR(CheckCoverage(header, name));
  return header;
}

absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const std::string& path) {
  LIME_ASSIGN_OR_RETURN(const FileDescriptor file, OpenForReading(path));
  LIME_ASSIGN_OR_RETURN(const Bytes bytes, FileBytes(file, path));
  std::string beginning(static_cast<size_t>(std::min<Bytes>(bytes, kForeignFileBytes)), '\0');
  LIME_RETURN_IF_ERROR(ReadExactly(file, path, 0, std::as_writable_bytes(std::span(beginning))));
  LIME_RETURN_IF_ERROR(RefuseTextFile(beginning, path));
  LIME_ASSIGN_OR_RETURN(const int64_t length, ParseSafetensorsLength(std::as_bytes(std::span(beginning)), bytes, path));
  std::string json(static_cast<size_t>(length), '\0');
  LIME_RETURN_IF_ERROR(ReadExactly(file, path, kSafetensorsLengthBytes, std::as_writable_bytes(std::span(json))));
  return ParseSafetensorsHeader(json, bytes, path);
}

}  // namespace lime
