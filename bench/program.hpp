// SPDX-License-Identifier: MIT
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "bench/results.hpp"

namespace heddle::bench {

/// The rest of every benchmark's main(): parses argv, with --json besides the options of `app`, has
/// `measure` fill the results, prints them and writes the JSON. Result: the exit status.
int run_program(CLI::App& app, int argc, char** argv, const std::function<void(Results&)>& measure);

}  // namespace heddle::bench
