// SPDX-License-Identifier: MIT
#pragma once

// How one fs-mount goes on where another is, of whatever version, over execve(2): what it has to
// know is written to a memfd, whose number is --hand-over's, and the descriptors stay open.
//
// A CBOR document, as are those inside it. Its version changes when an older reader would do
// wrong; else fields are added, and a reader has a default for what an older writer does not say.
// All that can be refused is refused by the loader, when nothing has changed yet.

#include <string>
#include <vector>

#include "fuseovl/supervise/parcel.hpp"
#include "fuseovl/supervise/serve.hpp"

namespace heddle {

struct HandOver {
  enum class Task : std::uint8_t {
    load,   ///< make the next content ready, and show that this program could take over
    serve,  ///< take over; no worker lives
  };
  Task task = Task::load;
  Parcel content;       ///< what the mount shows
  std::string serving;  ///< pack_serving(); load: an older version does not say it
  int device = -1;

  int answer = -1;       ///< load: socket for send_next_content()
  int map = -1;          ///< load: the next map, open; -1: the content stays what it is
  std::string map_path;  ///< load: as its user calls it

  bool map_exchanged = false;  ///< serve: what the kernel knows of names does not hold any longer
  int ready = -1;              ///< serve: ServeOptions::ready
  std::string control;         ///< serve: name of the socket for reloads
  int listener = -1;           ///< serve: that socket
  int client = -1;             ///< serve: who asked for all this
  std::string report;          ///< serve: to be told the client when it is done
  std::string warnings;        ///< serve: likewise

  /// Every descriptor in it.
  std::vector<int> descriptors() const;
};

/// What a supervisor knows beside content and descriptors.
std::string pack_serving(const ServingState& state, const ServeOptions& options);
/// Fails with ENOTSUP on what this version does not know.
Result<void> unpack_serving(std::string_view bytes, ServingState& state, ServeOptions& options);

/// Becomes `program`, run with `arguments` and --hand-over; everything in `next` stays open.
/// Returns only when that fails, and nothing has changed then.
Error become(const Fd& program, std::vector<std::string> arguments, const HandOver& next);

/// What become() was given. ENOTSUP: by a version that this one does not understand.
Result<HandOver> read_hand_over(const Fd& memfd);
/// Tells whoever waits for a loader that there will be none, as far as the document, of whatever
/// version, says who that is.
void refuse_hand_over(const Fd& memfd, const Error& error);

}  // namespace heddle
