// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/child.hpp"
#include "fuseovl/keep/kept_mount.hpp"
#include "fuseovl/keep/reception.hpp"
#include "fuseovl/overlay/overlay.hpp"
#include "fuseovl/supervise/serve.hpp"

namespace heddle {

/// Where those who want a kept mount come to: a listening socket in the user's run directory, which
/// others find by its name, or the one end of a socket pair, whose other end one process has.
class KeeperDoor {
 public:
  /// Takes `socket`, of either kind.
  explicit KeeperDoor(Fd socket);
  KeeperDoor(KeeperDoor&&) = default;
  KeeperDoor& operator=(KeeperDoor&&) = delete;

  Reception& reception() { return reception_; }
  const Reception& reception() const { return reception_; }
  /// The client that was there from the beginning, where it is a socket pair.
  Fd take_only_client() { return std::move(only_client_); }
  /// Listens no more, and its name is free for another, unless somebody has just come: who looks
  /// for a service holds the name's lock meanwhile. False: try again.
  bool close_if_nobody_comes();
  /// Tells everybody who has come, or still does, why there will be no mount. Listens no more.
  void refuse(const Error& error);

 private:
  Reception reception_;
  Fd only_client_;
  std::string name_;  ///< of the socket in the run directory; empty: it has none
};

/// Hands a kept mount to those who connect, and releases it when the last of them has gone, be it
/// by kill -9.
class Keeper : public Attendant {
 public:
  /// `ready`: where serve() says that it answers. The references must outlive it.
  Keeper(KeeperDoor& door, Fd ready, KeptMount& mount, Overlay& overlay);

  void add_to(std::vector<pollfd>& polled) const override;
  void hear(const std::vector<pollfd>& polled) override;
  std::int64_t wakes_at() const override;

  /// The session has ended: says the last words.
  void end();

 private:
  struct Client {
    Fd socket;
    bool waits = false;  ///< has said what it wants and not been answered
    bool holds = true;
  };
  void hear_ready();
  void hear_clients(const std::vector<pollfd>& polled);
  void take(Client& client, const MountMessage& message);
  void answer(Client& client);
  void say_goodbye(Client& client);
  /// Removes what killed processes of this user left beside the mount's folder, in a process of its
  /// own: it may lie where nothing answers.
  void sweep();
  std::size_t holders() const;
  void release_if_unused();
  void hear_release(const Result<void>& done);

  KeeperDoor& door_;
  Fd ready_;
  KeptMount& mount_;
  Overlay& overlay_;
  std::vector<Client> clients_;
  std::vector<pid_t> sweepers_;
  std::optional<Task> release_;  ///< takes the mount away
  bool released_ = false;        ///< nobody can come any more
  bool release_hangs_ = false;   ///< which was said
  bool answers_ = false;
  bool warm_ = false;
  std::int64_t retry_at_ = 0;  ///< when to try again to release the mount, monotonic_ms(); 0: never
  std::int64_t retry_pause_;
  std::string failure_;
};

}  // namespace heddle
