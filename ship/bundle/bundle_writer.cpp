// SPDX-License-Identifier: MIT
#include "ship/bundle/bundle_writer.hpp"

#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>
#include <system_error>
#include <thread>

#include "base/open_regular.hpp"
#include "base/output_file.hpp"
#include "base/try.hpp"

namespace heddle {
namespace {

/// More than a slow file system's reads need to keep the cores compressing.
constexpr std::size_t kThreads = 16;

// Debian's numpy and scipy in frames of 1 MiB, one core: level 3 packs 3.33 to 1 at 223 MB/s and is
// decoded at 1,060 MB/s; level 9 3.57 at 47 and 1,075; level 19 3.90 at 3 and 792.
constexpr int kLevel = 9;

/// The stored form of a piece of the stream, never longer than it.
std::string encode_frame(std::string_view piece) {
  std::string out(piece.size(), '\0');
  // A result that is not shorter than the piece is an error.
  const std::size_t size =
      ::ZSTD_compress(out.data(), out.size() - 1, piece.data(), piece.size(), kLevel);
  if (::ZSTD_isError(size) != 0) return std::string(piece);
  out.resize(size);
  return out;
}

tl::unexpected<Error> changed(const std::string& path) {
  return fail(Error::with_code(ESTALE, path, "cannot be packed", "it has changed meanwhile",
                               "build the map again with fs-resolve build"));
}

/// Makes the frames in several threads and writes them in order. A failure is that of the first
/// frame that has one.
class Frames {
 public:
  Frames(const std::vector<StreamFile>& files, int out, const std::string& path)
      : files_(files), out_(out), path_(path) {
    for (const auto& file : files) {
      places_.push_back(index_.stream_size);
      index_.stream_size += file.stamp.size;
    }
    index_.frames.resize((index_.stream_size + kFrameSize - 1) / kFrameSize);
  }

  Result<BundleIndex> write() {
    {
      std::vector<std::jthread> threads;
      try {
        while (threads.size() + 1 < std::min(kThreads, index_.frames.size()))
          threads.emplace_back([this] { work(); });
      } catch (const std::system_error&) {  // fewer threads do
      }
      work();
    }
    if (failure_) return fail(std::move(*failure_));
    return std::move(index_);
  }

 private:
  void work() {
    for (std::size_t number; (number = next_++) < index_.frames.size();) {
      auto stored = frame(number);
      std::unique_lock hold(mutex_);
      turn_changed_.wait(hold, [&] { return turn_ == number || failure_; });
      if (failure_) return;
      auto done = stored ? write_all(out_, *stored, path_) : fail(std::move(stored.error()));
      if (done) {
        index_.frames[number] = {offset_, static_cast<std::uint32_t>(stored->size()),
                                 hash_bytes(*stored)};
        offset_ += stored->size();
        ++turn_;
      } else {
        failure_ = std::move(done.error());
      }
      turn_changed_.notify_all();
    }
  }

  Result<std::string> frame(std::size_t number) const {
    std::string piece(index_.frame_length(number), '\0');
    const std::uint64_t begin = number * kFrameSize;
    // The last file that begins here or before; empty ones are in front of it.
    auto at = static_cast<std::size_t>(std::ranges::upper_bound(places_, begin) - places_.begin());
    for (--at; at < files_.size() && places_[at] < begin + piece.size(); ++at) {
      const std::uint64_t from = std::max(begin, places_[at]);
      const std::uint64_t to = std::min(begin + piece.size(), places_[at] + files_[at].stamp.size);
      if (from < to)
        TRY(read(files_[at], from - places_[at],
                 std::span(piece).subspan(static_cast<std::size_t>(from - begin),
                                          static_cast<std::size_t>(to - from))));
    }
    return encode_frame(piece);
  }

  static Result<void> read(const StreamFile& file, std::uint64_t offset, std::span<char> into) {
    const Fd opened = TRY(open_regular(file.path));
    struct stat status {};
    for (std::size_t done = 0; done < into.size();) {
      if (::fstat(opened.get(), &status) != 0) return fail_errno(file.path, "cannot stat");
      if (file_stamp(status) != file.stamp) return changed(file.path);
      const ssize_t n = ::pread(opened.get(), into.data() + done, into.size() - done,
                                static_cast<off_t>(offset + done));
      if (n < 0 && errno != EINTR) return fail_errno(file.path, "cannot read");
      if (n == 0) return changed(file.path);
      if (n > 0) done += static_cast<std::size_t>(n);
    }
    if (::fstat(opened.get(), &status) != 0) return fail_errno(file.path, "cannot stat");
    if (file_stamp(status) != file.stamp) return changed(file.path);
    return {};
  }

  const std::vector<StreamFile>& files_;
  const int out_;
  const std::string& path_;
  std::vector<std::uint64_t> places_;
  BundleIndex index_;
  std::atomic<std::size_t> next_ = 0;
  std::mutex mutex_;
  std::condition_variable turn_changed_;
  std::size_t turn_ = 0;  ///< the frame to be written next
  std::uint64_t offset_ = bundle_format::kHeadSize;
  std::optional<Error> failure_;
};

}  // namespace

Result<BundleSummary> write_bundle(BundleInput input, const std::string& path) {
  auto file = TRY(AtomicFile::create(path));
  // Whatever the umask: root mounts no bundle that others may write.
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0 || ::fchmod(file.fd(), status.st_mode & 0755) != 0)
    return fail_errno(path, "cannot write");
  TRY(file.write(bundle_format::head()));
  Frames frames(input.files, file.fd(), path);
  auto index = TRY(frames.write());
  index.objects = std::move(input.objects);
  index.trees = std::move(input.trees);
  bundle_format::Footer footer{.offset = bundle_format::kHeadSize};
  for (const auto& frame : index.frames) footer.offset += frame.size;
  Encoder coder;
  coder(index, input.map);
  const auto bytes = coder.take();
  if (bytes.size() > bundle_format::kMaxIndex || index.stream_size > bundle_format::kMaxStream)
    return fail_errno(path, "cannot write", EFBIG);
  footer.size = bytes.size();
  footer.id = hash_bytes(bytes);
  TRY(file.write(bytes));
  Encoder end;
  end(footer);
  TRY(file.write(std::string(bundle_format::kFooterMagic) + end.take()));
  TRY(file.commit());
  return BundleSummary{footer.id, index.stream_size,
                       footer.offset + footer.size + bundle_format::kFooterSize};
}

}  // namespace heddle
