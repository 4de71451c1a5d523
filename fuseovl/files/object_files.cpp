// SPDX-License-Identifier: MIT
#include "fuseovl/files/object_files.hpp"

#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <ctime>
#include <new>
#include <system_error>
#include <thread>
#include <unordered_map>

#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "base/try.hpp"

namespace heddle {

ObjectFiles::ObjectFiles(Origins origins, std::vector<std::string> paths)
    : origins_(std::move(origins)), paths_(std::move(paths)), refused_(paths_.size()) {
  assign_lanes();
}

std::vector<int> ObjectFiles::descriptors() const {
  std::vector<int> out;
  for (const auto& origin : origins_.files)
    if (origin.fd) out.push_back(origin.fd.get());
  if (staging_)
    for (const int fd : staging_->descriptors()) out.push_back(fd);
  return out;
}

std::vector<std::string> ObjectFiles::reopened() const {
  std::vector<std::string> out;
  std::string last;  // the paths are sorted: the files of a directory stand together
  for (ObjectId object = 0; object < paths_.size(); ++object) {
    const Origin& origin = origins_.files[object];
    if (!origin.usable || origin.fd) continue;
    const std::string& path = paths_[object];
    std::string directory = path.substr(0, path.rfind('/') + 1);
    if (directory != last) out.push_back(directory);
    last = std::move(directory);
    out.push_back(path);
  }
  return out;
}

Result<void> ObjectFiles::stage(StageDirectory directory, std::uint64_t budget) {
  staging_ = TRY(Staging::create(std::move(directory), origins_, budget));
  return {};
}

std::optional<pid_t> ObjectFiles::start_staging() {
  return staging_ ? staging_->start(origins_, paths_) : std::nullopt;
}

void ObjectFiles::assign_lanes() {
  std::unordered_map<std::uint64_t, std::uint32_t> by_device;
  for (const Origin& origin : origins_.files) {
    const auto next = static_cast<std::uint32_t>(by_device.size());
    lanes_.push_back(by_device.try_emplace(origin.stamp.id.dev, next).first->second);
  }
  lane_count_ = by_device.size();
}

tl::expected<std::size_t, int> ObjectFiles::read(ObjectId object, std::span<char> into,
                                                 off_t offset, MayBlock block) {
  const Origin& origin = origins_.files[object];
  if (!origin.usable) return tl::unexpected(EIO);
  if (on_change_ == OnChange::refuse && refused_[object] >= changed_in_place)
    return tl::unexpected(EIO);
  if (staging_)
    if (const auto got = staging_->read(object, into, offset, block)) return *got;
  Fd reopened;
  if (!origin.fd) {
    if (block == MayBlock::no) return tl::unexpected(EAGAIN);
    // Others give theirs back in a moment: whoever maps the page would die of an error.
    auto fd = reopen(object, 1000);
    if (!fd) return tl::unexpected(fd.error());
    reopened = std::move(*fd);
  }
  const int fd = reopened ? reopened.get() : origin.fd.get();
  if (origin.locality == Locality::memory) block = MayBlock::yes;
  const auto got = read_at(fd, into, offset, block);
  if (!got) return got;
  if (const int code = compare(object, fd)) return tl::unexpected(code);
  return got;
}

/// While descriptors or memory are used up it tries again, every 2 ms.
tl::expected<Fd, int> ObjectFiles::reopen(ObjectId object, int tries) {
  constexpr timespec kPause{0, 2'000'000};
  for (;;) {
    auto fd = open_regular(paths_[object]);
    if (fd) return std::move(*fd);
    const int code = fd.error().code();
    const bool ours = code == EMFILE || code == ENFILE || code == ENOMEM;
    if (!ours) return tl::unexpected(refuse(object, static_cast<std::uint32_t>(code)));
    if (--tries <= 0) return tl::unexpected(code);
    ::nanosleep(&kPause, nullptr);
  }
}

std::optional<std::string> ObjectFiles::watchable(ObjectId object) const {
  const Origin& origin = origins_.files[object];
  if (!origin.usable || origin.locality == Locality::remote) return std::nullopt;
  return origin.fd ? "/proc/self/fd/" + std::to_string(origin.fd.get()) : paths_[object];
}

void ObjectFiles::check(ObjectId object) {
  const Origin& origin = origins_.files[object];
  if (!origin.usable || refused_[object] != none) return;
  if (origin.fd)
    (void)compare(object, origin.fd.get());
  else if (const auto fd = reopen(object, 1))
    (void)compare(object, fd->get());
}

int ObjectFiles::compare(ObjectId object, int fd) {
  const FileStamp& stamp = origins_.files[object].stamp;
  struct stat status {};
  if (::fstat(fd, &status) != 0) return EIO;
  const FileStamp now = file_stamp(status);
  // ctime is left out: rename over a pinned file, chmod and a new hard link change it.
  if (now.size != stamp.size || now.mtime_ns != stamp.mtime_ns)
    return refuse(object, changed_in_place);
  if (now.id != stamp.id) return refuse(object, replaced);
  return 0;
}

std::string ObjectFiles::text_of(std::uint32_t reason) {
  if (reason == changed_in_place) return "changed in place while mounted";
  if (reason == replaced) return "replaced while mounted and not pinned";
  return Error::from_errno({}, "cannot open", static_cast<int>(reason)).message();
}

int ObjectFiles::refuse(ObjectId object, std::uint32_t reason) {
  const bool goes_on = on_change_ == OnChange::keep && is_staged(object);
  if (refused_[object].exchange(reason, std::memory_order_relaxed) != reason)
    warn(Error(paths_[object], goes_on ? "its staged copy goes on" : "answered with an error",
               text_of(reason)));
  return EIO;
}

std::vector<Drift> ObjectFiles::drifts() const {
  auto out = origins_.drifts;
  for (ObjectId object = 0; object < refused_.size(); ++object)
    if (const auto reason = refused_[object].load(std::memory_order_relaxed))
      out.push_back({object, paths_[object], text_of(reason)});
  return out;
}

namespace {

// A watch costs 2 us, and programs are being started just now.
constexpr std::chrono::seconds kBegin{1};

class OriginWatch {
 public:
  explicit OriginWatch(ObjectFiles& files) : files_(files), notify_(::inotify_init1(IN_CLOEXEC)) {}

  void run() {
    if (!notify_) return;
    for (ObjectId object = 0; object < files_.size(); ++object) add(object);
    // What came before the watch.
    for (const auto& [watch, object] : objects_) files_.check(object);
    alignas(inotify_event) std::array<char, 4096> buffer;
    for (;;) {
      const ssize_t n = ::read(notify_.get(), buffer.data(), buffer.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;
      look_at({buffer.data(), static_cast<std::size_t>(n)});
    }
  }

 private:
  void add(ObjectId object) {
    const auto path = files_.watchable(object);
    if (!path) return;
    // A rename over a pinned file is none of our business; over another it is IN_DELETE_SELF.
    const int watch = ::inotify_add_watch(notify_.get(), path->c_str(),
                                          IN_MODIFY | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF);
    if (watch >= 0) objects_[watch] = object;
  }

  void look_at(std::span<const char> events) {
    while (events.size() >= sizeof(inotify_event)) {
      inotify_event event;
      std::memcpy(&event, events.data(), sizeof(event));
      if (const auto found = objects_.find(event.wd); found != objects_.end())
        files_.check(found->second);
      else if (event.mask & IN_Q_OVERFLOW)
        for (const auto& [watch, object] : objects_) files_.check(object);
      events = events.subspan(std::min(events.size(), sizeof(event) + event.len));
    }
  }

  ObjectFiles& files_;
  Fd notify_;
  std::unordered_map<int, ObjectId> objects_;
};

}  // namespace

void watch_origins(ObjectFiles& files) {
  try {
    std::thread([&files] {
      std::this_thread::sleep_for(kBegin);
      try {
        OriginWatch(files).run();
      } catch (const std::bad_alloc&) {
        // Files are checked when they are read all the same.
      }
    }).detach();
  } catch (const std::system_error&) {
    // As above.
  }
}

}  // namespace heddle
