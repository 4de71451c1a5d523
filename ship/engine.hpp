// SPDX-License-Identifier: MIT
#pragma once

// Engines: commands of others that copy a file to the nodes of a job.

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/run_program.hpp"

namespace heddle::ship {

using Words = std::vector<std::string>;

/// Splits `text` into the words of a command, as a shell would without expanding anything.
Words split_words(const std::string& text);
/// Replaces each `{name}` of `values` in each word; a word stays one word.
Words fill_in(Words words, const std::vector<std::pair<std::string, std::string>>& values);

/// Whether `text` does as a name in a directory that others may write to, and for a launcher's
/// shell.
bool is_plain_name(const std::string& text);

/// The words that a command, found in PATH, prints. It has no stdin, which may be the batch
/// script's. Failure: also its exit status, and ETIMEDOUT after `limit`.
Result<Words> words_printed_by(const Words& command, std::chrono::milliseconds limit);

/// How to start srun(1) or sbcast(1) for a step of ours: they take options from SLURM_* variables
/// too (SLURM_LABELIO, SLURM_EXPORT_ENV, SLURM_BCAST, ...), which are meant for the user's steps.
/// Leaves what names the job, unless the command line does (`in_job` is false).
Words own_slurm(const std::string& program, bool in_job = true);

/// How long an engine may take for a file of `bytes`. One that waits for a node that has died ends
/// by itself late or never.
std::chrono::seconds copy_time(std::uint64_t bytes);
/// Runs an engine, found in PATH; what it prints goes to stderr. Its exit status counts for
/// nothing: the nodes say what they have received. Failure: it cannot be started; ETIMEDOUT after
/// `limit`.
Result<void> run_engine(const Words& words, std::chrono::milliseconds limit);

/// The engine of Slurm; `{step}` is one whose nodes get the file.
Words sbcast();

}  // namespace heddle::ship
