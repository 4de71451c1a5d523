// SPDX-License-Identifier: MIT
#pragma once

// fs-hook run: a container of namespaces alone, without a runtime. It is one for all processes of a
// job on a node that ask for the same, which enter it (setns(2)): so they share a user namespace,
// which MPI's copies from process to process need (process_vm_readv(2)), and one mount of the
// host's files.
//
// The first one starts it: a child makes the namespaces and the root, and gets the host's files as
// any hooked container (swap_container()). It then answers on a socket of the run directory: who
// connects gets the namespaces, and keeps the connection over exec. It ends with the last one; the
// mounts end with the last process in the namespaces.
//
// This is no sandbox. Without a user namespace, root in it is root of the host, with all its
// devices: start no image as root that you would not start without a container.

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.hpp"
#include "container-hooks/oci/container_config.hpp"
#include "container-hooks/oci/hook_settings.hpp"

namespace heddle::hook {

struct NodeContainer {
  HookSettings hook;   ///< `stage` and annotations do not matter
  std::string rootfs;  ///< an unpacked image
  std::vector<Volume> volumes;
  std::vector<std::string> variables;  ///< names of those that the program gets
  std::string cwd;                     ///< empty: the present one
  mode_t umask = 022;                  ///< the command's
  /// The words of an engine that makes the container of the image's directory, in which volumes and
  /// the host's files are mounted; empty: none. It runs a program on and with all descriptors.
  std::vector<std::string> engine;
  std::vector<std::string> command;
};

/// Executes the command in the container, in this process. Returns only on failure: the exit
/// status. Single-threaded.
Result<int> run_in_node_container(NodeContainer container);

/// What an engine runs: answers for the container that it has made, until its last process ends.
/// `words`: of the command line behind this one. Result: the exit status.
inline constexpr const char* kServeCommand = "serve";
Result<int> serve_node_container(const std::vector<std::string>& words);

}  // namespace heddle::hook
