// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/fd.hpp"
#include "compat/server/judge_pool.hpp"
#include "compat/server/services.hpp"

namespace heddle::compat {

/// The counters in Prometheus' text format 0.0.4.
std::string metrics_text(const JudgePool& judges, const CompatServer& server);

/// A listening socket on a loopback port: `127.0.0.1:9090`. Fails on other addresses.
Result<Fd> listen_for_metrics(const std::string& address);
/// Answers one waiting peer with `page`, whatever it asks, and hangs up; never blocks for longer
/// than a moment.
void answer_metrics(int listener, const std::string& page);

}  // namespace heddle::compat
