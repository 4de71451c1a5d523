// SPDX-License-Identifier: MIT
#pragma once

// Tools on the nodes of a job: fs-launch session.
//
// A session is a relay, a process on the node where it was created, and one agent a node, started
// by srun beside the job's steps, or by a remote shell (--rsh) for mpirun and hydra. Commands talk
// to the relay by a socket in the user's RunDirectory; the relay hands each request to all agents
// by their standard input and collects their answers. Nothing listens on a network.
//   CACHE/sessions/ID        of the relay's node: settings (locked by the relay), the manifest,
//                            what waits to be shipped
//   TO/heddle-job-UID-JOB    on each node, owner-only; what fs-ship and its epilog know:
//     content/SHA256         each staged content once, for all sessions of the job
//     session.ID/            hard links to it: bin/NAME, libs/NAME/SONAME (the closure of that
//                            binary, so that two may differ), lib/, files/; tmp/; lock
// All ends with the agent: its guard, a subreaper, ends whatever the agent started (SIGTERM, 10 s,
// SIGKILL) and removes the session's directory, when the input ends (relay, srun or slurmstepd are
// gone), is silent for 30 s, or the agent is killed. Directories whose lock is free are swept.

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/coder.hpp"
#include "base/content_hash.hpp"
#include "base/result.hpp"

namespace heddle::launch {

struct Rank {
  std::int64_t rank = 0;
  std::int64_t pid = 0;       ///< on its host
  std::uint64_t started = 0;  ///< clock ticks after boot, which tell a pid's processes apart
  std::string host;
  std::string job;  ///< J.S of Slurm, or the launcher's own name
  std::string program;
};

enum class Op : std::uint8_t {
  hello,    ///< no request: what an agent says when it is ready; words: its directory, its step
  have,     ///< words: hashes in hex. Answer: those not on this node; number: free bytes
  stage,    ///< words: a pack's path, the hash of its list; number: the size of the list
  discard,  ///< words: likewise: takes back what was staged last
  daemon,   ///< words: log, directory, program, arguments; more: variables; number: its name, which
            ///< the front end makes up, so that it is the same one on all nodes
  status,   ///< number: a daemon. Answer: one word: `running` or its exit status
  output,   ///< number: a daemon; offset. Answer: one word, empty at the end
  stop,     ///< number: a daemon that some nodes could not start: ends it and its children
  ranks,    ///< Answer: ranks
  signal,   ///< number: the signal; words: of this job alone. Answer: words: pids that got it
  destroy,
};

struct Request {
  Op op = Op::hello;
  std::vector<std::string> words;
  std::vector<std::string> more;
  std::uint64_t number = 0;
  std::uint64_t offset = 0;
};

struct Answer {
  Op op = Op::hello;
  std::string node;  ///< empty: the last one of a request
  std::optional<Error> error;
  std::vector<std::string> words;
  std::vector<Rank> ranks;
  std::uint64_t number = 0;
};

/// One name in a session's directory.
struct Item {
  enum class Kind : std::uint8_t { file, directory, link };
  Kind kind = Kind::file;
  std::string name;  ///< "bin/tool": relative, without `.` and `..`
  std::string from;  ///< where it comes from, for messages; of a link its target
  ContentHash hash;
  std::uint64_t size = 0;
  std::uint64_t device = 0, inode = 0;  ///< of the file that was hashed, which alone is sent
  bool shipped = false;
};

/// What the agents of a session are started with.
struct SessionSettings {
  std::string id, to, job, step, via, host;
  std::vector<std::string> nodes;
};

#define HEDDLE_RECORD(Type, ...)                      \
  template <class Coder, class R>                     \
  requires std::same_as<std::remove_const_t<R>, Type> \
  void fields(Coder& coder, R& r) { coder(__VA_ARGS__); }
HEDDLE_RECORD(Rank, r.rank, r.pid, r.started, r.host, r.job, r.program)
HEDDLE_RECORD(Request, r.op, r.words, r.more, r.number, r.offset)
HEDDLE_RECORD(Answer, r.op, r.node, r.error, r.words, r.ranks, r.number)
HEDDLE_RECORD(Item, r.kind, r.name, r.from, r.hash.bytes, r.size, r.device, r.inode, r.shipped)
HEDDLE_RECORD(SessionSettings, r.id, r.to, r.job, r.step, r.via, r.host, r.nodes)
#undef HEDDLE_RECORD

}  // namespace heddle::launch
