#include "daemon/machine/block_device.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <asio.hpp>
#include <cerrno>
#include <thread>

#ifdef ASIO_HAS_FILE
#include <liburing.h>
#endif

#include "absl/strings/str_cat.h"
#include "daemon/machine/files.h"
#include "planner/base/check.h"

namespace lime {
namespace {

constexpr Bytes kDirectAlignment = 4 * kKiB;

#ifndef O_DIRECT
constexpr int O_DIRECT = 0;
#endif

// Raises the limit of open files. A store has a file for each layer, and each channel needs a
// descriptor for each file: more than the usual 1,024. If the system refuses, a later open reports
// it.
void AllowDescriptors(size_t more) {
  constexpr size_t kOthers = 256;  // for the rest of the process
  struct rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= more + kOthers) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, more + kOthers);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

struct OpenedFiles {
  std::vector<FileDescriptor> files;
  bool direct = false;  // true: all files bypass the page cache
};

absl::StatusOr<FileDescriptor> OpenFile(const std::string& path, bool direct) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0)));
  if (!file.valid()) return ErrnoStatus(errno, path, "open");
#ifdef F_NOCACHE
  if (direct) ::fcntl(file.get(), F_NOCACHE, 1);
#endif
  return file;
}

// Opens all files in the same way: past the page cache if every file system allows it (tmpfs does
// not), otherwise through it.
absl::StatusOr<OpenedFiles> OpenFiles(const std::vector<std::string>& paths, bool direct) {
  OpenedFiles opened{.direct = direct};
  for (const std::string& path : paths) {
    absl::StatusOr<FileDescriptor> file = OpenFile(path, direct);
    if (!file.ok() && direct) return OpenFiles(paths, false);
    if (!file.ok()) return file.status();
    opened.files.push_back(*std::move(file));
  }
  return opened;
}

// An event loop and the one thread that runs it.
class ReaderLoop {
 public:
  ReaderLoop() : work_(asio::make_work_guard(context_)), thread_([this] { context_.run(); }) {}
  ~ReaderLoop() { Stop(); }
  // Runs the queued tasks, then ends the thread. Idempotent.
  void Stop() {
    work_.reset();
    if (thread_.joinable()) thread_.join();
  }
  asio::io_context& context() { return context_; }
  void Post(std::function<void()> task) { asio::post(context_, std::move(task)); }

 private:
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::thread thread_;
};

// Common part of both devices: the loop, the names, and whether the page cache is bypassed.
class LoopDevice : public BlockDevice {
 public:
  LoopDevice(std::vector<std::string> paths, int channels, bool direct) : paths_(std::move(paths)), channels_(channels), direct_(direct) {}

  int num_channels() const override { return channels_; }
  Bytes alignment() const override { return direct_ ? kDirectAlignment : 1; }
  const std::vector<std::string>& paths() const override { return paths_; }
  void Post(std::function<void()> task) override { loop_.Post(std::move(task)); }

 protected:
  const std::vector<std::string> paths_;
  const int channels_;
  const bool direct_;
  ReaderLoop loop_;
};

#ifdef ASIO_HAS_FILE
// Whether submitted requests complete. A sandbox may allow io_uring_setup and refuse
// io_uring_enter; asio would then wait forever.
bool UringCompletes() {
  struct io_uring ring;
  if (::io_uring_queue_init(2, &ring, 0) != 0) return false;
  ::io_uring_prep_nop(::io_uring_get_sqe(&ring));
  struct io_uring_cqe* answer = nullptr;
  struct __kernel_timespec patience = {.tv_sec = 1, .tv_nsec = 0};
  const bool completes = ::io_uring_submit(&ring) == 1 && ::io_uring_wait_cqe_timeout(&ring, &answer, &patience) == 0;
  ::io_uring_queue_exit(&ring);
  return completes;
}

// An asio file object submits one read at a time, so each channel has its own object for each file.
class UringDevice : public LoopDevice {
 public:
  UringDevice(const std::vector<std::string>& paths, const OpenedFiles& opened, int channels) : LoopDevice(paths, channels, opened.direct) {
    for (int channel = 0; channel < channels; ++channel) {
      for (const FileDescriptor& file : opened.files) {
        asio::random_access_file& object = objects_.emplace_back(loop_.context());
        asio::error_code error;
        const int descriptor = ::fcntl(file.get(), F_DUPFD_CLOEXEC, 0);
        if (descriptor < 0) throw asio::system_error(asio::error_code(errno, asio::system_category()));
        object.assign(descriptor, error);
        if (error) throw asio::system_error(error);
      }
    }
  }
  ~UringDevice() override {
    loop_.Stop();
    objects_.clear();
  }

  std::string Describe() const override { return direct_ ? "O_DIRECT through io_uring" : "buffered reads through io_uring"; }

  void StartRead(int channel, int file, int64_t offset, std::byte* destination, Bytes bytes, Completion done) override {
    Start(channel, file, offset, asio::buffer(destination, static_cast<size_t>(bytes)), std::move(done));
  }

  // asio reads at most 64 buffers at once.
  void StartScatteredRead(int channel, int file, int64_t offset, std::span<const Segment> segments, Completion done) override {
    static_assert(kMostSegments <= static_cast<size_t>(asio::detail::max_iov_len) && kMostSegments <= 64);
    LIME_CHECK(!segments.empty() && segments.size() <= kMostSegments) << segments.size();
    std::vector<asio::mutable_buffer> buffers;
    buffers.reserve(segments.size());
    for (const Segment& segment : segments) buffers.push_back(asio::buffer(segment.memory, static_cast<size_t>(segment.bytes)));
    Start(channel, file, offset, std::move(buffers), std::move(done));
  }

 private:
  template <typename Buffers>
  void Start(int channel, int file, int64_t offset, Buffers buffers, Completion done) {
    asio::random_access_file& object = objects_[static_cast<size_t>(channel) * paths_.size() + static_cast<size_t>(file)];
    object.async_read_some_at(static_cast<uint64_t>(offset), std::move(buffers),
                              [done = std::move(done)](const asio::error_code& error, size_t got) {
                                const bool failed = error && error != asio::error::eof;
                                done({.error = failed ? error.value() : 0, .bytes = static_cast<Bytes>(got)});
                              });
  }

  std::vector<asio::random_access_file> objects_;
};
#endif

// One thread for each channel. The loop's thread runs the completions.
class PreadDevice : public LoopDevice {
 public:
  PreadDevice(const std::vector<std::string>& paths, OpenedFiles opened, int channels)
      : LoopDevice(paths, channels, opened.direct), files_(std::move(opened.files)), pool_(static_cast<size_t>(channels)) {}
  ~PreadDevice() override {
    pool_.join();
    loop_.Stop();
  }

  std::string Describe() const override { return absl::StrCat(direct_ ? "O_DIRECT" : "buffered", " reads by ", channels_, " threads"); }

  void StartRead(int /*channel*/, int file, int64_t offset, std::byte* destination, Bytes bytes, Completion done) override {
    asio::post(pool_, [this, fd = files_[static_cast<size_t>(file)].get(), offset, destination, bytes, done = std::move(done)] {
      Finish(::pread(fd, destination, static_cast<size_t>(bytes), offset), done);
    });
  }

  void StartScatteredRead(int /*channel*/, int file, int64_t offset, std::span<const Segment> segments, Completion done) override {
    LIME_CHECK(!segments.empty() && segments.size() <= kMostSegments) << segments.size();
    std::vector<struct iovec> places;
    for (const Segment& segment : segments) places.push_back({segment.memory, static_cast<size_t>(segment.bytes)});
    asio::post(pool_, [this, fd = files_[static_cast<size_t>(file)].get(), offset, places = std::move(places), done = std::move(done)] {
      Finish(::preadv(fd, places.data(), static_cast<int>(places.size()), offset), done);
    });
  }

 private:
  // `got`: what the read has just returned on this thread.
  void Finish(ssize_t got, const Completion& done) {
    const Result result{.error = got < 0 ? errno : 0, .bytes = got < 0 ? 0 : static_cast<Bytes>(got)};
    loop_.Post([done, result] { done(result); });
  }

  std::vector<FileDescriptor> files_;
  asio::thread_pool pool_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BlockDevice>> OpenBlockDevice(const std::vector<std::string>& paths, const BlockDeviceOptions& options) {
  LIME_CHECK_GT(options.channels, 0);
  AllowDescriptors(paths.size() * static_cast<size_t>(options.channels + 2));
  LIME_ASSIGN_OR_RETURN(OpenedFiles opened, OpenFiles(paths, options.direct));
#ifdef ASIO_HAS_FILE
  static const bool completes = UringCompletes();
  if (options.io_uring && completes) {
    // asio throws if io_uring is missing or forbidden; UringDevice throws if there are too few
    // descriptors.
    try {
      return std::unique_ptr<BlockDevice>(std::make_unique<UringDevice>(paths, opened, options.channels));
    } catch (const std::exception&) {
    }
  }
#endif
  return std::unique_ptr<BlockDevice>(std::make_unique<PreadDevice>(paths, std::move(opened), options.channels));
}

}  // namespace lime
