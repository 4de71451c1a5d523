// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <span>

#include "record/loopback/locks.hpp"
#include "record/loopback/node_table.hpp"
#include "record/loopback/open_files.hpp"
#include "record/loopback/request.hpp"
#include "record/trace/event.hpp"

namespace heddle::loopback {

using trace::Op;
using File = NodeTable::File;

/// Receives each access. Called by many serving threads at once.
class AccessLog {
 public:
  virtual ~AccessLog() = default;
  /// The program is about to be executed: what came before was our own preparation.
  virtual void start() = 0;
  /// Whether events are wanted now.
  virtual bool on() const noexcept = 0;
  /// Whether each read and write is an event of its own.
  virtual bool each_io() const noexcept = 0;
  /// `event.tid` is set. The log fills in ns, and pid and exe when pid is 0; the bytes of exe then
  /// live as long as the log. Blocks while the trace cannot be written.
  virtual void add(trace::Event& event) = 0;
};

/// fs-record's child looks this up in the root just before exec: start() is called.
inline constexpr const char* kStartName = ".heddle-record-start";

/// The file system that shows `/` as it is and reports each access to an AccessLog.
///
/// The kernel caches the entries of directories for kDirectoryEntrySeconds and nothing else: no
/// entry of a file, no attribute, no miss, no link target. So each walk looks up its last
/// component, and directories on the way once a second (always, where not everybody may search the
/// parent: see is_open_to_all()); of these the first lookup is logged. File pages are cached while
/// a file's size and times stay (but see IoModes).
///
/// Every operation uses the descriptor of the node, or of the parent and one name. So whoever
/// renames, links and replaces files can do no more than to a program that holds the directory's
/// descriptor. handle() may be called by many threads at once, each with rights of its own.
struct Loopback {
  struct Setup {
    int device;
    std::size_t most_open_nodes;
    /// Native files and sockets, mounted over their places in this file system.
    std::set<std::string> native_files;
  };
  /// Throws Error when `/` cannot be opened.
  Loopback(AccessLog& log, Setup setup);

  /// Answers one request. The answer to FLUSH must wait for nothing in /proc: execve closes files
  /// while it holds exec_update_lock, which /proc/PID/{exe,stat,syscall} take (fs/exec.c,
  /// begin_new_exec(); measured on 6.18: a program that cannot be killed any more).
  void handle(Request& request);
  /// Whether the caller's /proc files may be read before the answer.
  static bool may_ask_about_caller(const Request& request) {
    return request.opcode() != FUSE_FLUSH;
  }
  /// At the end: logs what open handles have read and written, as if they were closed now.
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
  /// The descriptor of `node`, 0: the request's. One that has none is looked for by its names. Each
  /// name on the way is opened by itself and must be the file that it was, so that no link is
  /// followed, and with our own rights: the caller has the file already, whatever stands on the way
  /// to it. 0 or an errno.
  int reach(Request& request, File& file, std::uint64_t node = 0);
  /// openat(2); when we are out of descriptors, nodes lose theirs first. Invalid and errno.
  Fd open_at(int directory, const char* name, int flags, mode_t mode = 0);
  /// Opens the file of a descriptor by open(2)'s flags. Invalid and errno.
  Fd reopen(int fd, int flags);
  /// What `name` in `parent` is now, as a node. 0 or an errno.
  int make_entry(Request& request, const File& parent, std::string_view name, Entry& entry);
  void fill_attr(int fd, const struct statx& st, fuse_attr& attr);
  /// `parent` is -1 for what has none.
  fuse_entry_out entry_out(int parent, int fd, const struct statx& st);

  AccessLog& access_log;
  const std::set<std::string> native_files;
  const Fd own_fds;  ///< /proc/self/fd
  NodeTable nodes;
  InodeNumbers numbers;
  IoModes io_modes;
  HandleSet handles;
  Locks locks;
};

/// What answers an opcode: a function that returns an errno (0: success without data), or kAnswered
/// when it has answered by itself or the kernel wants no answer.
enum class Rights : std::uint8_t { callers, any };
struct Operation {
  std::uint32_t opcode = 0;
  int (*run)(Loopback& tree, Request& request) = nullptr;
  Rights rights = Rights::callers;  ///< whose the thread must have
};
std::span<const Operation> name_operations();
std::span<const Operation> file_operations();
std::span<const Operation> attribute_operations();

/// Answers the requests of a FUSE device, which stays the caller's, until the mount has gone.
void serve(Loopback& loopback, int device);

/// statx(2) with what the loopback needs; 0 or an errno.
int stat_at(int dir, const char* name, int flags, struct statx& st);
inline int stat_fd(int fd, struct statx& st) { return stat_at(fd, "", AT_EMPTY_PATH, st); }
/// Whether the file's mount has the flag (ST_NOSUID...).
bool has_flag(int fd, unsigned long flag);
/// Whether the file is of a procfs.
bool is_of_proc(int fd);
/// The system call in which a thread waits for us, as /proc/TID/syscall tells.
struct Call {
  long number = -1;  ///< -1: not told (always before Linux 5.10)
  unsigned long arguments[3] = {};
};
Call call_of(std::int32_t tid);
/// Whether the caller may access the file: faccessat2(2). 0 or an errno.
int may_access(Request& request, int fd, int mask);

inline int errno_if(bool failed) { return failed ? errno : 0; }

}  // namespace heddle::loopback
