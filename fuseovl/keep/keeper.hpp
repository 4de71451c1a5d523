// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/listener.hpp"
#include "fuseovl/keep/keeper_protocol.hpp"
#include "fuseovl/keep/kept_mount.hpp"
#include "fuseovl/mount/task.hpp"
#include "fuseovl/overlay/overlay.hpp"
#include "fuseovl/supervise/attendant.hpp"

namespace heddle {

/// Tells every client that waits at `listener` why there will be no mount.
void refuse_clients(Listener& listener, KeeperWord word, const Error& error);

/// Hands a kept mount to those who connect, and releases it when the last of them has gone, be it
/// by kill -9.
class Keeper : public Attendant {
 public:
  /// `listener`: of a SOCK_SEQPACKET socket, at which one client waits already. `ready`: where
  /// serve() says that it answers. The references must outlive it.
  Keeper(Listener listener, Fd ready, KeptMount& mount, Overlay& overlay);

  void add_to(std::vector<pollfd>& polled) const override;
  void hear(const std::vector<pollfd>& polled) override;
  std::int64_t wakes_at() const override;

  /// The session has ended: says the last words. Waits for nobody who removes a folder.
  void end();

 private:
  struct Client {
    Fd socket;
    std::string folder;  ///< to remove when it has gone
    bool waits = false;  ///< has said hello and not been answered
    bool holds = true;
  };
  void accept_clients();
  void hear_ready();
  void hear_clients(const std::vector<pollfd>& polled);
  /// False: it has gone.
  bool hear_client(Client& client);
  void answer(Client& client);
  void say_goodbye(Client& client);
  void tidy_up(
      Client& client, const std::function<void()>& last = [] {});
  std::size_t holders() const;
  void release_if_unused();
  void hear_release(const Result<void>& done);

  Listener listener_;
  Fd ready_;
  KeptMount& mount_;
  Overlay& overlay_;
  std::vector<Client> clients_;
  std::vector<pid_t> tidying_;   ///< processes that remove folders
  std::optional<Task> release_;  ///< takes the mount away
  bool release_hangs_ = false;   ///< which was said
  bool answers_ = false;
  bool warm_ = false;
  std::int64_t retry_at_ = 0;  ///< when to try again to release the mount, monotonic_ms(); 0: never
  std::int64_t retry_pause_;
  std::string failure_;
};

}  // namespace heddle
