// Writes one safetensors file. Its tensors are known in advance; their bytes come later, in any
// order and from any thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/stores/output_file.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

// The file gets its name in Finish() (NewFile), so no unfinished file is ever visible.
class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    DType dtype = DType::kF32;
    std::vector<int64_t> shape;
  };

  struct Options {
    int64_t alignment = 64;  // pads the header so that the data begins on a multiple of this
    std::map<std::string, std::string> metadata = {{"format", "pt"}};
  };

  // Reserves the space and writes the header. Tensors lie in the order given, without gaps.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(const std::string& path, const std::vector<Tensor>& tensors,
                                                                   const Options& options);
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(const std::string& path, const std::vector<Tensor>& tensors) {
    return Create(path, tensors, Options());
  }

  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  size_t num_tensors() const { return begins_.size() - 1; }
  Bytes tensor_bytes(size_t tensor) const { return begins_[tensor + 1] - begins_[tensor]; }
  // Size of the whole file.
  Bytes file_bytes() const { return begins_.back(); }
  const NewFile& file() const { return file_; }

  // Writes bytes [begin, begin + data.size()) of a tensor. Any thread; every byte exactly once.
  absl::Status Write(size_t tensor, int64_t begin, std::span<const std::byte> data);

  // Checks that every byte was written, and syncs, so that Finish() takes no time afterwards.
  absl::Status Complete();
  // Does Complete() and gives the file its name.
  absl::Status Finish();

 private:
  SafetensorsWriter(NewFile file, std::vector<int64_t> begins) : file_(std::move(file)), begins_(std::move(begins)) {}

  NewFile file_;
  std::vector<int64_t> begins_;  // file offsets of the tensors, then the end of the file
  std::atomic<int64_t> written_ = 0;
};

// The beginning of such a file: 8 bytes of length, then the JSON header with the tensors in the
// order given, padded with spaces.
std::string SafetensorsHeaderBytes(const std::vector<SafetensorsWriter::Tensor>& tensors, const SafetensorsWriter::Options& options);

// The bytes of a tensor of this dtype and shape. REQUIRES: no overflow.
Bytes TensorBytes(DType dtype, std::span<const int64_t> shape);

}  // namespace lime
