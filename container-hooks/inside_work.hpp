// SPDX-License-Identifier: MIT
#pragma once

#include "container-hooks/inside_container.hpp"

namespace heddle {

/// What the hook says to its process in the container, a byte each; the end of its socket is the
/// word to take all away.
enum class InsideWord : char {
  decide = 'd',
  mount = 'm',
  bind = 'b',
  share = 's',  ///< a detached mount follows: mounts that, and binds
};

/// That process, from its start to its exit status. Each mounting step's end is a descriptor sent
/// through `socket`, or the failure; the decision goes to `answers`.
int work_inside(const InsideOrder& order, int socket, Fd answers);

/// The decision as work_inside() wrote it.
Result<Decided> parse_answer(const std::string& answer);

}  // namespace heddle
