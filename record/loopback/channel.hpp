// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstring>
#include <string_view>

#include "record/loopback/caller_rights.hpp"
#include "record/loopback/protocol.hpp"

namespace heddle::loopback {

/// What the thread that has a request brings along.
class ServingThread {
 public:
  virtual ~ServingThread() = default;
  /// Another thread is to read the next request: this one takes long. Once is enough.
  virtual void go_slow() = 0;

  CallerRights rights;
  char* out = nullptr;  ///< kMaxData and a page of room for an answer
};

/// One request of the kernel, in the buffer that read(2) filled, and the way to answer it. One
/// thread has it; each request but FORGET and its like is answered exactly once.
class Request {
 public:
  Request(int device, char* bytes, std::size_t size, ServingThread& thread)
      : device_(device), bytes_(bytes), size_(size), thread_(thread) {}

  const fuse_in_header& header() const { return *reinterpret_cast<const fuse_in_header*>(bytes_); }
  std::uint32_t opcode() const { return header().opcode; }
  std::uint64_t node() const { return header().nodeid; }
  /// The thread that asks (a tid); 0 for the kernel's own doings.
  std::int32_t tid() const { return static_cast<std::int32_t>(header().pid); }
  CallerRights& rights() { return thread_.rights; }
  char* out() { return thread_.out; }
  void go_slow() { thread_.go_slow(); }

  /// What follows the header, as the opcode's structure. Zeroes stand where the kernel sent less.
  template <class Body>
  Body body() const {
    Body body{};
    std::memcpy(&body, bytes_ + sizeof(fuse_in_header), std::min(sizeof(Body), left(0)));
    return body;
  }
  /// The bytes after a body of `skip` bytes.
  std::string_view rest(std::size_t skip) const {
    return {bytes_ + sizeof(fuse_in_header) + skip, left(skip)};
  }
  /// The name that stands after a body of `skip` bytes; a NUL follows it.
  std::string_view name(std::size_t skip = 0) const {
    const auto text = rest(skip);
    return text.substr(0, text.find('\0'));
  }

  void reply_error(int error);  ///< a positive errno; 0 is success without data
  void reply_bytes(const void* data, std::size_t size);
  template <class Body>
  void reply(const Body& body) {
    reply_bytes(&body, sizeof(body));
  }
  template <class One, class Two>
  void reply(const One& one, const Two& two) {
    char both[sizeof(One) + sizeof(Two)];
    std::memcpy(both, &one, sizeof(One));
    std::memcpy(both + sizeof(One), &two, sizeof(Two));
    reply_bytes(both, sizeof(both));
  }
  /// Has the kernel drop the pages that it keeps of the node, after writing them back: other
  /// threads must be there to serve that.
  void drop_pages(std::uint64_t node);

 private:
  std::size_t left(std::size_t skip) const {
    const std::size_t used = sizeof(fuse_in_header) + skip;
    return size_ > used ? size_ - used : 0;
  }
  int device_;
  char* bytes_;
  std::size_t size_;
  ServingThread& thread_;
};

/// Whether a read or write of the device that failed with `error` may work a moment later.
bool is_shortage(int error);

/// For one who cannot go on: the connection ends with the process, and the program's calls fail.
[[noreturn]] void give_up();

}  // namespace heddle::loopback
