#include "daemon/weights/kept_tensors.h"

#include <xxhash.h>

#include <new>
#include <span>

#include "absl/strings/str_cat.h"
#include "daemon/weights/files.h"

namespace lime {
namespace {

constexpr Bytes kKeptAlignment = 64;

struct FreeAligned {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t(kKeptAlignment)); }
};

absl::Status ReadTensor(const Checkpoint& checkpoint, const TensorSpec& tensor, std::byte* target) {
  const TensorLocation& at = checkpoint.location(tensor.name);
  const std::string& path = checkpoint.files()[at.file].path;
  LIME_ASSIGN_OR_RETURN(const FileDescriptor file, OpenForReading(path));
  LIME_RETURN_IF_ERROR(ReadExactly(file, path, at.offset, {target, static_cast<size_t>(at.bytes)}));
  const std::optional<uint64_t> hash = checkpoint.RangeHash(at.file, at.offset, at.bytes);
  if (!hash || XXH3_64bits(target, static_cast<size_t>(at.bytes)) == *hash) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, ": tensor ", tensor.name, ", ", at.bytes, " bytes at offset ", at.offset,
                                          ", differs from its checksum; remove the file and run `lime prepare` again"));
}

}  // namespace

Bytes KeptMemory(const BlockSpec& block) {
  Bytes bytes = 0;
  for (const TensorSpec& tensor : block.tensors) bytes += IsKept(tensor) ? RoundUp(tensor.info.bytes, kKeptAlignment) : 0;
  return bytes;
}

absl::StatusOr<LoadedBlock> LoadKept(const Checkpoint& checkpoint, const BlockSpec& block) {
  auto* const memory =
      static_cast<std::byte*>(::operator new[](static_cast<size_t>(KeptMemory(block)) + 1, std::align_val_t(kKeptAlignment)));
  LoadedBlock loaded{.id = block.id, .tensors = {}, .storage = std::shared_ptr<std::byte>(memory, FreeAligned())};
  std::byte* next = memory;
  for (const TensorSpec& tensor : block.tensors) {
    std::byte* data = nullptr;
    if (IsKept(tensor)) {
      data = next;
      next += RoundUp(tensor.info.bytes, kKeptAlignment);
      LIME_RETURN_IF_ERROR(ReadTensor(checkpoint, tensor, data));
    }
    loaded.tensors.push_back({tensor.role, tensor.part, tensor.info.dtype, tensor.info.shape, data, tensor.info.bytes});
  }
  return loaded;
}

}  // namespace lime
