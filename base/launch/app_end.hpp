// SPDX-License-Identifier: MIT
#pragma once

namespace heddle {

/// How APP ended, and so how the program that ran it is to end.
struct AppEnd {
  int status = 0;  ///< exit status, 128+n for a signal
  int signal = 0;  ///< that ended it; 0: none
};

/// The last thing a program does that ran APP: a signal that ended APP ends us too, so that whoever
/// waits for us sees what he would see of APP (a shell's loop stops at Ctrl-C only when its child
/// died of SIGINT). Without a core file: that is APP's. Returns `end.status` otherwise, and where
/// signals cannot end us (the first process of a container).
int end_like(AppEnd end);

}  // namespace heddle
