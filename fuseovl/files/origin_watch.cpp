// SPDX-License-Identifier: MIT
#include "fuseovl/files/origin_watch.hpp"

#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <new>
#include <span>
#include <system_error>
#include <thread>
#include <unordered_map>

namespace heddle {
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
