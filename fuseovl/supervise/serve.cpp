// SPDX-License-Identifier: MIT
#include "fuseovl/supervise/serve.hpp"

#include "base/temp_dir.hpp"
#include "fuseovl/mount/warm_up.hpp"
#include "fuseovl/supervise/supervisor.hpp"

namespace heddle {

Result<void> serve(Overlay& overlay, Fd device, ServeOptions options) {
  const TakenSignals signals;
  auto served = Supervisor(overlay, std::move(device), options).run();
  const auto tell = [&options](std::string_view word) {
    if (options.ready) (void)write_all(options.ready.get(), word, "ready");
  };
  if (!options.cleanup.empty()) (void)remove_tree(options.cleanup);
  const bool answered = overlay.state().told_ready;
  if (answered && options.report_at_end) tell(overlay.stats_text());
  if (!answered) tell(served ? "the device is not mounted" : served.error().message());
  return served;
}

}  // namespace heddle
