// SPDX-License-Identifier: MIT
#pragma once

// What a session stages: names and the content behind them. A file is read when it is added, for
// its hash, and when it is sent, then only if its name still means the same inode; nodes compare
// the hash. The worst of a hostile directory (links, FIFOs, odd names, names that are exchanged
// meanwhile): one error. No link is followed out of it, and no name leads out of the session's
// directory.

#include <string>
#include <vector>

#include "launch/session/messages.hpp"

namespace heddle::launch {

class Manifest {
 public:
  /// The one of the session whose directory this is; empty if there is none yet.
  static Result<Manifest> read(const std::string& directory);
  Result<void> write(const std::string& directory) const;

  /// A program with the libraries that ld.so would load for it, but glibc's own, which belong to
  /// each node's ld.so. Static programs and scripts have none. Failure: a library is missing
  /// (names it and what needs it), or the program is for another machine.
  Result<void> add_binary(const std::string& path);
  /// A library, and those that it needs.
  Result<void> add_library(const std::string& path);
  /// A directory with all below it, hidden names and links too, as lib/NAME.
  Result<void> add_directory(const std::string& path);
  Result<void> add_file(const std::string& path);

  const std::vector<Item>& items() const { return items_; }
  void set_shipped();

 private:
  Result<void> add(Item item);
  Result<void> add_content(const std::string& path, std::string name);
  Result<void> add_closure(const std::string& path, const std::string& to);
  std::vector<Item> items_;  ///< by name: a directory comes before what is in it
};

/// `items` of kind file without a size bring no content: it is on all nodes.
struct Pack {
  std::string path;
  ContentHash hash;           ///< of the list
  std::uint64_t list = 0;     ///< size of the list
  std::uint64_t content = 0;  ///< bytes behind the list
};
/// Writes `path`: the encoded list of `items`, then the content of those whose hash `missing` has,
/// each once. EBUSY: a file has changed since it was added.
Result<Pack> write_pack(const std::string& path, const std::vector<Item>& items,
                        const std::vector<std::string>& missing);

/// Whether `name` is relative, of components other than `.` and `..`.
bool is_inside(std::string_view name);

}  // namespace heddle::launch
