// Writes every file that a user names. A file gets its name only when it is whole and on the disk.
// So a full disk, an error or the end of the process leaves nothing behind. An existing file is
// replaced only if LIME wrote it, or if the user asks for that.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/machine/files.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

// A file without a name, if the file system supports that (O_TMPFILE). Otherwise a file with a
// hidden name beside `path`, which the destructor removes.
class NewFile {
 public:
  // Creates it in the folder of `path`. `mode` as for open().
  static absl::StatusOr<NewFile> Create(const std::string& path, unsigned mode = 0644);
  // The same, with this content.
  static absl::StatusOr<NewFile> WithText(const std::string& path, std::string_view text);
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();

  const FileDescriptor& descriptor() const { return file_; }
  const std::string& path() const { return path_; }

  // Syncs the file and gives it its name; replaces the file that had that name. Durable when it
  // returns.
  absl::Status Commit();

 private:
  NewFile(std::string path, FileDescriptor file, std::string hidden)
      : path_(std::move(path)), file_(std::move(file)), hidden_(std::move(hidden)) {}

  std::string path_;
  FileDescriptor file_;
  std::string hidden_;  // its name until Commit(); empty: it has none
};

struct OutputOptions {
  // Replaces files that LIME did not write. Weights of a model are never replaced.
  bool overwrite = false;
  // True if a file with this text is of the kind that LIME writes here. Null: no file is of that
  // kind.
  std::function<bool(std::string_view text)> is_ours = nullptr;
  // The name of that kind for messages, such as "a plan". May be empty.
  std::string kind;
  // Files that the same call reads. They are never replaced, whatever `overwrite` says.
  std::vector<std::string> inputs = {};
  // Only the owner may read the file, from its first byte on.
  bool secret = false;
  // Ends the wait for a reader of a pipe. Null: the wait has no end.
  const std::atomic<bool>* cancelled = nullptr;
  // Called before that wait. May be null.
  std::function<void()> waits = nullptr;
};

// Checks whether `path` may be written. Changes nothing. If there is
//   nothing, or an empty file: yes, if its folder may be written;
//   a file: if `is_ours` or `overwrite` allows it, and it is no input and no file of a model;
//   a link: if its target may be written;
//   a pipe, a terminal or another character device: if it may be written;
//   a folder, a block device or a socket: never.
// InvalidArgument with path, reason and what to do.
absl::Status CheckOutput(const std::string& path, const OutputOptions& options);

// Writes the file if CheckOutput allows it: a new file, or a replacement with the permissions of
// the old one. Writes in place through pipes, devices, descriptors of this process (/dev/stdout)
// and files with several names. Follows links.
absl::Status WriteOutput(const std::string& path, std::string_view text, const OutputOptions& options);

// Prepares one of several files that appear together or not at all. Like WriteOutput, but the file
// gets its name with Commit(). InvalidArgument also if a pipe, a device or a file with several
// names is there.
absl::StatusOr<NewFile> PrepareOutput(const std::string& path, std::string_view text, const OutputOptions& options);

// True if the file holds weights (safetensors, GGUF, PyTorch, NumPy, ONNX or HDF5), by its name or
// its first bytes.
bool LooksLikeWeights(const std::string& path);

// A folder that one call at a time writes. The destructor removes the folders that Make created, if
// they are empty and Commit() was not called.
class OutputFolder {
 public:
  // Makes `dir` and its parents if they are missing. InvalidArgument if `dir` is something else;
  // FailedPrecondition while another `command`, such as "lime prepare", writes there.
  static absl::StatusOr<OutputFolder> Make(const std::string& dir, std::string_view command);
  OutputFolder(OutputFolder&& other) noexcept : made_(std::exchange(other.made_, {})), lock_(std::move(other.lock_)) {}
  OutputFolder& operator=(OutputFolder&&) = delete;
  ~OutputFolder();
  void Commit() { made_.clear(); }

 private:
  OutputFolder() = default;
  std::vector<std::string> made_;  // folders that Make created, innermost first
  FileDescriptor lock_;
};

struct OutputFolderOptions {
  // The word for the folder in messages, such as "block store".
  std::string what;
  // True if the file of this name in the folder may be there, because LIME wrote its present
  // content. Null: no file may.
  std::function<bool(const std::string& name)> is_ours = nullptr;
  std::vector<std::string> names;  // files that will be written
  // Replace files of those names that LIME did not write.
  bool overwrite = false;
};

// Checks whether files may be written into `dir`. It may be missing, be empty, or hold only files
// that are ours. With `overwrite` it may also hold other files, and files with the names to be
// written. Never allowed: weights under any name, results that LIME made of another model, and
// links with the names to be written. InvalidArgument lists the first files that are in the way.
absl::Status CheckOutputFolder(const std::string& dir, const OutputFolderOptions& options);

// The description by which LIME recognises a file that it wrote; another program may have written a
// file of that name since.
//
// It has the size and a checksum. The checksum covers all bytes of a file up to 64 MiB, and of a
// larger file the first 4 KiB of every MiB and the last 4 KiB. Other weights of the same model
// differ everywhere. A single changed value between the samples is not detected: the price of not
// reading 40 GB again.
struct WrittenFile {
  std::string name;
  Bytes bytes = 0;
  uint64_t xxh3 = 0;

  friend bool operator==(const WrittenFile&, const WrittenFile&) = default;
};

// Describes a whole file. The name is the last part of `path`.
absl::StatusOr<WrittenFile> DescribeFile(const FileDescriptor& file, const std::string& path);

// True if `folder` still has the file as it was described. False if the file cannot be read.
bool IsUnchanged(const std::string& folder, const WrittenFile& written);

}  // namespace lime
