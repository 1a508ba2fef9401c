// Writes one safetensors file whose tensors are known beforehand and whose bytes come later, in any order and from any thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/weights/files.h"
#include "planner/base/status.h"
#include "planner/plan/model_spec.h"

namespace lime {

// The file grows under the name PATH.partial and takes its own name in Finish(), so nothing half-written ever looks complete.
class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    DType dtype = DType::kF32;
    std::vector<int64_t> shape;
  };

  struct Options {
    int64_t alignment = 64;  // the header is padded so that the data begin on a multiple of it
    std::map<std::string, std::string> metadata = {{"format", "pt"}};
  };

  // Reserves the space and writes the header. Tensors lie in the order given, without gaps.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(const std::string& path, const std::vector<Tensor>& tensors,
                                                                   const Options& options);
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(const std::string& path, const std::vector<Tensor>& tensors) {
    return Create(path, tensors, Options());
  }

  // Removes the partial file unless Finish() succeeded.
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  size_t num_tensors() const { return begins_.size() - 1; }
  Bytes tensor_bytes(size_t tensor) const { return begins_[tensor + 1] - begins_[tensor]; }
  // Of the whole file.
  Bytes file_bytes() const { return begins_.back(); }

  // Writes bytes [begin, begin + data.size()) of a tensor. Any thread; every byte exactly once.
  absl::Status Write(size_t tensor, int64_t begin, std::span<const std::byte> data);

  // Checks that every byte was written, syncs, and renames.
  absl::Status Finish();

 private:
  SafetensorsWriter(std::string path, FileDescriptor file, std::vector<int64_t> begins);
  std::string partial_path() const { return path_ + ".partial"; }

  std::string path_;
  FileDescriptor file_;
  std::vector<int64_t> begins_;  // file offsets of the tensors, then the end of the file
  std::atomic<int64_t> written_ = 0;
  bool finished_ = false;
};

// The beginning of such a file: 8 bytes of length, then the JSON header in the order given, padded with spaces.
std::string SafetensorsHeaderBytes(const std::vector<SafetensorsWriter::Tensor>& tensors, const SafetensorsWriter::Options& options);

// The bytes of a tensor of this dtype and shape. REQUIRES: no overflow.
Bytes TensorBytes(DType dtype, std::span<const int64_t> shape);

}  // namespace lime
