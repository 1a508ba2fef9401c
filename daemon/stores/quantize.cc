#include "daemon/stores/quantize.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "common/sampling/logits_hash.h"
#include "daemon/machine/files.h"
#include "daemon/machine/parallel.h"
#include "daemon/stores/affine.h"
#include "daemon/stores/block_store_disk.h"
#include "daemon/stores/float_codec.h"
#include "daemon/stores/output_file.h"
#include "daemon/stores/safetensors_writer.h"
#include "daemon/stores/weights_digest.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/model_folder.h"
#include "planner/plan/model/block_parts.h"

namespace lime {
namespace {

namespace fs = std::filesystem;

constexpr char kModelConfigName[] = "config.json", kShardIndexName[] = "model.safetensors.index.json";
constexpr char kMarkName[] = "lime_quantized.json";
constexpr Bytes kMaxMarkBytes = kMiB;

// Bytes of the source that one thread processes at once.
constexpr Bytes kCopyBytes = 4 * kMiB;

// How one tensor of the source becomes one or three tensors of the target.
struct Job {
  std::string name;
  TensorInfo info;
  TensorLocation at;
  bool pack = false;
  // Its index in the target file. Scales and biases follow a packed weight.
  size_t target = 0;
};

// A weight file of the copy and its source.
struct CopiedFile {
  std::string name, source_path;
  std::vector<Job> jobs;
  std::vector<SafetensorsWriter::Tensor> targets;
};

// Rows [begin, end) of a packed tensor, or bytes [begin, end) of a copied one.
struct Chunk {
  const Job* job = nullptr;
  int64_t begin = 0, end = 0;
};

bool Routes(const TensorSpec& tensor) {
  return tensor.role == TensorRole::kRouter || tensor.role == TensorRole::kSharedScale;
}

// The matrices that the architecture computes with. They are packed, but for routers: those are small
// and decide which experts compute.
std::set<std::string> MatricesOf(const ModelSpec& spec) {
  std::set<std::string> names;
  for (const BlockSpec& block : spec.blocks) {
    for (const TensorSpec& tensor : block.tensors) {
      const bool matrix = tensor.part == TensorPart::kWeight && !IsPinned(tensor);
      if (matrix && !Routes(tensor)) names.insert(tensor.name);
    }
  }
  return names;
}

bool HasScales(const ModelSpec& spec) {
  const auto is_scale = [](const TensorSpec& tensor) {
    return tensor.part == TensorPart::kScales || tensor.part == TensorPart::kPinnedScales;
  };
  return std::ranges::any_of(spec.blocks, [&](const BlockSpec& block) { return std::ranges::any_of(block.tensors, is_scale); });
}

// A stack of experts' matrices may have its name without ".weight".
std::string Stem(const std::string& name) {
  return std::string(absl::StripSuffix(name, ".weight"));
}

// Of a matrix, or of a stack of matrices.
int64_t RowCount(const TensorInfo& info) {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < info.shape.size(); ++i) rows *= info.shape[i];
  return rows;
}

// The shape with other columns.
std::vector<int64_t> WithColumns(std::vector<int64_t> shape, int64_t cols) {
  shape.back() = cols;
  return shape;
}

class Quantizer {
 public:
  Quantizer(const Checkpoint& source, const ModelSpec& spec, std::string target_dir, const Quantization& packing,
            const LoadOptions& options)
      : source_(source),
        matrices_(MatricesOf(spec)),
        target_dir_(std::move(target_dir)),
        packing_(packing),
        watcher_(options, TensorBytesOf(source)) {}

  absl::StatusOr<QuantizeReport> Run() {
    report_.source_bytes = TensorBytesOf(source_);
    std::vector<CopiedFile> files;
    for (size_t file = 0; file < source_.files().size(); ++file) files.push_back(Plan(static_cast<int32_t>(file)));
    if (report_.quantized == 0) {
      return Invalid(source_.dir(), ": no matrix has a multiple of ", packing_.group_size, " columns; ",
                     packing_.group_size > 32 ? "choose a smaller group size" : "this model cannot be quantised");
    }
    LIME_ASSIGN_OR_RETURN(const Bytes free, FreeDiskBytes(target_dir_));
    if (report_.bytes > free) return DiskFull(target_dir_, report_.bytes, free, /*resumes=*/false);
    nlohmann::ordered_json weight_map = nlohmann::ordered_json::object();
    for (const CopiedFile& file : files) LIME_RETURN_IF_ERROR(WriteFile(file, weight_map));
    watcher_.Finish();
    index_ = {{"metadata", {{"total_size", report_.bytes}}}, {"weight_map", weight_map}};
    return report_;
  }

  // Appends the weight files, which Run() has written.
  void ListFiles(std::vector<const NewFile*>& files) const {
    for (const auto& writer : writers_) files.push_back(&writer->file());
  }

  // Gives the weight files their names. REQUIRES: Run() succeeded.
  absl::Status Commit() {
    for (const auto& writer : writers_) LIME_RETURN_IF_ERROR(writer->Finish());
    return absl::OkStatus();
  }

  // Says which file has which tensor. Readers need it unless the only file is model.safetensors.
  std::string index_text() const { return index_.dump(2) + "\n"; }

 private:
  static Bytes TensorBytesOf(const Checkpoint& source) {
    Bytes bytes = 0;
    for (const auto& [name, info] : source.index()) bytes += info.bytes;
    return bytes;
  }

  // The tensors of one source file, in file order, and their targets. Counts them in the report.
  CopiedFile Plan(int32_t file) {
    const std::string& path = source_.files()[static_cast<size_t>(file)].path;
    CopiedFile copied{.name = fs::path(path).filename().string(), .source_path = path, .jobs = {}, .targets = {}};
    std::vector<Job>& jobs = copied.jobs;
    std::vector<SafetensorsWriter::Tensor>& targets = copied.targets;
    for (const auto& [name, info] : source_.index()) {
      if (source_.location(name).file == file) jobs.push_back({.name = name, .info = info, .at = source_.location(name)});
    }
    std::ranges::sort(jobs, {}, [](const Job& job) { return job.at.offset; });
    for (Job& job : jobs) {
      const bool matrix = matrices_.contains(job.name) && job.info.shape.size() >= 2;
      job.pack = matrix && job.info.shape.back() % packing_.group_size == 0;
      job.target = targets.size();
      if (matrix && !job.pack) report_.dense.push_back(job.name);
      if (!job.pack) {
        targets.push_back({job.name, job.info.dtype, job.info.shape});
        continue;
      }
      ++report_.quantized;
      const std::vector<int64_t>& shape = job.info.shape;
      targets.push_back({Stem(job.name) + ".weight", DType::kU32, WithColumns(shape, shape.back() * packing_.bits / 32)});
      for (const char* part : {".scales", ".biases"}) {
        targets.push_back({Stem(job.name) + part, job.info.dtype, WithColumns(shape, shape.back() / packing_.group_size)});
      }
    }
    for (const SafetensorsWriter::Tensor& target : targets) report_.bytes += TensorBytes(target.dtype, target.shape);
    return copied;
  }

  static std::vector<Chunk> ChunksOf(const std::vector<Job>& jobs) {
    std::vector<Chunk> chunks;
    for (const Job& job : jobs) {
      const int64_t row_bytes = job.pack ? job.at.bytes / RowCount(job.info) : 1;
      const int64_t step = std::max<int64_t>(1, kCopyBytes / row_bytes), end = job.at.bytes / row_bytes;
      for (int64_t begin = 0; begin < end; begin += step) chunks.push_back({&job, begin, std::min(end, begin + step)});
    }
    return chunks;
  }

  absl::Status WriteFile(const CopiedFile& file, nlohmann::ordered_json& weight_map) {
    LIME_ASSIGN_OR_RETURN(auto created, SafetensorsWriter::Create(target_dir_ + "/" + file.name, file.targets));
    const auto& writer = writers_.emplace_back(std::move(created));
    for (const SafetensorsWriter::Tensor& target : file.targets) weight_map[target.name] = file.name;
    LIME_ASSIGN_OR_RETURN(const FileDescriptor input, OpenForReading(file.source_path));
    const std::vector<Chunk> chunks = ChunksOf(file.jobs);
    LIME_RETURN_IF_ERROR(ParallelFor(static_cast<int64_t>(chunks.size()),
                                     [&](int64_t i) { return DoChunk(chunks[static_cast<size_t>(i)], input, file.source_path, *writer); }));
    return writer->Complete();
  }

  absl::Status DoChunk(const Chunk& chunk, const FileDescriptor& input, const std::string& path, SafetensorsWriter& writer) {
    if (watcher_.cancelled()) return absl::CancelledError("quantising was interrupted, and its files were removed");
    const Job& job = *chunk.job;
    const int64_t unit = job.pack ? job.at.bytes / RowCount(job.info) : 1;
    std::vector<std::byte> bytes(static_cast<size_t>((chunk.end - chunk.begin) * unit));
    LIME_RETURN_IF_ERROR(ReadExactly(input, path, job.at.offset + chunk.begin * unit, bytes));
    LIME_RETURN_IF_ERROR(job.pack ? Pack(job, bytes, chunk.begin, writer) : writer.Write(job.target, chunk.begin, bytes));
    absl::MutexLock lock(&mutex_);
    done_ += static_cast<Bytes>(bytes.size());
    watcher_.Report(done_);
    return absl::OkStatus();
  }

  // Quantises rows of one matrix and writes their three parts.
  absl::Status Pack(const Job& job, std::span<const std::byte> rows, int64_t first_row, SafetensorsWriter& writer) const {
    const DType dtype = job.info.dtype;
    const auto element = static_cast<size_t>(ElementBytes(dtype));
    const size_t values = rows.size() / element, groups = values / static_cast<size_t>(packing_.group_size);
    std::vector<uint8_t> codes(values);
    std::vector<std::byte> scales(groups * element), biases(groups * element);
    std::vector<float> group(static_cast<size_t>(packing_.group_size));
    for (size_t g = 0; g < groups; ++g) {
      for (size_t i = 0; i < group.size(); ++i) group[i] = LoadFloat(dtype, &rows[(g * group.size() + i) * element]);
      const GroupScale fitted = QuantizeGroup(group, packing_.bits, dtype, std::span(codes).subspan(g * group.size(), group.size()));
      StoreFloat(dtype, fitted.scale, &scales[g * element]);
      StoreFloat(dtype, fitted.bias, &biases[g * element]);
    }
    std::vector<uint32_t> words(values * static_cast<size_t>(packing_.bits) / 32);
    PackCodes(codes, packing_.bits, words);
    const int64_t cols = job.info.shape.back(), word_bytes = cols * packing_.bits / 8,
                  group_bytes = cols / packing_.group_size * static_cast<int64_t>(element);
    LIME_RETURN_IF_ERROR(writer.Write(job.target, first_row * word_bytes, std::as_bytes(std::span(words))));
    LIME_RETURN_IF_ERROR(writer.Write(job.target + 1, first_row * group_bytes, scales));
    return writer.Write(job.target + 2, first_row * group_bytes, biases);
  }

  const Checkpoint& source_;
  const std::set<std::string> matrices_;
  const std::string target_dir_;
  const Quantization packing_;
  QuantizeReport report_;
  std::vector<std::unique_ptr<SafetensorsWriter>> writers_;
  nlohmann::ordered_json index_;
  absl::Mutex mutex_;
  LoadWatcher watcher_;
  Bytes done_ ABSL_GUARDED_BY(mutex_) = 0;
};

absl::Status CheckPacking(const Quantization& packing) {
  const bool bits = packing.bits == 3 || packing.bits == 4 || packing.bits == 6 || packing.bits == 8;
  const bool group = packing.group_size == 32 || packing.group_size == 64 || packing.group_size == 128;
  if (bits && group) return absl::OkStatus();
  return Invalid("cannot quantise to ", packing.bits, " bits in groups of ", packing.group_size,
                 "; 3, 4, 6 or 8 bits in groups of 32, 64 or 128 are supported");
}

// The names of all files of a copy.
absl::StatusOr<std::vector<std::string>> NamesToWrite(const Checkpoint& source) {
  LIME_ASSIGN_OR_RETURN(std::vector<std::string> names, SideFiles(source.dir()));
  for (const CheckpointFile& file : source.files()) names.push_back(fs::path(file.path).filename().string());
  names.insert(names.end(), {kShardIndexName, kModelConfigName, kMarkName});
  return names;
}

// Says that LIME made a folder as a copy, of which model, and how to recognise its other files.
struct Mark {
  std::string source;  // ModelDigest, in hex
  std::vector<WrittenFile> files;
  bool names_only = false;  // an earlier release wrote it

  static absl::StatusOr<Mark> Of(const Checkpoint& source) {
    LIME_ASSIGN_OR_RETURN(const uint64_t digest, ModelDigest(source));
    return Mark{.source = HashText(digest), .files = {}};
  }

  // Empty if there is no readable mark.
  static Mark Read(const std::string& dir) {
    Mark mark;
    const absl::StatusOr<std::string> text = ReadTextFile(dir + "/" + kMarkName, kMaxMarkBytes);
    if (!text.ok()) return mark;
    const nlohmann::json root = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (!root.is_object() || !root.contains("source_xxh3") || !root["source_xxh3"].is_string()) return mark;
    if (!root.contains("files") || !root["files"].is_array()) return mark;
    mark.source = root["source_xxh3"];
    for (const nlohmann::json& file : root["files"]) mark.AddFile(file);
    return mark;
  }

  bool Wrote(const std::string& dir, const std::string& name) const {
    if (name == kMarkName) return !source.empty();
    const auto file = std::ranges::find(files, name, &WrittenFile::name);
    return file != files.end() && IsUnchanged(dir, *file);
  }

  std::string Text(const Quantization& packing) const {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const WrittenFile& file : files) list.push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3", HashText(file.xxh3)}});
    const nlohmann::ordered_json root = {
        {"source_xxh3", source}, {"bits", packing.bits}, {"group_size", packing.group_size}, {"files", list}};
    return root.dump(2) + "\n";
  }

 private:
  void AddFile(const nlohmann::json& file) {
    names_only = names_only || file.is_string();
    if (!file.is_object() || !file.contains("name") || !file["name"].is_string()) return;
    if (!file.contains("bytes") || !file["bytes"].is_number_integer() || !file.contains("xxh3") || !file["xxh3"].is_string()) return;
    WrittenFile written{.name = file["name"], .bytes = file["bytes"]};
    if (!absl::SimpleHexAtoi(file["xxh3"].get<std::string>(), &written.xxh3)) return;
    if (IsPlainFileName(written.name)) files.push_back(std::move(written));
  }
};

// An earlier copy of the same model may be replaced, but only files that are still as LIME wrote
// them.
absl::Status CheckTarget(const Checkpoint& source, const std::string& target_dir, const Mark& mark, bool overwrite) {
  std::error_code error;
  if (fs::equivalent(source.dir(), target_dir, error))
    return Invalid(target_dir, ": is the folder of the source itself; give another folder");
  const Mark found = Mark::Read(target_dir);
  if (!found.source.empty() && found.source != mark.source) {
    return Invalid(target_dir, ": is the quantised copy of another model than ", source.dir(), "; give another folder, or remove this one");
  }
  if (found.names_only) {
    return Invalid(target_dir, ": is the quantised copy of an earlier release, which wrote no checksums, ",
                   "so LIME cannot recognise its files; give another folder, or remove this one");
  }
  LIME_ASSIGN_OR_RETURN(std::vector<std::string> names, NamesToWrite(source));
  return CheckOutputFolder(target_dir, {.what = found.source.empty() ? "quantised copy that LIME made" : "quantised copy as LIME wrote it",
                                        .is_ours = [&](const std::string& name) { return found.Wrote(target_dir, name); },
                                        .names = std::move(names),
                                        .overwrite = overwrite});
}

// Adds a field to the config's own text. Parsing and writing it again would lose values that JSON
// cannot express (NaN, Infinity). If a name occurs twice, readers take the last field.
// Names the routers, which stay dense. REQUIRES: ParseModelConfig accepts the text.
std::string WithQuantization(const std::string& config_json, const ModelSpec& spec, const Quantization& packing) {
  std::string dense;
  for (const BlockSpec& block : spec.blocks) {
    for (const TensorSpec& tensor : block.OfExpert(-1)) {
      if (Routes(tensor)) absl::StrAppend(&dense, ", \"", Stem(tensor.name), "\": false");
    }
  }
  const size_t end = config_json.find_last_of('}');
  const size_t last = config_json.find_last_not_of(" \t\r\n", end - 1);
  return absl::StrCat(config_json.substr(0, last + 1), ",\n  \"quantization\": {\"group_size\": ", packing.group_size,
                      ", \"bits\": ", packing.bits, dense, "}\n}\n");
}

// The copy's small files, config.json last: a folder without it is no checkpoint. They have no
// names yet.
absl::StatusOr<std::vector<NewFile>> SmallFiles(const Checkpoint& source, const ModelSpec& spec, const std::string& dir,
                                                const Quantization& packing, const std::string& index) {
  std::vector<NewFile> files;
  const auto add = [&](const std::string& name, std::string_view text) -> absl::Status {
    LIME_ASSIGN_OR_RETURN(NewFile file, NewFile::WithText(dir + "/" + name, text));
    files.push_back(std::move(file));
    return absl::OkStatus();
  };
  LIME_RETURN_IF_ERROR(add(kShardIndexName, index));
  LIME_ASSIGN_OR_RETURN(const std::vector<std::string> side_files, SideFiles(source.dir()));
  for (const std::string& name : side_files) {
    LIME_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(source.dir() + "/" + name, kMaxSideFileBytes));
    LIME_RETURN_IF_ERROR(add(name, text));
  }
  LIME_RETURN_IF_ERROR(add(kModelConfigName, WithQuantization(source.config_json(), spec, packing)));
  return files;
}

// Records the files that are about to get their names.
absl::Status Record(const Quantizer& quantizer, const std::vector<NewFile>& small, Mark& mark) {
  std::vector<const NewFile*> files;
  quantizer.ListFiles(files);
  for (const NewFile& file : small) files.push_back(&file);
  for (const NewFile* const file : files) {
    LIME_ASSIGN_OR_RETURN(mark.files.emplace_back(), DescribeFile(file->descriptor(), file->path()));
  }
  return absl::OkStatus();
}

// Removes the files of an earlier copy, config.json first. Files that somebody has changed since
// stay. So at any time the mark that is there lists exactly the files that LIME wrote.
absl::Status RemoveEarlier(const std::string& dir) {
  std::error_code error;
  fs::remove(dir + "/" + kModelConfigName, error);
  if (error) return ErrnoStatus(error.value(), dir + "/" + kModelConfigName, "remove");
  const Mark found = Mark::Read(dir);
  for (const WrittenFile& file : found.files) {
    if (IsUnchanged(dir, file)) fs::remove(dir + "/" + file.name, error);
  }
  return absl::OkStatus();
}

// Gives all files their names, the mark first.
absl::Status CommitAll(Quantizer& quantizer, std::vector<NewFile>& small, NewFile& mark, const std::string& dir) {
  LIME_RETURN_IF_ERROR(RemoveEarlier(dir));
  LIME_RETURN_IF_ERROR(mark.Commit());
  LIME_RETURN_IF_ERROR(quantizer.Commit());
  for (NewFile& file : small) LIME_RETURN_IF_ERROR(file.Commit());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<QuantizeReport> QuantizeCheckpoint(const std::string& source_dir, const std::string& target_dir, const Quantization& packing,
                                                  const QuantizeOptions& options) {
  LIME_RETURN_IF_ERROR(CheckPacking(packing));
  LIME_ASSIGN_OR_RETURN(const Checkpoint source, Checkpoint::Open(source_dir));
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, source.BuildModelSpec());
  if (spec.config.quantization) {
    return Invalid(source_dir, ": is already quantised to ", spec.config.quantization->bits, " bits; give the original checkpoint");
  }
  if (HasScales(spec)) return Invalid(source_dir, ": has quantised weights; give the original checkpoint");
  LIME_ASSIGN_OR_RETURN(Mark mark, Mark::Of(source));
  LIME_ASSIGN_OR_RETURN(OutputFolder folder, OutputFolder::Make(target_dir, "lime quantize"));
  LIME_RETURN_IF_ERROR(CheckTarget(source, target_dir, mark, options.overwrite));
  Quantizer quantizer(source, spec, target_dir, packing, options.watch);
  LIME_ASSIGN_OR_RETURN(QuantizeReport report, quantizer.Run());
  LIME_ASSIGN_OR_RETURN(std::vector<NewFile> small, SmallFiles(source, spec, target_dir, packing, quantizer.index_text()));
  LIME_RETURN_IF_ERROR(Record(quantizer, small, mark));
  LIME_ASSIGN_OR_RETURN(NewFile mark_file, NewFile::WithText(target_dir + "/" + kMarkName, mark.Text(packing)));
  LIME_RETURN_IF_ERROR(CommitAll(quantizer, small, mark_file, target_dir));
  folder.Commit();
  return report;
}

}  // namespace lime
