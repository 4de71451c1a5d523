// SPDX-License-Identifier: MIT
#include "fuseovl/supervise/serve.hpp"

#include "base/mount_service.hpp"
#include "base/temp_dir.hpp"
#include "fuseovl/supervise/supervisor.hpp"

namespace heddle {

Result<void> serve(Overlay& overlay, Fd device, ServeOptions options) {
  const TakenSignals signals;
  auto served = Supervisor(overlay, std::move(device), options).run();
  if (!options.cleanup.empty()) (void)remove_tree(options.cleanup);
  const bool answered = overlay.state().told_ready;
  if (!options.ready) return served;
  if (answered && options.report_at_end)
    (void)write_all(options.ready.get(), overlay.stats_text(), "ready");
  if (!answered)
    tell_not_ready(options.ready.get(),
                   served ? Error({}, "the device is not mounted") : served.error());
  return served;
}

}  // namespace heddle
