// SPDX-License-Identifier: MIT
#include "fuseovl/session/session.hpp"

#include <linux/fuse.h>
#include <poll.h>
#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdarg>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <thread>

#include "base/backoff.hpp"
#include "base/log.hpp"
#include "base/try.hpp"

namespace heddle {
namespace {

/// Whether a failed read or write of the device is retried: a request without an answer leaves a
/// process waiting endlessly, and a lack of memory mostly passes. ENOENT: none waits for the
/// answer any more; ENODEV: unmounted.
bool may_pass(int error) {
  return error != ENOENT && error != ENODEV && error != EINVAL && error != EBADF;
}

void log_from_libfuse(fuse_log_level level, const char* format, va_list arguments) {
  if (level > FUSE_LOG_WARNING) return;
  char text[512];
  std::vsnprintf(text, sizeof(text), format, arguments);
  std::string_view line(text);
  while (line.ends_with('\n')) line.remove_suffix(1);
  say(line);
}

SessionMemory* g_memory = nullptr;  // of the one session of this process
bool g_replaying = false;           // before any other thread is there

// The INIT request that this thread answers; 0: none.
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

void remember_init(const void* request, std::size_t size) {
  if (size > g_memory->init.size()) return;
  std::memcpy(g_memory->init.data(), request, size);
  g_memory->init_size.store(size, std::memory_order_release);
}

/// Where the kernel does not take an answer, another process can be sent the request.
void give_up_answer() {
  if (g_memory->can_be_taken_over() && may_pass(errno)) ::kill(::getpid(), SIGKILL);
}

// Custom input and output sees every request, also those that libfuse answers by itself (FLUSH).
ssize_t receive(int device, void* buffer, std::size_t size, void*) {
  const ssize_t n =
      insist([&] { return ::read(device, buffer, size); },
             [](int error) { return may_pass(error) && error != EINTR && error != EAGAIN; });
  if (n < static_cast<ssize_t>(sizeof(fuse_in_header))) return n;
  const auto* header = static_cast<const fuse_in_header*>(buffer);
  if (header->opcode == FUSE_INIT) {
    t_init_unique = header->unique;
    remember_init(buffer, static_cast<std::size_t>(n));
  }
  g_memory->counters.count(header->opcode);
  return n;
}

ssize_t send(int device, iovec* parts, int count, void*) {
  const bool is_init = t_init_unique != 0;
  if (is_init) complete_init_reply(parts, count);
  if (g_replaying && g_memory->agreed) {
    ssize_t size = 0;
    for (int i = 0; i < count; ++i) size += static_cast<ssize_t>(parts[i].iov_len);
    return size;
  }
  const ssize_t n = insist([&] { return ::writev(device, parts, count); }, may_pass);
  if (n < 0) give_up_answer();
  if (is_init && n >= 0) g_memory->agreed = true;
  g_memory->answers.fetch_add(1, std::memory_order_relaxed);
  return n;
}

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBufferSize = kMaxWrite + kPage;

using Buffer = std::unique_ptr<char[]>;

// A kill while the kernel copies a request to an absent page makes the request fail, where it
// should be sent again (fs/fuse/dev.c, fuse_copy_fill: get_user_pages fails with a fatal signal
// pending). Requests other than WRITE fit in two pages.
Buffer make_buffer() {
  Buffer buffer(new (std::nothrow) char[kBufferSize]);
  for (std::size_t at = 0; buffer && at <= 2 * kPage; at += kPage)
    static_cast<volatile char*>(buffer.get())[at] = 0;
  return buffer;
}

/// The threads that read a session's requests and have libfuse answer them. The end of the
/// connection wakes and ends them.
///
/// Not fuse_session_loop_mt(3): it ends threads by pthread_cancel(3), a real-time signal, and waits
/// endlessly where the user has none left (RLIMIT_SIGPENDING); and a thread that it has no memory
/// for ends the session.
class RequestLoop : public std::enable_shared_from_this<RequestLoop> {
 public:
  explicit RequestLoop(fuse_session* session) : session_(session) {}
  /// As Session::serve(), with up to `threads` threads.
  Result<void> run(unsigned threads);

 private:
  bool start_thread();
  void answer_requests(char* buffer);
  int answer_until_it_ends(char* buffer);

  fuse_session* session_;
  std::mutex mutex_;
  std::condition_variable ended_;
  unsigned threads_ = 0;  ///< under mutex_
  int failure_ = 0;       ///< errno; under mutex_
};

Result<void> RequestLoop::run(unsigned threads) {
  bool started = false;
  for (unsigned i = 0; i < threads; ++i) started = start_thread() || started;
  if (!started) {
    const Buffer buffer = make_buffer();
    if (!buffer) return fail_errno("FUSE session", "cannot go on", ENOMEM);
    ++threads_;
    answer_requests(buffer.get());
  }
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return threads_ == 0 || failure_ != 0; });
  if (failure_ != 0) return fail_errno("FUSE session", "cannot go on", failure_);
  return {};
}

/// False: there is no memory for another thread.
bool RequestLoop::start_thread() {
  Buffer buffer = make_buffer();
  if (!buffer) return false;
  const std::lock_guard lock(mutex_);
  try {
    std::thread([self = shared_from_this(), own = std::move(buffer)] {
      self->answer_requests(own.get());
    }).detach();
  } catch (const std::exception&) {
    return false;
  }
  ++threads_;
  return true;
}

void RequestLoop::answer_requests(char* buffer) {
  const int failure = answer_until_it_ends(buffer);
  const std::lock_guard lock(mutex_);
  --threads_;
  if (failure_ == 0) failure_ = failure;
  ended_.notify_one();
}

/// 0: the connection has ended; else the errno.
int RequestLoop::answer_until_it_ends(char* buffer) {
  for (;;) {
    const ssize_t n = receive(fuse_session_fd(session_), buffer, kBufferSize, nullptr);
    if (n < 0) {
      // ENOENT: the request was interrupted before it was read (fuse_dev_do_read).
      if (errno == EINTR || errno == ENOENT) continue;
      if (errno != EAGAIN) return errno == ENODEV ? 0 : errno;
      // The caller of --fuse-fd may have set O_NONBLOCK.
      pollfd device{fuse_session_fd(session_), POLLIN, 0};
      (void)::poll(&device, 1, -1);
      continue;
    }
    if (n < static_cast<ssize_t>(sizeof(fuse_in_header))) return EIO;
    fuse_buf request{};
    request.mem = buffer;
    request.size = static_cast<std::size_t>(n);
    fuse_session_process_buf(session_, &request);
    if (fuse_session_exited(session_) != 0) return EPROTO;  // what init() agreed to does not do
  }
}

}  // namespace

Result<Session> Session::create(const fuse_lowlevel_ops& ops, void* client, Fd device,
                                const SessionOptions& options, SessionMemory& memory) {
  fuse_set_log_func(log_from_libfuse);
  // libfuse compares conn->max_read, set in init, with this option and refuses a difference.
  std::string max_read = "-omax_read=" + std::to_string(options.max_read);
  char name[] = "heddle";
  char* argv[] = {name, max_read.data(), nullptr};
  fuse_args args = FUSE_ARGS_INIT(2, argv);
  Session session(fuse_session_new(&args, &ops, sizeof(ops), client), options, memory);
  fuse_opt_free_args(&args);
  if (!session.session_) return fail("FUSE session", "cannot be set up", "libfuse refused it");
  fuse_custom_io io{};
  io.read = receive;
  io.writev = send;
  if (const int rc = fuse_session_custom_io(session.raw(), &io, device.get()); rc != 0)
    return fail_errno("FUSE session", "cannot be set up", -rc);
  g_memory = &memory;
  (void)device.release();  // fuse_session_destroy() closes it
  return session;
}

bool SessionMemory::can_be_taken_over() const noexcept {
  // FUSE_HAS_RESEND, bit 39 of both flags. Newer than the headers of Debian 12.
  constexpr std::uint32_t kHasResendInFlags2 = 1U << 7;
  const std::size_t size = init_size.load(std::memory_order_acquire);
  if (size == 0) return true;
  fuse_in_header header{};
  fuse_init_in request{};
  if (size < sizeof(header) + sizeof(request)) return false;
  std::memcpy(&request, init.data() + sizeof(header), sizeof(request));
  return (request.flags & FUSE_INIT_EXT) && (request.flags2 & kHasResendInFlags2);
}

/// Replays INIT to libfuse, and has the kernel resend what the dead process had not answered.
Result<void> Session::take_over() {
  auto request = memory_->init;
  fuse_buf buffer{};
  buffer.mem = request.data();
  buffer.size = memory_->init_size;
  fuse_in_header header{};
  std::memcpy(&header, request.data(), sizeof(header));
  t_init_unique = header.unique;
  g_replaying = true;
  // If the dead process had answered and not noted it, the kernel refuses this answer (ENOENT),
  // which libfuse ignores.
  fuse_session_process_buf(raw(), &buffer);
  g_replaying = false;
  t_init_unique = 0;
  memory_->agreed = true;
  constexpr int kNotifyResend = 7;  // FUSE_NOTIFY_RESEND of Linux 6.9
  fuse_out_header resend{};
  resend.len = sizeof(resend);
  resend.error = kNotifyResend;
  const auto sent =
      insist([&] { return ::write(fuse_session_fd(raw()), &resend, sizeof(resend)); }, may_pass);
  if (sent < 0 && errno != ENODEV) return fail_errno("FUSE session", "cannot be taken over");
  return {};
}

Result<void> Session::serve() {
  if (memory_->init_size.load(std::memory_order_acquire) != 0) TRY(take_over());
  return std::make_shared<RequestLoop>(raw())->run(options_.threads);
}

}  // namespace heddle
