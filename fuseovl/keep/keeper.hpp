// SPDX-License-Identifier: MIT
#pragma once

#include <list>
#include <string>
#include <thread>

#include "fuseovl/keep/keeper_protocol.hpp"
#include "fuseovl/keep/kept_mount.hpp"
#include "fuseovl/overlay/overlay.hpp"

namespace heddle {

/// Tells every client that waits at `listener` why there will be no mount.
void refuse_clients(const Fd& listener, KeeperWord word, const Error& error);

/// Hands a kept mount to those who connect, and releases it when the last of them has gone, be it
/// by kill -9. Works in a thread of its own, from construction to stop().
class Keeper {
 public:
  /// `listener`: a listening SOCK_SEQPACKET socket, at which one client waits already. `ready`:
  /// where serve() says that it answers. The references must outlive stop().
  Keeper(Fd listener, Fd ready, KeptMount& mount, Overlay& overlay);
  ~Keeper() { stop(); }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  /// The session has ended: the last words are said, the thread is joined.
  void stop();

 private:
  struct Client {
    Fd socket;
    std::string folder;  ///< to remove when it has gone
    bool waits = false;  ///< has said hello and not been answered
    bool holds = true;
  };
  void run();
  void accept_clients();
  void hear_ready();
  /// False: it has gone.
  bool hear(Client& client);
  void answer(Client& client);
  void say_goodbye(Client& client);
  std::size_t holders() const;
  void release_if_unused();

  Fd listener_;
  Fd ready_;
  KeptMount& mount_;
  Overlay& overlay_;
  Pipe stop_;
  std::list<Client> clients_;
  bool answers_ = false;
  bool warm_ = false;
  bool released_ = false;
  std::string failure_;
  std::thread thread_;
};

}  // namespace heddle
