// SPDX-License-Identifier: MIT
#pragma once

#include <cstring>
#include <memory>
#include <string_view>

#include "base/fd.hpp"
#include "fuseovl/session/succession.hpp"
#include "record/loopback/protocol.hpp"
#include "record/loopback/request_slots.hpp"

namespace heddle::loopback {

/// One request of the kernel, in the buffer that read(2) filled, and the way to answer it. One
/// thread has it; each request but FORGET and its like is answered exactly once.
class Request {
 public:
  Request(int device, char* bytes, std::size_t size, RequestProgress& progress)
      : device_(device), bytes_(bytes), size_(size), progress_(progress) {}

  RequestProgress& progress() { return progress_; }
  /// It comes again: a worker that was killed has had it.
  bool is_resent() const { return (header().unique & kResentUnique) != 0; }
  /// One more event of it: its number, from 1.
  unsigned next_event() { return ++events_; }
  /// Gives the answer that an earlier worker had found.
  void reply_as_noted();

  const fuse_in_header& header() const { return *reinterpret_cast<const fuse_in_header*>(bytes_); }
  std::uint32_t opcode() const { return header().opcode; }
  std::uint64_t node() const { return header().nodeid; }
  /// The thread that asks (a tid); 0 for the kernel's own doings.
  std::int32_t tid() const { return static_cast<std::int32_t>(header().pid); }

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
  /// The name (a C string) that stands after a body of `skip` bytes.
  std::string_view name(std::size_t skip = 0) const {
    const auto text = rest(skip);
    return text.substr(0, text.find('\0'));
  }
  char* data(std::size_t skip) { return bytes_ + sizeof(fuse_in_header) + skip; }

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

 private:
  std::size_t left(std::size_t skip) const {
    const std::size_t used = sizeof(fuse_in_header) + skip;
    return size_ > used ? size_ - used : 0;
  }
  void send(int error, const void* data, std::size_t size);
  int device_;
  char* bytes_;
  std::size_t size_;
  RequestProgress& progress_;
  unsigned events_ = 0;
};

/// For one who cannot go on: the next worker gets the requests in hand.
[[noreturn]] void leave_to_next_worker();

/// Room for what is read in answer to a request; one a thread.
class ReplyBuffer {
 public:
  ReplyBuffer() : out_(new char[kMaxData]) {}
  char* out() { return out_.get(); }

 private:
  std::unique_ptr<char[]> out_;
};

}  // namespace heddle::loopback
