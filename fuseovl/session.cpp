// SPDX-License-Identifier: MIT
#include "fuseovl/session.hpp"

#include <linux/fuse.h>
#include <sys/uio.h>

#include <cstdarg>
#include <string>

#include "base/log.hpp"

namespace heddle {
namespace {

void log_from_libfuse(fuse_log_level level, const char* format, va_list arguments) {
  if (level > FUSE_LOG_WARNING) return;
  char text[512];
  std::vsnprintf(text, sizeof(text), format, arguments);
  std::string_view line(text);
  while (line.ends_with('\n')) line.remove_suffix(1);
  say(line);
}

// The INIT request this thread is answering, 0 when none.
thread_local std::uint64_t t_init_unique = 0;

// libfuse 3.14 takes FUSE_CAP_PARALLEL_DIROPS but never sends the flag (lib/fuse_lowlevel.c,
// do_init); without it the kernel sends the lookups of one directory one after the other.
void complete_init_reply(const iovec* parts, int count) {
  if (count != 2 || parts[0].iov_len != sizeof(fuse_out_header)) return;
  const auto* header = static_cast<const fuse_out_header*>(parts[0].iov_base);
  if (header->unique != t_init_unique) return;
  t_init_unique = 0;
  if (header->error == 0 && parts[1].iov_len == sizeof(fuse_init_out))
    static_cast<fuse_init_out*>(parts[1].iov_base)->flags |= FUSE_PARALLEL_DIROPS;
}

// Custom input and output is how every request is seen, also those libfuse answers by itself
// (FLUSH, GETXATTR): the counters must show what the kernel asked, not what we handle.
ssize_t receive(int device, void* buffer, std::size_t size, void* userdata) {
  const ssize_t n = ::read(device, buffer, size);
  if (n < static_cast<ssize_t>(sizeof(fuse_in_header))) return n;
  const auto* header = static_cast<const fuse_in_header*>(buffer);
  if (header->opcode == FUSE_INIT) t_init_unique = header->unique;
  static_cast<SessionClient*>(userdata)->on_request(header->opcode);
  return n;
}

ssize_t send(int device, iovec* parts, int count, void*) {
  if (t_init_unique != 0) complete_init_reply(parts, count);
  return ::writev(device, parts, count);
}

ssize_t send_by_splice(int pipe, off_t* offset_in, int device, off_t* offset_out, std::size_t size,
                       unsigned flags, void*) {
  return ::splice(pipe, offset_in, device, offset_out, size, flags);
}

struct LoopConfig {
  LoopConfig() : config(fuse_loop_cfg_create()) {}
  LoopConfig(const LoopConfig&) = delete;
  LoopConfig& operator=(const LoopConfig&) = delete;
  ~LoopConfig() { fuse_loop_cfg_destroy(config); }
  fuse_loop_config* config;
};

}  // namespace

Result<Session> Session::create(const fuse_lowlevel_ops& ops, SessionClient& client, Fd device,
                                const SessionOptions& options) {
  fuse_set_log_func(log_from_libfuse);
  // libfuse compares conn->max_read, set in init, with this option and refuses a difference.
  std::string max_read = "-omax_read=" + std::to_string(options.max_read);
  char name[] = "heddle";
  char* argv[] = {name, max_read.data(), nullptr};
  fuse_args args = FUSE_ARGS_INIT(2, argv);
  Session session(fuse_session_new(&args, &ops, sizeof(ops), &client), options);
  fuse_opt_free_args(&args);
  if (!session.session_) return fail("FUSE session", "cannot be set up", "libfuse refused it");
  fuse_custom_io io{};
  io.read = receive;
  io.writev = send;
  io.splice_send = send_by_splice;
  if (const int rc = fuse_session_custom_io(session.raw(), &io, device.get()); rc != 0)
    return fail_errno("FUSE session", "cannot be set up", -rc);
  (void)device.release();  // fuse_session_destroy() closes it from here on
  return session;
}

Result<void> Session::serve() {
  LoopConfig loop;
  fuse_loop_cfg_set_max_threads(loop.config, options_.threads);
  fuse_loop_cfg_set_clone_fd(loop.config, options_.clone_fd ? 1 : 0);
  const int rc = fuse_session_loop_mt(raw(), loop.config);
  if (rc != 0) return fail_errno("FUSE session", "cannot go on", rc < 0 ? -rc : rc);
  return {};
}

}  // namespace heddle
