// SPDX-License-Identifier: MIT
// A worker that misbehaves as the file it is given says: `crash`, `hang`, `lie`, `flood`, `exit`;
// anything else is answered with empty facts. It shows that the pool survives what LIEF might do.
#include <unistd.h>

#include <csignal>

#include "base/fd.hpp"
#include "resolver/elf/facts_codec.hpp"
#include "resolver/elf/worker_protocol.hpp"

namespace heddle {
namespace {

int misbehave() {
  static_cast<void>(send_frame(kWorkerSocket, frame_greeting, worker_protocol_version(), {}));
  for (;;) {
    const auto request = receive_request(kWorkerSocket);
    if (!request || !*request) return 0;
    char text[16] = {};
    if (::pread((*request)->file.get(), text, sizeof(text) - 1, 0) < 0) return 1;
    const std::string_view what(text);
    if (what == "crash") {
      ::signal(SIGSEGV, SIG_DFL);  // a sanitizer makes an exit status of it
      ::raise(SIGSEGV);
    }
    if (what == "exit") return 7;
    while (what == "hang") ::pause();
    std::string payload(sizeof(ContentHash), 'h');
    if (what == "lie") payload += "these are no facts";
    if (what == "flood") {
      const FrameHeader header{0xFFFF'FFFF, frame_facts, (*request)->request.id};
      static_cast<void>(write_all(
          kWorkerSocket, {reinterpret_cast<const char*>(&header), sizeof(header)}, "socket"));
    }
    if (what != "lie") payload += encode_facts({});
    if (!send_frame(kWorkerSocket, frame_facts, (*request)->request.id, payload)) return 1;
  }
}

}  // namespace
}  // namespace heddle

int main() { return heddle::misbehave(); }
