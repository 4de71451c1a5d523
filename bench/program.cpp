// SPDX-License-Identifier: MIT
#include "bench/program.hpp"

#include "base/exit_code.hpp"
#include "base/log.hpp"

namespace heddle::bench {

int run_program(CLI::App& app, int argc, char** argv,
                const std::function<void(Results&)>& measure) {
  std::string json;
  app.add_option("--json", json, "write all samples and figures here");
  unsigned limit = 24 * 60 * 60;
  app.add_option("--limit", limit, "seconds, after which no further case begins");
  CLI11_PARSE(app, argc, argv);
  try {
    Results results(json, std::chrono::seconds(limit));
    measure(results);
    results.print();
    results.write_json();
    if (results.has_failed()) return exit_failure;
  } catch (const Error& error) {
    report(error);
    return exit_failure;
  } catch (const std::exception& error) {
    say(error.what());
    return exit_failure;
  }
  return exit_done;
}

}  // namespace heddle::bench
