// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>

#include <cerrno>
#include <cstdint>
#include <string_view>
#include <vector>

#include "record/trace/event.hpp"

namespace heddle::trace {

/// Every field of the header in use.
inline RunHeader full_header() {
  RunHeader h;
  h.run_id = "r-1";
  h.argv = {"printf", "[%s]", "a b", "", "tab\tnew\nline \"q\" \\"};
  h.cwd = "/home/x y";
  h.host = "node7";
  h.start_unix_ns = 1732214087012379646;
  h.rank = 3;
  h.map_id = "00ff";
  h.method = "namespace";
  h.scopes = {"/opt", "/s\tt"};
  h.notes = {"/run stays native: it holds listening sockets"};
  return h;
}

/// Events with odd names, an event for each of a dozen operations, and one with all details.
inline std::vector<Event> odd_events() {
  std::vector<Event> events;
  for (const std::string_view path :
       {"/plain", "/with space", "/tab\there", "/new\nline", "/back\\slash", "/bad\xff\xc3utf8",
        "/\xC3\xA4 \xE2\x82\xAC", "/quote\"'<b>&amp;", "/\x1b[31m\x7f", "\\xff", "# heddle", ""}) {
    const std::size_t i = events.size();
    events.push_back({.ns = i * 1000,
                      .pid = 10,
                      .tid = 11,
                      .op = static_cast<Op>(i),
                      .error = i % 2 == 0 ? 0 : ENOENT,
                      .path = path,
                      .exe = path,
                      .resolved = path,
                      .target = path});
  }
  events.push_back({.ns = ~std::uint64_t{0},
                    .pid = 2147483647,
                    .tid = 2147483647,
                    .op = Op::setxattr,
                    .error = 4095,  // not a known errno
                    .path = "/p",
                    .flags = O_RDWR | O_CREAT | O_CLOEXEC | O_SYNC | O_TMPFILE | 0x40000000,
                    .mode = 04755,
                    .handle = 0,
                    .count = 1,
                    .bytes = INT64_MAX,
                    .offset = 0});
  return events;
}

}  // namespace heddle::trace
