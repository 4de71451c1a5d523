// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <set>

#include "record/loopback/locks.hpp"
#include "record/loopback/node_table.hpp"
#include "record/loopback/open_files.hpp"
#include "record/loopback/request.hpp"
#include "record/trace/event.hpp"

namespace heddle::loopback {

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
class Loopback {
 public:
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
  void tick() { locks_.interrupt_again(); }
  std::size_t nodes() const { return nodes_.size(); }

 private:
  using Op = trace::Op;
  using File = NodeTable::File;
  struct Entry {
    fuse_entry_out out{};
    struct statx st {};
  };

  // loopback.cpp
  void init(Request& request);
  void statfs(Request& request);
  void log(Request& request, Op op, int error, std::string_view path, std::string_view target = {});
  std::string path_of(std::uint64_t node) const { return nodes_.path(node).value_or(""); }
  int reach(Request& request, std::uint64_t node, File& file);
  Fd open_at(int directory, const char* name, int flags, mode_t mode = 0);
  Fd reopen(int fd, int flags);
  int make_entry(Request& request, const File& parent, std::string_view name, Entry& entry);
  void fill_attr(int fd, const struct statx& st, fuse_attr& attr);
  static bool is_open_to_all(int fd);
  fuse_entry_out entry_out(int parent, int fd, const struct statx& st);
  template <class Make>
  void make(Request& request, Op op, std::string_view name, std::int64_t mode,
            std::string_view target, Make make_it);

  // names.cpp
  void lookup(Request& request);
  void forget(Request& request);
  void batch_forget(Request& request);
  void mkdir(Request& request);
  void mknod(Request& request);
  void symlink(Request& request);
  void link(Request& request);
  void keep_reachable(Request& request, std::uint64_t parent, std::string_view name);
  void remove(Request& request);
  void rename(Request& request);
  void readlink(Request& request);
  int check_special(Request& request, int fd, const struct statx& st, const std::string& path);

  // files.cpp
  void open(Request& request);
  int open_file(Request& request, const File& file, std::uint32_t flags, Fd& fd);
  void create(Request& request);
  int create_file(const File& parent, const std::string& name, int flags, const fuse_create_in& in,
                  Fd& fd);
  Handle& add_handle(Request& request, Fd fd, std::uint64_t node, std::uint32_t flags,
                     std::string_view path, fuse_open_out& out);
  void log_open(Request& request, trace::Event& event, Handle* opened);
  void read(Request& request);
  void write(Request& request);
  void flush(Request& request);
  void release(Request& request);
  void fsync(Request& request);
  void lseek(Request& request);
  void fallocate(Request& request);
  void copy_file_range(Request& request);
  void ioctl(Request& request);
  void getlk(Request& request);
  void setlk(Request& request);
  void log_closed(Handle& handle);
  void log_io(Request& request, Op op, const Handle& handle, std::int64_t offset,
              std::int64_t bytes, int error);
  void opendir(Request& request);
  void readdir(Request& request);

  // attributes.cpp
  void getattr(Request& request);
  void statx(Request& request);
  void setattr(Request& request);
  int apply(const fuse_setattr_in& in, int fd, const FileKey& key);
  void access(Request& request);
  int may_access(Request& request, int fd, int mask) const;
  template <class Get>
  void reply_sized(Request& request, Get get);
  void getxattr(Request& request);
  void listxattr(Request& request);
  void setxattr(Request& request);
  void removexattr(Request& request);

  AccessLog& log_;
  const std::set<std::string> native_files_;
  const Fd own_fds_;  ///< /proc/self/fd
  NodeTable nodes_;
  InodeNumbers numbers_;
  IoModes io_modes_;
  HandleSet handles_;
  Locks locks_;
};

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
/// The name in /proc by which calls that take a path reach the file of `fd`, whatever it is: a link
/// that leads there by itself, and no further when that is a symbolic link (an O_PATH descriptor).
struct OwnPath {
  explicit OwnPath(int fd);
  char text[32];
};

inline int errno_if(bool failed) { return failed ? errno : 0; }

}  // namespace heddle::loopback
