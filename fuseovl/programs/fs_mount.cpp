// SPDX-License-Identifier: MIT
// The program fs-mount.

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/command_line.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/mount_service.hpp"
#include "base/run_main.hpp"
#include "fuseovl/programs/programs.hpp"
#include "fuseovl/service/mount_server.hpp"

namespace heddle {
namespace {

enum class Mode : std::uint8_t { mount, reload, unmount, stats, verify, node, keep };

struct Arguments {
  MountSettings settings;
  std::vector<Mode> modes;  ///< of the command line; none: mount
  bool lazy = false;
  bool json = false;
};

void add_size(CLI::App& app, const std::string& name, std::uint64_t& value,
              const std::string& text) {
  const auto take = [&value](const std::string& given) -> std::string {
    const auto size = parse_byte_size(given);
    if (!size) return "'" + given + "' is not a size: give a number, optionally with K, M, G or T";
    value = *size;
    return {};
  };
  app.add_option_function<std::string>(
         name, [](const std::string&) {}, text)
      ->check(CLI::Validator(take, ""))
      ->type_name("SIZE");
}

/// --on-drift takes a word for OnDrift and one for OnChange.
std::string take_drift_word(const std::string& word, LoadOptions& out) {
  if (word == "refuse" || word == "warn")
    out.on_drift = word == "warn" ? OnDrift::warn : OnDrift::refuse;
  else if (word == "keep" || word == "eio")
    out.on_change = word == "keep" ? OnChange::keep : OnChange::refuse;
  else
    return "'" + word + "' is not one of refuse|warn|keep|eio";
  return {};
}

void declare(CLI::App& app, Arguments& a) {
  auto& s = a.settings;
  set_usage(app,
            "fs-mount [OPTIONS] MAP DIR\n       fs-mount --reload [OPTIONS] [MAP] DIR\n"
            "       fs-mount -u DIR [--lazy]\n"
            "       fs-mount --stats DIR [--json]\n       fs-mount --verify DIR|MAP\n"
            "       fs-mount [OPTIONS] --node [DIR]");
  app.set_version_flag("--version", "fs-mount (heddle) " HEDDLE_VERSION);
  app.add_option("MAP", s.load.map_path, "The map that fs-resolve built");
  app.add_option("DIR", s.mount_point, "The directory to mount on, or /dev/fd/N: a mounted device");
  app.add_flag("-f,--foreground", s.foreground, "Stay in the foreground");
  app.add_option_function<std::vector<std::string>>(
         "--on-drift", [](const std::vector<std::string>&) {},
         "If a file differs from the map: refuse to mount (default), or warn and serve it. If one "
         "changes later: keep its staged copy (default), or answer eio (repeatable)")
      ->check(CLI::Validator(
          [&s](const std::string& word) { return take_drift_word(word, s.load); }, ""))
      ->type_name("refuse|warn|keep|eio")
      ->allow_extra_args(false);  // a word each time: MAP and DIR follow
  add_choice<ServePolicy>(app, "--serve", s.load.serve,
                          {{"all", ServePolicy::all}, {"remote", ServePolicy::remote}},
                          "Send programs to the mount for all files (default), or only for those "
                          "on remote file systems");
  add_size(app, "--prefetch", s.prefetch,
           "How much content to read ahead in the background (256M; 0: none)");
  app.add_option(
         "--stage", s.load.stage.directory,
         "Copy the files to this directory on the node, shared by its mounts, and serve the copies")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeFirst)
      ->type_name("DIR");
  add_size(app, "--budget", s.load.stage.budget,
           "With --stage: how much that directory may hold (4G)");
  app.add_option("--threads", s.threads,
                 fmt::format("Most threads that answer the kernel ({}, at most 64)", s.threads))
      ->check(number_from(1, 64))
      ->type_name("N");
  app.add_option_function<double>(
         "--origin-timeout",
         [&s](double seconds) {
           s.load.origin_timeout = std::chrono::milliseconds(std::llround(seconds * 1000));
         },
         fmt::format("Seconds until reads of an unresponsive file system fail ({}; 0: never)",
                     kOriginTimeout.count()))
      ->check(number_from(0.0, 1e6))
      ->type_name("SECONDS");
  app.add_option("--fallback", s.load.fallback,
                 "Another copy of the bundle, read where the first is damaged")
      ->type_name("BUNDLE");
  app.add_option("--signers", s.load.signers,
                 "Mount only what a key of this file has signed (MAP.sig); then it may be anyone's")
      ->type_name("FILE");
  app.add_option("--log", s.log_path, "File for the daemon's messages (default: discarded)")
      ->type_name("FILE");
  // Flags, so that DIR behind them is a positional argument.
  const auto add_mode = [&](const std::string& name, Mode mode, const std::string& text) {
    app.add_flag_callback(
        name, [&a, mode] { a.modes.push_back(mode); }, text);
  };
  add_mode("--reload", Mode::reload,
           "Replace the mount at DIR by a new one, of MAP or of the same map");
  add_mode("-u,--unmount", Mode::unmount, "Unmount DIR");
  app.add_flag("--lazy", a.lazy, "With -u: detach now; the daemon ends with its last user");
  add_mode("--stats", Mode::stats, "Print the statistics of the mount at DIR");
  app.add_flag("--json", a.json, "With --stats: as JSON");
  add_mode("--verify", Mode::verify,
           "Compare the SHA-256 of what the mount at DIR serves, or of MAP's files, with MAP");
  app.add_option_function<std::string>(
         "--node",
         [&a](const std::string& directory) {
           a.modes.push_back(Mode::node);
           a.settings.node = directory.empty() ? kNodeDirectory : directory;
         },
         fmt::format("Serve this node's containers, one mount per map, below DIR ({})",
                     kNodeDirectory))
      ->expected(0, 1)
      ->type_name("DIR");
  const std::string group = "For programs that mount themselves";
  app.add_option("--fuse-fd", s.fuse_fd,
                 "Serve this mounted /dev/fuse descriptor in the foreground")
      ->type_name("N")
      ->group(group);
  app.add_option("--mount-point", s.load.mount_point, "Where programs see that mount")
      ->type_name("PATH")
      ->group(group);
  app.add_option("--ready-fd", s.ready_fd,
                 "Receives '+' when the mount answers, or an error's text")
      ->type_name("M")
      ->group(group);
  app.add_option("--cleanup", s.cleanup, "Remove this directory when the mount has gone")
      ->type_name("DIR")
      ->group(group);
  app.add_flag("--leave-tree", s.leave_tree,
               "With --fuse-fd, in a mount namespace made for it: hold none of its mounts")
      ->group(group);
  add_choice<std::optional<KeepKind>>(
      app, "--keep", s.keep,
      {{"private", KeepKind::privately}, {"fusermount", KeepKind::fusermount}},
      "Mount the map that clients at --listen-fd send; end with the last client")
      ->group(group);
  app.add_option("--listen-fd", s.listen_fd, "The socket of --keep: listening, or of a pair")
      ->type_name("N")
      ->group(group);
}

template <class T>
int status_of(const Result<T>& done) {
  if (done) return exit_done;
  report(done.error());
  return exit_failure;
}

int usage(const std::string& text) { return usage_error("fs-mount", text); }

/// `/dev/fd/N` as DIR is a mounted device: libfuse's convention (fuse_main(3), mount.fuse3(8)),
/// used by apptainer --fusemount.
void take_mounted_device(MountSettings& s) {
  const std::string prefix = "/dev/fd/";
  if (s.fuse_fd >= 0 || !s.mount_point.starts_with(prefix)) return;
  const char* const end = s.mount_point.data() + s.mount_point.size();
  int number = -1;
  const auto parsed = std::from_chars(s.mount_point.data() + prefix.size(), end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end || number < 0) return;
  s.fuse_fd = number;
  s.mount_point.clear();
  if (s.load.mount_point.empty()) s.load.mount_point = "/dev/heddle";
}

/// The daemon's directory is `/`.
void make_absolute(std::string& path) {
  if (!path.empty()) path = std::filesystem::absolute(path).string();
}

int mount_device(const MountSettings& s) {
  if (!s.mount_point.empty())
    return usage("--fuse-fd takes MAP only: the device is mounted already");
  if (!s.load.mount_point.starts_with('/'))
    return usage("--fuse-fd needs --mount-point and an absolute path");
  if (!s.cleanup.empty() && (!s.cleanup.starts_with('/') || s.cleanup == "/"))
    return usage("--cleanup needs the absolute path of a directory of its own");
  return status_of(serve_device(s));
}

int run(Arguments& a) {
  auto& s = a.settings;
  make_absolute(s.load.stage.directory);
  make_absolute(s.load.signers);
  make_absolute(s.load.fallback);
  if (s.keep) a.modes.push_back(Mode::keep);
  if (s.keep.has_value() != (s.listen_fd >= 0)) return usage("--keep needs --listen-fd");
  const Mode mode = a.modes.empty() ? Mode::mount : a.modes.front();
  if (a.lazy && mode != Mode::unmount) return usage("--lazy needs -u");
  if (a.json && mode != Mode::stats) return usage("--json needs --stats");
  const auto words = int{!s.load.map_path.empty()} + int{!s.mount_point.empty()};
  const bool is_service = mode == Mode::node || mode == Mode::keep;
  const bool on_one = mode == Mode::unmount || mode == Mode::stats || mode == Mode::verify;
  if (a.modes.size() > 1 || (on_one && words != 1) || (is_service && words != 0) ||
      (!is_service && words == 0))
    return usage(
        "give MAP and DIR, or --reload, -u or --stats and DIR, or --verify DIR|MAP, or --node");
  const std::string& one = s.load.map_path;
  if (!s.load.signers.empty() && mode != Mode::mount && mode != Mode::reload)
    return usage("--signers is for a mount or --reload");
  switch (mode) {
    case Mode::unmount:
      return status_of(unmount(one, a.lazy));
    case Mode::stats:
      return status_of(show_stats(one, a.json));
    case Mode::verify: {
      const auto same = verify(one, s.load.origin_timeout);
      return same && !*same ? int{exit_no} : status_of(same);
    }
    case Mode::node:
      return status_of(node_program(s));
    case Mode::keep:
      return status_of(lease_program(s));
    case Mode::reload:
      if (s.fuse_fd >= 0 || s.foreground)
        return usage("--reload takes [MAP] DIR and the options of a mount in the background");
      if (words == 1) std::swap(s.mount_point, s.load.map_path);
      return status_of(reload_mount(s));
    case Mode::mount:
      break;
  }
  take_mounted_device(s);
  if (s.fuse_fd >= 0) return mount_device(s);
  if (s.mount_point.empty()) return usage("DIR is missing");
  if (s.ready_fd >= 0 || !s.load.mount_point.empty() || !s.cleanup.empty() || s.leave_tree)
    return usage("--ready-fd, --mount-point, --cleanup and --leave-tree need --fuse-fd");
  return status_of(start_daemon(s));
}

int fs_mount(int argc, char** argv) {
  CLI::App app("Serves the libraries of a map from one flat directory.", "fs-mount");
  Arguments arguments;
  declare(app, arguments);
  const int status = parse_options(app, std::vector<std::string>(argv + 1, argv + argc));
  return status >= 0 ? status : run(arguments);
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  return heddle::run_main("fs-mount", [&] { return heddle::fs_mount(argc, argv); });
}
