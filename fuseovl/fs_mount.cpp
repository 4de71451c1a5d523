// SPDX-License-Identifier: MIT
#include "fuseovl/fs_mount.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <map>

#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "fuseovl/mount_program.hpp"

namespace heddle {
namespace {

struct Arguments {
  MountSettings settings;
  std::string unmount;
  bool lazy = false;
  std::string stats;
};

void declare(CLI::App& app, Arguments& a) {
  auto& s = a.settings;
  app.set_version_flag("--version", std::string("fs-mount ") + HEDDLE_VERSION);
  app.add_option("MAP", s.load.map_path, "The map that fs-resolve built");
  app.add_option("DIR", s.mount_point, "The folder to mount on, or /dev/fd/N: a mounted device");
  app.add_flag("-f,--foreground", s.foreground, "Stay in the foreground");
  const std::map<std::string, OnDrift> drift{{"refuse", OnDrift::refuse}, {"warn", OnDrift::warn}};
  app.add_option("--on-drift", s.load.on_drift,
                 "When a file differs from the map: refuse to mount, or warn and serve it as it is")
      ->transform(CLI::CheckedTransformer(drift))
      ->option_text("refuse|warn");
  const std::map<std::string, ServePolicy> serve{{"all", ServePolicy::all},
                                                 {"remote", ServePolicy::remote}};
  app.add_option(
         "--serve", s.load.serve,
         "Send programs to the mount for all files, or only for those on remote file systems")
      ->transform(CLI::CheckedTransformer(serve))
      ->option_text("all|remote");
  app.add_option("--prefetch", s.prefetch,
                 "How much content to read ahead in the background (default 256M; 0: none)")
      ->transform(CLI::AsSizeValue(false))
      ->option_text("SIZE");
  app.add_option("--threads", s.threads, "Threads that answer the kernel")
      ->check(CLI::Range(1, 64))
      ->option_text("N");
  app.add_option("--log", s.log_path, "File for the daemon's messages")->option_text("FILE");
  app.add_option("-u,--unmount", a.unmount, "Unmount DIR")->option_text("DIR");
  app.add_flag("--lazy", a.lazy, "With -u: detach now, end when the last user has gone");
  app.add_option("--stats", a.stats, "Print the counters of the mount at DIR")->option_text("DIR");
  const std::string group = "For programs that mount themselves";
  app.add_option("--fuse-fd", s.fuse_fd, "Serve this mounted /dev/fuse descriptor, stay in front")
      ->option_text("N")
      ->group(group);
  app.add_option("--mount-point", s.load.mount_point, "Where programs see that mount")
      ->option_text("PATH")
      ->group(group);
  app.add_option("--ready-fd", s.ready_fd, "Gets '+' when the mount answers, or an error's text")
      ->option_text("M")
      ->group(group);
  app.add_option("--cleanup", s.cleanup, "Folder to remove when the mount has gone")
      ->option_text("DIR")
      ->group(group);
  const std::map<std::string, KeepKind> kinds{{"private", KeepKind::privately},
                                              {"fusermount", KeepKind::fusermount}};
  app.add_option("--keep", s.keep,
                 "Mount MAP for those who connect to --listen-fd, until the last has gone")
      ->transform(CLI::CheckedTransformer(kinds))
      ->option_text("private|fusermount")
      ->group(group);
  app.add_option("--listen-fd", s.listen_fd, "The listening socket of --keep")
      ->option_text("N")
      ->group(group);
}

int usage(std::string_view text) {
  say(text);
  say("run with --help for more information");
  return exit_usage;
}

/// `/dev/fd/N` as DIR is a device that the caller has mounted already: libfuse's convention
/// (fuse_main(3), mount.fuse3(8)), by which apptainer --fusemount starts a file system.
void take_mounted_device(MountSettings& s) {
  const std::string prefix = "/dev/fd/";
  if (s.fuse_fd >= 0 || !s.mount_point.starts_with(prefix)) return;
  const auto number = s.mount_point.substr(prefix.size());
  if (number.empty() || number.size() > 6 ||
      number.find_first_not_of("0123456789") != std::string::npos)
    return;
  s.fuse_fd = std::stoi(number);
  s.mount_point.clear();
  if (s.load.mount_point.empty()) s.load.mount_point = "/dev/heddle";
}

int run(Arguments& a) {
  take_mounted_device(a.settings);
  const auto& s = a.settings;
  const bool mounts = !s.load.map_path.empty();
  if (int{!a.unmount.empty()} + int{!a.stats.empty()} + int{mounts} != 1)
    return usage("give MAP and DIR, or -u DIR, or --stats DIR");
  if (a.lazy && a.unmount.empty()) return usage("--lazy belongs to -u");
  if (!a.unmount.empty()) return unmount_program(a.unmount, a.lazy);
  if (!a.stats.empty()) return stats_program(a.stats);
  if (s.keep.has_value() != (s.listen_fd >= 0)) return usage("--keep needs --listen-fd");
  if (s.keep) {
    if (!s.mount_point.empty() || s.fuse_fd >= 0 || s.ready_fd >= 0 || !s.cleanup.empty() ||
        !s.load.mount_point.empty())
      return usage("--keep takes MAP alone, and makes its mount point");
    return keep_program(s);
  }
  if (s.fuse_fd < 0) {
    if (s.mount_point.empty()) return usage("DIR is missing");
    if (s.ready_fd >= 0 || !s.load.mount_point.empty() || !s.cleanup.empty())
      return usage("--ready-fd, --mount-point and --cleanup belong to --fuse-fd");
    return mount_program(s);
  }
  if (!s.mount_point.empty()) return usage("--fuse-fd takes MAP alone: it is mounted already");
  if (!s.load.mount_point.starts_with('/'))
    return usage("--fuse-fd needs --mount-point and an absolute path");
  if (!s.cleanup.empty() && (!s.cleanup.starts_with('/') || s.cleanup == "/"))
    return usage("--cleanup needs the absolute path of a folder of its own");
  return serve_fd_program(s);
}

}  // namespace

int fs_mount_main(int argc, char** argv) {
  set_program_name("fs-mount");
  // A caller's closed 0, 1 or 2 must not become our device or map.
  for (int fd = ::open("/dev/null", O_RDWR); fd >= 0; fd = ::open("/dev/null", O_RDWR)) {
    if (fd <= STDERR_FILENO) continue;
    ::close(fd);
    break;
  }
  CLI::App app("Serves the libraries of a map from one flat directory.", "fs-mount");
  Arguments arguments;
  declare(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return usage(error.what());
  }
  try {
    return run(arguments);
  } catch (const std::exception& error) {
    say(error.what());
    return exit_failure;
  }
}

}  // namespace heddle
