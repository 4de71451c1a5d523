// SPDX-License-Identifier: MIT
#include "base/fuse_device.hpp"

#include <fcntl.h>

namespace heddle {
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
  if (device) return device;
  const int code = device.error().code();
  return fail_errno(kDevice, "cannot open", code, hint_for(code, where_forbidden));
}

}  // namespace heddle
