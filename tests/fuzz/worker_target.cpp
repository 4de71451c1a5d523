// SPDX-License-Identifier: MIT
//
// Both ends of an elf-worker's socket: requests to the worker, and replies from a worker that an
// ELF file may have compromised. The first byte selects the message.
#include "resolver/elf/worker_protocol.hpp"
#include "tests/fuzz/target.hpp"

namespace heddle::fuzz {
namespace {

template <class Message>
std::string encoded(const Message& message) {
  Encoder coder;
  coder(message);
  return coder.take();
}

/// An accepted message round-trips.
template <class Message>
void decode(std::string_view bytes) {
  Message message;
  Decoder coder(bytes);
  coder(message);
  if (!coder.complete()) return;
  const std::string again = encoded(message);
  Message same;
  Decoder second(again);
  second(same);
  check(second.complete() && encoded(same) == again, "a message changes on its way");
}

}  // namespace

void run(std::string_view bytes) {
  Input input(bytes);
  switch (input.number<std::uint8_t>() % 4) {
    case 0:
      return decode<Request>(input.rest());
    case 1:
      return decode<Piece>(input.rest());
    default:
      return decode<Reply>(input.rest());
  }
}

std::vector<std::string> seeds() {
  Reply reply;
  reply.facts.elf_class = 2;
  reply.facts.interp = "/lib64/ld-linux-x86-64.so.2";
  reply.facts.soname = "libx.so.1";
  reply.facts.dependencies = {{Dependency::Kind::needed, "libc.so.6"}};
  reply.facts.tls = TlsSegment{8, 8};
  reply.facts.version_needs = {{"libc.so.6", "GLIBC_2.2.5", false}};
  reply.facts.version_definitions = {"X_1"};
  reply.facts.exported_symbols = {{"f", "X_1", false}};
  reply.facts.undefined_symbols = {{"g", "", true}};
  const std::string none(1, '\0');
  return {none + encoded(Request{4096, FactsDetail::symbols}),
          "\1" + encoded(Piece{true, encoded(Reply{})}), "\2" + encoded(reply),
          "\2" + encoded(Reply{})};
}

}  // namespace heddle::fuzz
