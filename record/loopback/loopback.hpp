// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <set>
#include <span>

#include "record/loopback/locks.hpp"
#include "record/loopback/node_table.hpp"
#include "record/loopback/open_files.hpp"
#include "record/loopback/request.hpp"
#include "record/loopback/stat_calls.hpp"
#include "record/trace/event.hpp"

namespace heddle::loopback {

using trace::Op;
using File = NodeTable::File;

/// Receives each access. Thread-safe.
class AccessLog {
 public:
  virtual ~AccessLog() = default;
  /// Starts the log: APP is about to be executed.
  virtual void start() = 0;
  virtual bool on() const noexcept = 0;
  /// Whether each read and write is an event.
  virtual bool each_io() const noexcept = 0;
  /// Fills in ns and, when pid is 0, pid and exe (whose bytes live as long as the log) from tid.
  /// Blocks while the trace cannot be written.
  virtual void add(trace::Event& event) = 0;
  /// What the run wrote to its shared mapping of the file may have replaced what a process outside
  /// wrote, or the other way round.
  virtual void add_collision(const std::string& path) = 0;
};

/// fs-record's child looks this name up in the root just before exec, which calls start().
inline constexpr const char* kStartName = ".heddle-record-start";

/// The file system that shows `/` as it is and reports each access to an AccessLog.
///
/// The kernel caches entries of directories for kDirectoryEntrySeconds (none where not everybody
/// may search the parent), and no other entry, attribute (but see StatCalls), miss or link target.
/// So each walk looks up its last component, and the directories on the way once a second; only
/// their first lookup is logged. File pages are cached while a file's size and times stay the same
/// (but see IoModes).
///
/// Every operation uses the descriptor of the node, or of the parent and one name, so that renames
/// and links by other processes redirect no request. handle() is thread-safe.
struct Loopback {
  struct Setup {
    int device;
    std::size_t most_open_nodes;
    /// Native files and sockets, mounted over their places in this file system.
    std::set<std::string> native_files;
  };
  /// Throws Error when `/` cannot be opened.
  Loopback(AccessLog& log, Setup setup);

  /// Answers one request. FLUSH must not read /proc: execve closes files while it holds
  /// exec_update_lock, which /proc/PID/{exe,stat,syscall} take (fs/exec.c, begin_new_exec()). The
  /// deadlock survives SIGKILL (measured on 6.18).
  void handle(Request& request);
  static bool may_ask_about_caller(const Request& request) {
    return request.opcode() != FUSE_FLUSH;
  }
  /// At the end: logs the closing of all open handles.
  void close_all();
  /// Ten times a second.
  void tick() { locks.interrupt_again(); }

  // What the operations share.
  struct Entry {
    fuse_entry_out out{};
    struct statx st {};
  };
  /// Logs an access to the request's node, or to `path`.
  void log(const Request& request, Op op, int error);
  void log(const Request& request, Op op, int error, std::string_view path,
           std::string_view target = {}, std::int64_t mode = -1);
  /// The descriptor of `node` (0: the request's). A node without one is opened again name by name;
  /// each must be the same file as before. With the recorder's rights, because the caller already
  /// has the file. 0 or an errno.
  int reach(Request& request, File& file, std::uint64_t node = 0);
  /// openat(2). When out of descriptors, closes some of the nodes'. Invalid and errno on failure.
  Fd open_at(int directory, const char* name, int flags, mode_t mode = 0);
  /// Opens the file of a descriptor again with `flags`. Invalid and errno on failure.
  Fd reopen(int fd, int flags);
  /// Looks up `name` in `parent` and binds it to a node. 0 or an errno. `for_stat`: a regular file
  /// needs no descriptor.
  int make_entry(Request& request, const File& parent, std::string_view name, Entry& entry,
                 bool for_stat = false);
  void fill_attr(int fd, const struct statx& st, fuse_attr& attr);
  fuse_entry_out entry_out(int fd, const struct statx& st);

  AccessLog& access_log;
  const std::set<std::string> native_files;
  const Fd own_fds;  ///< /proc/self/fd
  NodeTable nodes;
  InodeNumbers numbers;
  IoModes io_modes;
  HandleSet handles;
  StatCalls stat_calls;
  Locks locks;
};

/// Handles an opcode. `run` returns an errno (0: success without data) for the answer, or kAnswered
/// when it has answered or the kernel expects no answer.
enum class Rights : std::uint8_t {
  callers,
  user,  ///< the caller's, or all: no right decides, but file servers are told the user
  any
};
struct Operation {
  std::uint32_t opcode = 0;
  int (*run)(Loopback& tree, Request& request) = nullptr;
  Rights rights = Rights::callers;  ///< whose the thread must have
};
std::span<const Operation> name_operations();
std::span<const Operation> file_operations();
std::span<const Operation> attribute_operations();

/// Answers the requests of a FUSE device, owned by the caller, until it is unmounted.
void serve(Loopback& loopback, int device);

/// statx(2) with the fields that the loopback needs. 0 or an errno.
int stat_at(int dir, const char* name, int flags, struct statx& st);
inline int stat_fd(int fd, struct statx& st) { return stat_at(fd, "", AT_EMPTY_PATH, st); }
/// Whether the file's mount has the flag (ST_NOSUID...).
bool has_flag(int fd, unsigned long flag);
/// Whether the file is of a procfs.
bool is_of_proc(int fd);
/// Whether the caller may access the file: faccessat2(2). 0 or an errno.
int may_access(Request& request, int fd, int mask);

inline int errno_if(bool failed) { return failed ? errno : 0; }

}  // namespace heddle::loopback
