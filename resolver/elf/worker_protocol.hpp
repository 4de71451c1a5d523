// SPDX-License-Identifier: MIT
#pragma once

// The messages of CachedFacts and its elf-workers over a SOCK_SEQPACKET socket (base/channel.hpp).
// Each Request comes with one open file. The worker sends one Reply when its sandbox is closed, and
// one for each request, in order, cut into pieces. CachedFacts trusts no byte of it.

#include <string>

#include "base/channel.hpp"
#include "base/content_hash.hpp"
#include "resolver/elf/elf_facts.hpp"

namespace heddle {

/// The socket's number in the worker.
inline constexpr int kWorkerSocket = 3;
/// libLLVM's symbols take 4 MiB.
inline constexpr std::size_t kLongestReply = std::size_t{32} << 20;
inline constexpr std::size_t kLongestPiece = std::size_t{96} << 10;

struct Request {
  std::uint64_t size = 0;  ///< of the file
  FactsDetail detail = FactsDetail::loader;
};
template <class Coder, IsRecord<Request> T>
void fields(Coder& coder, T& request) {
  coder(request.size, request.detail);
}

struct Reply {
  std::uint32_t version = kFactsVersion;
  std::int32_t code = 0;  ///< errno; 0: `facts` and `hash` are those of the file
  std::string message;    ///< what is wrong with the file, or why the worker cannot work
  ContentHash hash;
  ElfFacts facts;
};
template <class Coder, IsRecord<Reply> T>
void fields(Coder& coder, T& reply) {
  coder(reply.version, reply.code, reply.message, reply.hash.bytes, reply.facts);
}

struct Piece {
  bool last = false;
  std::string bytes;  ///< of the encoded Reply
};
template <class Coder, IsRecord<Piece> T>
void fields(Coder& coder, T& piece) {
  coder(piece.last, piece.bytes);
}

/// Sends `reply` in pieces, blocking until all of it is sent; EMSGSIZE when it is too long.
inline Result<void> send_reply(int socket, const Reply& reply) {
  Encoder coder;
  coder(reply);
  const std::string bytes = coder.take();
  if (bytes.size() > kLongestReply)
    return fail_errno("", "cannot send to the other process", EMSGSIZE);
  for (std::size_t at = 0; at < bytes.size(); at += kLongestPiece)
    TRY(send_record(socket,
                    Piece{bytes.size() - at <= kLongestPiece, bytes.substr(at, kLongestPiece)}));
  return {};
}

// The program elf-worker, in parts that tests call.

/// The sandbox for a parser that a damaged file may subvert: no descriptor but `socket` and a null
/// stdin, stdout and stderr; limits on memory (`memory` bytes) and file size, no core; no
/// capabilities and no new privileges; no file to open (Landlock, where the kernel has it); and a
/// seccomp filter that allows memory, time, pread, poll, close and messages on `socket`. Any other
/// system call kills the process with SIGSYS. Disabled in a build with sanitizers
/// (base/sandbox/sanitized.hpp).
Result<void> enter_sandbox(int socket, std::uint64_t memory);

/// SIGXCPU ends the process after `seconds` more of CPU time; works inside the sandbox.
void allow_cpu_time(unsigned seconds);

/// Reads the file behind `fd`, of the request's size: its hash, the loader's facts, and with
/// FactsDetail::symbols its symbols, by LIEF. Errors have the codes of FactsSource::facts and no
/// path.
Result<Reply> read_elf(int fd, const Request& request);

/// Reads requests from the socket kWorkerSocket and answers them from inside the sandbox until the
/// pool closes its end. `memory`: the sandbox's limit.
int serve_requests(std::uint64_t memory);

}  // namespace heddle
