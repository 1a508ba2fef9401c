#include "daemon/stores/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/formats/safetensors.h"
#include "planner/base/check.h"

namespace lime {

std::string SafetensorsHeaderBytes(const std::vector<SafetensorsWriter::Tensor>& tensors, const SafetensorsWriter::Options& options) {
  // Not an ordered_json, which would search all names for each new one.
  std::vector<std::string> entries;
  const auto add = [&](const std::string& key, const nlohmann::json& value) {
    entries.push_back(absl::StrCat(nlohmann::json(key).dump(), ":", value.dump()));
  };
  if (!options.metadata.empty()) add("__metadata__", options.metadata);
  int64_t begin = 0;
  for (const SafetensorsWriter::Tensor& tensor : tensors) {
    const int64_t end = begin + TensorBytes(tensor.dtype, tensor.shape);
    add(tensor.name, {{"dtype", DTypeName(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}});
    begin = end;
  }
  std::string json = absl::StrCat("{", absl::StrJoin(entries, ","), "}");
  const int64_t padded = RoundUp(kSafetensorsLengthBytes + static_cast<int64_t>(json.size()), options.alignment) - kSafetensorsLengthBytes;
  json.resize(static_cast<size_t>(padded), ' ');
  std::string bytes(kSafetensorsLengthBytes, '\0');
  for (int i = 0; i < kSafetensorsLengthBytes; ++i) bytes[i] = static_cast<char>(static_cast<uint64_t>(padded) >> (8 * i) & 0xff);
  return bytes + json;
}

Bytes TensorBytes(DType dtype, std::span<const int64_t> shape) {
  Bytes bytes = ElementBytes(dtype);
  for (const int64_t dim : shape) bytes *= dim;
  return bytes;
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(const std::string& path, const std::vector<Tensor>& tensors,
                                                                             const Options& options) {
  LIME_CHECK_GT(options.alignment, 0);
  const std::string header = SafetensorsHeaderBytes(tensors, options);
  if (static_cast<int64_t>(header.size()) > kMaxSafetensorsHeaderBytes) {
    return Invalid(path, ": ", tensors.size(), " tensors need a header of ", header.size(),
                   " bytes, more than safetensors allows; write several shards");
  }
  std::vector<int64_t> begins = {static_cast<int64_t>(header.size())};
  for (const Tensor& tensor : tensors) begins.push_back(begins.back() + TensorBytes(tensor.dtype, tensor.shape));

  LIME_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter(std::move(file), std::move(begins)));
  const FileDescriptor& descriptor = writer->file_.descriptor();
  // Reserves the space at once. So a full disk is found before hours of work, and the file has few
  // extents.
  const int error = ::posix_fallocate(descriptor.get(), 0, writer->file_bytes());
  if (error != 0 && error != EOPNOTSUPP && error != EINVAL)
    return ErrnoStatus(error, path, absl::StrCat("reserve ", FormatBytes(writer->file_bytes())));
  LIME_RETURN_IF_ERROR(WriteExactly(descriptor, path, 0, std::as_bytes(std::span(header))));
  return writer;
}

absl::Status SafetensorsWriter::Write(size_t tensor, int64_t begin, std::span<const std::byte> data) {
  LIME_CHECK_LT(tensor, num_tensors());
  LIME_CHECK(begin >= 0 && begin + static_cast<int64_t>(data.size()) <= tensor_bytes(tensor)) << file_.path() << " tensor " << tensor;
  LIME_RETURN_IF_ERROR(WriteExactly(file_.descriptor(), file_.path(), begins_[tensor] + begin, data));
  written_ += static_cast<int64_t>(data.size());
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Complete() {
  const int64_t data_bytes = begins_.back() - begins_.front();
  if (written_ != data_bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat(file_.path(), ": ", written_.load(), " of ", data_bytes, " tensor bytes were written, so the file was removed"));
  }
  return ::fsync(file_.descriptor().get()) == 0 ? absl::OkStatus() : ErrnoStatus(errno, file_.path(), "sync");
}

absl::Status SafetensorsWriter::Finish() {
  LIME_RETURN_IF_ERROR(Complete());
  return file_.Commit();
}

}  // namespace lime
