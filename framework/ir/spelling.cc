#include "framework/ir/spelling.h"

#include <algorithm>
#include <cstddef>

namespace plo {
namespace {

// Insertions, deletions and replacements that turn one into the other.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1,
                         diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

std::string DidYouMean(std::string_view name,
                       const std::vector<std::string>& candidates) {
  std::string near;
  for (const std::string& candidate : candidates) {
    if (EditDistance(candidate, name) >
        (name.size() < 5 ? 1 : std::max<size_t>(2, name.size() / 4))) {
      continue;
    }
    near += (near.empty() ? "'" : " or '") + candidate + "'";
  }
  return near.empty() ? "" : "; did you mean " + near + "?";
}

}  // namespace plo
