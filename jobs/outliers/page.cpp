// SPDX-License-Identifier: MIT
// The page of `fs-job report`: drawn here, without a script, and nothing is loaded from elsewhere.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/escape.hpp"
#include "jobs/outliers/features.hpp"
#include "jobs/store/render.hpp"

namespace heddle::jobs::store {
namespace {

constexpr std::size_t kMostRows = 500;     ///< of the table
constexpr std::size_t kMostCauses = 20;    ///< each compares the job with all others
constexpr int kWidth = 860, kHeight = 90;  ///< of a plot

std::string html(const std::string& raw) {
  std::string out;
  for (const char c : escape_for_terminal(raw)) switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  return out;
}

/// A point for each job, by its start; outliers are red.
std::string plot(const JobTable& table, std::size_t feature, const std::vector<int>& marks) {
  const Values& values = table.columns[feature];
  double most = 0;
  std::int64_t first = INT64_MAX, last = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isnan(values[i])) most = std::max(most, values[i]);
    first = std::min(first, table.jobs[i].start);
    last = std::max(last, table.jobs[i].start);
  }
  std::string out = fmt::format(
      "<svg class=\"plot\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\"><path "
      "d=\"M60 4V{2}H{0}\" "
      "fill=\"none\" stroke=\"#bbb\"/><text x=\"54\" y=\"14\" text-anchor=\"end\">{3}</text><text "
      "x=\"54\" y=\"{2}\" "
      "text-anchor=\"end\">0</text>\n",
      kWidth, kHeight, kHeight - 10, html(human(table.features[feature], most)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) continue;
    const double x =
        70 + (kWidth - 80.0) * (last > first ? static_cast<double>(table.jobs[i].start - first) /
                                                   static_cast<double>(last - first)
                                             : 0.5);
    const double y =
        kHeight - 12 - (kHeight - 24.0) * (most > 0 ? std::max(values[i], 0.0) / most : 0);
    out += fmt::format(
        "<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"><title>{}: {}</title></circle>\n",
        marks[i] > 0 ? "outlier" : "job", x, y, html(table.jobs[i].jobid),
        html(human(table.features[feature], values[i])));
  }
  return out + "</svg>\n";
}

}  // namespace

std::string page_of(Database& database, const JobTable& table,
                    const std::vector<std::vector<int>>& marks) {
  std::vector<int> worst(table.jobs.size(), 0), sum(table.jobs.size(), 0);
  for (const auto& of_feature : marks)
    for (std::size_t i = 0; i < worst.size(); ++i) {
      worst[i] = std::max(worst[i], of_feature[i]);
      sum[i] += of_feature[i];
    }
  std::vector<std::size_t> order(table.jobs.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return sum[a] > sum[b]; });
  const auto flagged = std::ranges::count_if(worst, [](int w) { return w > 0; });

  std::string out = fmt::format(
      R"(<!DOCTYPE html>
<html lang="en" data-state="ready"><head><meta charset="utf-8"><title>heddle: jobs</title>
<style>body{{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}}
table{{border-collapse:collapse}}td,th{{padding:.1em .8em .1em 0;text-align:left;vertical-align:top}}
svg{{max-width:100%;height:auto;font:11px sans-serif}}.job{{fill:#1f6fb2;fill-opacity:.5}}
.outlier{{fill:#c0392b}}td.outlier{{color:#c0392b;font-weight:bold;fill:none}}.hint{{color:#666}}</style></head><body>
<h1>{}, {} unlike the others</h1>
)",
      counted(table.jobs.size(), "job", "jobs"), flagged);
  out += "<h2>Why</h2>\n<ul id=\"causes\">\n";
  std::size_t shown = 0;
  if (flagged > 0) {
    // Causes are found among all features, of the same jobs.
    Selection selection;
    JobTable all;
    all.features = job_features();
    for (const auto& job : table.jobs) all.jobs.push_back(job);
    all.columns.assign(all.features.size(), Values(all.jobs.size(), std::nan("")));
    std::map<std::int64_t, std::size_t> places;
    for (std::size_t i = 0; i < all.jobs.size(); ++i) places[all.jobs[i].id] = i;
    const JobTable loaded = load_jobs(database, selection, all.features);
    for (std::size_t i = 0; i < loaded.jobs.size(); ++i)
      if (const auto place = places.find(loaded.jobs[i].id); place != places.end())
        for (std::size_t f = 0; f < all.features.size(); ++f)
          all.columns[f][place->second] = loaded.columns[f][i];
    for (const std::size_t i : order) {
      if (worst[i] == 0 || shown == kMostCauses) break;
      ++shown;
      const auto found = find_causes(database, all, i);
      if (found.causes.empty())
        out += fmt::format("<li><b>{}</b>: no cause found</li>\n", html(table.jobs[i].jobid));
      else
        out += fmt::format("<li><b>{}</b>: {}. <span class=\"hint\">{}</span></li>\n",
                           html(table.jobs[i].jobid), html(found.causes[0].text),
                           html(found.causes[0].hint));
    }
  }
  out += shown == 0 ? "<li>All are alike.</li>\n</ul>\n" : "</ul>\n";
  for (std::size_t f = 0; f < table.features.size(); ++f)
    out += fmt::format("<h2>{}</h2>\n<div id=\"plot-{}\">{}</div>\n", table.features[f],
                       table.features[f], plot(table, f, marks[f]));
  out +=
      "<h2>Jobs</h2>\n<p class=\"hint\">In red how many of three methods (1.5 IQR, modified "
      "z-score, z-score) call it an outlier.</p>\n"
      "<table id=\"jobs\"><tr><th>job</th><th>user</th><th>name</th><th>start</th>";
  for (const auto& feature : table.features) out += fmt::format("<th>{}</th>", feature);
  out += "</tr>\n";
  for (std::size_t n = 0; n < std::min(order.size(), kMostRows); ++n) {
    const std::size_t i = order[n];
    const auto& job = table.jobs[i];
    out += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td>", html(job.jobid),
                       html(job.user), html(job.name), time_text(job.start));
    for (std::size_t f = 0; f < table.features.size(); ++f) {
      const double value = table.columns[f][i];
      const std::string text = std::isnan(value) ? "" : html(human(table.features[f], value));
      out += marks[f][i] > 0 ? fmt::format("<td class=\"outlier\">{} ({})</td>", text, marks[f][i])
                             : fmt::format("<td>{}</td>", text);
    }
    out += "</tr>\n";
  }
  if (order.size() > kMostRows)
    out += fmt::format("<tr><td>and {} more</td></tr>\n", order.size() - kMostRows);
  return out + "</table>\n</body></html>\n";
}

}  // namespace heddle::jobs::store
