// SPDX-License-Identifier: MIT
// An elf-worker that fails as the content of its file says: `crash`, `hang`, `lie`, `flood`,
// `exit`, `touch` (the file). Other files get empty facts. Shows that the pool survives failures of
// LIEF.
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "resolver/elf/worker_protocol.hpp"

namespace heddle {
namespace {

int misbehave() {
  static_cast<void>(send_reply(kWorkerSocket, {}));
  for (bool touched = false;;) {
    const auto request = receive_record<Request>(kWorkerSocket, std::chrono::hours(1));
    if (!request || request->fds.size() != 1) return 0;
    char text[16] = {};
    if (::pread(request->fds[0].get(), text, sizeof(text) - 1, 0) < 0) return 1;
    const std::string_view what(text);
    if (what == "crash") {
      ::signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would exit
      ::raise(SIGSEGV);
    }
    if (what == "exit") return 7;
    if (what == "touch" || (what == "touch once" && !std::exchange(touched, true)))
      ::futimens(request->fds[0].get(), nullptr);
    while (what == "hang") ::pause();
    while (what == "flood")
      if (!send_record(kWorkerSocket, Piece{false, std::string(kLongestPiece, 'f')})) return 1;
    const auto sent = what == "lie" ? send_record(kWorkerSocket, Piece{true, "these are no facts"})
                                    : send_reply(kWorkerSocket, {});
    if (!sent) return 1;
  }
}

}  // namespace
}  // namespace heddle

int main() { return heddle::misbehave(); }
