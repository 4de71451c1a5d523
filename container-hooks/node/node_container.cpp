// SPDX-License-Identifier: MIT
#include "container-hooks/node/node_container.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

#include "base/channel.hpp"
#include "base/content_hash.hpp"
#include "base/exit_code.hpp"
#include "base/find_program.hpp"
#include "base/log.hpp"
#include "base/mount_calls.hpp"
#include "base/mount_service.hpp"
#include "base/mounts.hpp"
#include "base/run_directory.hpp"
#include "base/sandbox/privileges.hpp"
#include "base/trusted_path.hpp"
#include "base/try.hpp"
#include "container-hooks/host/programs.hpp"
#include "container-hooks/host/watched_work.hpp"
#include "container-hooks/swap/container_root.hpp"
#include "container-hooks/swap/swap.hpp"

namespace heddle::hook {
namespace {

namespace fs = std::filesystem;

constexpr int kAttempts = 4;
constexpr std::chrono::minutes kStart{5};  ///< longer than --timeout's default
constexpr std::chrono::seconds kAnswer{30};
constexpr std::chrono::seconds kClose{1};
constexpr const char* kProcessName = "heddle-root";
constexpr const char* kKeeperName = "heddle-door";
constexpr const char* kPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Kernel file systems, and what resolves names of hosts and users; those that the host has.
constexpr const char* kHostsOwn[] = {"/proc",       "/sys",      "/etc/hosts", "/etc/resolv.conf",
                                     "/etc/passwd", "/etc/group"};

Result<std::string> identity(const char* path) {
  struct stat status {};
  if (::stat(path, &status) != 0) return fail_errno(path, "cannot inspect it");
  return std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// The name of the container's socket: equal for those that one container can serve.
Result<std::string> name_of(const NodeContainer& c) {
  std::string all = HEDDLE_VERSION;
  const auto add = [&](const std::string& part) { all += '\0' + part; };
  // The run directory may be of several mount namespaces, and a job's end may kill its processes.
  add(TRY(identity("/proc/self/ns/mnt")));
  add(TRY(identity("/")));
  add(TRY(identity(c.rootfs.c_str())));
  add(TRY(own_confinement()));  // else one could refuse the other's server
  for (const char* name : {"SLURM_JOB_ID", "LD_LIBRARY_PATH", "LD_PRELOAD"}) add(variable(name));
  for (const auto& part : {own_program_dir().value_or(""), c.rootfs, c.hook.request.program,
                           c.hook.mpi, c.hook.mount_point, c.hook.cache, c.hook.node})
    add(part);
  for (const auto& word : c.engine) add(word);
  add(c.hook.request.on_failure == OnFailure::warn ? "warn" : "enforce");
  for (const auto& volume : c.volumes) add(volume.source + '\0' + volume.target);
  return "root-" + hash_bytes(all).hex();
}

Result<void> make_root(const NodeContainer& c) {
  TRY(enter_private_namespace(usable_namespace_kind()));
  // In /dev it is made by the swap.
  const auto& at = c.hook.mount_point;
  TRY(make_container_root(c.rootfs, c.volumes, Volumes::as_host,
                          at.starts_with("/dev/") ? "/" : at));
  return c.engine.empty() ? show_devices(c.rootfs) : Result<void>();
}

/// By these descriptors a process proves that it is where the container was started: its mount and
/// user namespace and its root. A process elsewhere can only get them from one that it may trace.
/// The server is in other namespaces, maybe an engine's, and cannot look at its peers in /proc.
Result<std::vector<Fd>> proof_of_place() {
  std::vector<Fd> out;
  for (const char* path : {"/proc/self/ns/mnt", "/proc/self/ns/user", "/"})
    out.push_back(TRY(open_file(path, O_PATH)));
  return out;
}

Result<std::string> place_of(const std::vector<Fd>& proof) {
  std::string out;
  for (const auto& fd : proof) {
    struct stat st {};
    if (::fstat(fd.get(), &st) != 0) return fail_errno("peer", "its place cannot be read");
    out += fmt::format("{}:{},", st.st_dev, st.st_ino);
  }
  return out;
}

/// Where a container was started.
struct Home {
  std::string place;
  std::vector<Fd> namespaces;  ///< as long as they are open, no others get their inodes
};

Result<Home> home_here() {
  Home out{"", TRY(proof_of_place())};
  out.place = TRY(place_of(out.namespaces));
  out.namespaces.pop_back();  // the container gets no way to the host's root
  return out;
}

/// Gives the namespaces to all that connect from `home`, until all have ended. The worst that
/// others can do who reach the socket is to keep the container alive.
Result<void> serve(const RunDirectory& directory, const std::string& name, const Fd& door,
                   const Home& home) {
  const auto mounts = TRY(open_file("/proc/self/ns/mnt", O_RDONLY));
  const auto users = TRY(open_file("/proc/self/ns/user", O_RDONLY));
  TRY(drop_capabilities("fs-hook"));
  std::vector<Fd> asking;
  std::vector<Fd> members;
  for (;;) {
    std::vector<pollfd> polled{{door.get(), POLLIN, 0}};
    for (const auto& one : asking) polled.push_back({one.get(), POLLIN, 0});
    for (const auto& member : members) polled.push_back({member.get(), 0, 0});
    if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR)
      return fail_errno("fs-hook", "cannot wait");
    std::erase_if(members, [&](const Fd& member) { return has_input(polled, member); });
    std::vector<Fd> silent;
    for (auto& one : asking) {
      if (!has_input(polled, one)) {
        silent.push_back(std::move(one));
        continue;
      }
      const auto proof = receive_packet(one.get(), std::chrono::milliseconds(0));
      const int fds[] = {mounts.get(), users.get()};
      if (proof && place_of(proof->fds).value_or("") == home.place &&
          send_packet(one.get(), "enter", fds))
        members.push_back(std::move(one));
    }
    asking = std::move(silent);
    if (has_input(polled, door)) {
      asking.emplace_back(::accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!asking.back()) asking.clear();  // they may have taken all descriptors
    }
    if (!members.empty() || !asking.empty()) continue;
    // Who wants to connect holds the lock until it has.
    const auto lock = directory.lock(name, kClose);
    if (!lock || wait_for_input(door.get(), std::chrono::milliseconds(0)).value_or(true)) continue;
    directory.remove(name);
    return {};
  }
}

/// Becomes the engine, which is to run serve_node_container(). Returns only on failure.
Result<void> become_engine(const NodeContainer& c, const RunDirectory& directory,
                           const std::string& name, const Fd& door, const Fd& starter,
                           const Home& home) {
  const auto engine = TRY(find_program(c.engine[0]));
  const auto self = TRY(open_file("/proc/self/exe", O_RDONLY));
  auto words = c.engine;
  words.push_back(fd_path(self.get()));
  words.emplace_back(kServeCommand);
  for (const int fd : {door.get(), directory.get(), starter.get(), self.get(),
                       home.namespaces[0].get(), home.namespaces[1].get()}) {
    if (::fcntl(fd, F_SETFD, 0) != 0) return fail_errno(c.engine[0], "cannot start it");
    words.push_back(std::to_string(fd));
  }
  words.push_back(name);
  words.push_back(home.place);
  ::execv(engine.c_str(), to_c_array(words).data());
  return fail_errno(c.engine[0], "cannot start it");
}

/// The life of the container's first process. `starter`: the socket of who starts it.
int live(const NodeContainer& c, const RunDirectory& directory, const std::string& name,
         const Fd& door, const Fd& starter) {
  ::setsid();
  const auto home = home_here();
  if (const auto made = home ? make_root(c) : fail(home.error()); !made) {
    send_failure(starter.get(), made.error());
    return 1;
  }
  // Until the starter has swapped.
  if (!send_fd(starter.get(), starter.get()) || !receive_packet(starter.get(), kNoLimit)) return 1;
  if (!c.engine.empty()) {
    send_failure(starter.get(), become_engine(c, directory, name, door, starter, *home).error());
    return 1;
  }
  if (!change_root(c.rootfs)) {
    send_failure(starter.get(), Error::from_errno(c.rootfs, "cannot become the root", errno));
    return 1;
  }
  if (!send_fd(starter.get(), starter.get())) return 1;
  return serve(directory, name, door, *home) ? 0 : 1;
}

Result<void> swap(const NodeContainer& c, pid_t pid) {
  note_step("looking at", "the installed programs");
  TRY(trusted_hook());
  TRY(check_trusted_directory(c.hook.cache));
  ContainerConfig config;
  config.rootfs = c.rootfs;
  config.args = c.command;
  config.cwd = c.cwd;
  config.environment.push_back(std::string("PATH=") + kPath);
  for (const auto& name : c.variables)
    if (const char* value = std::getenv(name.c_str()))
      config.environment.push_back(name + "=" + value);
  const SwapOrder order{c.hook, pid, std::move(config), c.hook.request.program};
  auto swapped = TRY(swap_container(order, [](const std::string& line) { warn(line); }));
  const auto& decision = swapped.decision;
  if (decision.outcome == Outcome::incompatible)
    return fail(Error({}, decision.reason, {}, decision.hint));
  if (decision.outcome == Outcome::nothing) warn("nothing to swap: " + decision.reason);
  if (swapped.server) (void)swapped.server->release();
  return {};
}

/// Makes the container, whose first process then serves at `door`. Result: that process.
Result<Child> start(const NodeContainer& c, const RunDirectory& directory, const std::string& name,
                    const Fd& door) {
  auto sockets = TRY(make_socket_pair());
  ForkOptions options;
  options.dies_with_parent = false;
  options.keep = {door.get(), directory.get(), sockets.other.get()};
  const Fd messages(::memfd_create("heddle-messages", MFD_CLOEXEC));  // an engine's
  options.null_stdio = true;
  options.log = messages.get();
  options.name = kProcessName;
  Child first =
      TRY(fork_child(options, [&] { return live(c, directory, name, door, sockets.other); }));
  sockets.other.reset();
  TRY(receive_fd(sockets.one.get()));
  // A child, since run_watched() kills the descendants of a failed swap.
  Child watched = TRY(fork_child({}, [&] {
    const auto ended = run_watched(c.hook.limit, [&] {
      const auto done = swap(c, first.pid());
      if (done) return int{exit_done};
      if (c.hook.request.on_failure == OnFailure::warn && !is_placed()) {
        warn("the container runs with its own MPI: " + done.error().message());
        return int{exit_done};
      }
      report(done.error());
      return int{exit_failure};
    });
    if (ended && ended->done()) return *ended->status;
    report(ended ? Error("", "not done after " + std::to_string(c.hook.limit.count()) +
                                 " s (--timeout), or killed: " + ended->step)
                 : ended.error());
    return int{exit_failure};
  }));
  if (TRY(watched.wait()) != exit_done) return fail_errno("", "", ECANCELED);  // it has said why
  TRY(send_packet(sockets.one.get(), "go"));
  auto serves = receive_fd(sockets.one.get());
  if (!serves) {
    (void)::lseek(messages.get(), 0, SEEK_SET);
    (void)write_all(STDERR_FILENO, read_all(messages.get(), "messages").value_or(""), "stderr");
    if (serves.error().code() != ECONNRESET) return fail(std::move(serves.error()));
    return fail(c.engine.empty() ? "fs-hook" : c.engine[0], "made no container");
  }
  return first;
}

/// Stays where the container was started until its server has ended, to answer for the server's
/// socket (is_own_peer()): the server is in other namespaces and has no rights to show.
int keep_door(const NodeContainer& c, const RunDirectory& directory, const std::string& name,
              const Fd& door, const Fd& starter) {
  auto server = start(c, directory, name, door);
  const auto done = server ? answer_for(door.get()) : fail(server.error());
  if (!done) {
    if (done.error().code() != ECANCELED) report(done.error());
    return exit_failure;
  }
  const auto null = open_file("/dev/null", O_RDWR);
  (void)::chdir("/");
  ::setsid();
  // Without descriptors, of which there may be too few.
  if (const auto sent = send_packet(starter.get(), "started"); !sent) {
    report(sent.error());
    return exit_failure;  // which ends the server
  }
  for (int fd = 0; null && fd < 3; ++fd) (void)::dup2(null->get(), fd);
  close_fds_but({});
  return server->wait().value_or(exit_failure);
}

/// A confined process that may write to the directory could listen in the server's place: it would
/// get this process's descriptors, and its namespaces would choose what this process executes.
Result<Fd> connect_to_own(const RunDirectory& directory, const std::string& name) {
  auto socket = directory.connect_to(name);
  if (socket ? is_own_peer(socket->get()) : socket.error().code() != EADDRNOTAVAIL) return socket;
  return fail("the node's container", "another process listens in its place", directory.path(),
              "does a container or sandbox have this directory, or was heddle-door killed?");
}

/// Connects to the container, and starts it if there is none.
Result<Fd> connect_or_start(const NodeContainer& c) {
  const auto name = TRY(name_of(c));
  const auto directory = TRY(RunDirectory::open());
  const Fd lock = TRY(directory.lock(name, kStart));
  auto socket = connect_to_own(directory, name);
  if (socket) return socket;
  if (const int code = socket.error().code(); code != ECONNREFUSED && code != ENOENT) return socket;
  directory.remove(name);  // a killed one leaves it
  const Fd door = TRY(directory.listen_at(name));
  socket = connect_to_own(directory, name);  // before the start: without members it ends
  if (!socket) return socket;
  // Not a child of the program that this process becomes.
  Child starter = TRY(fork_child({.default_signals = false}, [&] {
    auto sockets = make_socket_pair();
    ForkOptions options{.dies_with_parent = false, .default_signals = false};
    options.name = kKeeperName;
    auto keeper = sockets ? fork_child(options,
                                       [&] {
                                         sockets->one.reset();
                                         return keep_door(c, directory, name, door, sockets->other);
                                       })
                          : fail(sockets.error());
    if (!keeper) {
      report(keeper.error());
      return int{exit_failure};
    }
    sockets->other.reset();
    if (!receive_packet(sockets->one.get(), kNoLimit)) {
      // It has said why and ends. Else it would wait for the server, which waits for its first
      // client, which waits for this process.
      ::kill(keeper->pid(), SIGKILL);
      return keeper->wait().value_or(exit_failure);
    }
    (void)keeper->release();
    return int{exit_done};
  }));
  if (TRY(starter.wait()) == exit_done) return socket;
  directory.remove(name);
  return fail_errno("", "", ECANCELED);
}

Result<Fd> enter(const NodeContainer& c) {
  for (int attempt = 1;; ++attempt) {
    Fd socket = TRY(connect_or_start(c));
    const auto proof = TRY(proof_of_place());
    const int fds[] = {proof[0].get(), proof[1].get(), proof[2].get()};
    (void)send_packet(socket.get(), "enter", fds);
    const auto answer = receive_packet(socket.get(), kAnswer);
    if (!answer || answer->fds.size() != 2) {
      if (attempt < kAttempts) continue;  // it has just ended
      return fail("the node's container", "does not answer");
    }
    int death_signal = 0;
    ::prctl(PR_GET_PDEATHSIG, &death_signal);
    const bool is_here = identity("/proc/self/ns/user").value_or("") ==
                         identity(fd_path(answer->fds[1].get()).c_str()).value_or("other");
    if (!is_here && ::setns(answer->fds[1].get(), CLONE_NEWUSER) != 0)
      return fail_errno("the node's container", "cannot enter its user namespace");
    if (::setns(answer->fds[0].get(), CLONE_NEWNS) != 0)
      return fail_errno("the node's container", "cannot enter its mount namespace");
    ::prctl(PR_SET_PDEATHSIG, death_signal);  // a change of user namespace clears it
    return socket;
  }
}

std::vector<std::string> environment_of(const NodeContainer& c) {
  std::vector<std::string> out = {std::string("PATH=") + kPath};
  auto names = c.variables;
  for (const char* name : {"HOME", "TERM", "USER"}) names.emplace_back(name);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  for (const auto& name : names) {
    const char* value = std::getenv(name.c_str());
    if (!value) continue;
    if (name == "PATH") out.clear();
    out.push_back(name + "=" + value);
  }
  return out;
}

}  // namespace

Result<int> run_in_node_container(NodeContainer c) {
  c.rootfs = TRY(real_root(c.rootfs));
  if (!fs::is_directory(c.rootfs))
    return fail_errno(c.rootfs, "cannot use as the container's root", ENOTDIR,
                      "an unpacked root file system is needed");
  std::error_code error;
  if (c.cwd.empty()) c.cwd = fs::current_path(error).string();
  c.hook.stage = Stage::create_runtime;
  for (const char* path : kHostsOwn)
    if (c.engine.empty() && fs::exists(path, error)) c.volumes.push_back({path, path});
  // One may be below another.
  std::ranges::stable_sort(c.volumes, {}, &Volume::target);
  struct sigaction ends {
  }, defaults{};
  defaults.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &defaults, &ends);
  auto socket = enter(c);
  ::sigaction(SIGCHLD, &ends, nullptr);
  if (!socket && socket.error().code() == ECANCELED) return int{exit_failure};
  if (!socket) return fail(std::move(socket.error()));
  if (::chdir(c.cwd.c_str()) != 0) return fail_errno(c.cwd, "cannot be the working directory");
  const auto environment = environment_of(c);
  const auto program = find_program(c.command[0], kPath);
  if (!program) return report_exec_failure(c.command[0], program.error().code());
  TRY(keep_over_exec(socket->get()));
  (void)::umask(c.umask);
  ::execve(program->c_str(), to_c_array(c.command).data(), to_c_array(environment).data());
  return report_exec_failure(c.command[0], errno);
}

Result<int> serve_node_container(const std::vector<std::string>& words) {
  if (words.size() != 8) return int{exit_usage};
  std::vector<Fd> fds;
  for (std::size_t i = 0; i < 6; ++i) fds.emplace_back(std::atoi(words[i].c_str()));
  (void)::prctl(PR_SET_NAME, kProcessName);
  const auto directory = TRY(RunDirectory::find(fd_path(fds[1].get()) + "/."));
  if (!send_fd(fds[2].get(), fds[2].get())) return int{exit_failure};
  Home home{words[7], {}};
  home.namespaces.push_back(std::move(fds[4]));
  home.namespaces.push_back(std::move(fds[5]));
  fds.resize(1);
  TRY(serve(directory, words[6], fds[0], home));
  return int{exit_done};
}

}  // namespace heddle::hook
