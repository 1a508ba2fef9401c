#include "daemon/stores/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/formats/block_store_hash.h"
#include "daemon/weights/model_folder.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kFileMode = 0644, kSecretMode = 0600;
// Of a text that LIME writes. LIME did not write a longer file.
constexpr Bytes kMaxOursBytes = 256 * kMiB;
constexpr size_t kMostListed = 5;  // files that a refusal lists

std::string FolderBeside(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

std::string HiddenName(const std::string& path) {
  return absl::StrCat(FolderBeside(path), "/.lime-XXXXXX");
}

// Creates a file that has a hidden name while it grows.
absl::StatusOr<std::pair<FileDescriptor, std::string>> MakeHidden(const std::string& path, mode_t mode) {
  std::string name = HiddenName(path);
  FileDescriptor file(::mkostemp(name.data(), O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, path, "create");
  const mode_t mask = ::umask(0);
  ::umask(mask);
  ::fchmod(file.get(), mode & ~mask);
  return std::pair(std::move(file), std::move(name));
}

// Gives an open file without a name a hidden name.
absl::StatusOr<std::string> LinkHidden(const FileDescriptor& file, const std::string& path) {
  const std::string from = absl::StrCat("/proc/self/fd/", file.get());
  for (int tries = 0; tries < 100; ++tries) {
    std::string name = absl::StrCat(FolderBeside(path), "/.lime-", ::getpid(), "-", tries);
    if (::linkat(AT_FDCWD, from.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) return name;
    if (errno != EEXIST) break;
  }
  return ErrnoStatus(errno, path, "name");
}

}  // namespace

absl::StatusOr<NewFile> NewFile::Create(const std::string& path, unsigned mode) {
#ifdef O_TMPFILE
  if (::access("/proc/self/fd", X_OK) == 0) {
    FileDescriptor file(::open(FolderBeside(path).c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, mode));
    if (file.valid()) return NewFile(path, std::move(file), "");
  }
#endif
  LIME_ASSIGN_OR_RETURN(auto hidden, MakeHidden(path, mode));
  return NewFile(path, std::move(hidden.first), std::move(hidden.second));
}

absl::StatusOr<NewFile> NewFile::WithText(const std::string& path, std::string_view text) {
  LIME_ASSIGN_OR_RETURN(NewFile file, Create(path));
  LIME_RETURN_IF_ERROR(WriteExactly(file.file_, path, 0, std::as_bytes(std::span(text))));
  return file;
}

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)), file_(std::move(other.file_)), hidden_(std::exchange(other.hidden_, "")) {}

NewFile::~NewFile() {
  if (!hidden_.empty()) ::unlink(hidden_.c_str());
}

absl::Status NewFile::Commit() {
  if (::fsync(file_.get()) != 0) return ErrnoStatus(errno, path_, "sync");
  if (hidden_.empty()) {
    LIME_ASSIGN_OR_RETURN(hidden_, LinkHidden(file_, path_));
  }
  if (::rename(hidden_.c_str(), path_.c_str()) != 0) return ErrnoStatus(errno, path_, "replace");
  hidden_.clear();
  return SyncDirectoryOf(path_);
}

absl::Status WriteTextFile(const std::string& path, std::string_view text) {
  LIME_ASSIGN_OR_RETURN(NewFile file, NewFile::WithText(path, text));
  return file.Commit();
}

namespace {

absl::Status Refused(const std::string& path, std::string_view why) {
  return Invalid(path, ": ", Text(why));
}

// The descriptor of this process that a path means, such as /dev/stdout. Opening that path again
// would begin at the first byte of its file.
std::optional<int> OwnDescriptor(const fs::path& path) {
  std::error_code error;
  const fs::path folder = fs::canonical(path.has_parent_path() ? path.parent_path() : fs::path("."), error);
  if (error || folder != fs::canonical("/proc/self/fd", error)) return std::nullopt;
  int number = -1;
  if (!absl::SimpleAtoi(path.filename().string(), &number) || ::fcntl(number, F_GETFD) < 0) return std::nullopt;
  return number;
}

// The file that a path leads to.
struct OutputPlace {
  std::string path;                 // after following all links
  std::optional<int> descriptor;    // set: one of this process
  std::optional<struct stat> info;  // not set: nothing is there
};

absl::StatusOr<OutputPlace> FollowLinks(const std::string& asked) {
  constexpr int kMostLinks = 40;  // as the kernel
  if (asked.empty()) return Refused("\"\"", "names no file");
  fs::path path(asked);
  for (int links = 0; links <= kMostLinks; ++links) {
    struct stat info;
    if (const std::optional<int> descriptor = OwnDescriptor(path); descriptor) {
      if (::fstat(*descriptor, &info) != 0) return ErrnoStatus(errno, asked, "stat");
      return OutputPlace{path.string(), descriptor, info};
    }
    if (::lstat(path.c_str(), &info) != 0) {
      if (errno == ENOENT) return OutputPlace{path.string(), std::nullopt, std::nullopt};
      return ErrnoStatus(errno, asked, "stat");
    }
    if (!S_ISLNK(info.st_mode)) return OutputPlace{path.string(), std::nullopt, info};
    std::error_code error;
    const fs::path target = fs::read_symlink(path, error);
    if (error) return ErrnoStatus(error.value(), asked, "read the link");
    path = target.is_absolute() ? target : path.parent_path() / target;
  }
  return Refused(asked, "is a link to itself; remove it, or name another file");
}

absl::Status CheckFolder(const std::string& asked, const OutputPlace& place) {
  std::error_code ignored;
  const std::string folder = FolderBeside(place.path);
  if (!fs::is_directory(folder, ignored)) return Refused(asked, "lies in a folder that does not exist; make that folder first");
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    return Refused(asked, "may not be written; choose another place, or change the permissions of its folder");
  return absl::OkStatus();
}

// Whether the path is a side file, config.json or index in a folder that holds weights.
bool IsBesideWeights(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  if (name != "config.json" && name != "model.safetensors.index.json" && !IsSideFile(name)) return false;
  std::error_code ignored;
  const fs::directory_iterator files(FolderBeside(path), ignored);
  return std::any_of(begin(files), end(files), [](const fs::directory_entry& entry) { return LooksLikeWeights(entry.path().string()); });
}

absl::Status CheckOldFile(const std::string& asked, const OutputPlace& place, const OutputOptions& options) {
  for (const std::string& input : options.inputs) {
    std::error_code ignored;
    if (fs::equivalent(place.path, input, ignored)) return Refused(asked, "is also read by this command; name another file");
  }
  if (place.info->st_size == 0) return absl::OkStatus();
  if (options.is_ours) {
    const absl::StatusOr<std::string> text = ReadTextFile(place.path, kMaxOursBytes);
    if (text.ok() && options.is_ours(*text)) return absl::OkStatus();
  }
  if (LooksLikeWeights(place.path)) return Refused(asked, "holds weights of a model, which LIME never replaces; name another file");
  if (IsBesideWeights(place.path))
    return Refused(asked, "belongs to the model in its folder, and LIME never replaces it; name another file");
  if (options.overwrite) return absl::OkStatus();
  const std::string as = options.kind.empty() ? "" : absl::StrCat(" as ", options.kind);
  return Refused(asked, absl::StrCat("is there already, and LIME did not write it", as, "; name another file, or give --overwrite"));
}

absl::Status CheckPlace(const std::string& asked, const OutputPlace& place, const OutputOptions& options) {
  if (!place.info) return asked.ends_with('/') ? Refused(asked, "names a folder; name a file in it") : CheckFolder(asked, place);
  const mode_t mode = place.info->st_mode;
  if (S_ISDIR(mode)) return Refused(asked, "is a folder; name a file in it");
  if (S_ISBLK(mode)) return Refused(asked, "is a disk; name a file");
  if (S_ISSOCK(mode)) return Refused(asked, "is a socket; name a file");
  if (place.descriptor) {
    const int access = ::fcntl(*place.descriptor, F_GETFL) & O_ACCMODE;
    return access == O_RDONLY ? Refused(asked, "is open for reading only; name another file") : absl::OkStatus();
  }
  if (::access(place.path.c_str(), W_OK) != 0) return Refused(asked, "may not be written; choose another place, or change its permissions");
  if (!S_ISREG(mode)) return absl::OkStatus();
  LIME_RETURN_IF_ERROR(CheckOldFile(asked, place, options));
  return place.info->st_nlink > 1 ? absl::OkStatus() : CheckFolder(asked, place);
}

// While this object lives, writing to a pipe without a reader is an error of write() instead of the
// end of the process.
class NoSigpipe {
 public:
  NoSigpipe() {
    struct sigaction ignore = {};
    ignore.sa_handler = SIG_IGN;
    ::sigaction(SIGPIPE, &ignore, &before_);
  }
  ~NoSigpipe() { ::sigaction(SIGPIPE, &before_, nullptr); }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  struct sigaction before_ = {};
};

bool HasNoReader(const std::string& pipe) {
  return !FileDescriptor(::open(pipe.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)).valid() && errno == ENXIO;
}

// Waits for a reader if the pipe has none.
absl::Status WriteThrough(const std::string& path, const OutputPlace& place, std::string_view text, const OutputOptions& options) {
  const auto ended = [&] { return options.cancelled != nullptr && options.cancelled->load(); };
  const NoSigpipe no_sigpipe;
  absl::Status interrupted = absl::CancelledError(absl::StrCat(path, ": writing was interrupted"));
  if (!place.descriptor && options.waits && HasNoReader(place.path)) options.waits();
  int fd = -1;
  do {
    if (ended()) return interrupted;
    fd = place.descriptor ? ::fcntl(*place.descriptor, F_DUPFD_CLOEXEC, 0) : ::open(place.path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
  } while (fd < 0 && errno == EINTR);
  const FileDescriptor file(fd);
  if (!file.valid()) return ErrnoStatus(errno, path, "open");
  while (!text.empty()) {
    if (ended()) return interrupted;
    const ssize_t put = ::write(file.get(), text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return ErrnoStatus(errno, path, "write");
    text.remove_prefix(static_cast<size_t>(put));
  }
  return absl::OkStatus();
}

// A file with several names keeps them all. Reserves space before changing a byte.
absl::Status WriteInPlace(const std::string& path, const OutputPlace& place, std::string_view text) {
  const FileDescriptor file(::open(place.path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, path, "open");
  const int error = text.empty() ? 0 : ::posix_fallocate(file.get(), 0, static_cast<off_t>(text.size()));
  if (error != 0 && error != EOPNOTSUPP && error != EINVAL) {
    (void)!::ftruncate(file.get(), place.info->st_size);
    return ErrnoStatus(error, path, absl::StrCat("reserve ", FormatBytes(static_cast<Bytes>(text.size()))));
  }
  LIME_RETURN_IF_ERROR(WriteExactly(file, path, 0, std::as_bytes(std::span(text))));
  if (::ftruncate(file.get(), static_cast<off_t>(text.size())) != 0) return ErrnoStatus(errno, path, "cut");
  return ::fsync(file.get()) == 0 ? absl::OkStatus() : ErrnoStatus(errno, path, "sync");
}

absl::StatusOr<NewFile> StageAt(const OutputPlace& place, std::string_view text, bool secret) {
  LIME_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(place.path, secret ? kSecretMode : kFileMode));
  if (place.info && !secret) ::fchmod(file.descriptor().get(), place.info->st_mode & 07777);
  LIME_RETURN_IF_ERROR(WriteExactly(file.descriptor(), place.path, 0, std::as_bytes(std::span(text))));
  return file;
}

std::string LowerCase(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// Weights, and the marks of LIME's results: block stores, pushed blocks, quantised copies.
bool IsOfModel(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  return name.starts_with("lime_store.") || name.starts_with("lime_quantized.") || LooksLikeWeights(path);
}

std::string Listed(std::vector<std::string> names) {
  std::ranges::sort(names);
  return SomeOf(names, kMostListed);
}

}  // namespace

absl::Status CheckOutput(const std::string& path, const OutputOptions& options) {
  LIME_ASSIGN_OR_RETURN(const OutputPlace place, FollowLinks(path));
  return CheckPlace(path, place, options);
}

absl::Status WriteOutput(const std::string& path, std::string_view text, const OutputOptions& options) {
  LIME_ASSIGN_OR_RETURN(const OutputPlace place, FollowLinks(path));
  LIME_RETURN_IF_ERROR(CheckPlace(path, place, options));
  if (place.descriptor || (place.info && !S_ISREG(place.info->st_mode))) return WriteThrough(path, place, text, options);
  if (place.info && place.info->st_nlink > 1) return WriteInPlace(path, place, text);
  LIME_ASSIGN_OR_RETURN(NewFile file, StageAt(place, text, options.secret));
  return file.Commit();
}

absl::StatusOr<NewFile> PrepareOutput(const std::string& path, std::string_view text, const OutputOptions& options) {
  LIME_ASSIGN_OR_RETURN(const OutputPlace place, FollowLinks(path));
  LIME_RETURN_IF_ERROR(CheckPlace(path, place, options));
  const bool plain = !place.info || (S_ISREG(place.info->st_mode) && place.info->st_nlink == 1);
  if (place.descriptor || !plain) return Refused(path, "is a pipe, a device or a file with several names; move it away");
  return StageAt(place, text, options.secret);
}

bool LooksLikeWeights(const std::string& path) {
  const std::string suffix = LowerCase(fs::path(path).extension().string());
  for (const char* known : {".safetensors", ".gguf", ".ggml", ".bin", ".pt", ".pth", ".npz", ".npy", ".onnx", ".h5"}) {
    if (suffix == known) return true;
  }
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  const FileDescriptor file(fd);
  std::array<unsigned char, 9> head{};
  struct stat info;
  if (!file.valid() || ::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return false;
  if (::pread(fd, head.data(), head.size(), 0) != static_cast<ssize_t>(head.size())) return false;
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  if (text.starts_with("GGUF") || text.starts_with("PK\x03\x04") || text.starts_with("\x93NUMPY")) return true;
  uint64_t header = 0;
  for (int i = 0; i < 8; ++i) header |= static_cast<uint64_t>(head[static_cast<size_t>(i)]) << (8 * i);
  return head[8] == '{' && header >= 2 && header <= static_cast<uint64_t>(info.st_size) - 8;
}

absl::StatusOr<OutputFolder> OutputFolder::Make(const std::string& dir, std::string_view command) {
  OutputFolder folder;
  std::error_code error;
  if (fs::exists(fs::symlink_status(dir, error)) && !fs::is_directory(dir, error))
    return Refused(dir, "is not a folder; give an empty or a new folder");
  for (fs::path path = fs::absolute(dir, error).lexically_normal(); !path.empty() && !fs::exists(path, error); path = path.parent_path())
    folder.made_.push_back(path.string());
  fs::create_directories(dir, error);
  if (error == std::errc::not_a_directory) return Refused(dir, "lies below a file; give another folder");
  if (error) return ErrnoStatus(error.value(), dir, "make the folder");
  folder.lock_ = FileDescriptor(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.lock_.valid()) return ErrnoStatus(errno, dir, "open the folder");
  if (::flock(folder.lock_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return folder;
  folder.Commit();
  return absl::FailedPreconditionError(absl::StrCat(dir, ": another `", Text(command), "` is writing here; wait for it to end"));
}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  for (const std::string& path : made_) fs::remove(path, ignored);
}

absl::Status CheckOutputFolder(const std::string& dir, const OutputFolderOptions& options) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(dir, error))) return absl::OkStatus();
  if (!fs::is_directory(dir, error)) return Invalid(dir, ": is not a folder; give an empty or a new folder");
  std::vector<std::string> foreign, kept;
  for (fs::directory_iterator at(dir, error), end; !error && at != end; at.increment(error)) {
    const fs::directory_entry& entry = *at;
    std::error_code ignored;
    const std::string name = entry.path().filename().string();
    if (name == "lost+found" || (options.is_ours && options.is_ours(name))) continue;
    foreign.push_back(name);
    const bool replaced = std::ranges::find(options.names, name) != options.names.end();
    const bool plain = entry.is_regular_file(ignored) && !entry.is_symlink(ignored);
    if ((replaced && !plain) || IsOfModel(entry.path().string())) kept.push_back(name);
  }
  if (error) return ErrnoStatus(error.value(), dir, "list the folder");
  if (foreign.empty() || (options.overwrite && kept.empty())) return absl::OkStatus();
  if (options.overwrite) {
    return Refused(
        dir, absl::StrCat("holds another model, or links (", Listed(kept), "), which LIME never replaces; give an empty or a new folder"));
  }
  const bool helps = kept.empty() && !options.names.empty();
  return Refused(dir, absl::StrCat("holds files other than the ", options.what, " (", Listed(foreign), "); give an empty or a new folder",
                                   helps ? ", or --overwrite to replace files of the same names" : ""));
}

namespace {

constexpr Bytes kWholeBytes = 64 * kMiB;  // files up to this size are hashed whole
constexpr Bytes kStep = kMiB, kSampleBytes = 4 * kKiB;

}  // namespace

absl::StatusOr<WrittenFile> DescribeFile(const FileDescriptor& file, const std::string& path) {
  WrittenFile written{.name = std::filesystem::path(path).filename().string()};
  LIME_ASSIGN_OR_RETURN(written.bytes, FileBytes(file, path));
  std::vector<std::byte> buffer(static_cast<size_t>(kStep));
  Xxh3 hash;
  const auto add = [&](int64_t begin, Bytes bytes) -> absl::Status {
    const auto part = std::span(buffer).first(static_cast<size_t>(std::min(bytes, written.bytes - begin)));
    LIME_RETURN_IF_ERROR(ReadExactly(file, path, begin, part));
    hash.Add(part);
    return absl::OkStatus();
  };
  const bool whole = written.bytes <= kWholeBytes;
  for (int64_t begin = 0; begin < written.bytes; begin += kStep) LIME_RETURN_IF_ERROR(add(begin, whole ? kStep : kSampleBytes));
  if (!whole) LIME_RETURN_IF_ERROR(add(written.bytes - kSampleBytes, kSampleBytes));
  written.xxh3 = hash.value();
  return written;
}

bool IsUnchanged(const std::string& folder, const WrittenFile& written) {
  const std::string path = folder + "/" + written.name;
  const absl::StatusOr<FileDescriptor> file = OpenForReading(path);
  if (!file.ok()) return false;
  const absl::StatusOr<WrittenFile> found = DescribeFile(*file, path);
  return found.ok() && *found == written;
}

}  // namespace lime
