// SPDX-License-Identifier: MIT
#include "container-hooks/overlay_server.hpp"

#include <fcntl.h>

#include <cstdlib>

#include "container-hooks/helper_program.hpp"
#include "container-hooks/hook_progress.hpp"

namespace heddle {
namespace {

constexpr int kDeviceFd = 3;
constexpr int kReadyFd = 4;
constexpr char kReady = '+';

std::string one_line(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n')
      out += "; ";
    else
      out += c;
  }
  return out;
}

constexpr const char* kOomScore = "/proc/self/oom_score_adj";

/// While it stands what we start is spared by the OOM killer: programs whose mapped files lose
/// their daemon get SIGBUS, so it goes after the programs. Inherited, so that fs-mount's worker has
/// it from its first moment too. Only root may go below what it was started with (proc(5)):
/// elsewhere it is as little above that as may be.
class SparedByOomKiller {
 public:
  SparedByOomKiller() : before_(read_file(kOomScore, 64).value_or("0")) {
    const int now = std::atoi(before_.c_str());
    for (const int wanted : {-500, 0})
      if (now <= wanted || set(std::to_string(wanted))) return;
  }
  SparedByOomKiller(const SparedByOomKiller&) = delete;
  SparedByOomKiller& operator=(const SparedByOomKiller&) = delete;
  ~SparedByOomKiller() { (void)set(before_); }

 private:
  static bool set(const std::string& score) {
    const auto file = open_file(kOomScore, O_WRONLY);
    return file && write_all(file->get(), score, kOomScore).has_value();
  }
  std::string before_;
};

}  // namespace

Result<OverlayServer> OverlayServer::start(const Fd& device, const ServeRequest& request) {
  auto ready = make_pipe();
  if (!ready) return fail(std::move(ready.error()));
  auto null = open_file("/dev/null", O_RDWR);
  if (!null) return fail(std::move(null.error()));
  HelperRequest helper;
  helper.name = "fs-mount";
  helper.arguments = {"--fuse-fd",     std::to_string(kDeviceFd),
                      "--ready-fd",    std::to_string(kReadyFd),
                      "--mount-point", request.mount_point};
  if (request.own_namespace) helper.arguments.push_back("--leave-tree");
  if (!request.log.empty()) helper.arguments.insert(helper.arguments.end(), {"--log", request.log});
  helper.arguments.push_back(request.map);
  // What it says comes through the pipe; a daemon that kept the hook's stderr would hold the
  // runtime up.
  helper.fds = {{null->get(), STDIN_FILENO},
                {null->get(), STDOUT_FILENO},
                {null->get(), STDERR_FILENO},
                {device.get(), kDeviceFd},
                {ready->write_end.get(), kReadyFd}};
  auto child = [&] {
    const SparedByOomKiller spared;
    return start_helper(helper);
  }();
  if (!child) return fail(std::move(child.error()));
  ready->write_end.reset();
  note_step("waiting for fs-mount, which is to serve", request.map);
  char first = 0;
  ssize_t n;
  do {
    n = ::read(ready->read_end.get(), &first, 1);
  } while (n < 0 && errno == EINTR);
  if (n == 1 && first == kReady) return OverlayServer(std::move(*child));
  if (n <= 0) return fail("fs-mount", "did not start", "it ended without a word");
  auto text = first + read_all(ready->read_end.get(), "fs-mount", 1U << 20).value_or("");
  while (text.ends_with('\n')) text.pop_back();
  const bool stale = text.find("does not fit this node") != std::string::npos;
  return fail(Error::with_code(stale ? ESTALE : 0, {}, one_line(text)));
}

}  // namespace heddle
