// SPDX-License-Identifier: MIT
#pragma once

#include "record/loopback/access_log.hpp"
#include "record/loopback/caller_rights.hpp"
#include "record/loopback/channel.hpp"
#include "record/loopback/handle.hpp"
#include "record/loopback/inode_numbers.hpp"
#include "record/loopback/node_table.hpp"
#include "record/loopback/place.hpp"

namespace heddle::loopback {

/// Made before the first worker, handed on from each to the next.
struct LoopbackMemory : WorkerMemory {
  RequestSlots slots;
};

/// The file system that shows `/` as it is and tells an AccessLog what is asked of it.
///
/// The kernel keeps the entries of folders for kFolderEntrySeconds and nothing else: no entry of a
/// file, no attribute, no miss, no link's target. So each walk asks for its last component, and for
/// folders on the way once a second; of these the log is told the first. File pages are kept while
/// a file's size and times stay.
///
/// What it must not forget when its process dies stands in a LoopbackMemory, from which the
/// Loopback of another process goes on. handle() may be called by many threads at once, each with
/// rights of its own.
class Loopback {
 public:
  Loopback(AccessLog& log, LoopbackMemory& memory);

  /// Answers one request. The answer to FLUSH must wait for nothing in /proc: execve closes files
  /// while it holds exec_update_lock, which /proc/PID/{exe,stat,syscall} take (fs/exec.c,
  /// begin_new_exec(); measured on 6.18: a program that cannot be killed any more).
  void handle(Request& request, CallerRights& rights, ReplyBuffer& buffer);
  /// A request that a dead worker had in hand: what it has half made is taken back, so that the
  /// request can come again; a FORGET, which does not, is carried out.
  void take_over(Request& request);
  /// Whether the request may keep its thread for long (data to disk, large data).
  static bool is_slow(const Request& request);
  /// Whether the caller's /proc files may be read before the answer.
  static bool may_ask_about_caller(const Request& request) {
    return request.opcode() != FUSE_FLUSH;
  }
  /// At the end: what open handles have read and written, as if they were closed now.
  void close_all();
  std::size_t nodes() const { return nodes_.size(); }

 private:
  using Op = trace::Op;
  struct Entry {
    fuse_entry_out out{};
    struct statx st {};
  };

  // loopback.cpp
  void init(Request& request);
  void statfs(Request& request);
  void log(Request& request, Op op, int error, std::string_view path, std::string_view target = {});
  void log_event(Request& request, trace::Event& event);
  template <class Act, class IsDone>
  int carry_out(Request& request, Act act, IsDone is_done);
  int reach(std::uint64_t node, std::optional<Target>& target) const;
  int stat_node(std::uint64_t node, struct statx& st) const;
  int make_entry(Request& request, std::string_view name, const std::string& path, Entry& entry);
  void fill_attr(const struct statx& st, fuse_attr& attr);
  fuse_entry_out entry_out(std::uint64_t node, const struct statx& st);
  void answer_made(Request& request, Op op, int rc, std::string_view name, const std::string& path,
                   std::int64_t mode, std::string_view target = {});

  // names.cpp
  void lookup(Request& request);
  void forget(Request& request);
  void batch_forget(Request& request);
  void mkdir(Request& request, CallerRights& rights);
  void mknod(Request& request, CallerRights& rights);
  void symlink(Request& request);
  void link(Request& request);
  void remove(Request& request, int flags);
  void rename(Request& request, std::uint64_t to, unsigned flags, std::size_t skip);
  void readlink(Request& request);
  void hold_before_removal(std::uint64_t parent, std::string_view name, const std::string& path);

  // files.cpp
  void open(Request& request, CallerRights& rights);
  void create(Request& request, CallerRights& rights, bool nameless);
  void read(Request& request, ReplyBuffer& buffer);
  void write(Request& request, CallerRights& rights);
  void flush(Request& request);
  void release(Request& request);
  void fsync(Request& request);
  void lseek(Request& request);
  void fallocate(Request& request);
  void copy_file_range(Request& request);
  void ioctl(Request& request, ReplyBuffer& buffer);
  bool remove_half_made(const Request& request, const Place& place);
  void log_open(Request& request, trace::Event& event, Handle* opened);
  void tell_closed(Handle& handle, Request* request);
  void tell_io(Request& request, Op op, const Handle& handle, std::int64_t offset,
               std::int64_t bytes, int error);

  // folders.cpp
  void opendir(Request& request);
  void readdir(Request& request, ReplyBuffer& buffer);
  void releasedir(Request& request);

  // attributes.cpp
  void getattr(Request& request);
  void statx(Request& request);
  void setattr(Request& request);
  int apply(const fuse_setattr_in& in, const Target& target, const FileKey& key);
  void access(Request& request);
  void getxattr(Request& request, ReplyBuffer& buffer);
  void listxattr(Request& request, ReplyBuffer& buffer);
  void setxattr(Request& request);
  void removexattr(Request& request);

  AccessLog& log_;
  LoopbackMemory& memory_;
  NodeTable nodes_;
  InodeNumbers numbers_;
  HandleSet handles_;
};

/// Makes the system call of a request that changes something, once, whatever workers die over it:
/// act() gives 0 or an errno. Where a worker was killed between the call and its note of it,
/// is_done() tells by the effect whether it was made; that is counted.
template <class Act, class IsDone>
int Loopback::carry_out(Request& request, Act act, IsDone is_done) {
  using Stage = RequestProgress::Stage;
  auto& stage = request.progress().stage;
  const Stage before = stage.load(std::memory_order_relaxed);
  if (before == Stage::made) return 0;
  if (before == Stage::acting && is_done()) {
    ++memory_.slots.decided();
    return 0;
  }
  stage.store(Stage::acting, std::memory_order_release);
  const int rc = act();
  // What fails has changed nothing: when it comes again, its effect would be somebody else's.
  stage.store(rc == 0 ? Stage::made : Stage::taken, std::memory_order_release);
  return rc;
}

/// statx(2) with what the loopback needs; 0 or an errno.
int stat_at(int dir, const char* name, int flags, struct statx& st);

}  // namespace heddle::loopback
