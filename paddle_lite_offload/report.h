// What `plo compare` shows: a table on the terminal, a JSON object for scripts,
// an HTML page for people.
#ifndef PLO_PADDLE_LITE_OFFLOAD_REPORT_H_
#define PLO_PADDLE_LITE_OFFLOAD_REPORT_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace plo {

// {"variants": [{"name", ...}], "device_peak_saving_ratio": {NAME: ratio}} from
// the names and the objects that `train --json` writes, the base first. The
// ratio is the share of the base's device peak that the variant does not need;
// null where a peak is missing. A variant that failed is {"error": text}.
// Throws InvalidArgument without variants or when two have one name.
nlohmann::json MakeComparison(
    const std::vector<std::pair<std::string, nlohmann::json>>& variants);

// Both take what MakeComparison returns; what a variant lacks shows as "-".
// Equal bits: the same losses and the same param digest as the base.
//
// variant  device peak MiB  saving  step ms  tokens/s  equal bits
// base               812.4       -    310.2     13204           -
// full               401.9  50.5 %    322.8     12689         yes
std::string FormatComparisonTable(const nlohmann::json& comparison);
// A page that needs nothing else: the table, memory by category, loss curves,
// transfers, and what the configs share and differ in. All text is escaped.
std::string FormatComparisonHtml(const nlohmann::json& comparison);

// Indented, with a line break at the end. Bytes that are not UTF-8, as in a
// path, become the replacement character U+FFFD: JSON cannot hold them.
std::string JsonText(const nlohmann::json& value);

// For both formats: the cells of the table, header first. A failed variant has
// its name and its error only.
std::vector<std::vector<std::string>> ComparisonCells(
    const nlohmann::json& comparison);

// "&" as "&amp;" and so on, for text and quoted attributes.
std::string EscapeHtml(const std::string& text);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_REPORT_H_
