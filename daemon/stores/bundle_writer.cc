#include "daemon/stores/bundle_writer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/proven_zeros/sum_order.h"
#include "daemon/stores/float_codec.h"
#include "daemon/stores/safetensors_writer.h"
#include "planner/base/check.h"

namespace lime {
namespace {

// Neurons whose columns are transposed together. Their codes fill whole words in a row of down, and
// their elements whole cache lines.
constexpr int64_t kTile = 32;

bool AllFinite(DType dtype, std::span<const std::byte> bytes) {
  bool finite = true;
  WithWorkingType(dtype, [&](auto stored) {
    for (size_t at = 0; at < bytes.size(); at += sizeof(stored)) {
      std::memcpy(&stored, bytes.data() + at, sizeof(stored));
      finite &= std::isfinite(ToFloat(stored));
    }
  });
  return finite;
}

double SquaredNorm(DType dtype, std::span<const std::byte> bytes) {
  double sum = 0;
  WithWorkingType(dtype, [&](auto stored) {
    for (size_t at = 0; at < bytes.size(); at += sizeof(stored)) {
      std::memcpy(&stored, bytes.data() + at, sizeof(stored));
      const double value = ToFloat(stored);
      sum += value * value;
    }
  });
  return sum;
}

// NaN counts as larger than all.
double Larger(double a, double b) {
  return a > b || std::isnan(a) ? a : b;
}

// ---- Down: from rows to columns

// columns[j], [rows] elements, becomes element j of each row; `count` columns.  `row_stride` and
// `column_bytes` in bytes.
template <typename Element>
void TransposeElements(const std::byte* rows, int64_t num_rows, Bytes row_stride, int64_t count, std::byte* columns, Bytes column_bytes) {
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t j = 0; j < count; ++j) {
      std::memcpy(columns + j * column_bytes + row * static_cast<Bytes>(sizeof(Element)),
                  rows + row * row_stride + j * static_cast<Bytes>(sizeof(Element)), sizeof(Element));
    }
  }
}

// The same for packed codes, of exactly kTile columns. Both are little-endian streams of bits.
void TransposeCodes(const std::byte* rows, int64_t num_rows, Bytes row_stride, int bits, std::byte* columns, Bytes column_bytes) {
  std::fill(columns, columns + kTile * column_bytes, std::byte{0});
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  const auto add = [](std::byte* word_at, uint32_t value) {
    uint32_t word = 0;
    std::memcpy(&word, word_at, sizeof(word));
    word |= value;
    std::memcpy(word_at, &word, sizeof(word));
  };
  for (int64_t row = 0; row < num_rows; ++row) {
    uint32_t words[8];  // kTile codes of at most 8 bits
    std::memcpy(words, rows + row * row_stride, static_cast<size_t>(bits) * sizeof(uint32_t));
    uint64_t pending = 0;
    int held = 0, next = 0;
    const int64_t to_word = row * bits / 32, to_bit = row * bits % 32;
    for (int64_t j = 0; j < kTile; ++j) {
      if (held < bits) {
        pending |= uint64_t{words[next++]} << held;
        held += 32;
      }
      const uint64_t code = (pending & mask) << to_bit;
      pending >>= bits;
      held -= bits;
      std::byte* const word = columns + j * column_bytes + to_word * 4;
      add(word, static_cast<uint32_t>(code));
      if (to_bit + bits > 32) add(word + 4, static_cast<uint32_t>(code >> 32));
    }
  }
}

// The codes of some columns of a packed row, one after another. Both are little-endian streams of bits.
void GatherCodes(const std::byte* row, std::span<const int32_t> columns, int bits, std::byte* out) {
  const uint32_t mask = bits == 32 ? UINT32_MAX : (uint32_t{1} << bits) - 1;
  uint64_t pending = 0;
  int held = 0;
  for (const int32_t column : columns) {
    const int64_t at = int64_t{column} * bits;
    uint64_t window = 0;
    std::memcpy(&window, row + at / 8, static_cast<size_t>((at % 8 + bits + 7) / 8));
    pending |= uint64_t{static_cast<uint32_t>(window >> (at % 8)) & mask} << held;
    for (held += bits; held >= 8; held -= 8, pending >>= 8) *out++ = static_cast<std::byte>(pending & 255);
  }
  if (held > 0) *out = static_cast<std::byte>(pending & 255);
}

// ---- One file

class Writer {
 public:
  Writer(const Checkpoint& source, const ModelSpec& spec, const BundleFileLayout& layout, SourceReader& reader,
         const WriteBundlesOptions& options)
      : source_(source),
        spec_(spec),
        block_(spec.block({BlockKind::kMlp, layout.mlp.layer})),
        layout_(layout),
        mlp_(layout.mlp),
        record_(layout.mlp.shape.layout),
        reader_(reader),
        options_(options),
        order_(NeuronsInOrder(layout)) {}

  absl::StatusOr<WrittenBundles> Run(StoreDisk& disk, const std::string& path) {
    LIME_RETURN_IF_ERROR(CheckSmallTensors());
    if (why_not_) return WrittenBundles{.why_not = why_not_};
    LIME_ASSIGN_OR_RETURN(StoreFileWriter writer, StoreFileWriter::Create(disk, path, layout_));
    LIME_RETURN_IF_ERROR(Append(writer, std::as_bytes(std::span(layout_.header))));
    LIME_RETURN_IF_ERROR(AppendBundles(writer));
    if (!why_not_ && mlp_.gate != nullptr) CheckUp();
    if (why_not_) return WrittenBundles{.why_not = why_not_};  // the writer removes its file
    LIME_RETURN_IF_ERROR(AppendTables(writer));
    LIME_ASSIGN_OR_RETURN(StoredFile file, writer.Finish());
    return WrittenBundles{.file = std::move(file)};
  }

 private:
  absl::Status Append(StoreFileWriter& writer, std::span<const std::byte> data) {
    LIME_RETURN_IF_ERROR(writer.Append(data));
    done_ += static_cast<Bytes>(data.size());
    return options_.progress ? options_.progress(static_cast<Bytes>(data.size())) : absl::OkStatus();
  }

  absl::Status AppendZerosTo(StoreFileWriter& writer, int64_t offset) {
    return Append(writer, std::vector<std::byte>(static_cast<size_t>(offset - done_)));
  }

  // ---- Checks

  absl::StatusOr<std::vector<std::byte>> ReadAll(const TensorSpec& tensor) {
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.info.bytes));
    LIME_RETURN_IF_ERROR(reader_.Read(source_.location(tensor), 0, bytes));
    return bytes;
  }

  // The largest magnitude of a tensor, with `offset` added to each number; 0 if the block has no such
  // tensor.
  absl::StatusOr<double> LargestOf(TensorRole role, TensorPart part, double offset = 0) {
    const std::optional<size_t> at = block_.Find(role, part);
    if (!at) return 0;
    const TensorSpec& tensor = block_.tensors[*at];
    LIME_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, ReadAll(tensor));
    double largest = 0;
    for (size_t i = 0; i < bytes.size(); i += static_cast<size_t>(ElementBytes(tensor.info.dtype)))
      largest = Larger(std::abs(LoadFloat(tensor.info.dtype, bytes.data() + i) + offset), largest);
    return largest;
  }

  // Biases, and scales of packed groups. What they say of up is kept for CheckUp.
  absl::Status CheckSmallTensors() {
    for (const TensorRole role : {TensorRole::kGate, TensorRole::kUp, TensorRole::kDown}) {
      LIME_ASSIGN_OR_RETURN(const double bias, LargestOf(role, TensorPart::kBias));
      if (!std::isfinite(bias)) why_not_ = NoBundles::kNotFinite;
      if (role == TensorRole::kUp) up_bias_ = bias;
    }
    for (const TensorSpec* weight : mlp_.rows()) {
      if (mlp_.packed) LIME_RETURN_IF_ERROR(CheckGroups(*weight));
    }
    if (mlp_.packed) LIME_RETURN_IF_ERROR(CheckGroups(*mlp_.down));
    return mlp_.gate != nullptr ? MeasureNorm() : absl::OkStatus();
  }

  // Packed weights are scale * code + bias, so the codes 0 and the largest give the largest weights.
  absl::Status CheckGroups(const TensorSpec& weight) {
    const auto tensor = [&](TensorPart part) -> const TensorSpec& { return block_.tensors[block_.Find(weight.role, part).value()]; };
    const TensorSpec& scale_tensor = tensor(TensorPart::kScales);
    const DType dtype = scale_tensor.info.dtype;
    LIME_ASSIGN_OR_RETURN(const std::vector<std::byte> scales, ReadAll(scale_tensor));
    LIME_ASSIGN_OR_RETURN(const std::vector<std::byte> biases, ReadAll(tensor(TensorPart::kGroupBiases)));
    LIME_CHECK_EQ(scales.size(), biases.size());
    const int64_t rows = scale_tensor.info.shape[0], groups = scale_tensor.info.shape[1];
    const double top = (1 << mlp_.code_bits) - 1;
    const double group_size = static_cast<double>(weight.info.bytes) * 8 / mlp_.code_bits / static_cast<double>(rows * groups);
    for (int64_t row = 0; row < rows; ++row) {
      double squares = 0;
      for (int64_t group = 0; group < groups; ++group) {
        const Bytes at = (row * groups + group) * ElementBytes(dtype);
        const double scale = LoadFloat(dtype, scales.data() + at), bias = LoadFloat(dtype, biases.data() + at);
        const double largest = Larger(std::abs(bias), std::abs(scale * top + bias));
        if (!(largest < 0x1p127)) why_not_ = NoBundles::kNotFinite;
        squares += group_size * largest * largest;
      }
      if (&weight == mlp_.up) up_norm_ = Larger(std::sqrt(squares), up_norm_);
    }
    return absl::OkStatus();
  }

  // The largest input of up and gate. Without a norm of its own in the block, nothing is known.
  absl::Status MeasureNorm() {
    const bool has_norm = block_.Find(TensorRole::kNorm, TensorPart::kWeight).has_value();
    LIME_ASSIGN_OR_RETURN(const double weight, LargestOf(TensorRole::kNorm, TensorPart::kWeight, spec_.config.norm_offset));
    LIME_ASSIGN_OR_RETURN(const double bias, LargestOf(TensorRole::kNorm, TensorPart::kBias));
    input_norm_ = has_norm ? LargestNormedInput(spec_.config.hidden_size, weight, bias) : HUGE_VAL;
    const double largest = spec_.working_dtype == DType::kF16 ? 65504 : 0x1p126;
    if (!(input_norm_ < largest)) why_not_ = why_not_.value_or(NoBundles::kMayOverflow);
    return absl::OkStatus();
  }

  void CheckUp() {
    if (!StaysFinite(up_norm_, input_norm_) || !(up_norm_ * input_norm_ + up_bias_ < 0x1p126)) why_not_ = NoBundles::kMayOverflow;
  }

  void CheckRow(const TensorSpec& tensor, std::span<const std::byte> row) {
    if (mlp_.packed) return;
    if (!AllFinite(tensor.info.dtype, row)) why_not_ = NoBundles::kNotFinite;
    if (mlp_.gate != nullptr && &tensor == mlp_.up) up_norm_ = Larger(std::sqrt(SquaredNorm(tensor.info.dtype, row)), up_norm_);
  }

  // ---- Bundles

  Bytes row_bytes() const { return record_.part_bytes; }
  Bytes StripBytes(int64_t neurons) const { return neurons * mlp_.code_bits / 8; }

  // Whole tiles; all of the buffer is rows of the neurons, and their columns in strips of down's rows.
  int64_t NeuronsAtOnce() const {
    const int64_t fit = options_.buffer_bytes / (record_.parts * row_bytes()) / kTile * kTile;
    return std::min<int64_t>(std::max(fit, kTile), mlp_.shape.neurons);
  }

  absl::Status AppendBundles(StoreFileWriter& writer) {
    const int64_t neurons = mlp_.shape.neurons, at_once = NeuronsAtOnce();
    if (layout_.copier != nullptr) {
      const DeciderShape& shape = layout_.decider.shape;
      codes_.resize(static_cast<size_t>(shape.rows * CodeRowBytes(shape.cols, shape.bits)));
      kept_.resize(static_cast<size_t>(shape.rows * shape.directions));
      copied_rows_.resize(static_cast<size_t>(shape.rows));
    }
    sums_.resize(static_cast<size_t>(neurons * record_.parts));
    rows_.resize(static_cast<size_t>(at_once * row_bytes()) * mlp_.rows().size());
    strips_.resize(static_cast<size_t>(StripBytes(at_once) * spec_.config.hidden_size));
    columns_.resize(static_cast<size_t>(kTile * row_bytes()));
    bundles_.resize(static_cast<size_t>(kTile * record_.stride));
    for (int64_t begin = 0; begin < neurons && !why_not_; begin += at_once) {
      LIME_RETURN_IF_ERROR(AppendBatch(writer, begin, std::min(begin + at_once, neurons)));
    }
    return absl::OkStatus();
  }

  absl::Status AppendBatch(StoreFileWriter& writer, int64_t begin, int64_t end) {
    LIME_RETURN_IF_ERROR(ReadBatch(begin, end));
    for (int64_t tile = begin; tile < end && !why_not_; tile += kTile) {
      const int64_t count = std::min(kTile, end - tile);
      Transpose(tile - begin, count, end - begin);
      if (layout_.copier != nullptr) CopyRows(tile, count, tile - begin);
      for (int64_t j = 0; j < count; ++j) Encode(order_[static_cast<size_t>(tile + j)], tile + j - begin, end - begin, j);
      LIME_RETURN_IF_ERROR(Append(writer, std::span(bundles_).first(static_cast<size_t>(count * record_.stride))));
    }
    return absl::OkStatus();
  }

  // Of the neurons at places [begin, end): rows of gate and up, one after another, and of each row of
  // down their elements.
  absl::Status ReadBatch(int64_t begin, int64_t end) {
    const Bytes bytes = (end - begin) * row_bytes();
    Bytes at = 0;
    for (const TensorSpec* tensor : mlp_.rows()) {
      LIME_RETURN_IF_ERROR(
          ReadRows(source_.location(*tensor), begin, std::span(rows_).subspan(static_cast<size_t>(at), static_cast<size_t>(bytes))));
      at += bytes;
    }
    return layout_.places.empty() ? ReadStrips(begin, end) : GatherStrips(begin, end);
  }

  absl::Status ReadRows(const TensorLocation& tensor, int64_t begin, std::span<std::byte> out) {
    if (layout_.places.empty()) return reader_.Read(tensor, begin * row_bytes(), out);
    for (int64_t i = 0; i * row_bytes() < std::ssize(out); ++i) {
      const int64_t neuron = order_[static_cast<size_t>(begin + i)];
      LIME_RETURN_IF_ERROR(
          reader_.Read(tensor, neuron * row_bytes(), out.subspan(static_cast<size_t>(i * row_bytes()), static_cast<size_t>(row_bytes()))));
    }
    return absl::OkStatus();
  }

  absl::Status ReadStrips(int64_t begin, int64_t end) {
    const TensorLocation down = source_.location(*mlp_.down);
    const Bytes down_row = StripBytes(mlp_.shape.neurons), strip = StripBytes(end - begin);
    for (int64_t row = 0; row < spec_.config.hidden_size; ++row) {
      LIME_RETURN_IF_ERROR(reader_.Read(down, row * down_row + StripBytes(begin),
                                        std::span(strips_).subspan(static_cast<size_t>(row * strip), static_cast<size_t>(strip))));
    }
    return absl::OkStatus();
  }

  // Whole rows of down are read, since the neurons lie anywhere in them.
  absl::Status GatherStrips(int64_t begin, int64_t end) {
    const TensorLocation down = source_.location(*mlp_.down);
    const Bytes down_row = StripBytes(mlp_.shape.neurons), strip = StripBytes(end - begin);
    const auto neurons = std::span(order_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    std::vector<std::byte> whole(static_cast<size_t>(down_row));
    for (int64_t row = 0; row < spec_.config.hidden_size; ++row) {
      LIME_RETURN_IF_ERROR(reader_.Read(down, row * down_row, whole));
      GatherCodes(whole.data(), neurons, mlp_.code_bits, strips_.data() + row * strip);
    }
    return absl::OkStatus();
  }

  // Makes columns_ of `count` neurons from the `first`th of the batch on.
  void Transpose(int64_t first, int64_t count, int64_t batch) {
    const int64_t hidden = spec_.config.hidden_size;
    const std::byte* const strips = strips_.data() + StripBytes(first);
    if (mlp_.packed) {
      LIME_CHECK_EQ(count, kTile);
      TransposeCodes(strips, hidden, StripBytes(batch), mlp_.code_bits, columns_.data(), row_bytes());
    } else if (mlp_.code_bits == 16) {
      TransposeElements<uint16_t>(strips, hidden, StripBytes(batch), count, columns_.data(), row_bytes());
    } else {
      TransposeElements<uint32_t>(strips, hidden, StripBytes(batch), count, columns_.data(), row_bytes());
    }
  }

  // The bundle of a neuron, the `in_batch`th of the batch and the `in_tile`th of the tile.
  void Encode(int64_t neuron, int64_t in_batch, int64_t batch, int64_t in_tile) {
    std::vector<std::span<const std::byte>> parts;
    Bytes at = in_batch * row_bytes();
    const auto bytes = static_cast<size_t>(row_bytes());
    for (const TensorSpec* tensor : mlp_.rows()) {
      parts.push_back(std::span(rows_).subspan(static_cast<size_t>(at), bytes));
      CheckRow(*tensor, parts.back());
      at += batch * row_bytes();
    }
    parts.push_back(std::span(columns_).subspan(static_cast<size_t>(in_tile) * bytes, bytes));
    CheckRow(*mlp_.down, parts.back());
    const auto num_parts = static_cast<size_t>(record_.parts);
    EncodeBundle(record_, parts,
                 std::span(bundles_).subspan(static_cast<size_t>(in_tile * record_.stride), static_cast<size_t>(record_.stride)),
                 std::span(sums_).subspan(static_cast<size_t>(neuron) * num_parts, num_parts));
  }

  // Copies the decider's rows of `count` places from `tile` on, the first of which is the `in_batch`th of the batch.
  void CopyRows(int64_t tile, int64_t count, int64_t in_batch) {
    std::atomic<bool> finite = true;
    options_.for_each(count, [&](int64_t j) {
      const auto row = std::span(rows_).subspan(static_cast<size_t>((in_batch + j) * row_bytes()), static_cast<size_t>(row_bytes()));
      if (!CopyRow(order_[static_cast<size_t>(tile + j)], row)) finite = false;
    });
    if (!finite) why_not_ = NoBundles::kNotFinite;
  }

  // False if a weight is not finite.  Thread: any, of different neurons
  bool CopyRow(int64_t neuron, std::span<const std::byte> row) {
    const DeciderShape& shape = layout_.decider.shape;
    const auto part = [neuron](auto& all, int64_t size) {
      return std::span(all).subspan(static_cast<size_t>(neuron * size), static_cast<size_t>(size));
    };
    std::vector<float> weights;
    weights.reserve(static_cast<size_t>(shape.cols));
    const DType dtype = mlp_.rows().front()->info.dtype;
    for (int64_t at = 0; at < std::ssize(row); at += ElementBytes(dtype)) weights.push_back(LoadFloat(dtype, row.data() + at));
    return layout_.copier->Copy(weights, part(codes_, CodeRowBytes(shape.cols, shape.bits)), part(kept_, shape.directions),
                                copied_rows_[static_cast<size_t>(neuron)]);
  }

  absl::Status AppendTables(StoreFileWriter& writer) {
    LIME_RETURN_IF_ERROR(AppendZerosTo(writer, layout_.sums_at));
    LIME_RETURN_IF_ERROR(Append(writer, EncodeSums(sums_)));
    LIME_RETURN_IF_ERROR(AppendZerosTo(writer, layout_.place_at));
    LIME_RETURN_IF_ERROR(Append(writer, EncodePlaces(layout_.places.empty() ? order_ : layout_.places)));
    return layout_.copier == nullptr ? absl::OkStatus() : AppendCopy(writer);
  }

  absl::Status AppendCopy(StoreFileWriter& writer) {
    const std::array<std::span<const std::byte>, kDeciderParts> parts = {
        std::as_bytes(std::span(codes_)), std::as_bytes(std::span(copied_rows_)), std::as_bytes(std::span(kept_)),
        std::as_bytes(layout_.copier->mean()), std::as_bytes(layout_.copier->axes())};
    for (size_t part = 0; part < kDeciderParts; ++part) {
      LIME_RETURN_IF_ERROR(AppendZerosTo(writer, layout_.decider.parts[part].offset));
      LIME_RETURN_IF_ERROR(Append(writer, parts[part]));
    }
    return absl::OkStatus();
  }

  const Checkpoint& source_;
  const ModelSpec& spec_;
  const BlockSpec& block_;
  const BundleFileLayout& layout_;
  const BundledMlp& mlp_;
  const BundleLayout& record_;
  SourceReader& reader_;
  const WriteBundlesOptions& options_;
  const std::vector<int32_t> order_;  // by place: its neuron
  std::optional<NoBundles> why_not_;
  double up_norm_ = 0;  // the largest |row| of up
  double up_bias_ = 0, input_norm_ = 0;
  std::vector<std::byte> rows_, strips_, columns_, bundles_;
  std::vector<uint32_t> sums_;
  std::vector<uint8_t> codes_;  // of the copy: DeciderPart
  std::vector<CopiedRow> copied_rows_;
  std::vector<int8_t> kept_;
  Bytes done_ = 0;
};

}  // namespace

BundleFileLayout LayOutBundles(const BundledMlp& mlp, std::vector<int32_t> places, std::shared_ptr<const RowCopier> copier) {
  LIME_CHECK(places.empty() || std::ssize(places) == mlp.shape.neurons) << places.size();
  BundleFileLayout layout;
  layout.mlp = mlp;
  layout.places = std::move(places);
  layout.name = mlp.FileName();
  const int64_t neurons = mlp.shape.neurons, parts = mlp.shape.layout.parts;
  std::vector<SafetensorsWriter::Tensor> tensors;
  int64_t end = 0;
  const auto add = [&](std::string_view name, DType dtype, std::vector<int64_t> shape) {
    if (const Bytes hole = RoundUp(end, kBundleReadAlign) - end; hole > 0) {
      tensors.push_back({absl::StrCat(kStorePadPrefix, "bundles.", tensors.size()), DType::kU8, {hole}});
      end += hole;
    }
    const BundleTensor at{.offset = end, .bytes = TensorBytes(dtype, shape)};
    end += at.bytes;
    tensors.push_back({std::string(name), dtype, std::move(shape)});
    return at;
  };
  const auto header = [&] { return SafetensorsHeaderBytes(tensors, {.alignment = kBundleReadAlign}); };
  add(kBundlesName, DType::kU8, {neurons, mlp.shape.layout.stride});
  BundleTensor sums = add(kBundleSumsName, DType::kU32, {neurons, parts}), place = add(kBundlePlaceName, DType::kU32, {neurons});
  layout.header_begin = header();
  layout.header_begin.resize(layout.header_begin.rfind('}'));  // of the tensors; any others follow
  std::vector<BundleTensor*> tables = {&sums, &place};
  if (copier != nullptr) {
    layout.decider.shape = {.rows = neurons, .cols = copier->cols(), .directions = copier->directions(), .bits = copier->bits()};
    for (size_t part = 0; part < kDeciderParts; ++part) {
      DeciderTensor tensor = TensorOf(static_cast<DeciderPart>(part), layout.decider.shape);
      layout.decider.parts[part] = add(tensor.name, tensor.dtype, std::move(tensor.shape));
      tables.push_back(&layout.decider.parts[part]);
    }
  }
  layout.copier = std::move(copier);
  layout.header = header();
  const auto header_bytes = static_cast<int64_t>(layout.header.size());
  for (BundleTensor* const table : tables) {
    table->offset += header_bytes;
    layout.ranges.push_back({table->offset, table->bytes, 0});
  }
  layout.sums_at = sums.offset;
  layout.place_at = place.offset;
  layout.bytes = header_bytes + end;
  return layout;
}

std::vector<int32_t> NeuronsInOrder(const BundleFileLayout& layout) {
  std::vector<int32_t> neurons(static_cast<size_t>(layout.mlp.shape.neurons));
  std::iota(neurons.begin(), neurons.end(), 0);
  for (size_t neuron = 0; neuron < layout.places.size(); ++neuron)
    neurons[static_cast<size_t>(layout.places[neuron])] = static_cast<int32_t>(neuron);
  return neurons;
}

bool SameShape(const StoredFile& stored, const BundleFileLayout& layout) {
  StoredFile bare = stored;
  bare.xxh3 = 0;
  for (StoredRange& range : bare.ranges) range.xxh3 = 0;
  if (layout.copier == nullptr && bare.bytes > layout.bytes && bare.ranges.size() == layout.ranges.size() + kDeciderParts) {
    bare.ranges.resize(layout.ranges.size());
    bare.bytes = layout.bytes;
  }
  return bare == static_cast<const StoredFile&>(layout);
}

absl::StatusOr<WrittenBundles> WriteBundles(const Checkpoint& source, const ModelSpec& spec, const BundleFileLayout& layout,
                                            SourceReader& reader, StoreDisk& disk, const std::string& path,
                                            const WriteBundlesOptions& options) {
  return Writer(source, spec, layout, reader, options).Run(disk, path);
}

}  // namespace lime
