// SPDX-License-Identifier: MIT
#include "bench/program.hpp"

#include "base/exit_code.hpp"
#include "base/log.hpp"

namespace heddle::bench {

int run_program(CLI::App& app, int argc, char** argv,
                const std::function<void(Results&)>& measure) {
  std::string json;
  app.add_option("--json", json, "write all samples and figures here");
  CLI11_PARSE(app, argc, argv);
  try {
    Results results;
    measure(results);
    results.print();
    if (!json.empty()) results.write_json(json);
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
