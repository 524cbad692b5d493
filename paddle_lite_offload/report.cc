#include "paddle_lite_offload/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "framework/ir/error.h"
#include "paddle_lite_offload/report_fields.h"

namespace plo {
namespace {

using nlohmann::json;

std::string EqualBits(const json& variant, const json& base) {
  const json* digest = FindField(variant, {"param_digest"});
  const json* base_digest = FindField(base, {"param_digest"});
  if (digest == nullptr || base_digest == nullptr) return "-";
  const json* losses = FindField(variant, {"losses"});
  const json* base_losses = FindField(base, {"losses"});
  const bool same_losses = losses != nullptr && base_losses != nullptr
                               ? *losses == *base_losses
                               : losses == base_losses;
  return *digest == *base_digest && same_losses ? "yes" : "no";
}

std::string Cell(const char* format, const std::optional<double>& value,
                 double scale = 1) {
  if (!value || !std::isfinite(*value)) return "-";
  char text[64];
  std::snprintf(text, sizeof(text), format, *value * scale);
  return text;
}

}  // namespace

const json* FindField(const json& object,
                      std::initializer_list<const char*> path) {
  const json* at = &object;
  for (const char* key : path) {
    if (!at->is_object()) return nullptr;
    const auto found = at->find(key);
    if (found == at->end() || found->is_null()) return nullptr;
    at = &*found;
  }
  return at;
}

std::optional<double> NumberField(const json& object,
                                  std::initializer_list<const char*> path) {
  const json* field = FindField(object, path);
  if (field == nullptr || !field->is_number()) return std::nullopt;
  return field->get<double>();
}

std::string StringField(const json& object, const char* key) {
  const json* field = FindField(object, {key});
  return field != nullptr && field->is_string() ? field->get<std::string>()
                                                : "";
}

std::optional<double> DevicePeakBytes(const json& variant) {
  const auto measured =
      NumberField(variant, {"memory", "device", "measured_peak_bytes"});
  if (measured) return measured;
  return NumberField(variant, {"memory", "device", "planned_peak_bytes"});
}

std::string JsonText(const json& value) {
  return value.dump(2, ' ', /*ensure_ascii=*/false,
                    json::error_handler_t::replace) +
         "\n";
}

json MakeComparison(
    const std::vector<std::pair<std::string, nlohmann::json>>& variants) {
  PLO_ENFORCE(!variants.empty(), kInvalidArgument, "no variants to compare");
  json list = json::array();
  json ratios = json::object();
  const auto base_peak = DevicePeakBytes(variants.front().second);
  for (const auto& [name, object] : variants) {
    PLO_ENFORCE(!ratios.contains(name), kInvalidArgument,
                "two variants are named \"", name, "\"");
    json variant = object;
    variant["name"] = name;
    list.push_back(std::move(variant));
    const auto peak = DevicePeakBytes(object);
    ratios[name] = peak && base_peak && *base_peak > 0
                       ? json(1 - *peak / *base_peak)
                       : json(nullptr);
  }
  return {{"variants", std::move(list)},
          {"device_peak_saving_ratio", std::move(ratios)}};
}

std::vector<std::vector<std::string>> ComparisonCells(const json& comparison) {
  std::vector<std::vector<std::string>> rows = {{"variant", "device peak MiB",
                                                 "saving", "step ms",
                                                 "tokens/s", "equal bits"}};
  const json* variants = FindField(comparison, {"variants"});
  if (variants == nullptr || variants->empty()) return rows;
  const json& base = variants->front();
  for (const json& variant : *variants) {
    const std::string name = StringField(variant, "name");
    const std::string error = StringField(variant, "error");
    if (!error.empty()) {
      rows.push_back({name, error});
      continue;
    }
    const bool is_base = &variant == &base;
    const auto saving =
        NumberField(comparison, {"device_peak_saving_ratio", name.c_str()});
    rows.push_back({name,
                    Cell("%.1f", DevicePeakBytes(variant), 1.0 / (1 << 20)),
                    is_base ? "-" : Cell("%.1f %%", saving, 100),
                    Cell("%.1f", NumberField(variant, {"step_ms", "median"})),
                    Cell("%.0f", NumberField(variant, {"tokens_per_second"})),
                    is_base ? "-" : EqualBits(variant, base)});
  }
  return rows;
}

std::string FormatComparisonTable(const json& comparison) {
  const auto rows = ComparisonCells(comparison);
  const size_t columns = rows.front().size();
  std::vector<size_t> widths(columns);
  for (const auto& row : rows) {
    if (row.size() < columns) {
      widths[0] = std::max(widths[0], row[0].size());
      continue;
    }
    for (size_t c = 0; c < columns; ++c) {
      widths[c] = std::max(widths[c], row[c].size());
    }
  }
  std::string table;
  for (const auto& row : rows) {
    // Names are left-aligned, numbers right-aligned.
    std::string line = row[0] + std::string(widths[0] - row[0].size(), ' ');
    if (row.size() < columns) {
      line += "  failed: " + row[1];
    } else {
      for (size_t c = 1; c < columns; ++c) {
        line += std::string(2 + widths[c] - row[c].size(), ' ') + row[c];
      }
    }
    table += line + "\n";
  }
  return table;
}

}  // namespace plo
