// SPDX-License-Identifier: MIT
#pragma once

// What a pool and its elf-worker say to each other over a stream socket. The pool sends Requests,
// each with one open file (SCM_RIGHTS); the worker sends one Greeting and then one Reply for each
// request, in their order. The pool trusts no byte of it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/content_hash.hpp"
#include "base/fd.hpp"
#include "resolver/elf/elf_facts.hpp"

namespace heddle {

/// The socket's number in the worker.
inline constexpr int kWorkerSocket = 3;
/// A longer reply is a broken worker. libLLVM's symbols take 4 MiB.
inline constexpr std::size_t kMaxReply = std::size_t{32} << 20;
/// The word by which a worker is started that is sent requests of ParseMode::reduced_only alone.
inline constexpr const char* kReducedOnly = "--reduced-only";

/// How a file is read: by default its reduced image, and all of it when that is not possible.
/// The others are for tests that compare the two.
enum class ParseMode : std::uint8_t { automatic, reduced_only, full_only };

struct Request {
  std::uint64_t id = 0;
  std::uint64_t size = 0;  ///< of the file
  FactsDetail detail = FactsDetail::loader;
  ParseMode mode = ParseMode::automatic;
  std::uint8_t padding[6]{};
};
static_assert(sizeof(Request) == 24);

/// A frame's first bytes: `size` more follow.
struct FrameHeader {
  std::uint32_t size = 0;
  std::uint32_t kind = 0;
  std::uint64_t id = 0;  ///< of the Request; in a greeting the protocol's version
};
static_assert(sizeof(FrameHeader) == 16);
enum FrameKind : std::uint32_t {
  frame_greeting = 0x6C66'6501,  ///< the sandbox is closed; no payload
  frame_refusal,                 ///< instead of a greeting: why the worker cannot work (text)
  frame_facts,                   ///< ContentHash, then encode_facts()
  frame_error,                   ///< int32 errno, then text
};
std::uint64_t worker_protocol_version();

/// Sends `request` with `fd`; the error's code is EAGAIN when the socket is full.
Result<void> send_request(int socket, const Request& request, int fd);

struct ReceivedRequest {
  Request request;
  Fd file;
};
/// Blocks for the next request. nullopt: the pool has closed its end.
Result<std::optional<ReceivedRequest>> receive_request(int socket);

/// Sends one frame, blocking until all of it is sent.
Result<void> send_frame(int socket, FrameKind kind, std::uint64_t id, std::string_view payload);

}  // namespace heddle
