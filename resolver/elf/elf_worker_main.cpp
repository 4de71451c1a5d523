// SPDX-License-Identifier: MIT
#include <cstdlib>

#include "base/run_main.hpp"
#include "resolver/elf/worker_protocol.hpp"

/// `elf-worker [MEMORY]`: started by a WorkerPool, with the limit of its memory in bytes.
int main(int argc, char** argv) {
  return heddle::run_main("elf-worker", [&] {
    return heddle::serve_requests(argc == 2 ? std::strtoull(argv[1], nullptr, 10) : 0);
  });
}
