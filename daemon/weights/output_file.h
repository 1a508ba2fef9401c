// The one way in which LIME writes files for its user. A file takes its name once it is whole and on the disk; until then it has none, so
// that a full disk, an error or the end of the process leave nothing behind. What is there already is replaced only where LIME wrote it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/weights/files.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

// A file without a name, where the file system can do that; else one under a hidden name beside `path`, which goes with this object.
class NewFile {
 public:
  // In the folder of `path`. `mode` as for open().
  static absl::StatusOr<NewFile> Create(const std::string& path, unsigned mode = 0644);
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();

  const FileDescriptor& descriptor() const { return file_; }
  const std::string& path() const { return path_; }

  // Syncs it and gives it its name; what had that name is gone. Durable when it returns.
  absl::Status Commit();

 private:
  NewFile(std::string path, FileDescriptor file, std::string hidden)
      : path_(std::move(path)), file_(std::move(file)), hidden_(std::move(hidden)) {}

  std::string path_;
  FileDescriptor file_;
  std::string hidden_;  // its name until Commit(); empty: it has none
};

struct OutputOptions {
  // Replaces what somebody else wrote. Weights of a model are never replaced.
  bool overwrite = false;
  // Whether a file with this text is one of the kind that LIME writes here. Null: nothing is.
  std::function<bool(std::string_view text)> is_ours = nullptr;
  // That kind, in sentences: "a plan". May be empty.
  std::string kind;
  // Files that the same call reads: none of them is replaced, whatever `overwrite` says.
  std::vector<std::string> inputs = {};
  // Its owner alone may read it, from its first byte on.
  bool secret = false;
  // Ends the wait for somebody who reads a pipe. Null: it does not end.
  const std::atomic<bool>* cancelled = nullptr;
  // Called before that wait. May be null.
  std::function<void()> waits = nullptr;
};

// Whether `path` may be written, without changing anything. Where there is
//   nothing, or an empty file: it may, if its folder may be written;
//   a file: if it is ours or `overwrite` says so, and it is neither an input nor a file of a model;
//   a link: if that which it leads to may;
//   a pipe, a terminal or another character device: if it may be written;
//   a folder, a block device or a socket: never.
// InvalidArgument with path, reason and what to do.
absl::Status CheckOutput(const std::string& path, const OutputOptions& options);

// Writes the file as CheckOutput says: a new one, or in place of the old one with its permissions. Pipes and devices are written through,
// as are links, those to the descriptors of this process (/dev/stdout) included, and files with several names.
absl::Status WriteOutput(const std::string& path, std::string_view text, const OutputOptions& options);

// For files that come together or not at all: as WriteOutput, but each takes its name with Commit(). InvalidArgument also where a pipe, a
// device or a file with several names is there.
absl::StatusOr<NewFile> StageOutput(const std::string& path, std::string_view text, const OutputOptions& options);

// By its name or its first bytes: weights in the form of safetensors, GGUF, PyTorch or NumPy.
bool LooksLikeWeights(const std::string& path);

// A folder that one call alone writes. It goes again, if it is empty, unless it is kept: where it was made for what did not come about.
class OutputFolder {
 public:
  // Makes `dir` and its parents where they are missing. InvalidArgument where something else is there; FailedPrecondition while another
  // `command`, such as "lime prepare", writes there.
  static absl::StatusOr<OutputFolder> Make(const std::string& dir, std::string_view command);
  OutputFolder(OutputFolder&& other) noexcept : made_(std::exchange(other.made_, {})), lock_(std::move(other.lock_)) {}
  OutputFolder& operator=(OutputFolder&&) = delete;
  ~OutputFolder();
  void Keep() { made_.clear(); }

 private:
  OutputFolder() = default;
  std::vector<std::string> made_;  // the innermost first
  FileDescriptor lock_;
};

struct OutputFolderOptions {
  std::string what;  // that lies there otherwise: "block store", in sentences
  // Whether the file of this name in the folder may be there: because LIME wrote what is in it now. Null: none may.
  std::function<bool(const std::string& name)> is_ours = nullptr;
  std::vector<std::string> names;  // that will be written
  bool overwrite = false;          // files of those names that somebody else wrote
};

// Whether names may be written into `dir`. Missing, empty, or with nothing but what is ours it may; with `overwrite` also beside files of
// other names, and over files of these, but never where weights lie, under any name, what LIME made of another model, or a link of these
// names.
// InvalidArgument with the first names of what is in the way.
absl::Status CheckOutputFolder(const std::string& dir, const OutputFolderOptions& options);

// By what LIME knows a file again that it wrote: a name alone may be anybody's by then.
//
// Its size and a checksum: of all bytes up to 64 MiB, beyond that of the first 4 KiB of every MiB and of the last 4 KiB. Other weights
// of the same model differ everywhere; one changed value between the samples is not told, as the price of not reading 40 GB again.
struct WrittenFile {
  std::string name;
  Bytes bytes = 0;
  uint64_t xxh3 = 0;

  friend bool operator==(const WrittenFile&, const WrittenFile&) = default;
};

// Of a whole file, under the last part of `path`.
absl::StatusOr<WrittenFile> RecordOf(const FileDescriptor& file, const std::string& path);

// Whether `folder` has the file as it was recorded. Not where it cannot be read.
bool IsUnchanged(const std::string& folder, const WrittenFile& written);

}  // namespace lime
