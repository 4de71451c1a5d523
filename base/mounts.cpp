// SPDX-License-Identifier: MIT
#include "base/mounts.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <charconv>

#include "base/fd.hpp"
#include "base/try.hpp"

namespace heddle {
namespace {

/// The kernel writes space, tab, newline and backslash as \ooo.
std::string decode_octal(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                               (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

/// Removes the part before `end`, and `end`, from `rest` and returns it.
std::string_view take_until(std::string_view& rest, char end) {
  const auto at = rest.find(end);
  const auto part = rest.substr(0, at);
  rest.remove_prefix(at == rest.npos ? rest.size() : at + 1);
  return part;
}

unsigned number_in(std::string_view text) {
  unsigned out = 0;
  std::from_chars(text.data(), text.data() + text.size(), out);
  return out;
}

/// 36 35 98:0 /root /mount/point options optional... - type source super-options
MountEntry parse_line(std::string_view line) {
  MountEntry out;
  out.id = static_cast<int>(number_in(take_until(line, ' ')));
  take_until(line, ' ');  // the parent's id
  const auto major = number_in(take_until(line, ':'));
  out.device = ::makedev(major, number_in(take_until(line, ' ')));
  out.root = decode_octal(take_until(line, ' '));
  out.point = decode_octal(take_until(line, ' '));
  take_until(line, ' ');  // the mount's own options
  for (auto field = take_until(line, ' '); !field.empty() && field != "-";
       field = take_until(line, ' '))
    out.shared = out.shared || field.starts_with("shared:");
  out.type = take_until(line, ' ');
  out.source = decode_octal(take_until(line, ' '));
  out.options = line;
  return out;
}

}  // namespace

bool MountEntry::has_option(std::string_view option) const {
  for (std::string_view rest = options; !rest.empty();)
    if (take_until(rest, ',') == option) return true;
  return false;
}

std::vector<MountEntry> parse_mountinfo(std::string_view text) {
  std::vector<MountEntry> out;
  while (!text.empty()) out.push_back(parse_line(take_until(text, '\n')));
  return out;
}

Result<std::vector<MountEntry>> list_mounts(const std::string& process) {
  const std::string text = TRY(read_file(process + "/mountinfo"));
  return parse_mountinfo(text);
}

Result<std::optional<MountEntry>> find_mount(const std::string& path) {
  auto mounts = TRY(list_mounts());
  std::optional<MountEntry> found;
  for (auto& mount : mounts)
    if (mount.point == path) found = std::move(mount);
  return found;
}

namespace {

Result<void> write_proc(const std::string& path, const std::string& text) {
  const Fd fd = TRY(open_file(path, O_WRONLY));
  return write_all(fd.get(), text, path);
}

/// Maps the caller to itself and not to root, so that ids and file owners look as outside.
/// setgroups must be denied before an unprivileged gid_map, user_namespaces(7).
Result<void> enter_user_namespace(int flags) {
  const uid_t uid = ::geteuid();
  const gid_t gid = ::getegid();
  if (::unshare(CLONE_NEWUSER | flags) != 0)
    return fail_errno("", "cannot make a user namespace", errno,
                      "user namespaces may be disabled here (sysctl user.max_user_namespaces, "
                      "kernel.unprivileged_userns_clone)");
  TRY(write_proc("/proc/self/uid_map", fmt::format("{0} {0} 1\n", uid)));
  TRY(write_proc("/proc/self/setgroups", "deny"));
  return write_proc("/proc/self/gid_map", fmt::format("{0} {0} 1\n", gid));
}

Result<void> make_mounts_private() {
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) == 0) return {};
  const int error = errno;
  const char* hint =
      error == EINVAL
          ? "the root of a plain chroot(2) is not a mount: mount --bind it onto itself, then chroot"
          : "";
  return fail_errno("/", "cannot make the mounts private", error, hint);
}

}  // namespace

NamespaceKind usable_namespace_kind() {
  // Trying would move the process. The answer is wrong only for root without CAP_SYS_ADMIN, which
  // gets the reason from enter_private_namespace().
  return ::geteuid() == 0 ? NamespaceKind::mount : NamespaceKind::user_and_mount;
}

Result<void> enter_private_namespace(NamespaceKind kind) {
  if (kind == NamespaceKind::user_and_mount)
    TRY(enter_user_namespace(CLONE_NEWNS));
  else if (::unshare(CLONE_NEWNS) != 0)
    return fail_errno("", "cannot make a mount namespace");
  return make_mounts_private();
}

namespace {

constexpr const char* kDevice = "/dev/fuse";

std::string_view hint_for(int code, std::string_view where_forbidden) {
  switch (code) {
    case ENOENT:
    case ENODEV:
    case ENXIO:
      return "load the module (modprobe fuse); in a container, pass the device in (--device "
             "/dev/fuse)";
    case EACCES:
      return "users need the right to open it: mode 0666 (as root: chmod 0666 /dev/fuse)";
    case EPERM:
      return where_forbidden.empty() ? "in a container, pass the device in (--device /dev/fuse)"
                                     : where_forbidden;
    default:
      return {};
  }
}

}  // namespace

Result<Fd> open_fuse_device(std::string_view where_forbidden) {
  auto device = open_file(kDevice, O_RDWR);
  struct stat status {};
  if (device && ::fstat(device->get(), &status) == 0 &&
      (!S_ISCHR(status.st_mode) || status.st_rdev != makedev(10, 229)))
    return fail(kDevice, "cannot mount", "it is not the FUSE device",
                "as root: rm /dev/fuse && mknod -m 666 /dev/fuse c 10 229");
  if (device) return device;
  const int code = device.error().code();
  return fail_errno(kDevice, "cannot open", code, hint_for(code, where_forbidden));
}

}  // namespace heddle
