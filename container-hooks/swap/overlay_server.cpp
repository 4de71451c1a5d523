// SPDX-License-Identifier: MIT
#include "container-hooks/swap/overlay_server.hpp"

#include <fcntl.h>

#include <cstdlib>
#include <optional>

#include "base/channel.hpp"
#include "base/mount_service.hpp"
#include "base/try.hpp"
#include "container-hooks/host/programs.hpp"
#include "container-hooks/host/watched_work.hpp"

namespace heddle::hook {
namespace {

constexpr int kDeviceFd = 3;
constexpr int kReadyFd = 4;

constexpr const char* kOomScore = "/proc/self/oom_score_adj";

/// During its life, programs that this process starts are spared by the OOM killer: programs whose
/// mapped files lose their daemon get SIGBUS, so the daemon is to be killed after them. The score
/// is inherited, so that fs-mount's worker has it from the start too. Only root may go below the
/// score that it was started with (proc(5)); others get 0, or what they have.
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
  auto ready = TRY(make_socket_pair());
  auto null = TRY(open_file("/dev/null", O_RDWR));
  HelperRequest helper;
  helper.name = "fs-mount";
  helper.arguments = {"--fuse-fd",     std::to_string(kDeviceFd),
                      "--ready-fd",    std::to_string(kReadyFd),
                      "--mount-point", request.mount_point};
  if (request.own_namespace) helper.arguments.push_back("--leave-tree");
  if (!request.log.empty()) helper.arguments.insert(helper.arguments.end(), {"--log", request.log});
  helper.arguments.push_back(request.map);
  // Its messages come through the socket; a daemon with the hook's stderr would hold the runtime
  // up.
  helper.fds = {{null.get(), STDIN_FILENO},
                {null.get(), STDOUT_FILENO},
                {null.get(), STDERR_FILENO},
                {device.get(), kDeviceFd},
                {ready.other.get(), kReadyFd}};
  std::optional<SparedByOomKiller> spared(std::in_place);
  Child child = TRY(start_helper(helper));
  spared.reset();
  ready.other.reset();
  note_step("waiting for fs-mount, which is to serve", request.map);
  TRY(await_ready(ready.one.get()));
  return OverlayServer(std::move(child));
}

}  // namespace heddle::hook
