// SPDX-License-Identifier: MIT
// old-kernel 4.18|5.14 COMMAND ARGS: runs COMMAND and its children with the system calls of an
// older kernel. Later calls fail with ENOSYS, later flags of older calls with that kernel's error
// for unknown flags. Needs root, because PR_SET_NO_NEW_PRIVS would disable setuid programs. Not
// emulated: the FUSE protocol, fields of statx, features of file systems. 5.14 is plain Linux 5.14
// without Landlock, as RHEL 9.0 boots it.

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <vector>

namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "unknown architecture"
#endif

/// A classic BPF program over seccomp_data that ends with SECCOMP_RET_ALLOW.
class Filter {
 public:
  Filter() {
    // Calls since 5.1 have the same numbers on all architectures.
    load(offsetof(seccomp_data, arch));
    add(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0);
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }
  /// Calls of this number and higher ones fail.
  void without_calls_from(std::uint32_t number) {
    load(offsetof(seccomp_data, nr));
    add(BPF_JMP | BPF_JGE | BPF_K, number, 0, 1);
    fail(ENOSYS);
  }
  void without(std::initializer_list<long> calls) {
    for (const long call : calls) {
      load(offsetof(seccomp_data, nr));
      add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 1);
      fail(ENOSYS);
    }
  }
  /// `call` with any of `bits` in its argument `at`.
  void without_flags(long call, unsigned at, std::uint32_t bits, int error) {
    load(offsetof(seccomp_data, nr));
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 3);
    load_argument(at);
    add(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1);
    fail(error);
  }
  /// `call` with its argument `at` from `least` to `most`.
  void without_values(long call, unsigned at, std::uint32_t least, std::uint32_t most, int error) {
    load(offsetof(seccomp_data, nr));
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 4);
    load_argument(at);
    add(BPF_JMP | BPF_JGE | BPF_K, least, 0, 2);
    add(BPF_JMP | BPF_JGT | BPF_K, most, 1, 0);
    fail(error);
  }
  /// `call` with `first` as argument 1 and at least `least` as argument 2: socket options.
  void without_options(long call, std::uint32_t first, std::uint32_t least, int error) {
    load(offsetof(seccomp_data, nr));
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 5);
    load_argument(1);
    add(BPF_JMP | BPF_JEQ | BPF_K, first, 0, 3);
    load_argument(2);
    add(BPF_JMP | BPF_JGE | BPF_K, least, 0, 1);
    fail(error);
  }
  bool install() {
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    const sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
    return ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
  }

 private:
  void add(unsigned operation, std::uint32_t value, unsigned yes = 0, unsigned no = 0) {
    code_.push_back({static_cast<std::uint16_t>(operation), static_cast<std::uint8_t>(yes),
                     static_cast<std::uint8_t>(no), value});
  }
  void load(std::size_t offset) {
    add(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset));
  }
  /// The low half: both architectures are little endian.
  void load_argument(unsigned at) { load(offsetof(seccomp_data, args) + 8 * std::size_t{at}); }
  void fail(int error) {
    add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error));
  }

  std::vector<sock_filter> code_;
};

constexpr std::uint32_t kNamespaceIoctls = 0xb7U << 8;  // linux/nsfs.h; the number is the low byte

/// Linux 5.15 and later.
void remove_newer_than_5_14(Filter& filter) {
  filter.without_calls_from(448);                            // process_mrelease
  filter.without({444, 445, 446});                           // landlock_*
  filter.without_flags(429, 4, 0x300, EINVAL);               // MOVE_MOUNT_BENEATH, SET_GROUP
  filter.without_values(431, 1, 8, ~0U, EOPNOTSUPP);         // FSCONFIG_CMD_CREATE_EXCL
  filter.without_flags(434, 1, O_EXCL, EINVAL);              // PIDFD_THREAD
  filter.without_flags(SYS_memfd_create, 1, 0x18, EINVAL);   // MFD_NOEXEC_SEAL, MFD_EXEC
  filter.without_flags(SYS_preadv2, 5, ~0x1fU, EOPNOTSUPP);  // RWF_NOAPPEND and later
  filter.without_flags(SYS_pwritev2, 5, ~0x1fU, EOPNOTSUPP);
  filter.without_values(SYS_madvise, 2, 24, 99, EINVAL);  // MADV_DONTNEED_LOCKED
  filter.without_values(SYS_fcntl, 1, 1024 + 15, 1024 + 99, EINVAL);
  filter.without_values(SYS_fcntl, 1, 1024 + 3, 1024 + 4, EINVAL);      // F_DUPFD_QUERY
  filter.without_options(SYS_getsockopt, SOL_SOCKET, 73, ENOPROTOOPT);  // SO_PEERPIDFD is 77
  filter.without_options(SYS_setsockopt, SOL_SOCKET, 73, ENOPROTOOPT);
  filter.without_values(SYS_ioctl, 1, kNamespaceIoctls | 5, kNamespaceIoctls | 0xff, ENOTTY);
}

/// Linux 4.19 and later.
void remove_newer_than_4_18(Filter& filter) {
  filter.without_calls_from(424);  // pidfd_send_signal; open_tree, clone3, openat2, ... follow
  filter.without_options(SYS_getsockopt, SOL_SOCKET, 62, ENOPROTOOPT);
  filter.without_options(SYS_setsockopt, SOL_SOCKET, 62, ENOPROTOOPT);
  filter.without_values(SYS_waitid, 0, 3, 3, EINVAL);     // P_PIDFD
  filter.without_values(SYS_madvise, 2, 20, 99, EINVAL);  // MADV_COLD to MADV_POPULATE_WRITE
  filter.without_flags(SYS_unshare, 0, 0x80, EINVAL);     // CLONE_NEWTIME
}

}  // namespace

int main(int argc, char** argv) {
  const std::string version = argc > 2 ? argv[1] : "";
  if (version != "4.18" && version != "5.14") {
    std::fprintf(stderr, "usage: old-kernel 4.18|5.14 COMMAND ARGS\n");
    return 2;
  }
  Filter filter;
  if (version == "4.18") remove_newer_than_4_18(filter);  // first: the first match decides
  remove_newer_than_5_14(filter);
  if (!filter.install()) {
    std::perror("old-kernel: seccomp");
    return 125;
  }
  ::execvp(argv[2], argv + 2);
  std::perror(argv[2]);
  return 127;
}
