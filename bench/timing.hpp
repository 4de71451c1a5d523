// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace heddle::bench {

struct Command {
  std::vector<std::string> argv;      ///< argv[0] is searched in PATH
  std::vector<std::string> env = {};  ///< NAME=value, added to ours
};

/// From now on a case runs that may take `limit`. When that is over, interleave() begins no further
/// round; a minute later run_ms() ends what still runs.
void begin_case(std::chrono::seconds limit);
/// Whether its time is over.
bool case_is_over();

/// Milliseconds from spawn to the end of all of `copies` processes started at once, stdout to
/// /dev/null. Throws heddle::Error when one does not exit with 0.
double run_ms(const Command& command, unsigned copies = 1);

/// Milliseconds that `work` takes.
double time_ms(const std::function<void()>& work);

double median(std::vector<double> values);

/// What the samples of one variant of a case take together at most, but for the first.
constexpr double kSecondsOfSamples = 20;

/// One way of doing the same thing.
struct Variant {
  std::string name;
  std::function<double()> measure;  ///< one sample
  /// Slow ones are sampled in one round of so many.
  unsigned every = 1;
  std::vector<double> samples = {};
};

/// Whether the case's time is over, or one more would exceed kSecondsOfSamples; not without a
/// sample.
bool has_samples_enough(const Variant& variant);

/// Samples all variants in turn, `rounds` times, so that a machine that slows down slows all. Fewer
/// times, but at least once, when the case's time is over, and a variant whose samples would take
/// more than kSecondsOfSamples together. The first run of each only warms the caches, unless it
/// takes so long that this does not count.
void interleave(std::vector<Variant>& variants, unsigned rounds);

}  // namespace heddle::bench
