// SPDX-License-Identifier: MIT
// heddle-slowfs SOURCE DIR [--preset none|server|nfs|lustre] [--delay-us N] [--counts FILE]
// [--attributes SECONDS] [--copper] [--image]: serves SOURCE at DIR (which may be SOURCE)
// read-only, as a file system whose server is N microseconds (200) away. docs/slowfs.md describes
// the model; kPresets is that page's table. Stays in the foreground; ends when it is unmounted,
// SIGTERM and SIGINT unmount it.
//
// Requests to the server are counted by opcode and by path. SIGUSR1 writes the counts to FILE,
// SIGUSR2 does and starts again at zero, and so does the end. FILE appears by rename, for the first
// time when DIR is served. FORGET, which no network file system sends, is neither counted nor
// delayed.
//
// --copper: the options that Copper 1.0 mounts with (cu_fuse_init and its launcher): direct_io and
// one thread. What Copper's network costs is not in it. --image: ctime is mtime, as of squashfuse.

#define FUSE_USE_VERSION 312
#include <dirent.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <linux/fuse.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

enum class Op : std::size_t {
  lookup,
  getattr,
  readlink,
  open,
  read,
  release,
  opendir,
  readdir,
  releasedir,
  statfs
};
constexpr std::array kOpNames = {"LOOKUP",  "GETATTR", "READLINK", "OPEN",       "READ",
                                 "RELEASE", "OPENDIR", "READDIR",  "RELEASEDIR", "STATFS"};

/// What the node keeps of the server's answers, and what it need not ask for.
struct Preset {
  std::string_view name;
  double names = 0;        ///< seconds that a name which exists stays known
  double missing = 0;      ///< and one that does not
  double files = 0;        ///< seconds that a file's attributes stay known
  double directories = 0;  ///< and a directory's
  bool keeps_pages = false;
  unsigned at_once = 256;
  /// OPENDIR, RELEASE and RELEASEDIR are answered without the server.
  bool closes_alone = false;
};
constexpr std::array kPresets = {
    Preset{"none"}, Preset{"server", 1, 0, 1, 1, true, 64, true},
    // nfs(5): acregmin, acdirmin, lookupcache=all; sessions have 64 slots.
    Preset{"nfs", 30, 30, 3, 30, true, 64, true},
    // What a lock covers stays until it is revoked or unused for 65 minutes
    // (LDLM_DEFAULT_MAX_ALIVE); a missing name only while the node has its directory's UPDATE lock
    // (ll_lookup_it_finish()), which a search does not take.
    Preset{"lustre", 3900, 0, 3900, 3900, true, 64, true}};

/// A path that was asked for, whether it exists or not. Lives as long as the program.
struct Node {
  std::string path;              ///< relative to SOURCE; the root's is empty
  std::atomic<mode_t> type = 0;  ///< S_IFMT of the last answer, 0: does not exist
  std::array<std::atomic<std::uint64_t>, kOpNames.size()> counts{};
  const char* name() const { return path.empty() ? "." : path.c_str(); }
};

struct Server {
  int source = -1;
  std::string counts_file;
  Preset preset = kPresets[1];
  bool copper = false;
  bool image = false;
  timespec delay{};
  std::mutex mutex;
  std::unordered_map<std::string, std::unique_ptr<Node>> nodes;
  std::atomic<int> in_flight = 0;
  std::atomic<int> most_in_flight = 0;
};
Server g;  // NOLINT: one program, one file system

Node& node_of(const std::string& path) {
  const std::lock_guard lock(g.mutex);
  auto& node = g.nodes[path];
  if (!node) {
    node = std::make_unique<Node>();
    node->path = path;
  }
  return *node;
}

Node& node_of(fuse_ino_t id) {
  static Node& root = node_of(std::string());
  return id == FUSE_ROOT_ID ? root : *reinterpret_cast<Node*>(id);
}

/// Counts a request for `node` and waits as long as it must take.
void count(Node& node, Op op) {
  if (g.preset.closes_alone && (op == Op::opendir || op == Op::release || op == Op::releasedir))
    return;
  ++node.counts[static_cast<std::size_t>(op)];
  const int now = ++g.in_flight;
  for (int most = g.most_in_flight; now > most;)
    if (g.most_in_flight.compare_exchange_weak(most, now)) break;
  // Without this sleeps are 50 us longer than asked for.
  thread_local const int exact = ::prctl(PR_SET_TIMERSLACK, 1);
  if (exact == 0 && g.delay.tv_nsec > 0) ::nanosleep(&g.delay, nullptr);
  --g.in_flight;
}

/// Seconds that `node`'s attributes stay known.
double attributes_last(const Node& node) {
  return node.type == S_IFDIR ? g.preset.directories : g.preset.files;
}

int attributes_of(Node& node, struct stat* out) {
  const int error = ::fstatat(g.source, node.name(), out, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : errno;
  node.type = error == 0 ? out->st_mode & S_IFMT : 0;
  if (g.image) out->st_ctim = out->st_mtim;
  return error;
}

void do_lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  const auto& above = node_of(parent).path;
  Node& node = node_of(above.empty() ? name : above + "/" + name);
  count(node, Op::lookup);
  fuse_entry_param entry{};
  if (const int error = attributes_of(node, &entry.attr); error == 0) {
    entry.ino = reinterpret_cast<fuse_ino_t>(&node);
    entry.entry_timeout = g.preset.names;
    entry.attr_timeout = attributes_last(node);
  } else if (error == ENOENT && g.preset.missing > 0) {
    entry.entry_timeout = g.preset.missing;  // inode 0: the name does not exist
  } else {
    fuse_reply_err(request, error);
    return;
  }
  fuse_reply_entry(request, &entry);
}

void do_getattr(fuse_req_t request, fuse_ino_t id, fuse_file_info*) {
  Node& node = node_of(id);
  count(node, Op::getattr);
  struct stat attributes {};
  const int error = attributes_of(node, &attributes);
  if (error == 0)
    fuse_reply_attr(request, &attributes, attributes_last(node));
  else
    fuse_reply_err(request, error);
}

void do_readlink(fuse_req_t request, fuse_ino_t id) {
  Node& node = node_of(id);
  count(node, Op::readlink);
  std::array<char, PATH_MAX + 1> target{};
  if (::readlinkat(g.source, node.name(), target.data(), PATH_MAX) >= 0)
    fuse_reply_readlink(request, target.data());
  else
    fuse_reply_err(request, errno);
}

void do_open(fuse_req_t request, fuse_ino_t id, fuse_file_info* info) {
  Node& node = node_of(id);
  count(node, Op::open);
  const int fd = ::openat(g.source, node.name(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) {
    fuse_reply_err(request, errno);
    return;
  }
  info->fh = static_cast<std::uint64_t>(fd);
  info->direct_io = g.copper;
  info->keep_cache = g.preset.keeps_pages;  // libfuse has the kernel compare mtime and size
  fuse_reply_open(request, info);
}

void do_read(fuse_req_t request, fuse_ino_t id, std::size_t size, off_t offset,
             fuse_file_info* info) {
  count(node_of(id), Op::read);
  const auto buffer = std::make_unique_for_overwrite<char[]>(size);
  const ssize_t n = ::pread(static_cast<int>(info->fh), buffer.get(), size, offset);
  if (n >= 0)
    fuse_reply_buf(request, buffer.get(), static_cast<std::size_t>(n));
  else
    fuse_reply_err(request, errno);
}

void do_release(fuse_req_t request, fuse_ino_t id, fuse_file_info* info) {
  count(node_of(id), Op::release);
  ::close(static_cast<int>(info->fh));
  fuse_reply_err(request, 0);
}

using Listing = std::vector<std::pair<std::string, struct stat>>;

void do_opendir(fuse_req_t request, fuse_ino_t id, fuse_file_info* info) {
  Node& node = node_of(id);
  count(node, Op::opendir);
  const int fd = ::openat(g.source, node.name(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* directory = fd < 0 ? nullptr : ::fdopendir(fd);
  if (!directory) {
    fuse_reply_err(request, errno);
    return;
  }
  auto listing = std::make_unique<Listing>();
  while (const dirent* entry = ::readdir(directory)) {
    struct stat attributes {};
    attributes.st_ino = entry->d_ino;
    attributes.st_mode = DTTOIF(entry->d_type);
    listing->emplace_back(entry->d_name, attributes);
  }
  ::closedir(directory);
  info->fh = reinterpret_cast<std::uint64_t>(listing.release());
  fuse_reply_open(request, info);
}

void do_readdir(fuse_req_t request, fuse_ino_t id, std::size_t size, off_t offset,
                fuse_file_info* info) {
  count(node_of(id), Op::readdir);
  const auto& listing = *reinterpret_cast<const Listing*>(info->fh);
  std::vector<char> buffer(size);
  std::size_t used = 0;
  for (auto at = static_cast<std::size_t>(offset); at < listing.size(); ++at) {
    const auto& [name, attributes] = listing[at];
    const auto needed = fuse_add_direntry(request, buffer.data() + used, size - used, name.c_str(),
                                          &attributes, static_cast<off_t>(at + 1));
    if (needed > size - used) break;
    used += needed;
  }
  fuse_reply_buf(request, buffer.data(), used);
}

void do_releasedir(fuse_req_t request, fuse_ino_t id, fuse_file_info* info) {
  count(node_of(id), Op::releasedir);
  delete reinterpret_cast<Listing*>(info->fh);  // NOLINT: libfuse keeps it as a number
  fuse_reply_err(request, 0);
}

void do_statfs(fuse_req_t request, fuse_ino_t id) {
  count(node_of(id), Op::statfs);
  struct statvfs answer {};
  if (::fstatvfs(g.source, &answer) == 0)
    fuse_reply_statfs(request, &answer);
  else
    fuse_reply_err(request, errno);
}

void start(void*, fuse_conn_info* connection) { connection->max_background = 256; }

ssize_t receive(int device, void* buffer, std::size_t size, void*) {
  return ::read(device, buffer, size);
}

// As fuseovl/session: libfuse 3.14 never sends FUSE_PARALLEL_DIROPS, and lookups in one directory
// would wait for each other. The first answer is that of FUSE_INIT.
ssize_t send(int device, iovec* parts, int count, void*) {
  static std::atomic<bool> answered = false;
  if (!answered.exchange(true) && count == 2 && parts[1].iov_len == sizeof(fuse_init_out))
    static_cast<fuse_init_out*>(parts[1].iov_base)->flags |= FUSE_PARALLEL_DIROPS;
  return ::writev(device, parts, count);
}

void write_counts(bool reset) {
  using nlohmann::json;
  json out = {{"total", 0},
              {"most_in_flight", g.most_in_flight.load()},
              {"opcodes", json::object()},
              {"files", json::object()},
              {"directories", json::object()},
              {"missing", json::object()}};
  for (const char* name : kOpNames) out["opcodes"][name] = 0;
  const std::lock_guard lock(g.mutex);
  for (const auto& [path, node] : g.nodes) {
    json of_path = json::object();
    for (std::size_t op = 0; op < kOpNames.size(); ++op) {
      const std::uint64_t count = reset ? node->counts[op].exchange(0) : node->counts[op].load();
      if (count == 0) continue;
      of_path[kOpNames[op]] = count;
      out["total"] = out["total"].get<std::uint64_t>() + count;
      out["opcodes"][kOpNames[op]] = out["opcodes"][kOpNames[op]].get<std::uint64_t>() + count;
    }
    if (of_path.empty()) continue;
    const mode_t type = node->type;
    out[type == 0         ? "missing"
        : type == S_IFDIR ? "directories"
                          : "files"][path] = std::move(of_path);
  }
  if (reset) g.most_in_flight = 0;
  if (g.counts_file.empty()) return;
  std::ofstream(g.counts_file + ".new")
      << out.dump(1, ' ', false, json::error_handler_t::replace) << "\n";
  std::filesystem::rename(g.counts_file + ".new", g.counts_file);
}

/// Reading ahead by 1 MiB, as network file systems do: with the kernel's default of 128 KiB one
/// read(2) of a MiB would be eight requests. Only root may.
void read_ahead_by_a_mib(const char* directory) {
  struct stat seen {};
  // Answered after FUSE_INIT, which sets the default.
  if (::stat(directory, &seen) != 0) return;
  std::ofstream("/sys/class/bdi/" + std::to_string(major(seen.st_dev)) + ":" +
                std::to_string(minor(seen.st_dev)) + "/read_ahead_kb")
      << 1024;
}

[[noreturn]] void end(fuse_session* session, const char* directory, int status) {
  static std::once_flag once;
  std::call_once(once, [session, directory] {
    write_counts(false);  // before the device's number is free again
    // libfuse closes the device first, which threads read. Users need it, for fusermount3.
    if (::umount2(directory, MNT_DETACH) != 0) fuse_session_unmount(session);
  });
  ::_exit(status);  // who still uses the mount gets ENOTCONN
}

[[noreturn]] void answer_signals(const sigset_t& signals, const char* directory,
                                 fuse_session* session) {
  read_ahead_by_a_mib(directory);
  write_counts(true);
  for (;;) {
    int number = 0;
    ::sigwait(&signals, &number);
    if (number == SIGUSR1 || number == SIGUSR2)
      write_counts(number == SIGUSR2);
    else
      end(session, directory, 0);
  }
}

[[noreturn]] void serve(const char* program, const char* directory) {
  fuse_lowlevel_ops operations{};
  operations.init = start;
  operations.lookup = do_lookup;
  operations.getattr = do_getattr;
  operations.readlink = do_readlink;
  operations.open = do_open;
  operations.read = do_read;
  operations.release = do_release;
  operations.opendir = do_opendir;
  operations.readdir = do_readdir;
  operations.releasedir = do_releasedir;
  operations.statfs = do_statfs;

  std::string name = program;
  std::string options =
      std::string("-ofsname=slow,subtype=") + (g.image ? "slowimage" : "slow") + ",ro,exec";
  if (::geteuid() == 0) options += ",allow_other";
  // The kernel then judges by the files' modes. Not where nothing is kept: each name of a path
  // would be asked for twice, and root's SOURCE is open to all users there.
  if (g.preset.files > 0) options += ",default_permissions";
  std::array<char*, 3> argv = {name.data(), options.data(), nullptr};
  fuse_args arguments = FUSE_ARGS_INIT(2, argv.data());
  fuse_session* session = fuse_session_new(&arguments, &operations, sizeof(operations), nullptr);
  fuse_opt_free_args(&arguments);
  if (!session || fuse_session_mount(session, directory) != 0) ::_exit(1);
  const fuse_custom_io io = {.writev = send, .read = receive};
  if (fuse_session_custom_io(session, &io, fuse_session_fd(session)) != 0)
    end(session, directory, 1);

  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGUSR1, SIGUSR2, SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, number);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([&] { answer_signals(signals, directory, session); }).detach();

  int status = 0;
  if (g.copper) {
    status = fuse_session_loop(session);
  } else {
    fuse_loop_config* config = fuse_loop_cfg_create();
    fuse_loop_cfg_set_clone_fd(config, 1);
    fuse_loop_cfg_set_max_threads(config, g.preset.at_once);
    fuse_loop_cfg_set_idle_threads(config, g.preset.at_once);
    status = fuse_session_loop_mt(session, config);
    fuse_loop_cfg_destroy(config);
  }
  end(session, directory, status == 0 ? 0 : 1);
}

const Preset* preset_named(std::string_view name) {
  for (const auto& preset : kPresets)
    if (preset.name == name) return &preset;
  return nullptr;
}

int usage() {
  std::cerr << "usage: heddle-slowfs SOURCE DIR [--preset none|server|nfs] [--delay-us N] "
               "[--attributes SECONDS] [--counts FILE] [--copper] [--image]\n";
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  long delay_us = 200;
  double attributes = -1;
  std::vector<const char*> places;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--copper")
      g.copper = true;
    else if (argument == "--image")
      g.image = true;
    else if (argument == "--delay-us" && i + 1 < argc)
      delay_us = std::atol(argv[++i]);
    else if (argument == "--attributes" && i + 1 < argc)
      attributes = std::atof(argv[++i]);
    else if (argument == "--counts" && i + 1 < argc)
      g.counts_file = std::filesystem::absolute(argv[++i]).string();
    else if (argument == "--preset" && i + 1 < argc && preset_named(argv[i + 1]))
      g.preset = *preset_named(argv[++i]);
    else if (argument.starts_with("--"))
      return usage();
    else
      places.push_back(argv[i]);
  }
  if (places.size() != 2 || delay_us < 0 || delay_us >= 1'000'000) return usage();
  g.delay.tv_nsec = delay_us * 1000;
  if (attributes >= 0) g.preset.files = attributes;
  g.source = ::open(places[0], O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (g.source < 0) {
    std::cerr << "heddle-slowfs: " << places[0] << ": cannot open: " << std::strerror(errno)
              << "\n";
    return 1;
  }
  serve(argv[0], places[1]);
}
