// SPDX-License-Identifier: MIT
#include "record/diff/page.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/escape.hpp"

namespace heddle::diff {
namespace {

std::string html_text(std::string_view text) {
  std::string out;
  for (const char c : to_json_text(text)) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        // Control bytes are errors in HTML, and a title needs none.
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
          out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  return out;
}

}  // namespace

std::string make_page(std::string_view title, const nlohmann::ordered_json& data,
                      std::string_view script) {
  std::string json;
  for (const char c : data.dump(-1, ' ', true)) {
    // `</script` and `<!--` would end or change the element (HTML standard, "script data state").
    if (c == '<') {
      json += "\\u003c";
    } else {
      json += c;
    }
  }
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\" data-state=\"drawing\">\n<meta charset=\"utf-8\">\n";
  out +=
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src 'unsafe-inline'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n";
  out += fmt::format("<title>{}</title>\n<style>{}</style>\n", html_text(title), kPageStyle);
  out +=
      "<body>\n<main id=\"main\"><noscript>This page draws itself with "
      "JavaScript.</noscript></main>\n";
  out += "<div id=\"tip\" hidden></div>\n";
  out += "<script type=\"application/json\" id=\"data\">" + json + "</script>\n";
  out += fmt::format("<script>\n{}\n{}</script>\n</body>\n</html>\n", kCommonScript, script);
  return out;
}

}  // namespace heddle::diff
