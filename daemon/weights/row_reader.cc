#include "daemon/weights/row_reader.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lime {
namespace {

constexpr Bytes kPage = 4 * kKiB;

}  // namespace

// With a null `checkpoint`, computes sizes only.
std::vector<RowReader::Part> RowReader::LayOut(const Checkpoint* checkpoint, const ModelSpec& spec, int64_t max_rows, Bytes& bytes) {
  std::vector<Part> parts;
  bytes = 0;
  for (const TensorSpec& tensor : spec.blocks.front().tensors) {
    if (tensor.role != TensorRole::kTokenEmbedding || IsPinned(tensor)) continue;
    Part part{.table = checkpoint == nullptr ? TensorLocation{} : checkpoint->location(tensor),
              .path = "",
              .xxh3 = {},
              .row_bytes = tensor.info.bytes / tensor.info.shape[0]};
    if (checkpoint != nullptr) {
      part.path = checkpoint->files()[static_cast<size_t>(part.table.file)].path;
      part.xxh3 = checkpoint->RowHashes(part.table, part.row_bytes);
    }
    part.buffer_bytes = RoundUp(part.row_bytes, kPage) + kPage;
    part.buffers_at = bytes;
    bytes += kGroup * part.buffer_bytes;
    part.rows_at = bytes;
    bytes += RoundUp(max_rows * part.row_bytes, kPage);
    parts.push_back(part);
  }
  return parts;
}

Bytes RowReader::BytesFor(const ModelSpec& spec, int64_t max_rows) {
  Bytes bytes = 0;
  LayOut(nullptr, spec, max_rows, bytes);
  return bytes;
}

absl::StatusOr<std::unique_ptr<RowReader>> RowReader::Open(const Checkpoint& checkpoint, const ModelSpec& spec, const Options& options) {
  Bytes bytes = 0;
  std::vector<Part> parts = LayOut(&checkpoint, spec, options.max_rows, bytes);
  // Only the files that hold the table.
  std::vector<std::string> paths;
  for (Part& part : parts) {
    const auto found = std::ranges::find(paths, part.path);
    part.table.file = static_cast<int32_t>(found - paths.begin());
    if (found == paths.end()) paths.push_back(part.path);
  }
  LIME_ASSIGN_OR_RETURN(std::unique_ptr<BlockDevice> device,
                        OpenBlockDevice(paths, {.channels = 16, .direct = true, .io_uring = options.io_uring}));
  if (options.wrap_device) device = options.wrap_device(std::move(device));
  auto reader = std::make_unique<BlockReader>(std::move(device), BlockReader::Options{});
  LIME_ASSIGN_OR_RETURN(HugeBuffer memory, HugeBuffer::AllocatePresent(bytes));
  return std::unique_ptr<RowReader>(new RowReader(options, std::move(parts), std::move(memory), std::move(reader)));
}

absl::Status RowReader::Read(std::span<const int32_t> tokens) {
  num_rows_ = static_cast<int64_t>(tokens.size());
  for (size_t first = 0; first < tokens.size(); first += kGroup) {
    const size_t count = std::min<size_t>(kGroup, tokens.size() - first);
    LIME_RETURN_IF_ERROR(ReadGroup(tokens.subspan(first, count), static_cast<int64_t>(first)));
  }
  return absl::OkStatus();
}

absl::Status RowReader::ReadGroup(std::span<const int32_t> tokens, int64_t first) {
  absl::Status damaged;
  for (int attempt = 0; attempt < options_.max_attempts; ++attempt) {
    LIME_RETURN_IF_ERROR(FillBuffers(tokens));
    damaged = absl::OkStatus();
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (const Part& part : parts_) damaged.Update(CopyRow(part, tokens[i], i, first + static_cast<int64_t>(i)));
    }
    if (damaged.ok()) break;
  }
  return damaged;
}

// Reads the row of tokens[i] into buffer i of every part. Blocks.
absl::Status RowReader::FillBuffers(std::span<const int32_t> tokens) {
  AwaitedReads reads;
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (const Part& part : parts_) {
      std::byte* const buffer = memory_.data() + part.buffers_at + static_cast<Bytes>(i) * part.buffer_bytes;
      reader_->StartRead(ExtentOf(part, tokens[i]), buffer, reads.Add());
    }
  }
  const std::function<std::string()> what = [] { return std::string("rows of the embedding"); };
  StallWatch watch(options_.report, what, reader_->bytes_read());
  while (!reads.Await(StallWatch::kPoll)) {
    if (options_.cancelled != nullptr && options_.cancelled->load(std::memory_order_relaxed)) reader_->Cancel();
    watch.Poll(reader_->bytes_read());
  }
  watch.End();
  const absl::Status status = reads.Await();
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat("embedding: ", status.message()));
}

// Copies a row from its buffer to its place among the rows, and checks it.
absl::Status RowReader::CopyRow(const Part& part, int32_t token, size_t buffer, int64_t row) {
  const Extent extent = ExtentOf(part, token);
  const std::byte* const from =
      memory_.data() + part.buffers_at + static_cast<Bytes>(buffer) * part.buffer_bytes + reader_->BufferOffset(extent);
  std::memcpy(memory_.data() + part.rows_at + row * part.row_bytes, from, static_cast<size_t>(part.row_bytes));
  if (part.xxh3.empty()) return absl::OkStatus();
  const auto hash = static_cast<uint32_t>(XXH3_64bits(from, static_cast<size_t>(part.row_bytes)));
  if (hash == part.xxh3[static_cast<size_t>(token)]) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(part.path, ": embedding, row of token ", token, ", ", part.row_bytes, " bytes at offset ",
                                          extent.offset, " differ from their checksum after ", options_.max_attempts,
                                          " reads; remove the file and run `lime prepare` again"));
}

RowsInMemory RowReader::rows() const {
  const auto at = [&](size_t i) { return i < parts_.size() ? memory_.data() + parts_[i].rows_at : nullptr; };
  return {.rows = {TensorRole::kTokenEmbedding, 0, num_rows_}, .weight = at(0), .scales = at(1), .biases = at(2)};
}

}  // namespace lime
