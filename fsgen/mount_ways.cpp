// SPDX-License-Identifier: MIT
#include "fsgen/mount_ways.hpp"

#include "base/launch/private_mount.hpp"

namespace heddle {

std::vector<Via> ways_to_try(Via wanted) {
  if (wanted != Via::best) return {wanted};
  if (usable_namespace_kind() == NamespaceKind::mount) return {Via::mount, Via::direct};
  // fusermount3 first: it changes nothing for APP, a user namespace does.
  return {Via::fusermount, Via::user, Via::direct};
}

std::string name_of(Via via) {
  switch (via) {
    case Via::mount:
      return "mount namespace";
    case Via::fusermount:
      return "fusermount3";
    case Via::user:
      return "user namespace";
    case Via::direct:
      return "direct";
    case Via::best:
      break;
  }
  return "best";
}

std::vector<std::string> limits_of(Via via) {
  if (via != Via::user) return {};
  // Measured on Linux 6.18; user_namespaces(7): one uid and one gid are mapped, setgroups is
  // denied, and execve(2) honours set-user-ID only for mapped owners.
  return {"supplementary groups show as 65534 (nogroup)", "chgrp to a supplementary group fails",
          "setuid and setgid programs gain no privilege"};
}

std::string hint_for(Via via) {
  switch (via) {
    case Via::mount:
      return "needs root with CAP_SYS_ADMIN, and /dev/fuse; users have --via fusermount";
    case Via::fusermount:
      return "needs the setuid program fusermount3 (package fuse3), /dev/fuse, and a user with a "
             "name; --via user needs none of the first";
    case Via::user:
      return "needs user namespaces (user.max_user_namespaces) and a /dev/fuse that users may "
             "open; "
             "--via direct needs neither";
    case Via::direct:
    case Via::best:
      break;
  }
  return {};
}

}  // namespace heddle
