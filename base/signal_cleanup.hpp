// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace heddle {

/// From here on the signals that would end this process (those it does not ignore) remove its
/// temporary directories first, and then end it all the same. For programs that live through
/// seconds of set-up with such a directory; what a SignalRelay holds back meanwhile comes here when
/// it lets go. Children between fork and exec keep their hands off.
void clean_up_on_signals();

/// TempDir's own: the directory at `path`, with the files in it and empty directories, goes with a
/// signal from now on, until forget_directory(). A handful of directories at a time; more are not
/// taken.
void remember_directory(const std::string& path) noexcept;
void forget_directory(const std::string& path) noexcept;

}  // namespace heddle
