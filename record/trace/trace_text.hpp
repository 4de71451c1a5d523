// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "record/trace/run_info.hpp"

namespace heddle::trace {

/// The lines of the format, appended to `out` with their newline. docs/formats/trace.md is the
/// specification; trace_reader.hpp reads them back.
void append_event_text(std::string& out, const Event& event);
void append_event_json(std::string& out, const Event& event);
std::string header_text(const RunHeader& header);
std::string header_json(const RunHeader& header);
std::string footer_text(const RunFooter& footer);
std::string footer_json(const RunFooter& footer);

/// `2026-11-21T10:17:03.000000000Z`.
std::string utc_time_text(std::uint64_t unix_ns);

}  // namespace heddle::trace
