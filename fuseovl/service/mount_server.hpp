// SPDX-License-Identifier: MIT
#pragma once

// The server of mounts (docs/formats/mount-service.md): one poll(2) loop and one table of clients.
// It has two kinds. A lease service (lease_service.cpp) has one mount, for the fs-gens that share
// it, and ends with the last of them; a node service (node_service.cpp) has one mount a map, for
// the containers of a node. What may take long (comparing files, mounting, unmounting) is done by
// children; each mount is served by a daemon of its own (mount_daemon.hpp).

#include <poll.h>

#include <list>
#include <optional>
#include <string>
#include <vector>

#include "base/child.hpp"
#include "base/file_stamp.hpp"
#include "base/mount_service.hpp"
#include "fuseovl/service/mount_daemon.hpp"

namespace heddle {

/// Clients that are not trusted (base/run_directory.hpp) are hung up on without a word; so is one
/// that says nothing for some seconds, or the oldest such when many others come. For each map one
/// child at a time works, however many clients wait; a client that comes meanwhile gets the next
/// answer, since files may have changed behind the child.
class MountServer {
 public:
  virtual ~MountServer() = default;
  /// Serves until `signals` (signalfd(2); -1: none) has something to read, or is_done().
  void run(int signals);

 protected:
  enum class Holding : bool {
    no,  ///< a client gets its answer and is hung up on; each answer follows a check()
    until_disconnect,  ///< a client holds the mount while it is connected; nothing is checked
  };
  explicit MountServer(Holding holding) : holding_(holding) {}

  /// Whether the mount of `id` stands and is served.
  virtual bool has(const std::string& id) = 0;
  /// In a child: whether the map may be served.
  virtual Result<void> check(const std::string& id, int map) const = 0;
  /// Before the child that mounts is started: the descriptors that it keeps besides the map's.
  virtual std::vector<int> prepare() { return {}; }
  /// In a child: mounts, and returns when the mount answers.
  virtual Result<void> make(const std::string& id, int map) const = 0;
  /// How long make() may take.
  virtual std::chrono::milliseconds longest_mount() const { return std::chrono::seconds(60); }
  /// What check() or make() said; in the latter case the mount has been made or may be half made.
  virtual void checked(const std::string& /*id*/, const Result<void>& /*done*/) {}
  virtual void made(const std::string& id, const Result<void>& done) = 0;
  virtual std::string mount_point(const std::string& id) const = 0;
  /// A copy of the mount to hand out.
  virtual Result<Fd> copy(const std::string& id) const = 0;

  // What a kind waits for besides, between two rounds of the loop.
  virtual void add_to(std::vector<pollfd>& /*polled*/) const {}
  virtual std::int64_t wakes_at() const { return 0; }  ///< monotonic_ms(); 0: never
  virtual bool is_done(const std::vector<pollfd>& /*polled*/) { return false; }

  /// A client that is trusted already.
  void add_client(Fd socket);
  /// Takes in all who have connected.
  void accept();
  void listen(Fd listener) { listener_ = std::move(listener); }
  void stop_listening() { listener_.reset(); }
  bool listens() const { return static_cast<bool>(listener_); }
  void hang_up() { clients_.clear(); }
  /// Whether a client holds a mount, or may still ask for one, or a child works for one.
  bool is_busy() const;
  /// Ends the children; the ids that they were mounting.
  std::vector<std::string> abandon();

 private:
  struct Client {
    enum class State : std::uint8_t { silent, waits, gets_next_answer, holds, left };
    Fd socket;
    State state = State::silent;
    std::int64_t until = 0;  ///< of a silent one: when it is hung up on
    std::string id = {};     ///< of the map that it wants
    Fd map = {};
    FileId file = {};  ///< of the map: those who have opened the same one share its answer
  };
  struct Work {
    std::string id;
    Fd map = {};
    FileId file = {};
    std::optional<Task> task = {};
    bool mounts = false;  ///< else it checks
  };

  std::vector<pollfd> entries(int signals) const;
  int poll_timeout() const;
  void hear(Client& client);
  void want(Client& client, std::string id, Fd map);
  /// Starts on the first client that waits for `work`'s map; false: there is none.
  bool begin(Work& work);
  Result<void> start(Work& work, bool mounts);
  /// The child has ended; false: there is no more to do.
  bool go_on(Work& work);
  void go_on(const std::vector<pollfd>& polled);
  void choose_who_shares(Work& work);
  void answer(Work& work, const Result<void>& ready);

  Fd listener_;
  std::int64_t accepts_at_ = 0;  ///< when to accept again: a client could not be taken; 0: at once
  Holding holding_;
  std::list<Client> clients_;  ///< the oldest first
  std::list<Work> works_;      ///< one a map
};

/// `fs-mount --keep` and `fs-mount --node`, until the service ends.
Result<void> lease_program(const MountSettings& settings);
Result<void> node_program(const MountSettings& settings);

/// Root's service keeps the capabilities to mount, to read what only root may and to look at its
/// clients' namespaces, and those of the mask `also` (1 << CAP_...); its daemons keep fewer.
Result<void> confine_service(std::uint64_t also = 0);

}  // namespace heddle
