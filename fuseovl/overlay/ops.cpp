// SPDX-License-Identifier: MIT
// The table that libfuse calls. Operations that are missing here are answered ENOSYS by libfuse,
// and the kernel then stops asking: FLUSH, GETXATTR, LISTXATTR, STATX, LSEEK. ACCESS never comes
// (default_permissions), nor any write (the mount is read only).

#include <new>

#include "fuseovl/overlay/overlay.hpp"
#include "fuseovl/session/kernel_order.hpp"

namespace heddle {
namespace {

/// The edge to C: whatever a method throws becomes an errno.
template <auto method, class... Arguments>
void answer(fuse_req_t request, Arguments... arguments) {
  after_request();
  try {
    (Session::client<Overlay>(request).*method)(request, arguments...);
  } catch (const std::bad_alloc&) {
    fuse_reply_err(request, ENOMEM);
  } catch (const std::exception&) {
    fuse_reply_err(request, EIO);
  }
}

void on_init(void* userdata, fuse_conn_info* connection) {
  static_cast<Overlay*>(static_cast<SessionClient*>(userdata))->init(*connection);
  before_answer();
}

fuse_lowlevel_ops make_ops() {
  fuse_lowlevel_ops ops{};
  ops.init = on_init;
  ops.lookup = answer<&Overlay::lookup>;
  ops.forget = answer<&Overlay::forget>;
  ops.getattr = answer<&Overlay::getattr>;
  ops.readlink = answer<&Overlay::readlink>;
  ops.open = answer<&Overlay::open>;
  ops.opendir = answer<&Overlay::opendir>;
  ops.read = answer<&Overlay::read>;
  ops.readdir = answer<&Overlay::readdir>;
  ops.readdirplus = answer<&Overlay::readdirplus>;
  ops.statfs = answer<&Overlay::statfs>;
  return ops;
}

}  // namespace

const fuse_lowlevel_ops& Overlay::ops() {
  static const fuse_lowlevel_ops table = make_ops();
  return table;
}

}  // namespace heddle
