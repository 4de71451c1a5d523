// SPDX-License-Identifier: MIT
#pragma once

// The mount service (docs/formats/mount-service.md): one poll(2) loop and one table of clients. A
// lease service (lease_service.cpp) has one mount for the fs-gens that share it, and ends with the
// last of them; a node service (node_service.cpp) has one mount for each map, for the containers of
// a node. Children compare files and mount; each mount has its own daemon (mount_daemon.hpp).

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

/// Disconnects untrusted clients (base/run_directory.hpp) and those without a request for 5 s, the
/// oldest first when they are many. One child at a time works for each map; a client that connects
/// meanwhile gets the next answer, as files may have changed behind the child.
class MountServer {
 public:
  virtual ~MountServer() = default;
  /// Serves until `signals` (signalfd(2); -1: none) has something to read, or is_done().
  void run(int signals);

 protected:
  enum class Holding : bool {
    no,                ///< a client is disconnected after its answer, which follows a check()
    until_disconnect,  ///< a client holds the mount while it is connected; no check()
  };
  explicit MountServer(Holding holding) : holding_(holding) {}

  /// Whether the mount of `id` stands and is served.
  virtual bool has(const std::string& id) = 0;
  /// In a child: whether the map may be served.
  virtual Result<void> check(const std::string& id, int map) const = 0;
  /// Called before the child that mounts `id` starts; result: descriptors that it keeps.
  virtual std::vector<int> prepare(const std::string&) { return {}; }
  /// In a child: mounts, and returns when the mount answers.
  virtual Result<void> make(const std::string& id, int map) const = 0;
  /// Limit of make().
  virtual std::chrono::milliseconds longest_mount() const { return std::chrono::seconds(60); }
  /// The result of check() or make(); a failed make() may have mounted.
  virtual void checked(const std::string& /*id*/, const Result<void>& /*done*/) {}
  virtual void made(const std::string& id, const Result<void>& done) = 0;
  virtual std::string mount_point(const std::string& id) const = 0;
  /// A copy of the mount to hand out.
  virtual Result<Fd> copy(const std::string& id) const = 0;

  // Further events of the loop.
  virtual void add_to(std::vector<pollfd>& /*polled*/) const {}
  virtual std::int64_t wakes_at() const { return 0; }  ///< monotonic_ms(); 0: never
  virtual bool is_done(const std::vector<pollfd>& /*polled*/) { return false; }

  /// Adds a trusted client.
  void add_client(Fd socket);
  /// Adds all clients that have connected.
  void accept();
  void listen(Fd listener) { listener_ = std::move(listener); }
  void stop_listening() { listener_.reset(); }
  bool listens() const { return static_cast<bool>(listener_); }
  void hang_up() { clients_.clear(); }
  /// Whether a client holds a mount or may ask for one, or a child works.
  bool is_busy() const;
  /// Ends the children; result: the ids that they were mounting.
  std::vector<std::string> abandon();

 private:
  struct Client {
    enum class State : std::uint8_t { silent, waits, gets_next_answer, holds, left };
    Fd socket;
    State state = State::silent;
    std::int64_t until = 0;  ///< when a silent client is disconnected
    std::string id = {};     ///< of the requested map
    Fd map = {};
    FileId file = {};  ///< of the map: clients with the same file share an answer
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
  void receive_request(Client& client);
  void request_mount(Client& client, std::string id, Fd map);
  /// Starts a child for the first client that waits for `work`'s map; false: there is none.
  bool begin(Work& work);
  Result<void> start(Work& work, bool mounts);
  /// After the child's end; false: no client is left.
  bool go_on(Work& work);
  void go_on(const std::vector<pollfd>& polled);
  void share_answer(Work& work);
  void answer(Work& work, const Result<void>& ready);

  Fd listener_;
  std::int64_t accepts_at_ = 0;  ///< when to retry a failed accept(2); 0: at once
  Holding holding_;
  std::list<Client> clients_;  ///< the oldest first
  std::list<Work> works_;      ///< one a map
};

/// `fs-mount --keep` and `fs-mount --node`, until the service ends.
Result<void> lease_program(const MountSettings& settings);
Result<void> node_program(const MountSettings& settings);

/// Drops all capabilities but those to mount, to read root's files and to see clients' namespaces,
/// and those of the mask `also` (1 << CAP_...).
Result<void> confine_service(std::uint64_t also = 0);

}  // namespace heddle
