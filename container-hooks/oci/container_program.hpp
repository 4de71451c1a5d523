// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "container-hooks/oci/container_config.hpp"

namespace heddle::hook {

/// The program of args[0] in the container's root, or behind it the last one that it is known to
/// execute and that glibc's ld.so loads: that of `env A=b PROGRAM`, `sh -c 'PROGRAM ARG'`, `tini --
/// PROGRAM`, `gosu USER PROGRAM`. Empty: the runtime finds none. An image chooses the words and the
/// files; the worst is a decision for a program that is not started.
std::string container_program(const ContainerConfig& config);

}  // namespace heddle::hook
