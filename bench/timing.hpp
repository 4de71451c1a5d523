// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace heddle::bench {

struct Command {
  std::vector<std::string> argv;      ///< argv[0] is searched in PATH
  std::vector<std::string> env = {};  ///< NAME=value, added to ours
};

/// Milliseconds from spawn to the end of all of `copies` processes started at once, stdout to
/// /dev/null. Throws heddle::Error when one does not exit with 0.
double run_ms(const Command& command, unsigned copies = 1);

/// Milliseconds that `work` takes.
double time_ms(const std::function<void()>& work);

double median(std::vector<double> values);

/// One way of doing the same thing.
struct Variant {
  std::string name;
  std::function<double()> measure;  ///< one sample
  /// Slow ones are sampled in one round of so many.
  unsigned every = 1;
  std::vector<double> samples = {};
};

/// Samples all variants in turn, `rounds` times, so that a machine that slows down slows all.
void interleave(std::vector<Variant>& variants, unsigned rounds);

}  // namespace heddle::bench
