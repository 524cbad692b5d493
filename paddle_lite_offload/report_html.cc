// The HTML page of a comparison: plain tables, and charts as inline SVG.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "framework/ir/error.h"
#include "framework/ir/types.h"
#include "paddle_lite_offload/report.h"
#include "paddle_lite_offload/report_fields.h"

namespace plo {
namespace {

using nlohmann::json;

constexpr const char* kStyle = R"(
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff;
       max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; }
th, td { padding: .25rem .8rem; text-align: right;
         border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th { font-weight: 600; }
td.text { text-align: left; } .error { color: #b00020; }
svg { max-width: 100%; height: auto; }
svg text { font: 12px system-ui, sans-serif; fill: #222; }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .35em 0 1em; }
.note { color: #666; }
)";

constexpr std::array<const char*, 8> kColors = {"#4477aa", "#ee6677", "#228833",
                                                "#ccbb44", "#66ccee", "#aa3377",
                                                "#777777", "#222222"};

const char* ColorOf(size_t index) { return kColors[index % kColors.size()]; }

std::string Fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

std::string Mib(double bytes) { return Fixed(bytes / (1 << 20), 1); }

std::string TableRow(const std::vector<std::string>& cells, const char* tag) {
  std::string row = "<tr>";
  for (const std::string& cell : cells) {
    row += StrCat("<", tag, ">", EscapeHtml(cell), "</", tag, ">");
  }
  return row + "</tr>\n";
}

std::string SummaryTable(const json& comparison) {
  const auto rows = ComparisonCells(comparison);
  std::string html = "<table>\n" + TableRow(rows[0], "th");
  for (size_t r = 1; r < rows.size(); ++r) {
    if (rows[r].size() == rows[0].size()) {
      html += TableRow(rows[r], "td");
    } else {
      html +=
          StrCat("<tr><td>", EscapeHtml(rows[r][0]),
                 "</td><td class=\"text error\" colspan=\"", rows[0].size() - 1,
                 "\">failed: ", EscapeHtml(rows[r][1]), "</td></tr>\n");
    }
  }
  return html + "</table>\n";
}

std::string Key(size_t color, const std::string& text) {
  return StrCat("<span class=\"key\" style=\"background:", ColorOf(color),
                "\"></span>", EscapeHtml(text));
}

// One bar per variant, divided by category.
std::string MemoryChart(const json& variants, const char* place,
                        const std::string& title) {
  constexpr double kLeft = 130, kWidth = 560, kRow = 28;
  const auto bytes_of = [&](const json& variant, int category) {
    const std::string name(Name(static_cast<MemoryCategory>(category)));
    const auto bytes =
        NumberField(variant, {"memory", place, "by_category", name.c_str()});
    return std::max(0.0, bytes.value_or(0));
  };
  double longest = 0;
  for (const json& variant : variants) {
    double total = 0;
    for (int c = 0; c < kMemoryCategoryCount; ++c)
      total += bytes_of(variant, c);
    longest = std::max(longest, total);
  }
  if (longest == 0) return "";
  std::string html = StrCat("<h2>", title, "</h2>\n<p>");
  for (int c = 0; c < kMemoryCategoryCount; ++c) {
    html += Key(static_cast<size_t>(c),
                std::string(Name(static_cast<MemoryCategory>(c))));
  }
  html +=
      StrCat("</p>\n<svg viewBox=\"0 0 ", kLeft + kWidth + 110, " ",
             kRow * static_cast<double>(variants.size()), "\" role=\"img\">\n");
  double y = 0;
  for (const json& variant : variants) {
    html += StrCat("<text x=\"", kLeft - 8, "\" y=\"", y + 18,
                   "\" text-anchor=\"end\">",
                   EscapeHtml(StringField(variant, "name")), "</text>\n");
    double x = kLeft, total = 0;
    for (int c = 0; c < kMemoryCategoryCount; ++c) {
      const double bytes = bytes_of(variant, c);
      if (bytes == 0) continue;
      const double width = bytes / longest * kWidth;
      html += StrCat("<rect x=\"", Fixed(x, 2), "\" y=\"", y + 4, "\" width=\"",
                     Fixed(width, 2), "\" height=\"20\" fill=\"",
                     ColorOf(static_cast<size_t>(c)), "\"><title>",
                     Name(static_cast<MemoryCategory>(c)), ": ", Mib(bytes),
                     " MiB</title></rect>\n");
      x += width;
      total += bytes;
    }
    html += StrCat("<text x=\"", Fixed(x + 6, 2), "\" y=\"", y + 18, "\">",
                   Mib(total), " MiB</text>\n");
    y += kRow;
  }
  return html + "</svg>\n";
}

std::vector<double> Losses(const json& variant) {
  std::vector<double> losses;
  const json* list = FindField(variant, {"losses"});
  if (list == nullptr || !list->is_array()) return losses;
  for (const json& loss : *list) {
    losses.push_back(loss.is_number() ? loss.get<double>() : std::nan(""));
  }
  return losses;
}

std::string LossChart(const json& variants) {
  constexpr double kLeft = 60, kWidth = 640, kTop = 10, kHeight = 240;
  double low = INFINITY, high = -INFINITY;
  size_t steps = 0;
  for (const json& variant : variants) {
    const auto losses = Losses(variant);
    steps = std::max(steps, losses.size());
    for (double loss : losses) {
      if (!std::isfinite(loss)) continue;
      low = std::min(low, loss);
      high = std::max(high, loss);
    }
  }
  if (steps < 2 || !(low <= high)) return "";
  if (low == high) high = low + 1;
  const auto y_of = [&](double loss) {
    return kTop + (high - loss) / (high - low) * kHeight;
  };
  std::string html = "<h2>Loss</h2>\n<p>";
  size_t color = 0;
  for (const json& variant : variants) {
    html += Key(color++, StringField(variant, "name"));
  }
  html += StrCat("</p>\n<svg viewBox=\"0 0 ", kLeft + kWidth + 20, " ",
                 kTop + kHeight + 30, "\" role=\"img\">\n");
  for (double share : {0.0, 0.5, 1.0}) {
    const double loss = low + share * (high - low);
    html += StrCat("<line x1=\"", kLeft, "\" x2=\"", kLeft + kWidth, "\" y1=\"",
                   y_of(loss), "\" y2=\"", y_of(loss),
                   "\" stroke=\"#ddd\"/>\n<text x=\"", kLeft - 6, "\" y=\"",
                   y_of(loss) + 4, "\" text-anchor=\"end\">", Fixed(loss, 3),
                   "</text>\n");
  }
  html += StrCat("<text x=\"", kLeft, "\" y=\"", kTop + kHeight + 20,
                 "\">step 1</text>\n<text x=\"", kLeft + kWidth, "\" y=\"",
                 kTop + kHeight + 20, "\" text-anchor=\"end\">", steps,
                 "</text>\n");
  color = 0;
  for (const json& variant : variants) {
    const auto losses = Losses(variant);
    const char* stroke = ColorOf(color++);
    // Equal curves lie on each other: the first is the widest.
    const double width = color == 1 ? 4 : 1.5;
    std::string points;
    const auto flush = [&] {
      if (!points.empty()) {
        html += StrCat("<polyline fill=\"none\" stroke=\"", stroke,
                       "\" stroke-width=\"", width, "\" points=\"", points,
                       "\"/>\n");
      }
      points.clear();
    };
    for (size_t i = 0; i < losses.size(); ++i) {
      if (!std::isfinite(losses[i])) {
        flush();
        continue;
      }
      const double x = kLeft + kWidth * static_cast<double>(i) /
                                   static_cast<double>(steps - 1);
      points += Fixed(x, 1) + "," + Fixed(y_of(losses[i]), 1) + " ";
    }
    flush();
  }
  return html + "</svg>\n";
}

std::string TransferTable(const json& variants) {
  std::string html =
      "<h2>Bytes moved per step and rank</h2>\n<table>\n" +
      TableRow({"variant", "to host MiB", "to device MiB", "other ranks MiB"},
               "th");
  bool any = false;
  for (const json& variant : variants) {
    std::vector<std::string> cells = {StringField(variant, "name")};
    for (const char* key : {"d2h_bytes_per_step", "h2d_bytes_per_step",
                            "collective_bytes_per_step"}) {
      const auto bytes = NumberField(variant, {"transfers", key});
      any = any || bytes.has_value();
      cells.push_back(bytes ? Mib(*bytes) : "-");
    }
    html += TableRow(cells, "td");
  }
  return any ? html + "</table>\n" : "";
}

std::string ValueText(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// What all configs agree on in one line, the rest by variant.
std::string ConfigSection(const json& variants) {
  const json* base = nullptr;
  for (const json& variant : variants) {
    if (base == nullptr) base = FindField(variant, {"config"});
  }
  if (base == nullptr || !base->is_object()) return "";
  std::string shared;
  std::vector<std::string> header = {"variant"};
  for (const auto& [key, value] : base->items()) {
    bool same = true;
    for (const json& variant : variants) {
      const json* config = FindField(variant, {"config"});
      if (config == nullptr) continue;
      const auto found = config->find(key);
      same = same && found != config->end() && *found == value;
    }
    if (!same) {
      header.push_back(key);
    } else if (value != "" && !value.is_null()) {
      shared +=
          StrCat(shared.empty() ? "" : " ", "--", key, "=", ValueText(value));
    }
  }
  std::string html = "<h2>Flags</h2>\n";
  if (header.size() > 1) {
    html += "<table>\n" + TableRow(header, "th");
    for (const json& variant : variants) {
      std::vector<std::string> cells = {StringField(variant, "name")};
      for (size_t k = 1; k < header.size(); ++k) {
        const json* value = FindField(variant, {"config", header[k].c_str()});
        cells.push_back(value != nullptr ? ValueText(*value) : "-");
      }
      html += TableRow(cells, "td");
    }
    html += "</table>\n";
  }
  return html + "<p class=\"note\">" + EscapeHtml(shared) + "</p>\n";
}

}  // namespace

std::string EscapeHtml(const std::string& text) {
  std::string escaped;
  for (char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string FormatComparisonHtml(const json& comparison) {
  const json* found = FindField(comparison, {"variants"});
  const json variants = found != nullptr ? *found : json::array();
  return StrCat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n"
      "<title>plo compare</title>\n<style>",
      kStyle, "</style>\n</head>\n<body>\n<h1>plo compare</h1>\n",
      SummaryTable(comparison),
      "<p class=\"note\">Device peak of the worst rank; saving against the "
      "first variant; equal bits: the same losses and param digest as the "
      "first.</p>\n",
      MemoryChart(variants, "device", "Device memory at the peak"),
      MemoryChart(variants, "pinned", "Pinned host memory"),
      LossChart(variants), TransferTable(variants), ConfigSection(variants),
      "</body>\n</html>\n");
}

}  // namespace plo
