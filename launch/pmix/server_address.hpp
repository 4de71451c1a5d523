// SPDX-License-Identifier: MIT
#pragma once

// Which PMIx server to connect to, and which never: a tool that attaches to mpirun of Open MPI 4
// ends it, and with it the job (4.1.4 dies of SIGSEGV in libpmix, however the tool connects).

#include <string>

#include "base/result.hpp"

namespace heddle::pmix {

/// The URI in `text`: itself (`NAMESPACE.RANK;tcp4://ADDRESS:PORT`), or the first line of a file
/// that a launcher has written (prterun --report-uri FILE, a rendezvous file): `FILE` or
/// `file:FILE`. A file of another user is refused, since it would say whom to trust. Never searched
/// for by a pid, for which libpmix reads all of TMPDIR.
/// Failure: it is none, or is one of Open MPI 4's mpirun, by its namespace, which is a number, or
/// by the process that listens on the port, if it is of this node and user.
Result<std::string> server_uri(const std::string& text);

/// Fails for a launcher of Open MPI 4: an ELF file that needs its libopen-rte. Another, and one
/// that cannot be read, is no failure.
Result<void> refuse_open_mpi_4(const std::string& program);

}  // namespace heddle::pmix
