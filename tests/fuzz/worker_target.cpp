// SPDX-License-Identifier: MIT
//
// Both ends of an elf-worker's socket: the requests that it takes, and the facts that the pool gets
// from a worker that an ELF file may have subverted. The first byte chooses.
#include <sys/socket.h>

#include "resolver/elf/facts_codec.hpp"
#include "resolver/elf/worker_protocol.hpp"
#include "tests/fuzz/target.hpp"

namespace heddle::fuzz {
namespace {

/// `bytes` as a peer would send them, cut into pieces of any size; one of them with a descriptor.
void requests(Input input) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
  const Fd ours(ends[0]);
  Fd theirs(ends[1]);
  const BytesFile sent({});
  while (!input.empty()) {
    Request request;
    const bool whole = input.number<std::uint8_t>() % 2 == 0;
    const auto piece = input.take(whole ? sizeof(request) : input.number<std::uint8_t>() % 64);
    if (whole) {
      std::memcpy(&request, piece.data(), piece.size());
      (void)send_request(theirs.get(), request, sent.fd());
    } else if (::send(theirs.get(), piece.data(), piece.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
      break;
    }
  }
  theirs.reset();
  for (auto received = receive_request(ours.get()); received && *received;)
    received = receive_request(ours.get());
}

void facts(std::string_view bytes) {
  const auto facts = decode_facts(bytes);
  if (facts) check(encode_facts(*facts) == bytes, "facts that no worker writes were accepted");
}

}  // namespace

void run(std::string_view bytes) {
  Input input(bytes);
  if (input.number<std::uint8_t>() % 4 == 0)
    requests(input);
  else
    facts(input.rest());
}

std::vector<std::string> seeds() {
  Request request;
  request.id = 7;
  request.size = 4096;
  ElfFacts facts;
  facts.elf_class = 2;
  facts.interp = "/lib64/ld-linux-x86-64.so.2";
  facts.soname = "libx.so.1";
  facts.dependencies = {{Dependency::Kind::needed, "libc.so.6"}};
  facts.tls = TlsSegment{8, 8};
  facts.version_needs = {{"libc.so.6", "GLIBC_2.2.5", false}};
  facts.version_definitions = {"X_1"};
  facts.exported_symbols = {{"f", "X_1", false}};
  facts.undefined_symbols = {{"g", "", true}};
  const std::string bytes(reinterpret_cast<const char*>(&request), sizeof(request));
  const std::string whole(1, '\0');
  return {whole + whole + bytes + whole + bytes, whole + "\1\x0c" + bytes.substr(0, 12),
          "\1" + encode_facts(facts), "\1" + encode_facts({})};
}

}  // namespace heddle::fuzz
