// SPDX-License-Identifier: MIT
#include "resolver/elf/worker.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "resolver/elf/byte_codec.hpp"
#include "resolver/elf/facts_codec.hpp"
#include "resolver/elf/lief_reader.hpp"
#include "resolver/elf/read_elf.hpp"
#include "resolver/elf/sandbox.hpp"
#include "resolver/elf/worker_protocol.hpp"

namespace heddle {
namespace {

/// A file of 10 GB takes 2 s to hash; more than this is a loop.
constexpr unsigned kCpuSeconds = 10;
/// Room for LIEF 0.9's four copies of a file of 500 MB; reduced images take a thousandth.
constexpr std::uint64_t kMemory = std::uint64_t{3} << 30;
constexpr std::uint64_t kMemoryReduced = std::uint64_t{512} << 20;

std::string error_payload(const Error& error) {
  ByteWriter out;
  out.number(static_cast<std::int32_t>(error.code()));
  out.raw(error.message());
  return out.take();
}

Result<void> answer(const ReceivedRequest& received) {
  const Request& request = received.request;
  allow_cpu_time(kCpuSeconds);
  const auto read = read_elf(received.file.get(), request.size, request.detail, request.mode);
  if (!read) return send_frame(kWorkerSocket, frame_error, request.id, error_payload(read.error()));
  std::string payload(reinterpret_cast<const char*>(read->hash.bytes.data()),
                      read->hash.bytes.size());
  payload += encode_facts(read->facts);
  if (payload.size() > kMaxReply) {
    const auto error =
        Error::with_code(EBADMSG, "", "damaged ELF file", "its tables are too large");
    return send_frame(kWorkerSocket, frame_error, request.id, error_payload(error));
  }
  return send_frame(kWorkerSocket, frame_facts, request.id, payload);
}

int serve(std::uint64_t memory) {
  struct stat st {};
  if (::fstat(kWorkerSocket, &st) != 0 || !S_ISSOCK(st.st_mode)) {
    say("this program is started by heddle's other programs, not by hand");
    return exit_usage;
  }
  prepare_lief();
  if (const auto closed = enter_sandbox(kWorkerSocket, memory); !closed) {
    static_cast<void>(send_frame(kWorkerSocket, frame_refusal, 0, closed.error().message()));
    return exit_failure;
  }
  if (!send_frame(kWorkerSocket, frame_greeting, worker_protocol_version(), {}))
    return exit_failure;
  for (;;) {
    const auto received = receive_request(kWorkerSocket);
    if (!received) return exit_failure;
    if (!*received) return exit_done;
    if (!answer(**received)) return exit_failure;
  }
}

int self_test(std::string_view call) {
  if (const auto closed = enter_sandbox(kWorkerSocket, kMemory); !closed) return exit_failure;
  if (call == "open") static_cast<void>(::open("/dev/null", O_RDONLY));
  if (call == "socket") static_cast<void>(::socket(AF_UNIX, SOCK_STREAM, 0));
  if (call == "exec") ::execl("/bin/true", "true", nullptr);
  if (call == "fork") static_cast<void>(::fork());
  if (call == "write" && ::write(STDOUT_FILENO, "x", 1) < 0) return exit_failure;
  if (call == "unlink") static_cast<void>(::unlink("/nonexistent"));
  if (call == "kill") ::kill(::getppid(), 0);
  if (call == "mmap_code")
    ::mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (call == "mmap_file") ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, STDIN_FILENO, 0);
  if (call == "abort") ::abort();
  if (call == "memory") return ::malloc(std::size_t{4} << 30) == nullptr ? exit_done : exit_failure;
  if (call == "loop") {
    allow_cpu_time(0);
    for (;;) __asm__ volatile("");  // else the compiler may take it for one that ends
  }
  return exit_done;
}

}  // namespace

int worker_main(int argc, char** argv) {
  set_program_name("elf-worker");
  if (argc == 3 && std::string_view(argv[1]) == "--self-test") return self_test(argv[2]);
  const bool reduced_only = argc == 2 && std::string_view(argv[1]) == kReducedOnly;
  return serve(reduced_only ? kMemoryReduced : kMemory);
}

}  // namespace heddle
