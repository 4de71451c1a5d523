// SPDX-License-Identifier: MIT
#pragma once

// What a WorkerPool and its elf-workers exchange over a SOCK_SEQPACKET socket (base/channel.hpp).
// The pool sends Requests, each with one open file. The worker sends one Reply when its sandbox is
// closed, and one for each request, in their order, cut into pieces. The pool trusts no byte of it.

#include <string>

#include "base/channel.hpp"
#include "base/content_hash.hpp"
#include "resolver/elf/elf_facts.hpp"

namespace heddle {

/// The socket's number in the worker.
inline constexpr int kWorkerSocket = 3;
/// A longer reply is a broken worker's. libLLVM's symbols take 4 MiB.
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
    return fail_errno("", "cannot talk to the other process", EMSGSIZE);
  for (std::size_t at = 0; at < bytes.size(); at += kLongestPiece)
    TRY(send_record(socket,
                    Piece{bytes.size() - at <= kLongestPiece, bytes.substr(at, kLongestPiece)}));
  return {};
}

}  // namespace heddle
