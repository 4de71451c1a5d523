// SPDX-License-Identifier: MIT
#pragma once

namespace heddle {

/// Tells the systemd that started this service (Type=notify) that it answers, so that units after
/// it may start. Elsewhere, and when systemd cannot be reached, nothing.
void notify_ready();

}  // namespace heddle
