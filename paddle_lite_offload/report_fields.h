// Reading of the objects that `train --json` writes, whatever they lack.
#ifndef PLO_PADDLE_LITE_OFFLOAD_REPORT_FIELDS_H_
#define PLO_PADDLE_LITE_OFFLOAD_REPORT_FIELDS_H_

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace plo {

// Null when a key of the path is missing or its value is null.
const nlohmann::json* FindField(const nlohmann::json& object,
                                std::initializer_list<const char*> path);
std::optional<double> NumberField(const nlohmann::json& object,
                                  std::initializer_list<const char*> path);
// Empty when missing.
std::string StringField(const nlohmann::json& object, const char* key);

// Measured where a run measured it, else planned.
std::optional<double> DevicePeakBytes(const nlohmann::json& variant);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_REPORT_FIELDS_H_
